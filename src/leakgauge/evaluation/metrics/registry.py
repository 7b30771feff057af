"""The table of all metrics, with their names, units and directions."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from leakgauge.core.measure import Direction
from leakgauge.evaluation.metrics.bags_of_tokens import token_agreement
from leakgauge.evaluation.metrics.perceptual import lpips
from leakgauge.evaluation.metrics.pixels import mse, psnr, ssim
from leakgauge.evaluation.metrics.tables import exact_rows, features
from leakgauge.evaluation.metrics.targets import (
    attribute_accuracy,
    label_accuracy,
    label_errors,
    recovered,
    target_error,
)

_SHARE = (0.0, 1.0)


@dataclass(frozen=True)
class Metric:
    """One metric, with its function and its properties.

    Args:
        function: The function that computes the metric.
        direction: ``"higher"`` if high values are good for the attacker, otherwise ``"lower"``.
        unit: The unit, such as dB.
        description: The meaning of the metric, for people.
        limits: The lowest and the highest possible value.
    """

    function: Callable[..., Any]
    direction: Direction
    unit: str
    description: str
    limits: tuple[float, float] = (0.0, math.inf)


METRICS: dict[str, Metric] = {
    "psnr": Metric(psnr, "higher", "dB", "peak signal-to-noise ratio, 0 to 100 (an exact copy)", (0.0, 100.0)),
    "ssim": Metric(ssim, "higher", "", "structural similarity, 1 for an exact copy", (-1.0, 1.0)),
    "mse": Metric(mse, "lower", "", "mean squared error of pixels in [0, 1], or of normalised table columns"),
    "lpips": Metric(lpips, "lower", "", "learned perceptual distance (AlexNet), 0 for an exact copy"),
    "recovered": Metric(recovered, "higher", "share", "share of images with a PSNR above the threshold", _SHARE),
    "features": Metric(features, "higher", "share", "share of a table row's features recovered (TabLeak)", _SHARE),
    "rows": Metric(exact_rows, "higher", "share", "share of a table's rows that came back exactly", _SHARE),
    "tokens": Metric(
        token_agreement, "higher", "F1", "agreement of the set of recovered tokens with the client's set", _SHARE
    ),
    "label_errors": Metric(label_errors, "lower", "labels", "wrong labels, in any order"),
    "label_accuracy": Metric(label_accuracy, "higher", "share", "share of samples paired with the right label", _SHARE),
    "attribute_accuracy": Metric(
        attribute_accuracy, "higher", "share", "share of records whose sensitive value was inferred", _SHARE
    ),
    "source_accuracy": Metric(
        attribute_accuracy, "higher", "share", "share of records whose owner was inferred", _SHARE
    ),
    "target_error": Metric(target_error, "lower", "", "absolute error of numbers, or wrong share of labels and masks"),
}
