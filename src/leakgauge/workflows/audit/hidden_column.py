"""The sensitive column of a client's records, inferred from its message: an attack of the audit on tables.

The attacker knows everything of the records but that column, as in LMRA's attribute inference: where the message is one
gradient, its equations are solved; else the values are sought whose gradient points where the client went.
"""

from __future__ import annotations

import time
from typing import Any

from torch import Tensor

from leakgauge.attacks.attribute import PublicRecords, by_equations, by_gradient
from leakgauge.attacks.local_model.messages import steps_in
from leakgauge.core.observation import Observation
from leakgauge.core.progress import Report
from leakgauge.core.truth import Truth
from leakgauge.evaluation import METRICS, attribute_accuracy, imputed, wilson_interval
from leakgauge.evaluation.results import Measure

NAME = "attribute_inference"
METRIC = "attribute_accuracy"


def infer_column(observation: Observation, truth: Truth, column: str, report: Report) -> dict[str, Any]:
    """Infer a column of zeros and ones of the records behind a message; how many are right, beside the best guess
    without it (:func:`guess`).
    """
    began = time.perf_counter()
    records = PublicRecords.hiding(truth.inputs, truth.targets, truth.data, column)
    training = observation.training
    exact = steps_in(observation) == 1 and (observation.kind == "gradient" or training.lr is not None)
    method = by_equations if exact else by_gradient
    found = method([observation], records, report=report)
    right = attribute_accuracy(found.choice.cpu(), _values(truth.inputs, records))
    share = wilson_interval(float(right.sum()), len(right))
    chance, how = guess(records, truth)
    metric = METRICS[METRIC]
    measure = Measure(METRIC, share.mean, share.low, share.high, chance, how, metric.better, len(right), metric.unit)
    return {
        "scores": {METRIC: measure.to_row()},
        "outcome": found.outcome,
        "loss": None,
        "seconds": time.perf_counter() - began,
        "attack": f"{NAME}(column={column!r})",
        "client": observation.client,
        "threat_model": [
            *observation.threat_model(),
            f"For {NAME} it knows the client's records and their targets, all but the column {column!r}.",
        ],
        "notes": [],
    }


def guess(records: PublicRecords, truth: Truth) -> tuple[float, str]:
    """The share of a hidden column that is right without any message, and by which guess: always the client's more
    frequent value, or what the other columns tell (:func:`leakgauge.evaluation.imputed`) where that is right more often.
    """
    secret = _values(truth.inputs, records)
    share = float(secret.double().mean())
    best = max(share, 1 - share), "always the more frequent value"
    if truth.reference_inputs is None or truth.reference_targets is None:
        return best
    name = records.data.columns[records.columns[0]]
    others = PublicRecords.hiding(truth.reference_inputs, truth.reference_targets, truth.data, name)
    told = imputed(records.known(), others.known(), _values(truth.reference_inputs, others))
    columns = float((told == secret).double().mean())
    return (columns, "what the other columns tell") if columns > best[0] else best


def _values(inputs: Tensor, records: PublicRecords) -> Tensor:
    return inputs[:, records.columns[0]].round().long().cpu()
