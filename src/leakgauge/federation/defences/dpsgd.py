r"""DP-SGD (Abadi et al. 2016) by Opacus: the one defence here with a proven guarantee.

At each local step a batch is drawn by Poisson sampling (every sample by itself, with probability :math:`q`), the
gradient of each of its samples is clipped to the norm ``clip``, and Gaussian noise of deviation ``noise * clip`` is
added to their sum. Opacus does all three, and its accountant tells the :math:`(\varepsilon, \delta)` that a client has
spent on each of its samples after all its steps of all its rounds, for a server that sees every one of its messages.
After mixup a sample is part of two gradients, and epsilon is that of the mixtures, not of the samples.
"""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal, get_args

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from leakgauge.core.checks import positive
from leakgauge.core.errors import InvalidInput, MissingExtra, UnknownName
from leakgauge.core.observation import LocalTraining
from leakgauge.core.params import Params, buffers_of, parameters_of
from leakgauge.core.seeding import generator
from leakgauge.federation.defence import Batch, Trained, TrainingDefence, mixes_samples
from leakgauge.federation.training import LOSSES

Accountant = Literal["rdp", "prv"]


@dataclass(frozen=True)
class DPSGD(TrainingDefence):
    """Local training by DP-SGD, with a target ``epsilon`` or with a ``noise`` multiplier.

    With ``epsilon`` the noise is the least for which the client stays below it at the end of its last round, by
    Opacus's search. ``accountant`` is ``"rdp"`` or ``"prv"``, which is tighter and slower.
    """

    epsilon: float | None = None
    noise: float | None = None
    delta: float = 1e-5
    clip: float = 1.0
    accountant: Accountant = "rdp"

    def __post_init__(self) -> None:
        if (self.epsilon is None) == (self.noise is None):
            raise InvalidInput("DP-SGD takes a target epsilon, or the noise multiplier: give one of the two")
        for name in ("epsilon", "noise"):
            if getattr(self, name) is not None:
                positive(f"the {name} of DP-SGD", getattr(self, name))
        positive("the clip of DP-SGD", self.clip)
        positive("the delta of DP-SGD", self.delta)
        if self.delta >= 1:
            raise InvalidInput(
                f"the delta of DP-SGD must be below 1, and far below one over the samples: {self.delta!r}"
            )
        if self.accountant not in get_args(Accountant):
            raise UnknownName("accountant", self.accountant, get_args(Accountant))

    def noise_for(self, training: LocalTraining, participations: int = 1) -> float:
        """The noise multiplier of a client that follows this recipe in so many rounds."""
        if self.noise is not None:
            return self.noise
        assert self.epsilon is not None
        return _noise_for(self.epsilon, self.delta, *_sampling(training, participations), self.accountant)

    def spent(self, training: LocalTraining, participations: int = 1, *, planned: int | None = None) -> float:
        """The epsilon that a client has spent after so many rounds, of those that were ``planned``."""
        accountant = _opacus().accountants.create_accountant(mechanism=self.accountant)
        accountant.history = [
            (self.noise_for(training, planned or participations), *_sampling(training, participations))
        ]
        with _quietly():
            return float(accountant.get_epsilon(delta=self.delta))

    def check(self, model: nn.Module, training: LocalTraining) -> None:
        """Refuse what Opacus cannot train."""
        _opacus()
        if (name := mixes_samples(model)) is not None:
            raise InvalidInput(
                f"DP-SGD cannot train a model with batch norm ({name!r}), whose statistics mix samples; replace it by "
                "group norm, for example by leakgauge.federation.defences.dpsgd.without_batch_norm(model) (Opacus's own fixer)"
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
        """The client's local training."""
        order = []
        with _session(self, model, samples, training, start, self.noise_for(training, participations), seed) as session:
            for _ in range(int(training.need("epochs"))):
                for inputs, targets, rows in session.loader:
                    session.backward(*on_batch((inputs, targets)))
                    session.optimiser.step()
                    order.append(rows)
        return Trained(tuple(order), parameters_of(session.model), buffers_of(session.model))

    def gradient(
        self, model: nn.Module, samples: Batch, training: LocalTraining, start: Trained, participations: int, seed: int
    ) -> Params:
        """The clipped and noisy gradient of all samples."""
        once = LocalTraining(
            samples=training.samples, batch_size=training.samples, epochs=1, loss=training.loss, lr=1.0
        )
        with _session(self, model, samples, once, start, self.noise_for(once, participations), seed) as session:
            for inputs, targets, _ in session.loader:
                session.backward(inputs, targets)
                session.optimiser.pre_step()
        found = {name: value.grad for name, value in session.model.named_parameters()}
        return {name: torch.zeros_like(start.weights[name]) if v is None else v.detach() for name, v in found.items()}


class _Rows(TensorDataset):
    """Samples that are fetched a batch at a time, which an empty one may be."""

    def __getitems__(self, rows: list[int]) -> tuple[torch.Tensor, ...]:
        chosen = torch.tensor(rows, dtype=torch.long)
        return tuple(tensor[chosen] for tensor in self.tensors)


class _Session:
    """A model that Opacus has made private, at work."""

    def __init__(self, private: nn.Module, model: nn.Module, optimiser: Any, loader: Any, loss: Any) -> None:
        self.private, self.model, self.optimiser, self.loader, self.loss = private, model, optimiser, loader, loss

    def backward(self, inputs: torch.Tensor, targets: torch.Tensor) -> None:
        self.optimiser.zero_grad()
        self.loss(self.private(inputs), targets).backward()


@contextmanager
def _session(
    defence: DPSGD, model: nn.Module, samples: Batch, training: LocalTraining, start: Trained, noise: float, seed: int
) -> Iterator[_Session]:
    """Opacus at work on a copy of the model that starts from these weights."""
    own = copy.deepcopy(model).train()
    with torch.no_grad():
        for name, value in (*own.named_parameters(), *own.named_buffers()):
            value.copy_({**start.weights, **start.buffers}[name])
    for module in own.modules():
        if training.mode == "eval" and isinstance(module, nn.modules.dropout._DropoutNd):
            module.eval()
    data = _Rows(*samples, torch.arange(len(samples[0])))
    optimiser = torch.optim.SGD(
        [value for value in own.parameters() if value.requires_grad],
        lr=training.need("lr"),
        momentum=float(training.momentum or 0.0),
        weight_decay=float(training.weight_decay or 0.0),
    )
    loss = LOSSES[training.loss]
    settings = {
        "module": own,
        "optimizer": optimiser,
        "data_loader": DataLoader(
            data, int(training.need("batch_size")), generator=generator(seed, "poisson"), collate_fn=tuple
        ),
        "noise_multiplier": noise,
        "max_grad_norm": defence.clip,
        "noise_generator": generator(seed, "noise"),
    }
    with _quietly():
        engine = _opacus().PrivacyEngine(accountant=defence.accountant)
        if training.loss == "cross_entropy" and only_linear(own):
            settings |= {"criterion": nn.CrossEntropyLoss(), "grad_sample_mode": "ghost"}
            private, optimiser, loss, loader = engine.make_private(**settings)
        else:
            private, optimiser, loader = engine.make_private(**settings)
        yield _Session(private, own, optimiser, loader, loss)


def only_linear(model: nn.Module) -> bool:
    """Whether all that is trained are linear layers, each used as it is.

    For these Opacus finds the norms of the samples' gradients without the gradients (ghost clipping, Li et al. 2022):
    the same training in a fraction of the time.
    """
    trained = [module for module in model.modules() if any(p.requires_grad for p in module.parameters(recurse=False))]
    weights = [value for module in trained for value in module.parameters(recurse=False)]
    return all(type(module) is nn.Linear for module in trained) and len(weights) == len(set(map(id, weights)))


def without_batch_norm(model: nn.Module) -> nn.Module:
    """A copy of a model that DP-SGD can train: batch norm replaced by group norm, by Opacus's fixer."""
    _opacus()
    from opacus.validators import ModuleValidator

    fixed: nn.Module = ModuleValidator.fix(copy.deepcopy(model))
    return fixed


def _sampling(training: LocalTraining, participations: int) -> tuple[float, int]:
    """The rate at which samples are drawn, and the number of steps."""
    batches = len(training.batch_sizes)
    return 1 / batches, batches * int(training.need("epochs")) * participations


@lru_cache
def _noise_for(epsilon: float, delta: float, rate: float, steps: int, accountant: str) -> float:
    _opacus()
    from opacus.accountants.utils import get_noise_multiplier

    with _quietly():
        found = float(
            get_noise_multiplier(
                target_epsilon=epsilon, target_delta=delta, sample_rate=rate, steps=steps, accountant=accountant
            )
        )
    if not math.isfinite(found):
        raise InvalidInput(f"no noise gives epsilon {epsilon} over {steps} steps; use a larger epsilon")
    return found


def _opacus() -> Any:
    try:
        import opacus
        import opacus.accountants
    except ImportError as problem:
        raise MissingExtra("DP-SGD", "opacus", "dpsgd") from problem
    return opacus


@contextmanager
def _quietly() -> Iterator[None]:
    """Without Opacus's warnings: that its random numbers are not those of cryptography, and on hooks."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
