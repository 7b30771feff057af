r"""DP-SGD (Abadi et al. 2016), computed by Opacus. It is the only defence here with a proven guarantee.

Each local step has three parts, and Opacus does all of them. A batch is drawn by Poisson sampling, which takes every
sample independently with probability :math:`q`. The gradient of each sample in the batch is clipped to the norm
``clip``. Gaussian noise of standard deviation ``noise * clip`` is added to the sum of the clipped gradients.

The accountant of Opacus computes the :math:`(\varepsilon, \delta)` that a client has spent on each of its samples after
all steps of all its rounds. The accountant assumes a server that sees every message of the client. After mixup, a
sample is part of two gradients. Epsilon then holds for the mixtures, not for the samples.
"""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar, Literal, get_args

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from leakgauge.core.checks import positive
from leakgauge.core.errors import InvalidInput, MissingExtra, UnknownName
from leakgauge.core.observation import LocalTraining
from leakgauge.core.params import Params, buffers_of, parameters_of
from leakgauge.core.seeding import generator
from leakgauge.federation.defence import Batch, Trained, TrainingDefence, mixes_samples
from leakgauge.federation.losses import loss_of, takes_model
from leakgauge.federation.update_rules import UpdateRule

#: The smallest privacy budget and probability for which an accountant can compute the noise.
LEAST_EPSILON, LEAST_DELTA = 1e-3, 1e-30
Accountant = Literal["rdp", "prv"]


@dataclass(frozen=True)
class DPSGD(TrainingDefence):
    """A defence that trains by DP-SGD, with a target ``epsilon`` or with a ``noise`` multiplier.

    Give either ``epsilon`` or ``noise``. With ``epsilon``, Opacus finds the smallest noise with which the client stays
    below this budget until the end of its last round.

    Args:
        epsilon: The privacy budget.
        noise: The noise multiplier.
        delta: The probability that the guarantee fails. It must be far below 1 divided by the number of samples.
        clip: The norm to which the gradient of each sample is clipped.
        accountant: The accountant of Opacus, ``"rdp"`` or ``"prv"``. ``"prv"`` is tighter and slower.
    """

    name: ClassVar[str] = "dpsgd"
    epsilon: float | None = None
    noise: float | None = None
    delta: float = 1e-5
    clip: float = 1.0
    accountant: Accountant = "rdp"

    def __post_init__(self) -> None:
        if (self.epsilon is None) == (self.noise is None):
            raise InvalidInput("DP-SGD takes either a target epsilon or a noise multiplier. Give one of the two.")
        for name in ("epsilon", "noise"):
            if getattr(self, name) is not None:
                positive(f"the {name} of DP-SGD", getattr(self, name), up_to=1e6)
        if self.epsilon is not None and self.epsilon < LEAST_EPSILON:
            raise InvalidInput(f"the epsilon of DP-SGD must be at least {LEAST_EPSILON:g}, not {self.epsilon:g}")
        positive("the clip of DP-SGD", self.clip, up_to=1e6)
        positive("the delta of DP-SGD", self.delta)
        if self.delta < LEAST_DELTA:
            raise InvalidInput(f"the delta of DP-SGD must be at least {LEAST_DELTA:g}, not {self.delta:g}")
        if self.delta >= 1:
            raise InvalidInput(
                f"the delta of DP-SGD must be below 1, and far below one over the samples, not {self.delta!r}"
            )
        if self.accountant not in get_args(Accountant):
            raise UnknownName("accountant", self.accountant, get_args(Accountant))

    def noise_for(self, training: LocalTraining, participations: int = 1) -> float:
        """Return the noise multiplier with which a client trains.

        Args:
            training: The recipe of the client's training, such as the learning rate and the number of epochs.
            participations: The number of rounds in which the client takes part overall.
        """
        if self.noise is not None:
            return self.noise
        assert self.epsilon is not None
        return _noise_for(self.epsilon, self.delta, *sampling_of(training, participations), self.accountant)

    def spent(self, training: LocalTraining, participations: int = 1, *, planned: int | None = None) -> float:
        """Return the privacy budget (epsilon) that a client has spent.

        Args:
            training: The recipe of the client's training, such as the learning rate and the number of epochs.
            participations: The number of rounds in which the client has taken part.
            planned: The number of rounds over which the budget is spread. By default, ``participations``.
        """
        accountant = _opacus().accountants.create_accountant(mechanism=self.accountant)
        accountant.history = [
            (self.noise_for(training, planned or participations), *sampling_of(training, participations))
        ]
        with _without_warnings():
            return float(accountant.get_epsilon(delta=self.delta))

    def check(self, model: nn.Module, training: LocalTraining) -> None:
        """Raise an error if Opacus cannot train the model with these training settings."""
        _opacus()
        for name in ("clip_norm", "proximal", "accumulation", "schedule", "local_steps"):
            if getattr(training, name) != getattr(LocalTraining, name):
                raise InvalidInput(f"DP-SGD cannot be combined with {name} in the recipe. Leave {name} out.")
        if takes_model(loss_of(training)):
            raise InvalidInput("DP-SGD needs a loss of outputs and targets, not one that calls the model itself")
        layer = mixes_samples(model)
        if layer is not None:
            raise InvalidInput(
                f"DP-SGD cannot train a model with batch norm (layer {layer!r}), whose statistics mix samples. Replace "
                "it by group norm, for example with leakgauge.federation.defences.dpsgd.without_batch_norm(model)."
            )
        from opacus.validators import ModuleValidator

        problems = ModuleValidator.validate(copy.deepcopy(model).train(), strict=False)
        if problems:
            raise InvalidInput(f"DP-SGD cannot train this model: {problems[0]}")

    def train(
        self,
        model: nn.Module,
        samples: Batch,
        training: LocalTraining,
        start: Trained,
        participations: int,
        seed: int,
        on_batch: Callable[[Batch], Batch],
    ) -> Trained:
        """Train one client by DP-SGD. The arguments are the same as in the base class."""
        order = []
        noise = self.noise_for(training, participations)
        with _session(self, model, samples, training, start, noise, seed) as session:
            for _ in range(int(training.need("epochs"))):
                for inputs, targets, rows in session.loader:
                    session.backward(*on_batch((inputs, targets)))
                    session.optimiser.step()
                    order.append(rows)
        return Trained(tuple(order), parameters_of(session.model), buffers_of(session.model))

    def gradient(
        self, model: nn.Module, samples: Batch, training: LocalTraining, start: Trained, participations: int, seed: int
    ) -> Params:
        """Return the clipped and noisy gradient of all samples."""
        once = LocalTraining(
            samples=training.samples,
            batch_size=training.samples,
            epochs=1,
            loss=training.loss,
            lr=1.0,
            label_smoothing=training.label_smoothing,
        )
        with _session(self, model, samples, once, start, self.noise_for(once, participations), seed) as session:
            for inputs, targets, _ in session.loader:
                session.backward(inputs, targets)
                session.optimiser.pre_step()
        return {
            name: torch.zeros_like(start.weights[name]) if value.grad is None else value.grad.detach()
            for name, value in session.model.named_parameters()
        }


