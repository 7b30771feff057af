"""The base class of attacks on a client's local model, and the model that such an attack returns."""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import final

import torch
from torch import Tensor, nn
from torch.func import functional_call

from leakgauge.attacks.local_model.messages import Messages
from leakgauge.attacks.requirements import Simulation, Workload, check_requirements
from leakgauge.attacks.spec import Fit, Fits
from leakgauge.core.errors import InvalidInput
from leakgauge.core.observation import DataSpec, Observation
from leakgauge.core.params import Params, buffers_of
from leakgauge.core.progress import Report, progress_bar
from leakgauge.core.seeding import seeded
from leakgauge.federation.training import in_mode


@dataclass(frozen=True, eq=False)
class LocalModel:
    """An estimate of the model that a client would have trained alone. Call it with samples in their original units.

    Args:
        model: The architecture.
        weights: The estimated weights.
        buffers: The batch-norm statistics. ``None`` if the client withheld them. The model then uses the statistics of
            the samples that it is called with.
        data: The shape, the classes and the normalisation of the samples.
        loss: The name of the client's loss.
        outcome: A description of the result in words.
        uncertainty: The attack's own estimate of the distance between these weights and the client's optimum. ``None``
            if the attack gives no such estimate.
        figures: A dictionary of other named numbers that the attack measured.
        client: The name of the client.
        method: The ``repr`` of the attack.
        rounds: The number of rounds that the attack read.
        seconds: The time that the attack took.
    """

    model: nn.Module = field(repr=False)
    weights: Params = field(repr=False)
    buffers: Params | None = field(repr=False)
    data: DataSpec
    loss: str
    outcome: str
    uncertainty: float | None = None
    figures: dict[str, float] = field(default_factory=dict)
    client: str = "client"
    method: str = ""
    rounds: int = 1
    seconds: float = 0.0

    @property
    def state(self) -> Params:
        """The weights and buffers with which the architecture is run."""
        return {**self.weights, **(buffers_of(self.model) if self.buffers is None else self.buffers)}

    def __call__(self, samples: Tensor) -> Tensor:
        """Return the outputs of the model, which are class scores or the predictions of a regression."""
        like = next(iter(self.weights.values()))
        inputs = self.data.normalise(samples.to(like))
        with in_mode(self.model, "train" if self.buffers is None and self.has_statistics else "eval"):
            outputs: Tensor = functional_call(self.model, self.state, (inputs,))
        return outputs

    @property
    def has_statistics(self) -> bool:
        """Whether the architecture has buffers, such as the statistics of batch norm."""
        return any(True for _ in self.model.buffers())

    def probabilities(self, samples: Tensor) -> Tensor:
        """Return the class probabilities, (N, classes), or the predictions of a regression, (N, 1).

        In LMRA, this function is called h.
        """
        outputs = self(samples).reshape(len(samples), -1)
        if self.data.classes is None:
            return outputs
        if outputs.shape[1] == 1:
            positive = outputs.sigmoid()
            return torch.cat((1 - positive, positive), dim=1)
        return outputs.softmax(1)

    def losses(self, samples: Tensor, targets: Tensor) -> Tensor:
        """Return the loss of each record, (N,).

        The loss is the cross-entropy, or the squared error for a regression.
        """
        if self.data.classes is None:
            outputs = self(samples)
            return (outputs.reshape(targets.shape) - targets.to(outputs)).square().reshape(len(samples), -1).mean(1)
        probabilities = self.probabilities(samples)
        likelihoods = probabilities.gather(1, targets.to(probabilities.device).unsqueeze(1)).squeeze(1)
        return -likelihoods.clamp_min(1e-30).log()


@dataclass(frozen=True, eq=False)
class Estimate:
    """The weights that :meth:`LocalModelAttack.run` returns.

    Args:
        vector: The weights as one flat vector.
        outcome: A description of the result in words.
        uncertainty: The attack's own estimate of the distance between these weights and the client's optimum. ``None``
            if the attack gives no such estimate.
        figures: A dictionary of other named numbers that the attack measured.
    """

    vector: Tensor
    outcome: str
    uncertainty: float | None = None
    figures: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class LocalModelAttack(ABC):
    """An attack that rebuilds a client's local model from many rounds.

    Subclasses implement :meth:`run`. Calling the attack checks the rounds, seeds the random generators, calls
    :meth:`run` and measures the time. Subclasses are frozen dataclasses. The fields are the settings of the attack, and
    the ``repr`` records these settings.
    """

    @final
    def __call__(
        self, observations: Sequence[Observation], *, seed: int = 0, progress: bool | Report | None = None
    ) -> LocalModel:
        """Rebuild the local model of one client.

        Args:
            observations: The observations of this client, one per round, in any order.
            seed: The seed of all random draws. The same seed gives the same model.
            progress: Whether a progress bar is shown, or a function ``report(step, total, loss)``. By default, a bar is
                shown if standard error is a terminal.
        """
        messages = Messages.read(observations)
        dummies = getattr(self, "samples", 1)
        check_requirements(messages.last, Workload(dummies, dummies, Simulation(graphs=dummies)))
        began = time.perf_counter()
        with (
            seeded(seed, "local model"),
            progress_bar(f"rebuilding the model of {messages.last.client}", progress) as report,
        ):
            estimate = self.run(messages, seed, report)
        if not bool(torch.isfinite(estimate.vector).all()):
            raise InvalidInput(
                f"{self!r} ended with NaN or Inf; the client's rounds are too noisy or too few for it, so pass more "
                "rounds or use another method"
            )
        last = messages.last
        return LocalModel(
            last.model,
            messages.unflatten(estimate.vector.detach().clone()),  # A view would keep all rounds in memory.
            _last_buffers(last),
            last.data,
            last.training.loss,
            estimate.outcome,
            estimate.uncertainty,
            estimate.figures,
            last.client,
            repr(self),
            len(messages),
            time.perf_counter() - began,
        )

    @abstractmethod
    def run(self, messages: Messages, seed: int, report: Report) -> Estimate:
        """Estimate the client's local model.

        Args:
            messages: The messages of the client.
            seed: The seed of this run. The generators of torch are already seeded with it.
            report: A function ``report(step, total, loss)`` that shows progress.
        """


def _last_buffers(last: Observation) -> Params | None:
    """Return the latest known batch-norm statistics, or ``None`` if the client withheld them."""
    if last.returned_buffers is not None:
        return last.returned_buffers
    if last.buffers is not None:
        return last.buffers
    has_buffers = any(True for _ in last.model.buffers())
    return None if has_buffers else {}


def needs_step_length(reason: str) -> Fits:
    """Return a function that decides whether an attack applies. It is for attacks that need changes of the weights.

    The attack does not apply if clients send gradients and the learning rate is unknown, because the gradients then
    cannot be converted to changes of the weights.

    Args:
        reason: The phrase about the attack that is shown to people if the attack applies.
    """

    def rule(observation: Observation) -> Fit:
        if observation.kind == "gradient" and observation.training.lr is None:
            return Fit(
                False, "needs the learning rate, because the rounds are gradients and the server's step is unknown"
            )
        return Fit(True, reason)

    return rule


def relative(part: float, whole: float) -> float:
    """Return ``part / whole``, or infinity if ``whole`` is zero."""
    return part / whole if whole > 0 else math.inf
