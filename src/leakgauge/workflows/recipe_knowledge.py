"""The attacker's lack of knowledge of the clients' training, as it limits what a failed attack shows.

An unknown setting is not 0. An attack assumes a usual value for it, and if the client has another one, the attack
simulates another training and finds nothing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from leakgauge.core.observation import Observation
from leakgauge.evaluation.recipe_check import RecipeCheck
from leakgauge.workflows.capture_results import AttackedCapture

#: A search is called stuck if its last loss is at least this share of its first loss.
STUCK = 0.3
#: The settings without which attacks estimate a value, as opposed to assuming a usual one.
ESTIMATED = {"samples", "epochs", "batch_size", "lr"}


def unknown_settings(observation: Observation) -> tuple[str, ...]:
    """Return the names of the settings that have an effect on a message, and that the attacker does not know.

    Args:
        observation: The message.
    """
    settings = observation.training.listed(one_gradient=observation.kind == "gradient")
    return tuple(name for name, value in settings.items() if value is None)


def unchecked_settings(attacked: Sequence[AttackedCapture]) -> list[str]:
    """Return the unknown settings of captures whose recipe was not found to be right with the usual values.

    Args:
        attacked: The captures.
    """
    names = [name for one in attacked if not _is_right(one.capture.check) for name in one.capture.unknown]
    return list(dict.fromkeys(names))


def weakness(attacked: Sequence[AttackedCapture]) -> str:
    """Return why attacks on captures may have failed for a lack of knowledge of the recipe, or an empty text.

    Args:
        attacked: The captures with scores.
    """
    for one in attacked:
        check, truth = one.capture.check, one.capture.truth
        if truth is not None and truth.trained is not None:
            return (
                "The client trained on other versions of its samples in each epoch, such as flipped ones. The attack "
                "does not simulate this, so it may have failed for this reason alone."
            )
        if check is not None and check.explained and check.causes:
            return (
                f"The client trained with {' and '.join(check.causes)}, which the attack did not know. A real attacker "
                "may guess it. Supply it with --know."
            )
        if check is not None and check.explained is None and math.isfinite(check.residual):
            return check.sentence
    names = [name for name in unchecked_settings(attacked) if name not in ESTIMATED]
    if names:
        return f"The recipe could not be checked, and the attack assumed usual values of {', '.join(names)}."
    return ""


def knowledge_sentences(attacked: Sequence[AttackedCapture]) -> list[str]:
    """Return sentences about what of the recipes is unknown, and about searches that may have simulated a wrong one.

    Args:
        attacked: The captures.
    """
    found = []
    names = unchecked_settings(attacked)
    if names:
        found.append(f"Unknown of the clients' training, and not checked: {', '.join(names)}.")
    stuck = [one for one in attacked if one.score is None and one.capture.check is None and _is_stuck(one)]
    if stuck:
        which = f"{stuck[0].capture.client} in round {stuck[0].reconstruction.round}"
        more = f" and {len(stuck) - 1} further captures" if len(stuck) > 1 else ""
        found.append(
            f"The search on {which}{more} ended at a loss of {stuck[0].reconstruction.loss:.2g}, which is high. It had "
            "too few steps, or the recipe is not the client's. Check the learning rate, the optimiser and the "
            "normalisation, or supply the clients' samples to check the recipe."
        )
    return found


def _is_right(check: RecipeCheck | None) -> bool:
    """Return whether a recipe was found to be right, with the usual values of what is unknown."""
    return check is not None and bool(check.explained) and not check.causes


def _is_stuck(one: AttackedCapture) -> bool:
    """Return whether the loss of a search stayed high."""
    trace, loss = one.reconstruction.trace, one.reconstruction.loss
    if trace is None or trace.losses.numel() < 2:
        return False
    first = float(trace.losses.reshape(-1)[0])
    return first > 0 and loss >= STUCK * first