class _Rows(TensorDataset):
    """A dataset that returns all samples of a batch in one call. A batch may be empty."""

    def __getitems__(self, rows: list[int]) -> tuple[torch.Tensor, ...]:
        chosen = torch.tensor(rows, dtype=torch.long)
        return tuple(tensor[chosen] for tensor in self.tensors)


class _Session:
    """A model that Opacus has made private, with its optimiser, loader and loss."""

    def __init__(self, private: nn.Module, model: nn.Module, optimiser: Any, loader: Any, loss: Any) -> None:
        self.private, self.model, self.optimiser, self.loader, self.loss = private, model, optimiser, loader, loss

    def backward(self, inputs: torch.Tensor, targets: torch.Tensor) -> None:
        self.optimiser.zero_grad()
        self.loss(self.private(inputs), targets).backward()


@contextmanager
def _session(
    defence: DPSGD, model: nn.Module, samples: Batch, training: LocalTraining, start: Trained, noise: float, seed: int
) -> Iterator[_Session]:
    """Yield a session of Opacus on a copy of the model with the weights of ``start``."""
    copied = _copy(model, training, start)
    data = _Rows(*samples, torch.arange(len(samples[0])))
    optimiser = _optimiser(training, [value for value in copied.parameters() if value.requires_grad])
    loss = loss_of(training)
    settings = {
        "module": copied,
        "optimizer": optimiser,
        "data_loader": DataLoader(
            data, int(training.need("batch_size")), generator=generator(seed, "poisson"), collate_fn=tuple
        ),
        "noise_multiplier": noise,
        "max_grad_norm": defence.clip,
        "noise_generator": generator(seed, "noise"),
    }
    with _without_warnings():
        engine = _opacus().PrivacyEngine(accountant=defence.accountant)
        if training.loss == "cross_entropy" and only_linear(copied):
            criterion = nn.CrossEntropyLoss(label_smoothing=float(training.label_smoothing or 0.0))
            settings |= {"criterion": criterion, "grad_sample_mode": "ghost"}
            private, optimiser, loss, loader = engine.make_private(**settings)
        else:
            private, optimiser, loader = engine.make_private(**settings)
        yield _Session(private, copied, optimiser, loader, loss)


