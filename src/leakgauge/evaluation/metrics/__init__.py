"""The metrics. Each metric is a function of samples and their originals. ``METRICS`` maps names to metrics."""

from leakgauge.evaluation.metrics.model_distance import zest
from leakgauge.evaluation.metrics.perceptual import lpips
from leakgauge.evaluation.metrics.pixels import mse, psnr, ssim
from leakgauge.evaluation.metrics.registry import METRICS, Metric
from leakgauge.evaluation.metrics.tables import features
from leakgauge.evaluation.metrics.targets import (
    attribute_accuracy,
    label_accuracy,
    label_errors,
    recovered,
    target_error,
)

__all__ = [
    "METRICS",
    "Metric",
    "attribute_accuracy",
    "features",
    "label_accuracy",
    "label_errors",
    "lpips",
    "mse",
    "psnr",
    "recovered",
    "ssim",
    "target_error",
    "zest",
]
