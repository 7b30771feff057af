"""The description of an attack, with its factory, the rule for when it applies, its cost and its audit options.

Each attack declares its description as ``SPECS``, in the same file as its factory. The registry and the audit know
attacks only through these descriptions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import IntEnum
from functools import wraps
from typing import Any, Literal, NamedTuple, get_args

from leakgauge.attacks.analytic.lookups import lookups_of
from leakgauge.attacks.inversion.fragility import KINKED
from leakgauge.attacks.unknown_rate import as_direction, one_step_of_unknown_rate, with_rate
from leakgauge.core.errors import UnknownName
from leakgauge.core.observation import Observation
from leakgauge.core.one_gradient import why_no_gradient

#: The private thing that an attack recovers.
Recovers = Literal["samples", "attribute", "source", "model"]
#: The messages that an attack reads. They are one message, the updates of several epochs of one client, or many rounds
#: of one client or of several.
Reads = Literal["update", "epochs", "rounds"]


class Cost(IntEnum):
    """The rough time that an attack with its default options takes for a small client on a laptop."""

    INSTANT = 0
    SECONDS = 1
    MINUTES = 2
    HOURS = 3


class Fit(NamedTuple):
    """The decision whether an attack applies to an observation, with the reason in words.

    Args:
        applies: Whether the attack applies.
        reason: A phrase for people, such as "made for local training, and this is one gradient".
    """

    applies: bool
    reason: str


#: A rule that decides from an observation whether an attack applies.
Fits = Callable[[Observation], Fit]


@dataclass(frozen=True, eq=False, kw_only=True)
class AttackSpec:
    """The description of one attack.

    Args:
        name: The name in configuration files and on the command line.
        factory: The function that returns the attack. Its keyword arguments are the options.
        summary: One line for ``leakgauge list attacks``. It names the paper.
        recovers: The private thing that the attack recovers, such as ``"samples"`` or ``"attribute"``.
        reads: The messages that the attack reads, which are one ``"update"``, several ``"epochs"`` or many
            ``"rounds"``.
        fits: The rule that decides whether the attack applies to an observation.
        cost: The rough time that the attack takes. An audit runs cheap attacks first.
        rank: The order among attacks of the same cost, lowest first. Attacks of the same rank are ordered by name.
        audit: The options in a default audit. ``None`` leaves the attack out of a default audit.
        exact: Whether the attack solves equations for the samples and recognises its own success. The outcome of such
            an attack is of the kind ``"converged"`` only if the attack has found every sample.
        malicious: Whether the attack needs a server that sends weights of its own making.
        takes_direction: Whether the attack needs no more than the direction of a gradient. It then also applies to one
            step of SGD with an unknown learning rate (:mod:`leakgauge.attacks.unknown_rate`).
        takes_lookups: Whether the attack recovers values that the model looks up in an embedding. Any other attack on
            samples does not apply to such values, because a lookup has no derivative.
        needs_public: Whether the attack learns from public data (:func:`leakgauge.public_data`). Its chance level is
            then what public data show without the message, such as the mean of each class.
    """

    name: str
    factory: Callable[..., Any]
    summary: str
    recovers: Recovers = "samples"
    reads: Reads = "update"
    fits: Fits
    cost: Cost
    rank: int = 100
    audit: Mapping[str, Any] | None = None
    exact: bool = False
    malicious: bool = False
    takes_lookups: bool = False
    takes_direction: bool = False
    needs_public: bool = False

    def __post_init__(self) -> None:
        if self.recovers == "samples" and self.reads == "update":
            object.__setattr__(self, "fits", any_rate(self.fits, self.takes_direction))
            if not self.takes_lookups:
                object.__setattr__(self, "fits", real_samples(self.fits))
        for field, value, valid in (
            ("recovers", self.recovers, get_args(Recovers)),
            ("reads", self.reads, get_args(Reads)),
        ):
            if value not in valid:
                raise UnknownName(f"value of {field} in the description of {self.name}", value, valid)

    @property
    def order(self) -> tuple[int, int, str]:
        """The sort key by which an audit orders attacks, cheapest first."""
        return (self.cost, self.rank, self.name)


def real_samples(rule: Fits) -> Fits:
    """Return a rule that refuses messages whose samples are no real numbers, and otherwise decides as another rule.

    Args:
        rule: The other rule.
    """

    @wraps(rule)
    def decide(observation: Observation) -> Fit:
        obstacle = lookups_of(observation).obstacle
        return Fit(False, obstacle) if obstacle else rule(observation)

    return decide


def any_rate(rule: Fits, takes_direction: bool) -> Fits:
    """Return a rule that also accepts one step of SGD with an unknown learning rate, if the attack can do without it.

    Args:
        rule: The rule for messages with a known learning rate.
        takes_direction: Whether the attack needs no more than the direction of a gradient.
    """

    @wraps(rule)
    def decide(observation: Observation) -> Fit:
        if not one_step_of_unknown_rate(observation):
            return rule(observation)
        solved = with_rate(observation)
        if solved is not observation:
            fit = rule(solved)
            return Fit(fit.applies, f"{fit.reason}. The last layer shows the unknown learning rate")
        fit = rule(observation)
        if fit.applies or not takes_direction:
            return fit
        fit = rule(as_direction(observation))
        return Fit(fit.applies, f"{fit.reason}. One step of an unknown rate shows the direction of the gradient")

    return decide


def always(reason: str) -> Fits:
    """Return a function that accepts every message, for attacks that always apply.

    Args:
        reason: The phrase about the attack that is shown to people.
    """
    return lambda observation: Fit(True, reason)


def simulated(reason: str) -> Fits:
    """Return a function that accepts gradients, and local training with a known learning rate.

    Args:
        reason: The phrase about the attack that is shown to people if the attack applies.
    """

    def rule(observation: Observation) -> Fit:
        if observation.kind == "weights" and observation.training.lr is None:
            return Fit(False, "needs the client's learning rate, which is unknown")
        return Fit(True, reason)

    return rule


def one_gradient(observation: Observation) -> Fit:
    """Decide whether an attack on a single gradient applies, and warn if the model is piecewise linear.

    One local step of SGD counts as a gradient (:mod:`leakgauge.core.one_gradient`).
    """
    reason = why_no_gradient(observation, length=False)
    if reason is not None:
        return Fit(False, f"made for one gradient, and {reason}")
    if any(isinstance(module, KINKED) for module in observation.model.modules()):
        return Fit(True, "for one gradient; known to be fragile with piecewise linear layers such as this model's")
    return Fit(True, "made for one gradient of a smooth network")


def local_training(reason: str) -> Fits:
    """Return a function that decides whether an attack on local training applies to a message.

    The attack needs weights after local training, and a known learning rate.

    Args:
        reason: The phrase about the attack that is shown to people if the attack applies.
    """

    def rule(observation: Observation) -> Fit:
        if observation.kind == "gradient":
            return Fit(False, "made for local training, and this is one gradient")
        if observation.training.lr is None:
            return Fit(False, "needs the client's learning rate, which is unknown")
        return Fit(True, reason)

    return rule
