"""The class that compares samples with the originals of one client.

Reconstructions, and guesses that are made without the update, are compared in the same way.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from leakgauge.core.observation import DataSpec
from leakgauge.evaluation.metrics.bags_of_tokens import overlaps
from leakgauge.evaluation.metrics.perceptual import lpips
from leakgauge.evaluation.metrics.pixels import decibels, mse, ssim
from leakgauge.evaluation.metrics.tables import TOLERANCE, exact_rows, features
from leakgauge.evaluation.pairing import Pairing, assigned, pair, usable


@dataclass(frozen=True, eq=False)
class Quality:
    """The measured quality of samples, compared with the originals.

    Args:
        pairing: The assignment of samples to originals.
        values: The values of each metric, one value for each original.
    """

    pairing: Pairing
    values: dict[str, Tensor]


@dataclass(frozen=True, eq=False)
class Ruler:
    """A callable that pairs samples with the originals of a client and measures each pair.

    If the data are bounded, the samples are first clipped to [0, 1]. Any attacker can do this, and every image viewer
    does it. If an original image has no reconstruction, it gets the values of the worst image. These are a PSNR of
    0 dB, an SSIM of 0, an LPIPS of 1, and a squared error that equals the square of the data range. If an original row
    of a table has no reconstruction, none of its features counts as recovered. The row gets the error of a blank row,
    because there is no worst row.

    Args:
        originals: The true samples of the client, (N, *shape).
        spec: The description of the data, such as the shape and the columns of a sample.
        threshold: The PSNR in dB above which an image counts as recovered.
        data_range: The highest possible value of a pixel minus the lowest possible value.
        with_lpips: Whether LPIPS is measured too.
        tokens: The indices of the values that are tokens of a text, which are compared in any order.
    """

    originals: Tensor
    spec: DataSpec
    threshold: float = 20.0
    data_range: float = 1.0
    with_lpips: bool = False
    tokens: tuple[int, ...] = ()

    def __call__(self, samples: Tensor) -> Quality:
        """Pair samples of shape (M, *shape) with the originals, and return the quality of the samples."""
        samples, originals = self.prepare(samples), self.originals.detach().cpu().double()
        if self.spec.is_image:
            pairing = pair(samples, originals, data_range=self.data_range)
            return Quality(pairing, self._images(pairing.apply(samples), originals, ~pairing.matched))
        if self.tokens:
            pairing = assigned(samples, overlaps(samples, originals, self.tokens).double(), len(originals))
        else:
            pairing = pair(self.spec.normalise(samples), self.spec.normalise(originals))
        return Quality(pairing, self._rows(pairing.apply(samples), originals, ~pairing.matched))

    def prepare(self, samples: Tensor) -> Tensor:
        """Return the samples with values clipped to [0, 1] if the data are bounded, and with NaN for invalid samples.

        A sample is invalid if it holds NaN, infinity or values whose squares overflow. All its values become NaN.
        """
        samples = samples.detach().cpu().double()
        comparable = usable(samples)
        if self.spec.bounded:
            samples = samples.clamp(0, 1)
        return torch.where(comparable.view(-1, *[1] * len(self.spec.shape)), samples, torch.nan)

    def _images(self, samples: Tensor, originals: Tensor, missing: Tensor) -> dict[str, Tensor]:
        error = mse(samples, originals).masked_fill(missing, self.data_range**2)
        ratio = decibels(error, self.data_range).clamp(min=0)
        # Single precision is twenty times faster here. If unbounded pixels overflow, the SSIM counts as 0.
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
            "features": self._features(samples, originals).masked_fill(missing, 0),
            "rows": exact_rows(samples, originals, self.spec).masked_fill(missing, 0),
        }

    def _features(self, samples: Tensor, originals: Tensor) -> Tensor:
        """Return the share of each row's features that are recovered. Tokens are counted in any order."""
        if not self.tokens:
            return features(samples, originals, self.spec)
        other = [place for place in range(originals[0].numel()) if place not in set(self.tokens)]
        distance = (self.spec.normalise(samples) - self.spec.normalise(originals)).abs().flatten(1)[:, other]
        shared = [
            overlaps(one[None], two[None], self.tokens)[0, 0] for one, two in zip(samples, originals, strict=True)
        ]
        return (torch.stack(shared) + (distance <= TOLERANCE).sum(1)).double() / originals[0].numel()
