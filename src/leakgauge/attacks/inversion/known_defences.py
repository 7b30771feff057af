"""What an attacker makes of the knowledge which defences a client uses.

Observations may grant the defences as texts, their reprs. These are read as data: a name, and settings that are plain
values. Nothing is imported or run.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from leakgauge.core.errors import MissingKnowledge
from leakgauge.core.observation import Observation

#: Defences after which the length of an update tells nothing.
CLIPPING = ("Clipping", "DPSGD")


@dataclass(frozen=True)
class KnownDefence:
    """A defence as the attacker knows it."""

    name: str
    settings: dict[str, Any] = field(default_factory=dict)

    @property
    def place(self) -> str:
        """Where in the client's round it acts, for those that act on gradients."""
        return str(self.settings.get("on", ""))


def known_defences(observation: Observation) -> list[KnownDefence]:
    """The defences that an observation grants the knowledge of; what cannot be read is passed over."""
    return [found for text in observation.defences or () if (found := read(text)) is not None]


def read(text: str) -> KnownDefence | None:
    """A defence's repr as a name and plain settings."""
    try:
        call = ast.parse(text.strip(), mode="eval").body
        if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name) or call.args:
            return None
        settings = {str(one.arg): ast.literal_eval(one.value) for one in call.keywords}
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        return None
    return KnownDefence(call.func.id, settings)


def pruned_updates(defences: Iterable[KnownDefence]) -> bool:
    """Whether zeros of the update tell nothing: numbers that were left out at random.

    What top-k leaves out is small, and zero is a fair guess of it: an attack that takes the zeros as they are was the
    stronger one.
    """
    return any(one.name == "RandomPruning" and one.place == "update" for one in defences)


def kept_share(defences: Iterable[KnownDefence]) -> float:
    """What share of a gradient is left on average by pruning at random at each step."""
    left = 1.0
    for one in defences:
        if one.name == "RandomPruning" and one.place != "update":
            left *= 1 - float(one.settings.get("probability", 0.0))
    return left


def noise_share(observation: Observation, defences: Iterable[KnownDefence]) -> float:
    """How much of the update's squared norm is noise, as expected from the defences' settings; 0 where unknown."""
    training = observation.training
    try:
        steps = 1 if observation.kind == "gradient" else training.steps
        batch = int(training.need("samples" if observation.kind == "gradient" else "batch_size"))
        lr = 1.0 if observation.kind == "gradient" else training.need("lr")
        update = observation.summed_gradient()
    except MissingKnowledge:
        return 0.0
    numbers = sum(value.numel() for value in update.values())
    whole = sum(float(value.double().square().sum()) for value in update.values())
    variance = 0.0
    for one in defences:
        single = _deviation(one) ** 2
        if one.name == "DPSGD":
            variance += steps * single / batch**2
        else:
            variance += {"samples": steps * single / batch, "gradient": steps * single}.get(one.place, single / lr**2)
    return min(1.0, numbers * variance / whole) if whole > 0 else 0.0


def _deviation(defence: KnownDefence) -> float:
    """The standard deviation of a defence's noise on one number."""
    settings = defence.settings
    if defence.name == "GaussianNoise":
        return float(settings.get("sigma", 0.0))
    if defence.name == "LaplacianNoise":
        return float(2**0.5 * settings.get("scale", 0.0))
    if defence.name == "DPSGD":
        return float((settings.get("noise") or 0.0) * settings.get("clip", 1.0))
    return 0.0
