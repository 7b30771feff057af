r"""Attacks by a malicious server, which sends one client weights of its own making, round after round.

An honest-but-curious server only reads messages. A malicious server also chooses what it sends. It can keep one client
away from the federation, and ask this client again and again how it would change a model. The models then move to the
client's own optimum :math:`\theta_c^*` (Diana, Xu, Neglia, "Attribute Inference Attacks for Federated Regression
Tasks", AAAI 2025, with LMRA's question).

=====================  ==============================================================================================
:class:`ActiveAdam`    takes ``sent - returned`` as a gradient, and sends the client the result of a step of Adam
:class:`Isolation`     sends the client the weights that it returned in the last round
=====================  ==============================================================================================

An attack consists of two parts. :meth:`ActiveServer.next_weights` is what the server does in a live federation
(:class:`leakgauge.federation.steering.Steering`). The call of the attack estimates the client's model from the recorded
messages. Observations of such rounds name the rule in ``steered``, and every report calls the server malicious.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from leakgauge.attacks.local_model.base import Estimate, LocalModelAttack
from leakgauge.attacks.local_model.messages import Messages
from leakgauge.attacks.spec import AttackSpec, Cost, Fit, Fits
from leakgauge.core.checks import positive
from leakgauge.core.errors import InvalidInput
from leakgauge.core.observation import Observation
from leakgauge.core.params import Params
from leakgauge.core.progress import Report


@dataclass(frozen=True)
class ActiveServer(LocalModelAttack):
    """The base class of malicious servers that send a client weights of their own making.

    Subclasses set ``rule`` and implement :meth:`after`.

    Attributes:
        rule: The name of the rule, which observations of steered rounds hold in ``steered``.
    """

    rule: ClassVar[str] = ""

    def next_weights(self, observations: Sequence[Observation], current: Params) -> Params:
        """Return the weights that the server sends to the client in the next round.

        Args:
            observations: The client's recorded messages so far.
            current: The weights that an honest server would send. The first steered round starts from them.
        """
        steered = [observation for observation in observations if observation.steered == self.rule]
        if not steered:
            return current
        messages = Messages.read(steered)
        return messages.unflatten(self.after(messages.sent, -messages.updates))

    def run(self, messages: Messages, seed: int, report: Report) -> Estimate:
        """Return the weights that the server would send next, which are its best estimate of the client's optimum."""
        steered = [observation for observation in messages.observations if observation.steered == self.rule]
        if not steered:
            raise InvalidInput(
                f"{self.rule} needs rounds in which the server steered the client, and there is none. Run them with "
                "run_federation(..., steering=Steering(...))"
            )
        rounds = Messages.read(steered)
        lengths = rounds.updates.norm(dim=1)
        outcome = (
            f"a malicious server steered the client for {len(rounds)} rounds. The length of its update went from "
            f"{float(lengths[0]):.3g} to {float(lengths[-1]):.3g}"
        )
        return Estimate(self.after(rounds.sent, -rounds.updates), outcome, None, {"last_update": float(lengths[-1])})

    @abstractmethod
    def after(self, sent: Tensor, changes: Tensor) -> Tensor:
        """Return the next weights as a flat vector.

        Args:
            sent: The weights that the server sent in the steered rounds, (rounds, parameters).
            changes: The differences ``sent - returned`` (or the gradients) of these rounds, (rounds, parameters).
        """


@dataclass(frozen=True)
class ActiveAdam(ActiveServer):
    """A malicious server that descends the client's loss with Adam on the client's own answers.

    Each round is one step, so the number of rounds decides how near the server comes to the client's optimum.

    Args:
        lr: The learning rate of Adam.
        betas: The decay rates of Adam's two moments.
        eps: The number that is added to the denominator of Adam.
    """

    rule: ClassVar[str] = "active_adam"
    lr: float = 3e-3
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8

    def __post_init__(self) -> None:
        positive("the learning rate of active_adam", self.lr)
        positive("the eps of active_adam", self.eps)
        if not all(0 <= beta < 1 for beta in self.betas):
            raise InvalidInput(f"betas must be at least 0 and below 1, not {self.betas}")

    def after(self, sent: Tensor, changes: Tensor) -> Tensor:
        """Return the weights after one more step of Adam. Its moments are computed again from all steered rounds."""
        first, second = (self._moment(changes**power, beta) for power, beta in zip((1, 2), self.betas, strict=True))
        step: Tensor = first / (second.sqrt() + self.eps)
        return sent[-1] - self.lr * step

    def _moment(self, values: Tensor, beta: float) -> Tensor:
        """Return the mean of all rounds with weights that decay into the past, without Adam's bias towards zero."""
        ages = torch.arange(len(values) - 1, -1, -1, dtype=values.dtype, device=values.device)
        weights = beta**ages
        return (weights / weights.sum()) @ values


@dataclass(frozen=True)
class Isolation(ActiveServer):
    """A malicious server that sends a client its own weights, so that the client trains alone."""

    rule: ClassVar[str] = "isolation"

    def after(self, sent: Tensor, changes: Tensor) -> Tensor:
        """Return the weights that the client returned last."""
        return sent[-1] - changes[-1]


def _needs_steered_rounds(rule: str) -> Fits:
    def fits(observation: Observation) -> Fit:
        if observation.steered != rule:
            return Fit(False, "needs rounds in which a malicious server steered the client by this rule")
        return Fit(True, "a malicious server steered the client in these rounds")

    return fits


SPECS = (
    AttackSpec(
        name="active_adam",
        factory=ActiveAdam,
        summary="A malicious server: Adam on one client's own answers (Diana et al., AAAI 2025).",
        recovers="model",
        reads="rounds",
        fits=_needs_steered_rounds("active_adam"),
        cost=Cost.INSTANT,
        rank=3,
        malicious=True,
    ),
    AttackSpec(
        name="isolation",
        factory=Isolation,
        summary="A malicious server: one client gets its own weights back, so that it trains alone.",
        recovers="model",
        reads="rounds",
        fits=_needs_steered_rounds("isolation"),
        cost=Cost.INSTANT,
        rank=4,
        malicious=True,
    ),
)
