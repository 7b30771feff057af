"""The metrics of benchmark rows. Audits use some of them too. The others occur only in the papers' tables."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from leakgauge.core.measure import Direction, Measure
from leakgauge.evaluation import METRICS, Interval, mean_interval, wilson_interval


@dataclass(frozen=True)
class RowMetric:
    """The properties of a metric of a benchmark row.

    Args:
        direction: ``"higher"`` if high values are good for the attacker, otherwise ``"lower"``.
        limits: The lowest and the highest possible value.
        unit: The unit, such as dB.
        cost: Whether the metric is a cost of the attack, such as seconds. A cost depends on the machine or the
            optimiser.
    """

    direction: Direction = "higher"
    limits: tuple[float, float] = (0.0, math.inf)
    unit: str = ""
    cost: bool = False


_SHARE = (0.0, 1.0)
_ROW_METRICS: dict[str, RowMetric] = {
    "matching_rate": RowMetric(limits=_SHARE),
    "unexplained": RowMetric("lower"),
    "asr": RowMetric(limits=_SHARE),
    "failures_noticed": RowMetric(limits=_SHARE),
    "iterations": RowMetric("lower", cost=True),
    "evaluations": RowMetric("lower", cost=True),
    "seconds_in_all": RowMetric("lower", unit="s", cost=True),
    "zest": RowMetric(limits=(-1.0, 1.0)),
    **dict.fromkeys(("zest_recipe", "zest_converged", "zest_published"), RowMetric(limits=(-1.0, 1.0))),
    "zest_gain": RowMetric(limits=(-2.0, 2.0)),
    "accuracy": RowMetric(limits=_SHARE),
    "mape": RowMetric("lower"),
    "aia": RowMetric(limits=_SHARE),
    "aia_prior": RowMetric(limits=_SHARE),
    **dict.fromkeys(("sia", "sia_10", "sia_client"), RowMetric(limits=_SHARE)),
    **dict.fromkeys(("sia_gain", "aia_gain"), RowMetric(limits=(-1.0, 1.0))),
    "relative_error": RowMetric("lower"),
    "worst_relative_error": RowMetric("lower"),
    "relative_bound": RowMetric("lower"),
    "within_bound": RowMetric(limits=_SHARE),
}


def row_metric(name: str) -> RowMetric:
    """Return the properties of the metric with the given name.

    A variant of a metric has the properties of that metric. There are three kinds of variants: the mean over recovered
    samples only (``mse_of_recovered``), an extreme over recovered samples (``iterations_max_of_recovered``), and the
    metric with a data range of 0 (``ssim_range0``).

    >>> row_metric("ssim_range0_of_recovered").direction
    'higher'
    """
    if name.startswith("speedup_over_"):
        return RowMetric(cost=True)
    base = name.removesuffix("_of_recovered").removesuffix("_range0")
    for extreme in ("_max", "_min", "_sd"):
        base = base.removesuffix(extreme)
    if base in _ROW_METRICS:
        return _ROW_METRICS[base]
    metric = METRICS[base]
    return RowMetric(metric.direction, metric.limits, metric.unit)


def mean_of(name: str, values: Tensor, chance: float | None = None) -> Measure:
    """Return the mean over clients as a measure with Student's t interval.

    Args:
        name: The name of the metric.
        values: One value for each client.
        chance: The mean chance level of these clients.
    """
    return _measure(name, mean_interval(values, limits=row_metric(name).limits), len(values), chance)


def share_of(name: str, successes: float, clients: int, chance: float | None = None) -> Measure:
    """Return the share of clients that have some property, as a measure with Wilson's interval.

    Args:
        name: The name of the metric.
        successes: The number of clients with the property.
        clients: The number of all clients.
        chance: The mean chance level of these clients.
    """
    return _measure(name, wilson_interval(successes, clients), clients, chance)


def single(name: str, value: float, clients: int = 1, chance: float | None = None) -> Measure:
    """Return a measure that holds one value and no interval.

    Args:
        name: The name of the metric.
        value: The value of the metric.
        clients: The number of clients that the value was computed from.
        chance: The chance level of the metric.
    """
    return _measure(name, Interval(value, None, None), clients, chance)


def over_clients(measures: list[dict[str, Measure]]) -> dict[str, Measure]:
    """Return the mean of each metric over clients that were attacked one by one.

    Args:
        measures: For each client, a dictionary from metrics to measures. All clients have the same metrics.
    """
    combined = {}
    for name in measures[0]:
        each = [client[name] for client in measures]
        chances = [measure.chance for measure in each if measure.chance is not None]
        chance = sum(chances) / len(chances) if len(chances) == len(each) else None
        combined[name] = mean_of(name, torch.tensor([measure.value for measure in each]), chance)
    return combined


def _measure(name: str, interval: Interval, clients: int, chance: float | None) -> Measure:
    metric = row_metric(name)
    return Measure(
        name,
        interval.mean,
        interval.low,
        interval.high,
        chance=chance,
        n=clients,
        of="clients",
        direction=metric.direction,
        unit=metric.unit,
    )
