"""What the figures of an attack on several clients say, in one of three sentences.

============================  ====================================================================================
``recovers data``             samples came back: clearly so of one client, or beyond the spread over all
``recovers labels or          not the samples, but which labels the client has, where these were not granted, or a
attributes only``             sensitive column of its records
``nothing above chance``      no more than an attacker gets who has not seen the message
============================  ====================================================================================

A privacy verdict is about the worst case: one client whose samples are rebuilt is a leak, whatever the mean is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch

from leakgauge.evaluation import METRICS, mean_interval

Verdict = Literal["recovers data", "recovers labels or attributes only", "nothing above chance"]
VERDICTS: tuple[Verdict, ...] = ("recovers data", "recovers labels or attributes only", "nothing above chance")

#: For the metrics that tell of samples: how far above chance one client must be to count by itself, and all on average.
CLEAR = {"psnr": (3.0, 0.5), "features": (0.2, 0.03)}
#: The metrics that tell of labels.
LABELS = ("label_errors", "target_error")
#: The metrics that tell of a sensitive column.
ATTRIBUTES = ("attribute_accuracy",)


@dataclass(frozen=True)
class Figure:
    """One metric over clients: its mean with a 95% interval, beside chance; ``worst`` is the client that leaks most."""

    metric: str
    mean: float
    low: float | None
    high: float | None
    chance: float
    worst: float
    clients: int

    @property
    def better(self) -> str:
        """The attacker's direction."""
        return METRICS[self.metric].better


def summarise(scores: Sequence[Mapping[str, Mapping[str, Any]]]) -> dict[str, Figure]:
    """The figures over clients of ``{metric: {"value": ..., "chance": ...}}`` of each; metrics that all have."""
    names = [name for name in METRICS if scores and all(name in one for one in scores)]
    figures = {}
    for name in names:
        values = torch.tensor([float(one[name]["value"]) for one in scores], dtype=torch.double)
        interval = mean_interval(values, limits=METRICS[name].limits)
        worst = values.max() if METRICS[name].better == "higher" else values.min()
        chance = sum(float(one[name]["chance"]) for one in scores) / len(scores)
        figures[name] = Figure(name, interval.mean, interval.low, interval.high, chance, float(worst), len(scores))
    return figures


def judge(scores: Sequence[Mapping[str, Mapping[str, Any]]], *, labels_granted: bool = False) -> Verdict:
    """The verdict on an attack, from the scores of each client."""
    for metric, (one, all_of_them) in CLEAR.items():
        if any(metric not in score for score in scores):
            continue
        above = torch.tensor([float(score[metric]["value"]) - float(score[metric]["chance"]) for score in scores])
        interval = mean_interval(above)
        low = interval.mean if interval.low is None else interval.low
        if float(above.max()) > one or (interval.mean > all_of_them and low > 0):
            return "recovers data"
    for metric in ATTRIBUTES if labels_granted else (*LABELS, *ATTRIBUTES):
        if all(metric in score for score in scores):
            sign = 1 if METRICS[metric].better == "higher" else -1
            gain = [sign * (float(score[metric]["value"]) - float(score[metric]["chance"])) for score in scores]
            interval = mean_interval(torch.tensor(gain))
            if (interval.mean if interval.low is None else interval.low) > 0:
                return "recovers labels or attributes only"
    return "nothing above chance"


def worst_of(verdicts: Sequence[Verdict]) -> Verdict:
    """The verdict on all attacks together."""
    return min(verdicts, key=VERDICTS.index, default="nothing above chance")
