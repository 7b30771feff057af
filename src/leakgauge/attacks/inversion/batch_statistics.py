r"""The means and variances of a client's batches, which batch norm in train mode reveals.

A batch-norm layer with momentum :math:`m` mixes the statistics :math:`b_t` of each batch into its running statistics
:math:`r`, by :math:`r_t = (1 - m)\,r_{t-1} + m\,b_t`. A server that sees :math:`r` before and after :math:`T` steps can
compute

.. math:: \bar b = \frac{r_T - (1 - m)^T r_0}{1 - (1 - m)^T}.

For one step, :math:`\bar b` is exactly the mean and the variance of the client's batch at this layer. For several
steps, :math:`\bar b` is a weighted mean over the steps. The attack computes the same mean for its dummy samples, and
compares the two layer by layer. Yin et al. (CVPR 2021) compare with the running statistics of the trained network
instead, which belong to other samples.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from leakgauge.core.errors import MissingKnowledge
from leakgauge.core.observation import Observation
from leakgauge.core.params import Params

#: The mean and the variance of each channel.
Statistics = tuple[Tensor, Tensor]


@dataclass(frozen=True, eq=False)
class Layer:
    """One batch-norm layer with its observed statistics.

    Args:
        module: The layer.
        momentum: The weight of a new batch in the running statistics.
        mean: The observed mean of the client's batches.
        variance: The observed variance of the client's batches.
    """

    module: nn.Module
    momentum: float
    mean: Tensor
    variance: Tensor

    def distance(self, batches: list[Statistics]) -> Tensor:
        """Return the distance between the statistics of dummy batches and the observed statistics.

        The differences of the means and of the standard deviations are divided by the observed standard deviation.
        Their squares are added and averaged over the channels.

        Args:
            batches: The statistics of each dummy batch, in the order of the local steps.
        """
        count = len(batches)
        weights = [(1 - self.momentum) ** (count - 1 - step) for step in range(count)]
        mean, variance = (
            torch.stack([weight * batch[part] for weight, batch in zip(weights, batches, strict=True)]).sum(0)
            / sum(weights)
            for part in (0, 1)
        )
        shift = (mean - self.mean).square() / self.variance
        ratio = (variance / self.variance).clamp_min(1e-6).sqrt()
        return (shift + (ratio - 1).square()).mean()


class BatchStatistics:
    """A comparison of the batch statistics that a client's message reveals with the batch statistics of dummy samples.

    Args:
        layers: The batch-norm layers with their observed statistics.
    """

    def __init__(self, layers: list[Layer]) -> None:
        self.layers = layers
        self._seen: dict[nn.Module, list[Statistics]] = {}

    @contextmanager
    def recorded(self) -> Iterator[None]:
        """Record the batch statistics of every forward pass inside the ``with`` block."""
        self._seen = {layer.module: [] for layer in self.layers}
        handles = [layer.module.register_forward_pre_hook(self._record) for layer in self.layers]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def _record(self, module: nn.Module, given: tuple[Any, ...]) -> None:
        inputs = given[0]
        channels = inputs.transpose(0, 1).flatten(1)
        self._seen[module].append((channels.mean(1), channels.var(1)))

    def distance(self) -> Tensor | None:
        """Return the distance between recorded and observed statistics, averaged over layers.

        The result is ``None`` if no forward pass was recorded.
        """
        distances = [layer.distance(batches) for layer in self.layers if (batches := self._seen.get(layer.module))]
        return torch.stack(distances).mean() if distances else None


def revealed_statistics(observation: Observation) -> BatchStatistics | None:
    """Return the batch statistics that a message reveals, or ``None`` if there are none.

    A message reveals batch statistics under two conditions. The model has batch norm in train mode with running
    statistics, and the server sees the running statistics before and after the round.

    Args:
        observation: The client's message (gradient or weights), as the server sees it.
    """
    before, after = observation.buffers, observation.returned_buffers
    if observation.training.mode != "train" or not before or not after:
        return None
    try:
        steps = 1 if observation.kind == "gradient" else observation.training.steps
    except MissingKnowledge:
        return None
    layers = []
    for name, module in observation.model.named_modules():
        if isinstance(module, _BatchNorm) and module.track_running_stats and module.momentum:
            layers.append(_layer(module, f"{name}." if name else "", before, after, steps))
    known = [layer for layer in layers if layer is not None]
    return BatchStatistics(known) if known else None


def _layer(module: _BatchNorm, prefix: str, before: Params, after: Params, steps: int) -> Layer | None:
    """Return a batch-norm layer with its observed statistics, or ``None`` if the client did not update them."""
    momentum = float(module.momentum or 0.0)
    kept = (1 - momentum) ** steps
    names = [prefix + part for part in ("running_mean", "running_var")]
    if all(torch.equal(after[name], before[name]) for name in names):
        return None
    mean, variance = ((after[name] - kept * before[name]) / (1 - kept) for name in names)
    floor = max(float(variance.abs().mean()) * 1e-4, module.eps)
    return Layer(module, momentum, mean, variance.clamp_min(floor))
