"""The errors of labels and targets, and the share of samples above a threshold."""

from __future__ import annotations

import torch
from torch import Tensor

from leakgauge.core.errors import InvalidInput


def recovered(psnr_values: Tensor, threshold: float) -> float:
    """Return the share of samples with a PSNR above a threshold. A PSNR of NaN is not above it.

    Args:
        psnr_values: The PSNR of each sample, (N,).
        threshold: The threshold in dB.

    >>> recovered(torch.tensor([25.0, 18.0, 20.0, float("nan")]), 20.0)
    0.25
    """
    if psnr_values.numel() == 0:
        raise InvalidInput("there are no samples, so the recovered share is undefined")
    return float((psnr_values > threshold).double().mean())


def label_errors(estimated: Tensor, true: Tensor, *, counts: bool = False) -> int:
    """Return the number of wrong labels in any order, ``N - sum over k of min(estimated_k, true_k)``.

    ``N`` is the larger of the two totals, so that an extra label is an error like a missing one.

    Args:
        estimated: The estimated labels, (M,), or the estimated number of samples of each class.
        true: The true labels, (N,), or the true number of samples of each class.
        counts: Whether both are numbers of samples of each class.

    >>> label_errors(torch.tensor([3, 3, 1]), torch.tensor([1, 2, 3]))
    1
    >>> label_errors(torch.tensor([0, 1, 0, 2]), torch.tensor([0, 1, 1, 1]), counts=True)
    1
    """
    for name, values in (("estimated", estimated), ("true", true)):
        if values.dim() != 1 or values.is_floating_point() or (len(values) and int(values.min()) < 0):
            kind = "counts" if counts else "labels"
            raise InvalidInput(f"{name} {kind} must be a vector of whole numbers of at least 0")
    if not counts:
        classes = 1 + max((int(values.max()) for values in (estimated, true) if len(values)), default=0)
        estimated, true = (torch.bincount(values, minlength=classes) for values in (estimated, true))
    elif len(estimated) != len(true):
        raise InvalidInput(
            f"there are {len(estimated)} estimated counts for {len(true)} classes. Pass one count for each class"
        )
    return max(int(estimated.sum()), int(true.sum())) - int(torch.minimum(estimated, true).sum())


def label_accuracy(estimated: Tensor, true: Tensor) -> Tensor:
    """Return whether each paired label is right, as 0 or 1.

    Args:
        estimated: The label of each original, (N,). A missing label is -1, which is never right.
        true: The true labels, (N,).

    >>> label_accuracy(torch.tensor([4, -1, 2]), torch.tensor([4, 0, 1]))
    tensor([1., 0., 0.], dtype=torch.float64)
    """
    if estimated.shape != true.shape:
        raise InvalidInput(f"{len(estimated)} labels cannot be compared one by one with {len(true)} true labels")
    return (estimated == true).double()


def attribute_accuracy(inferred: Tensor, true: Tensor) -> Tensor:
    """Return whether the inferred sensitive value of each record is right, as 0 or 1.

    Args:
        inferred: The inferred value of each record, (N,).
        true: The true values, (N,).

    >>> attribute_accuracy(torch.tensor([1, 0]), torch.tensor([1, 1]))
    tensor([1., 0.], dtype=torch.float64)
    """
    return label_accuracy(inferred, true)


def target_error(estimated: Tensor, true: Tensor) -> Tensor:
    """Return the absolute error of each paired regression target, (N,), averaged over its outputs.

    Args:
        estimated: The target of each original, (N,) or (N, outputs).
        true: The true targets, of as many numbers.

    >>> target_error(torch.tensor([1.0, 2.0]), torch.tensor([1.5, 2.0]))
    tensor([0.5000, 0.0000])
    """
    if estimated.numel() != true.numel() or len(estimated) != len(true):
        raise InvalidInput(f"targets of shape {tuple(estimated.shape)} cannot be compared with {tuple(true.shape)}")
    return (estimated.reshape(len(true), -1) - true.reshape(len(true), -1)).abs().mean(1)
