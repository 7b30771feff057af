r"""Zest (Jia et al., ICLR 2022), a similarity of two models, which is the cosine of their LIME explanations.

A sample is divided into components. The components of a picture are square patches. The components of a row of a table
are its features, and the one-hot columns of a category count as one feature. Random masks switch components off. A
patch that is off is filled with its mean colour. A feature that is off is replaced by its mean over all rows. A
weighted ridge regression on the masks (Ribeiro et al. 2016) explains the outputs of a model on the masked samples. The
coefficients of the regression, for all components, outputs and reference samples, are the signature :math:`S` of the
model. Both models get the same masks:

.. math:: \mathrm{zest}(f, g) = \cos(S(f), S(g)) \in [-1, 1].
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from leakgauge.core.errors import InvalidInput
from leakgauge.core.observation import DataSpec
from leakgauge.core.seeding import generator

#: A function from samples without normalisation to probabilities or predictions, (N, outputs).
Model = Callable[[Tensor], Tensor]

#: The width of the kernel. It is LIME's default for images.
KERNEL_WIDTH = 0.25
#: The weight of the ridge penalty. It is LIME's default.
RIDGE = 1.0


def zest(first: Model, second: Model, samples: Tensor, spec: DataSpec, *, masks: int = 256, seed: int = 0) -> float:
    """Return the similarity of two models on reference samples, in [-1, 1]. Equal models have a similarity of 1.

    Args:
        first: The first model. It is a function from samples without normalisation to probabilities or predictions.
        second: The second model.
        samples: The reference samples, (N, *shape).
        spec: The description of the data, such as the shape and the columns of a sample.
        masks: The number of random masks.
        seed: The seed of the masks.

    >>> spec = DataSpec((3,), 2, bounded=False)
    >>> rows = torch.tensor([[1.0, 0.0, 2.0], [0.0, 1.0, -1.0]])
    >>> linear = lambda samples: (samples @ torch.tensor([1.0, 2.0, 0.0])).unsqueeze(1)
    >>> round(zest(linear, lambda samples: 3 * linear(samples), rows, spec), 4)
    1.0
    """
    first_signature = signature(first, samples, spec, masks=masks, seed=seed)
    second_signature = signature(second, samples, spec, masks=masks, seed=seed)
    return float(torch.nn.functional.cosine_similarity(first_signature, second_signature, dim=0))


def signature(model: Model, samples: Tensor, spec: DataSpec, *, masks: int = 256, seed: int = 0) -> Tensor:
    """Return the signature of a model, which is the vector of all coefficients of its LIME explanations.

    Args:
        model: The model. It is a function from samples without normalisation to probabilities or predictions.
        samples: The reference samples, (N, *shape).
        spec: The description of the data, such as the shape and the columns of a sample.
        masks: The number of random masks.
        seed: The seed of the masks.
    """
    if not len(samples) or tuple(samples.shape[1:]) != spec.shape:
        raise InvalidInput(f"Zest needs reference samples of shape {spec.shape}, not {tuple(samples.shape)}")
    if masks < 2:
        raise InvalidInput(f"masks must be at least 2, not {masks}")
    parts = components(spec).to(samples.device)
    count = int(parts.max()) + 1
    visible = torch.randint(2, (masks, count), generator=generator(seed, "masks")).to(samples.device)
    visible[0] = 1
    explain = _explainer(visible.double())
    blank = _blank(samples, parts, count)
    mask = visible[:, parts.flatten()].reshape(masks, *spec.shape).bool()
    explanations = []
    with torch.no_grad():
        for sample, off in zip(samples, blank, strict=True):
            outputs = model(torch.where(mask, sample, off)).reshape(masks, -1)
            explanations.append((explain @ outputs.double().to(explain.device)).flatten())
    return torch.cat(explanations)


def components(spec: DataSpec, across: int = 8) -> Tensor:
    """Return the index of the component that each value of a sample belongs to.

    The components are the patches of a picture, or the features of a row of a table.

    Args:
        spec: The description of the data, such as the shape and the columns of a sample.
        across: The number of patches in each direction of a picture. If a direction has fewer pixels than this number,
            a patch is one pixel long in this direction.

    >>> components(DataSpec((3,), 2, bounded=False, columns=("age", "sex=f", "sex=m")))
    tensor([0, 1, 1])
    """
    if spec.is_image:
        _, height, width = spec.shape
        rows = torch.arange(height) * min(across, height) // height
        columns = torch.arange(width) * min(across, width) // width
        return (rows.unsqueeze(1) * min(across, width) + columns).expand(spec.shape)
    owner = {column: members[0] for members in spec.one_hot_groups.values() for column in members}
    first = [owner.get(column, column) for column in range(torch.Size(spec.shape).numel())]
    number = {column: place for place, column in enumerate(sorted(set(first)))}
    return torch.tensor([number[column] for column in first]).reshape(spec.shape)


def _explainer(visible: Tensor) -> Tensor:
    """Return the matrix that maps a model's outputs on masked samples to the coefficients of its LIME explanation.

    The coefficients are those of a weighted ridge regression on the masks, with an intercept.
    """
    similarity = visible.mean(1).sqrt()  # the cosine between a mask and the mask that leaves everything visible
    weights = torch.exp(-((1 - similarity) ** 2) / KERNEL_WIDTH**2)
    centred = visible - (weights @ visible) / weights.sum()
    weighted = (weights.unsqueeze(1) * centred).T
    coefficients: Tensor = torch.linalg.solve(
        weighted @ centred + RIDGE * torch.eye(visible.shape[1]).to(visible), weighted
    )
    return coefficients


def _blank(samples: Tensor, parts: Tensor, count: int) -> Tensor:
    """Return each sample with all components switched off.

    Each patch of a picture has its mean colour. Each row of a table is the mean row.
    """
    if len(samples.shape) == 2:
        return samples.mean(0).expand_as(samples)
    flat, where = samples.flatten(1), parts.flatten()
    sums = torch.zeros(len(samples), count).to(flat).index_add_(1, where, flat)
    sizes = torch.zeros(count).to(flat).index_add_(0, where, torch.ones_like(flat[0]))
    return (sums / sizes)[:, where].reshape(samples.shape)
