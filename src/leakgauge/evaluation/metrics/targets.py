"""The metrics for labels, attributes and targets, and the share of samples whose PSNR is above a threshold."""

from __future__ import annotations

import torch
from torch import Tensor

from leakgauge.core.errors import InvalidInput


def recovered(psnr_values: Tensor, threshold: float) -> float:
    """Return the share of samples with a PSNR above a threshold. A PSNR of NaN does not count as above.

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
    """Return the number of wrong labels, ``N - sum over k of min(estimated_k, true_k)``. The order does not matter.

    ``estimated_k`` and ``true_k`` are the counts of labels of class ``k``. ``N`` is the larger of the two totals. An
    extra label therefore counts as an error, and a missing label too.

    Args:
        estimated: The estimated labels, (M,), or the estimated number of samples in each class.
        true: The true labels, (N,), or the true number of samples in each class.
        counts: Whether ``estimated`` and ``true`` are counts of samples in each class.

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
    """Return 1 for each original whose label is estimated correctly, and 0 for each other original, (N,).

    Args:
        estimated: The estimated label of each original, (N,). A missing label is -1, which is never right.
        true: The true labels, (N,).

    >>> label_accuracy(torch.tensor([4, -1, 2]), torch.tensor([4, 0, 1]))
    tensor([1., 0., 0.], dtype=torch.float64)
    """
    if estimated.shape != true.shape:
        raise InvalidInput(f"{len(estimated)} labels cannot be compared one by one with {len(true)} true labels")
    return (estimated == true).double()


def attribute_accuracy(inferred: Tensor, true: Tensor) -> Tensor:
    """Return 1 for each record whose inferred sensitive value is right, and 0 for each other record.

    Args:
        inferred: The inferred value of each record, (N,).
        true: The true values, (N,).

    >>> attribute_accuracy(torch.tensor([1, 0]), torch.tensor([1, 1]))
    tensor([1., 0.], dtype=torch.float64)
    """
    return label_accuracy(inferred, true)


def target_error(estimated: Tensor, true: Tensor, values: int | None = None) -> Tensor:
    """Return the error of the target of each original, (N,).

    For numbers, it is the absolute error, averaged over the numbers of a sample. For several labels and for masks, it
    is the share of wrong entries.

    Args:
        estimated: The estimated target of each original, (N,) or (N, outputs).
        true: The true targets, with as many values as ``estimated``.
        values: The number of values that each entry can have, or ``None`` for numbers.

    >>> target_error(torch.tensor([1.0, 2.0]), torch.tensor([1.5, 2.0]))
    tensor([0.5000, 0.0000], dtype=torch.float64)
    >>> target_error(torch.tensor([[1, 0]]), torch.tensor([[3, 0]]), values=4)
    tensor([0.5000], dtype=torch.float64)
    """
    if estimated.numel() != true.numel() or len(estimated) != len(true):
        raise InvalidInput(f"targets of shape {tuple(estimated.shape)} cannot be compared with {tuple(true.shape)}")
    one, other = (side.reshape(len(true), -1).double() for side in (estimated, true))
    return ((one - other).abs() if values is None else (one != other).double()).mean(1)
