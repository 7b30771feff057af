"""The measurement of leakage, with metrics, a pairing of reconstructions with originals, chance levels and verdicts."""

from leakgauge.core.measure import Measure
from leakgauge.evaluation.chance import Chance, blind_guesses
from leakgauge.evaluation.imputation import imputed
from leakgauge.evaluation.intervals import Interval, mean_interval, wilson_interval
from leakgauge.evaluation.label_chance import label_accuracy_chance, label_error_chance, target_error_chance
from leakgauge.evaluation.metrics.model_distance import zest, zest_published
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
from leakgauge.evaluation.pairing import Pairing, pair, psnr_matrix
from leakgauge.evaluation.ruler import Ruler
from leakgauge.evaluation.score import Result, Score, score
from leakgauge.evaluation.verdict import Verdict, judge, over_clients, worst_of

__all__ = [
    "METRICS",
    "Chance",
    "Interval",
    "Measure",
    "Metric",
    "Pairing",
    "Result",
    "Ruler",
    "Score",
    "Verdict",
    "attribute_accuracy",
    "blind_guesses",
    "features",
    "imputed",
    "judge",
    "label_accuracy",
    "label_accuracy_chance",
    "label_error_chance",
    "label_errors",
    "lpips",
    "mean_interval",
    "mse",
    "over_clients",
    "pair",
    "psnr",
    "psnr_matrix",
    "recovered",
    "score",
    "ssim",
    "target_error",
    "target_error_chance",
    "wilson_interval",
    "worst_of",
    "zest",
    "zest_published",
]
