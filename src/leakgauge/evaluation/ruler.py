"""Measure any samples against one client's originals: a reconstruction and every blind guess the same way."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from leakgauge.core.observation import DataSpec
from leakgauge.evaluation.metrics.perceptual import lpips
from leakgauge.evaluation.metrics.pixels import decibels, mse, ssim
from leakgauge.evaluation.metrics.tables import features
from leakgauge.evaluation.pairing import Pairing, pair, usable


@dataclass(frozen=True, eq=False)
class Quality:
    """How well samples match the originals: one value for each original and metric."""

    pairing: Pairing
    values: dict[str, Tensor]


@dataclass(frozen=True, eq=False)
class Ruler:
    """Pairs samples with the originals and measures each pair.

    Pixels are clipped to [0, 1] first, which any attacker can do and a viewer does. An original without a
    reconstruction gets what the worst image would: 0 dB, an SSIM of 0, the squared data range as its error,
    an LPIPS of 1. In a table it gets no feature, and the error of a blank row, as there is no worst row.
    """

    originals: Tensor
    spec: DataSpec
    threshold: float = 20.0
    data_range: float = 1.0
    with_lpips: bool = False

    def __call__(self, samples: Tensor) -> Quality:
        """Pair, then measure."""
        samples, originals = self.prepare(samples), self.originals.detach().cpu().double()
        if self.spec.is_image:
            pairing = pair(samples, originals, data_range=self.data_range)
            return Quality(pairing, self._images(pairing.apply(samples), originals, ~pairing.matched))
        pairing = pair(self.spec.normalise(samples), self.spec.normalise(originals))
        return Quality(pairing, self._rows(pairing.apply(samples), originals, ~pairing.matched))

    def prepare(self, samples: Tensor) -> Tensor:
        """The samples as they are compared; those with NaN or infinite values become NaN throughout."""
        samples = samples.detach().cpu().double()
        fit = usable(samples)
        if self.spec.bounded:
            samples = samples.clamp(0, 1)
        return torch.where(fit.view(-1, *[1] * len(self.spec.shape)), samples, torch.nan)

    def _images(self, samples: Tensor, originals: Tensor, missing: Tensor) -> dict[str, Tensor]:
        error = mse(samples, originals).masked_fill(missing, self.data_range**2)
        ratio = decibels(error, self.data_range).clamp(min=0)
        # single precision is twenty times faster here; unbounded pixels that overflow it are not similar
        similarity = ssim(samples.float(), originals.float(), data_range=self.data_range).nan_to_num(nan=0)
        values = {"psnr": ratio, "ssim": similarity.masked_fill(missing, 0), "mse": error}
        if self.with_lpips:
            values["lpips"] = lpips(samples, originals, data_range=self.data_range).masked_fill(missing, 1)
        values["recovered"] = (ratio > self.threshold).double()
        return values

    def _rows(self, samples: Tensor, originals: Tensor, missing: Tensor) -> dict[str, Tensor]:
        blank = self.spec.denormalise(torch.zeros_like(samples))
        samples = torch.where(missing.view(-1, *[1] * len(self.spec.shape)), blank, samples)
        return {
            "mse": mse(self.spec.normalise(samples), self.spec.normalise(originals)),
            "features": features(samples, originals, self.spec).masked_fill(missing, 0),
        }
