r"""How alike two models are: Zest (Jia et al., ICLR 2022), the cosine of their LIME explanations.

A sample is cut into components: a picture into square patches, a table's row into its features (the one-hot columns of
a category are one). Random masks switch components off, to the patch's mean colour or to the mean row. A model's
probabilities (or prediction) on the masked samples are explained by a weighted ridge regression on the masks (Ribeiro
et al. 2016), whose coefficients, over all components, outputs and reference samples, are the model's signature. With
the same masks for both models,

.. math:: \mathrm{zest}(f, g) = \cos(S(f), S(g)) \in [-1, 1].
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from leakgauge.core.errors import InvalidInput
from leakgauge.core.observation import DataSpec
from leakgauge.core.seeding import generator

#: From samples as a person sees them to probabilities or predictions, (N, outputs).
Model = Callable[[Tensor], Tensor]

KERNEL_WIDTH = 0.25  # LIME's for images
RIDGE = 1.0  # LIME's


def zest(first: Model, second: Model, samples: Tensor, spec: DataSpec, *, masks: int = 256, seed: int = 0) -> float:
    """The similarity of two models on reference samples: 1 for equal models, higher is nearer.

    >>> spec = DataSpec((3,), 2, bounded=False)
    >>> rows = torch.tensor([[1.0, 0.0, 2.0], [0.0, 1.0, -1.0]])
    >>> linear = lambda samples: (samples @ torch.tensor([1.0, 2.0, 0.0])).unsqueeze(1)
    >>> round(zest(linear, lambda samples: 3 * linear(samples), rows, spec), 4)
    1.0
    """
    one = signature(first, samples, spec, masks=masks, seed=seed)
    other = signature(second, samples, spec, masks=masks, seed=seed)
    return float(torch.nn.functional.cosine_similarity(one, other, dim=0))


def signature(model: Model, samples: Tensor, spec: DataSpec, *, masks: int = 256, seed: int = 0) -> Tensor:
    """The coefficients of a model's explanations, one vector."""
    if not len(samples) or tuple(samples.shape[1:]) != spec.shape:
        raise InvalidInput(f"Zest needs reference samples of shape {spec.shape}, not {tuple(samples.shape)}")
    if masks < 2:
        raise InvalidInput(f"masks must be at least 2, not {masks}")
    parts = components(spec).to(samples.device)
    count = int(parts.max()) + 1
    kept = torch.randint(2, (masks, count), generator=generator(seed, "masks")).to(samples.device)
    kept[0] = 1
    solve = _explainer(kept.double())
    blank = _blank(samples, parts, count)
    mask = kept[:, parts.flatten()].reshape(masks, *spec.shape).bool()
    explained = []
    with torch.no_grad():
        for sample, off in zip(samples, blank, strict=True):
            outputs = model(torch.where(mask, sample, off)).reshape(masks, -1)
            explained.append((solve @ outputs.double().to(solve.device)).flatten())
    return torch.cat(explained)


def components(spec: DataSpec, across: int = 8) -> Tensor:
    """The component of each number of a sample: patches, about ``across`` by ``across``, or a table's features.

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


def _explainer(kept: Tensor) -> Tensor:
    """The matrix from outputs to the coefficients of a weighted ridge regression with an intercept."""
    similarity = kept.mean(1).sqrt()  # the cosine between a mask and the mask that keeps everything
    weights = torch.exp(-((1 - similarity) ** 2) / KERNEL_WIDTH**2)
    centred = kept - (weights @ kept) / weights.sum()
    weighted = (weights.unsqueeze(1) * centred).T
    found: Tensor = torch.linalg.solve(weighted @ centred + RIDGE * torch.eye(kept.shape[1]).to(kept), weighted)
    return found


def _blank(samples: Tensor, parts: Tensor, count: int) -> Tensor:
    """What each sample is where a component is off: its patch's mean, or the mean row."""
    if len(samples.shape) == 2:
        return samples.mean(0).expand_as(samples)
    flat, where = samples.flatten(1), parts.flatten()
    sums = torch.zeros(len(samples), count).to(flat).index_add_(1, where, flat)
    sizes = torch.zeros(count).to(flat).index_add_(0, where, torch.ones_like(flat[0]))
    return (sums / sizes)[:, where].reshape(samples.shape)
