"""How many labels or targets an attacker got right, and the share of samples above a threshold."""

from __future__ import annotations

import torch
from torch import Tensor

from leakgauge.core.errors import InvalidInput


def recovered(psnr_values: Tensor, threshold: float) -> float:
    """The share of samples whose PSNR lies above the threshold; NaN never does.

    >>> recovered(torch.tensor([25.0, 18.0, 20.0, float("nan")]), 20.0)
    0.25
    """
    if psnr_values.numel() == 0:
        raise InvalidInput("the recovered share of no samples is undefined")
    return float((psnr_values > threshold).double().mean())


def label_errors(estimated: Tensor, true: Tensor, *, counts: bool = False) -> int:
    """The number of wrong labels, in whatever order: ``N - sum over k of min(estimated_k, true_k)``.

    Both are labels, or with ``counts=True`` both are numbers of samples per class. ``N`` is the larger total,
    so that a label too many is an error just like one too few.

    >>> label_errors(torch.tensor([3, 3, 1]), torch.tensor([1, 2, 3]))
    1
    >>> label_errors(torch.tensor([0, 1, 0, 2]), torch.tensor([0, 1, 1, 1]), counts=True)
    1
    """
    for name, values in (("estimated", estimated), ("true", true)):
        if values.dim() != 1 or values.is_floating_point() or (len(values) and int(values.min()) < 0):
            kind = "counts" if counts else "labels"
            raise InvalidInput(f"{name} {kind} must be a row of whole numbers of at least 0")
    if not counts:
        classes = 1 + max((int(values.max()) for values in (estimated, true) if len(values)), default=0)
        estimated, true = (torch.bincount(values, minlength=classes) for values in (estimated, true))
    elif len(estimated) != len(true):
        raise InvalidInput(f"{len(estimated)} estimated counts for {len(true)} classes")
    return max(int(estimated.sum()), int(true.sum())) - int(torch.minimum(estimated, true).sum())


def label_accuracy(estimated: Tensor, true: Tensor) -> Tensor:
    """Whether each paired label is right, as 0 or 1; a missing label is -1 and never right.

    >>> label_accuracy(torch.tensor([4, -1, 2]), torch.tensor([4, 0, 1]))
    tensor([1., 0., 0.], dtype=torch.float64)
    """
    if estimated.shape != true.shape:
        raise InvalidInput(f"{len(estimated)} labels cannot be compared one by one with {len(true)}")
    return (estimated == true).double()


def attribute_accuracy(inferred: Tensor, true: Tensor) -> Tensor:
    """Whether the sensitive value inferred for each record is right, as 0 or 1.

    >>> attribute_accuracy(torch.tensor([1, 0]), torch.tensor([1, 1]))
    tensor([1., 0.], dtype=torch.float64)
    """
    return label_accuracy(inferred, true)


def target_error(estimated: Tensor, true: Tensor) -> Tensor:
    """The absolute error of each paired regression target, (N,), averaged over its outputs.

    >>> target_error(torch.tensor([1.0, 2.0]), torch.tensor([1.5, 2.0]))
    tensor([0.5000, 0.0000])
    """
    if estimated.numel() != true.numel() or len(estimated) != len(true):
        raise InvalidInput(f"targets of shape {tuple(estimated.shape)} cannot be compared with {tuple(true.shape)}")
    return (estimated.reshape(len(true), -1) - true.reshape(len(true), -1)).abs().mean(1)
