"""The client's defences as far as the attacker knows them.

An observation may contain the client's defences as texts, each of which is the ``repr`` of a defence. A text is parsed
into a name and settings with plain values. Nothing is imported or executed.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from leakgauge.core.errors import MissingKnowledge
from leakgauge.core.observation import Observation

#: Defences that hide the length of an update.
CLIPPING = ("Clipping", "DPSGD")

#: The largest number of a setting. Its square is a finite number.
HUGE = 1e70


@dataclass(frozen=True)
class KnownDefence:
    """A defence as the attacker knows it.

    Args:
        name: The name of the defence's class.
        settings: A dictionary from the name of each setting to its value.
    """

    name: str
    settings: dict[str, Any] = field(default_factory=dict)

    @property
    def place(self) -> str:
        """The stage of the client's round at which the defence acts, or an empty text if no stage is set."""
        return str(self.settings.get("on", ""))


def known_defences(observation: Observation) -> list[KnownDefence]:
    """Return the defences that the attacker knows. Texts that cannot be parsed are ignored."""
    return [defence for text in observation.defences or () if (defence := read(text)) is not None]


def read(text: str) -> KnownDefence | None:
    """Parse the repr of a defence into a name and plain settings, or return ``None`` if the text cannot be parsed."""
    try:
        call = ast.parse(text.strip(), mode="eval").body
        if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name) or call.args:
            return None
        settings = {str(keyword.arg): ast.literal_eval(keyword.value) for keyword in call.keywords}
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        return None
    return KnownDefence(call.func.id, settings)


def pruned_updates(defences: Iterable[KnownDefence]) -> bool:
    """Return whether the client prunes its update at random, so that a zero in the update is a missing value.

    The result is false for top-k pruning, which leaves out small entries. Zero is then a good estimate of a missing
    value. An attack that used these zeros was stronger than an attack that ignored them.
    """
    return any(defence.name == "RandomPruning" and defence.place == "update" for defence in defences)


def kept_share(defences: Iterable[KnownDefence]) -> float:
    """Return the average share of a gradient's entries that random pruning keeps at each step."""
    left = 1.0
    for defence in defences:
        if defence.name == "RandomPruning" and defence.place != "update":
            left *= 1 - _number(defence, "probability", 0.0)
    return left


def noise_share(observation: Observation, defences: Iterable[KnownDefence]) -> float:
    """Return the expected share of the update's squared norm that is noise, or 0 if this share is unknown.

    Args:
        observation: The message of the client.
        defences: The defences that the attacker knows.
    """
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
    for defence in defences:
        single = _deviation(defence) ** 2
        if defence.name == "DPSGD":
            variance += steps * single / batch**2
        else:
            by_place = {"samples": steps * single / batch, "gradient": steps * single}
            variance += by_place.get(defence.place, single / lr**2)
    return min(1.0, numbers * variance / whole) if whole > 0 else 0.0


def _deviation(defence: KnownDefence) -> float:
    """Return the standard deviation of the noise that a defence adds to each entry."""
    if defence.name == "GaussianNoise":
        return _number(defence, "sigma", 0.0)
    if defence.name == "LaplacianNoise":
        return 2**0.5 * _number(defence, "scale", 0.0)
    if defence.name == "DPSGD":
        return _number(defence, "noise", 0.0) * _number(defence, "clip", 1.0)
    return 0.0


def _number(defence: KnownDefence, name: str, default: float) -> float:
    """Return a setting of a defence as a number of at most :data:`HUGE`. Captures of strangers may name any number."""
    value = defence.settings.get(name, default)
    try:
        return max(-HUGE, min(float(value or 0.0), HUGE))
    except OverflowError:  # a whole number that no float can hold
        return HUGE
