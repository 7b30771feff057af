"""The attack that infers a hidden attribute with a model of the client (LMRA, equation 3)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from leakgauge.attacks.attribute.base import for_tables
from leakgauge.attacks.attribute.records import Attributes, PublicRecords
from leakgauge.attacks.local_model.base import LocalModel
from leakgauge.attacks.spec import AttackSpec, Cost, always
from leakgauge.core.errors import InvalidInput
from leakgauge.core.observation import Observation
from leakgauge.core.progress import Report, silent


def by_model(model: LocalModel, records: PublicRecords, prior: Sequence[float] | None = None) -> Attributes:
    r"""Infer for each record the value with which the model fits the target best.

    This is equation 3 of LMRA (Yeom et al. 2018). With a prior, the score of a value :math:`s` is the logarithm of
    :math:`P(s) P(y_i | p_i, s)` (Fredrikson et al. 2014). Here :math:`p_i` is the public part of record i, and
    :math:`y_i` is its target. The residuals of a regression are then assumed to be Gaussian.

    Args:
        model: A model of the client.
        records: The records, without the sensitive attribute.
        prior: The shares of the values in the population, if the attacker knows these shares.
    """
    with torch.no_grad():
        outputs = [model.probabilities(records.with_value(value)) for value in range(len(records.values))]
    targets = records.targets_like(outputs[0])
    distances = torch.stack([(output - targets).square().sum(1) for output in outputs], dim=1)
    scores = -distances
    if prior is not None:
        if records.data.classes is None:
            scores = -distances / (2 * distances.min(1).values.mean().clamp_min(1e-30))
        else:
            likelihoods = [(output * targets).sum(1) for output in outputs]
            scores = torch.stack(likelihoods, dim=1).clamp_min(1e-30).log()
        scores = scores + records.shares(prior).to(scores).log()
    coefficient = _coefficient(model, records, outputs)
    outcome = "each record alone, on the model"
    if coefficient is not None:
        outcome += (
            f". The attribute moves every prediction by {coefficient:.4g}, so at least 1 - 4 E / {coefficient**2:.4g} "
            "of the records are right, where E is the model's mean squared error on them (proposition 4)"
        )
    return Attributes(scores.argmax(1), scores, records.values, coefficient, outcome)


def _coefficient(model: LocalModel, records: PublicRecords, outputs: Sequence[Tensor]) -> float | None:
    """Return by how much the output of a regression changes if a binary attribute takes its other value.

    The result is ``None`` if the model is a classifier, if the attribute is not binary, or if the difference may vary
    between records.
    """
    if records.data.classes is not None or len(records.values) != 2 or len(records.columns) != 1:
        return None
    effects = (outputs[1] - outputs[0]).squeeze(1)
    constant = float(effects.std(correction=0)) <= 1e-4 * float(effects.abs().mean())
    return float(effects.mean()) if constant and not model.has_statistics else None


@dataclass(frozen=True)
class AttributeByModel:
    """The attack :func:`by_model` as a class, so that the registry can build it by name.

    Args:
        prior: The shares of the values in the population, if the attacker knows these shares.
    """

    prior: Sequence[float] | None = None

    def __call__(
        self,
        rounds: Sequence[Observation],
        records: PublicRecords,
        *,
        model: LocalModel | None = None,
        report: Report = silent,
    ) -> Attributes:
        """Infer the attribute with the client's rebuilt model."""
        if model is None:
            raise InvalidInput(
                "attribute_by_model needs a model of the client; rebuild one from its rounds with "
                "leakgauge.attacks.local_model.Distilled() and pass it as model=..."
            )
        return by_model(model, records, self.prior)


SPECS = (
    AttackSpec(
        name="attribute_by_model",
        factory=AttributeByModel,
        summary="The value with which the client's rebuilt model predicts the target best (LMRA, equation 3).",
        recovers="attribute",
        reads="rounds",
        fits=for_tables(always("works with any model of the client")),
        cost=Cost.INSTANT,
        rank=1,
    ),
)
