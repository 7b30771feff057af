"""The proven upper bound on the success of every attack, for defences with a privacy proof.

Attacks show only a lower limit of the leakage, because a better attack may recover more. A proof gives an upper limit,
which no attack exceeds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from leakgauge.core.local_training import LocalTraining
from leakgauge.evaluation.bounds import Bound, dpsgd_bound, epsilon_bound
from leakgauge.federation.client_recipe import Recipe
from leakgauge.federation.defence import BatchDefence, Defence, recipe_with, training_of
from leakgauge.federation.defences.dpsgd import DPSGD, sampling_of
from leakgauge.workflows.scenario import Scenario


def bound_of(
    chain: Sequence[Defence],
    training: LocalTraining,
    prior: float = 0.1,
    participations: int = 1,
    *,
    planned: int | None = None,
) -> Bound | None:
    """Return the bound on the success of every attack on one sample, or ``None`` if the defences have no proof.

    DP-SGD has a proof. Defences that change only the result of DP-SGD keep the proof. Defences that change batches,
    such as mixup, mix several samples, so the proof no longer holds for single samples. Another defence that replaces
    the local training has a proof if it reports a privacy budget and a ``delta``.

    Args:
        chain: The defences of the client.
        training: All settings of the client's training, including those that the attacker does not know.
        prior: The probability that the attacker recovers the sample without the message. It is 1 / N for one of N
            candidates.
        participations: The number of rounds whose messages the attacker sees.
        planned: The number of rounds over which the defence spreads its budget. By default, ``participations``.
    """
    defence = training_of(chain)
    if defence is None or any(isinstance(other, BatchDefence) for other in chain):
        return None
    training = recipe_with(chain, training)
    spent = defence.spent(training, participations, planned=planned)
    if isinstance(defence, DPSGD):
        noise = defence.noise_for(training, planned or participations)
        bound = dpsgd_bound(noise, *sampling_of(training, participations), prior)
        return replace(bound, epsilon=spent, delta=defence.delta)
    delta = getattr(defence, "delta", None)
    return None if spent is None or delta is None else epsilon_bound(spent, float(delta), prior)


def bound_on(scenario: Scenario, chain: Sequence[Defence], prior: float = 0.1) -> Bound | None:
    """Return the bound on the success of every attack on one message of a client of a set-up.

    Args:
        scenario: The set-up.
        chain: The defences of the client.
        prior: The probability that the attacker recovers the sample without the message.
    """
    settings = dict(scenario.loss_and_mode)
    base = settings.pop("recipe", None)
    if scenario.training.get("sends", "weights") == "weights":
        settings |= scenario.recipe
    return bound_of(chain, Recipe(**settings, base=base).for_client(scenario.share(0), scenario.network()), prior)
