"""The count of a client's samples that came back nearly exactly."""

from __future__ import annotations

import torch
from torch import Tensor

from leakgauge.core.truth import Truth

#: The largest root mean square error of a sample that came back, as a share of the range or of the spread of values.
#: For pixels, this is a PSNR of 40 dB.
NEAR = 0.01
#: The number of comparisons that are made at once.
BLOCK = 64


def returned(samples: Tensor, truth: Truth) -> int:
    """Return how many of a client's samples are among the samples of an attack, with an error of at most a hundredth.

    The error is measured in the range of pixels. Values without a range are measured in the standard deviations of the
    data's description.

    Args:
        samples: The samples that the attack returned, in any order.
        truth: The client's samples.
    """
    if not len(samples):
        return 0
    scale = torch.ones(1, dtype=torch.double)
    if not truth.data.bounded:
        _, scale = truth.data.statistics(scale)
    found = (samples.detach().cpu().double() / scale).flatten(1)
    own = (truth.inputs.detach().cpu().double() / scale).flatten(1)
    size = own.shape[1] ** 0.5
    nearest = [torch.cdist(part, found).amin(1) / size for part in own.split(BLOCK)]
    return int((torch.cat(nearest) <= NEAR).sum())
