"""The self-test of an audit, which repeats its own simulation of a client.

Attacks simulate a client's training with the recipe in the observation. If this recipe did not describe what the
federation simulated, every attack would fail, and the failure would show nothing. The first client's training is
therefore repeated from its observation and its samples, and must give the same message.
"""

from __future__ import annotations

from dataclasses import replace

from leakgauge.evaluation.recipe_check import RecipeCheck, check_recipe
from leakgauge.workflows.scenario import Scenario

#: The largest number of replays. One is enough, unless there are dropout layers.
REPLAYS = 12


def self_test(scenario: Scenario) -> RecipeCheck:
    """Return whether the simulation of the first client without a defence can be repeated from its observation.

    Args:
        scenario: The set-up. What it hides from the attacker is not hidden from the self-test.
    """
    shown = replace(scenario, attacker={**scenario.attacker, "hidden": []})
    return check_recipe(*shown.observe(0), most=REPLAYS)


def sentence_of(check: RecipeCheck) -> str:
    """Return the result of the self-test as a sentence.

    Args:
        check: The result.
    """
    if check.explained is None:
        return f"Self-test: not possible, because {check.not_checked}."
    if check.explained:
        return f"Self-test: the simulated training was repeated with a relative distance of {check.residual:.1g}."
    return (
        f"Self-test failed: repeating the simulated training gives another message (relative distance "
        f"{check.residual:.2g}), so attacks that find nothing show nothing. Please report this."
    )
