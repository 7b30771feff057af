"""The sensitive column of a client's records, inferred from its message: an attack of the audit on tables.

The attacker knows everything of the records but that column, as in LMRA's attribute inference: where the message is one
gradient, its equations are solved; else the values are sought whose gradient points where the client went.
"""

from __future__ import annotations

import time
from typing import Any

from leakscope.inference.attribute import PublicRecords, by_equations, by_gradient
from leakscope.inference.messages import steps_in
from leakscope.metrics import METRICS, attribute_accuracy, wilson_interval
from leakscope.metrics.results import Measure
from leakscope.observation import Observation
from leakscope.progress import Report
from leakscope.truth import Truth

NAME = "attribute_inference"
METRIC = "attribute_accuracy"


def infer_column(observation: Observation, truth: Truth, column: str, report: Report) -> dict[str, Any]:
    """Infer a column of zeros and ones of the records behind a message; how many are right, beside the best guess
    without it: the client's more frequent value.
    """
    began = time.perf_counter()
    records = PublicRecords.hiding(truth.inputs, truth.targets, truth.data, column)
    training = observation.training
    exact = steps_in(observation) == 1 and (observation.kind == "gradient" or training.lr is not None)
    method = by_equations if exact else by_gradient
    found = method([observation], records, report=report)
    secret = truth.inputs[:, truth.data.columns.index(column)]
    right = attribute_accuracy(found.choice.cpu(), secret.round().long())
    share = wilson_interval(float(right.sum()), len(right))
    frequent = float(max(secret.mean(), 1 - secret.mean()))
    metric = METRICS[METRIC]
    measure = Measure(
        METRIC, share.mean, share.low, share.high, frequent, "always the more frequent value", metric.better,
        len(right), metric.unit,
    )  # fmt: skip
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