def _optimiser(training: LocalTraining, weights: list[nn.Parameter]) -> torch.optim.Optimizer:
    """Return the torch optimiser that the training settings describe."""
    lr, decay = training.need("lr"), float(training.weight_decay or 0.0)
    if training.is_sgd:
        momentum, dampening = float(training.momentum or 0.0), float(training.dampening or 0.0)
        return torch.optim.SGD(weights, lr, momentum, dampening, decay, bool(training.nesterov))
    kind = torch.optim.AdamW if training.optimiser == "adamw" else torch.optim.Adam
    rule = UpdateRule.of(training)
    return kind(weights, lr=lr, betas=rule.betas, eps=rule.eps, weight_decay=decay)


def _copy(model: nn.Module, training: LocalTraining, start: Trained) -> nn.Module:
    """Return a copy of the model with the weights of ``start``.

    The copy is in train mode, which Opacus needs. If the training settings require eval mode, only the dropout layers
    are in eval mode.
    """
    copied = copy.deepcopy(model).train()
    with torch.no_grad():
        for name, value in (*copied.named_parameters(), *copied.named_buffers()):
            value.copy_({**start.weights, **start.buffers}[name])
    for module in copied.modules():
        if training.mode == "eval" and isinstance(module, nn.modules.dropout._DropoutNd):
            module.eval()
    return copied


def only_linear(model: nn.Module) -> bool:
    """Return whether all trained layers are linear and no two of them share weights.

    For such a model, Opacus computes the norms of the samples' gradients without computing the gradients themselves
    (ghost clipping, Li et al. 2022). The trained weights are the same, and training takes a fraction of the time.
    """
    trained = [module for module in model.modules() if any(p.requires_grad for p in module.parameters(recurse=False))]
    weights = [value for module in trained for value in module.parameters(recurse=False)]
    return all(type(module) is nn.Linear for module in trained) and len(weights) == len(set(map(id, weights)))


def without_batch_norm(model: nn.Module) -> nn.Module:
    """Return a copy of a model for DP-SGD, in which Opacus has replaced batch norm by group norm."""
    _opacus()
    from opacus.validators import ModuleValidator

    fixed: nn.Module = ModuleValidator.fix(copy.deepcopy(model))
    return fixed


def sampling_of(training: LocalTraining, participations: int) -> tuple[float, int]:
    """Return the probability that one step draws a given sample, and the number of steps in all rounds.

    Args:
        training: The settings of the client's training.
        participations: The number of rounds in which the client takes part.
    """
    batches = len(training.batch_sizes)
    return 1 / batches, batches * int(training.need("epochs")) * participations


@lru_cache
def _noise_for(epsilon: float, delta: float, rate: float, steps: int, accountant: str) -> float:
    _opacus()
    from opacus.accountants.utils import get_noise_multiplier

    target = {"target_epsilon": epsilon, "target_delta": delta}
    try:
        with _without_warnings():
            noise = float(get_noise_multiplier(**target, sample_rate=rate, steps=steps, accountant=accountant))
    except ValueError as problem:
        raise InvalidInput(
            f"the accountant {accountant!r} finds no noise for epsilon {epsilon} over {steps} steps ({problem}). Use a "
            'larger epsilon, or accountant = "prv", whose bound is tighter.'
        ) from problem
    if not math.isfinite(noise):
        raise InvalidInput(f"no noise gives epsilon {epsilon} over {steps} steps. Use a larger epsilon.")
    return noise


def _opacus() -> Any:
    try:
        import opacus
        import opacus.accountants
    except ImportError as problem:
        raise MissingExtra("DP-SGD", "opacus", "dpsgd") from problem
    return opacus


@contextmanager
def _without_warnings() -> Iterator[None]:
    """Silence Opacus's warnings about hooks and about random numbers that are not cryptographically secure."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
