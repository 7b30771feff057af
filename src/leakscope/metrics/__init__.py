"""What came back, measured: image similarity, labels, tables, pairing with the truth, the chance level."""

from leakscope.metrics.catalogue import METRICS, Metric
from leakscope.metrics.chance import Chance, blind_guesses
from leakscope.metrics.imputation import imputed
from leakscope.metrics.intervals import Interval, mean_interval, wilson_interval
from leakscope.metrics.label_chance import label_accuracy_chance, label_error_chance, target_error_chance
from leakscope.metrics.labels import attribute_accuracy, label_accuracy, label_errors, recovered, target_error
from leakscope.metrics.model_distance import zest
from leakscope.metrics.pairing import Pairing, pair, psnr_matrix
from leakscope.metrics.perceptual import lpips
from leakscope.metrics.pixels import mse, psnr, ssim
from leakscope.metrics.results import Measure, Score
from leakscope.metrics.ruler import Ruler
from leakscope.metrics.score import Result, score
from leakscope.metrics.tables import features

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
    "attribute_accuracy",
    "blind_guesses",
    "features",
    "imputed",
    "label_accuracy",
    "label_accuracy_chance",
    "label_error_chance",
    "label_errors",
    "lpips",
    "mean_interval",
    "mse",
    "pair",
    "psnr",
    "psnr_matrix",
    "recovered",
    "score",
    "ssim",
    "target_error",
    "target_error_chance",
    "wilson_interval",
    "zest",
]
