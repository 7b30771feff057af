"""The comparison of samples with the originals of one client, alike for a reconstruction and for every blind guess."""

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
    """The similarity of samples and originals.

    Args:
        pairing: The sample of each original.
        values: One value for each original, by metric.
    """

    pairing: Pairing
    values: dict[str, Tensor]


@dataclass(frozen=True, eq=False)
class Ruler:
    """The metrics of samples against fixed originals. A call pairs samples with the originals and measures each pair.

    Bounded pixels are clipped to [0, 1] first. Any attacker can do this, and every viewer does. An original without a
    reconstruction gets the values of the worst image, which are a PSNR of 0 dB, an SSIM of 0, an LPIPS of 1 and the
    squared data range as its error. The row of a table without a reconstruction gets no feature, and the error of a
    blank row, because there is no worst row.

    Args:
        originals: The samples of the client, (N, *shape).
        spec: The kind of data.
        threshold: The PSNR in dB above which an image counts as recovered.
        data_range: The distance between the lowest and the highest possible value of a pixel.
        with_lpips: Whether LPIPS is measured too.
    """

    originals: Tensor
    spec: DataSpec
    threshold: float = 20.0
    data_range: float = 1.0
    with_lpips: bool = False

    def __call__(self, samples: Tensor) -> Quality:
        """Return the quality of samples, (M, *shape)."""
        samples, originals = self.prepare(samples), self.originals.detach().cpu().double()
        if self.spec.is_image:
            pairing = pair(samples, originals, data_range=self.data_range)
            return Quality(pairing, self._images(pairing.apply(samples), originals, ~pairing.matched))
        pairing = pair(self.spec.normalise(samples), self.spec.normalise(originals))
        return Quality(pairing, self._rows(pairing.apply(samples), originals, ~pairing.matched))

    def prepare(self, samples: Tensor) -> Tensor:
        """Return the samples as they are compared. All values of a sample with a NaN or an infinity become NaN."""
        samples = samples.detach().cpu().double()
        comparable = usable(samples)
        if self.spec.bounded:
            samples = samples.clamp(0, 1)
        return torch.where(comparable.view(-1, *[1] * len(self.spec.shape)), samples, torch.nan)

    def _images(self, samples: Tensor, originals: Tensor, missing: Tensor) -> dict[str, Tensor]:
        error = mse(samples, originals).masked_fill(missing, self.data_range**2)
        ratio = decibels(error, self.data_range).clamp(min=0)
        # Single precision is twenty times faster here. Unbounded pixels that overflow it count as not similar.
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
