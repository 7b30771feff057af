"""The two models that a server has without any attack, as baselines for the attacks (LMRA, section 4, table 1)."""

from __future__ import annotations

from dataclasses import dataclass

from leakgauge.attacks.local_model.base import Estimate, LocalModelAttack, needs_step_length
from leakgauge.attacks.local_model.messages import Messages, weight_updates_of
from leakgauge.attacks.spec import AttackSpec, Cost, always
from leakgauge.core.progress import Report


@dataclass(frozen=True)
class GlobalModel(LocalModelAttack):
    """A baseline that uses the server's latest model as the client's local model (LMRA, section 4)."""

    def run(self, messages: Messages, seed: int, report: Report) -> Estimate:
        """Return the last model that the server sent."""
        return Estimate(messages.sent[-1], f"the model that the server sent in round {messages.last.round}")


@dataclass(frozen=True)
class LastReturned(LocalModelAttack):
    """A baseline that uses the model that the client returned last as its local model (LMRA, section 4)."""

    def run(self, messages: Messages, seed: int, report: Report) -> Estimate:
        """Return the last model that the client returned."""
        return Estimate(
            messages.sent[-1] + weight_updates_of(messages)[-1],
            f"the model that the client returned in round {messages.last.round}",
        )


SPECS = (
    AttackSpec(
        name="global",
        factory=GlobalModel,
        summary="The server's latest model, a baseline for a client's local model (LMRA, Driouich et al., table 1).",
        recovers="model",
        reads="rounds",
        fits=always("a baseline for any model"),
        cost=Cost.INSTANT,
        rank=1,
    ),
    AttackSpec(
        name="last_returned",
        factory=LastReturned,
        summary="The model that the client returned last, a baseline for its local model (LMRA, table 1).",
        recovers="model",
        reads="rounds",
        fits=needs_step_length("a baseline for any model"),
        cost=Cost.INSTANT,
        rank=2,
    ),
)
