r"""The numbers of messages in a form that fits into memory, and the kernels between messages.

A message of a large model has too many numbers to keep a thousand of them. Each tensor of the message is then reduced
by a count sketch (Charikar, Chen, Farach-Colton 2002). Every number gets a random sign and a random place, and the
numbers of one place are added. The inner product of two reduced messages is, on average, the inner product of the
messages.

With :math:`m_l` the tensors of a message :math:`m`, :math:`\hat m = m / \|m\|`, and :math:`t_l` the mean of
:math:`\|m_l\|^2` over the rehearsed messages, the kernels are

===========  =====================================================================================================
linear       :math:`\langle m, m' \rangle`
balanced     :math:`\sum_l \langle m_l, m'_l \rangle / t_l`, so that no layer drowns the others
direction    :math:`\langle \hat m, \hat m' \rangle`, for messages of unknown or clipped length
nearness     :math:`\exp(-\|\hat m - \hat m'\|^2 / w)`, with the median of the squared distances as :math:`w`
===========  =====================================================================================================
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from leakgauge.core.params import Params
from leakgauge.core.seeding import generator

#: The largest number of values of all kept messages together.
MOST_VALUES = 64 * 2**20
#: A tensor is never reduced to fewer numbers than this.
FEWEST = 64
#: The largest number of groups of tensors. Neighbouring tensors of larger models form one group.
MOST_GROUPS = 12


@dataclass(frozen=True, eq=False)
class Sketch:
    """The rule by which messages are reduced, the same for all messages of one attack.

    Args:
        places: For each tensor of a message, the place of each of its numbers, or ``None`` if all numbers are kept.
        signs: For each tensor, the sign of each of its numbers.
        sizes: For each tensor, the number of kept values.
    """

    places: tuple[Tensor | None, ...]
    signs: tuple[Tensor | None, ...]
    sizes: tuple[int, ...]

    @classmethod
    def of(cls, message: Params, count: int, seed: int) -> Sketch:
        """Return the rule for messages of this form.

        Args:
            message: A message.
            count: The number of messages that are to be kept.
            seed: The seed of the random places and signs.
        """
        total = sum(value.numel() for value in message.values())
        share = min(1.0, MOST_VALUES / max(1, count) / max(1, total))
        draw = generator(seed, "sketch")
        places: list[Tensor | None] = []
        signs: list[Tensor | None] = []
        sizes = []
        for value in message.values():
            size = max(min(FEWEST, value.numel()), int(share * value.numel()))
            whole = size >= value.numel()
            sizes.append(value.numel() if whole else size)
            drawn = None if whole else torch.randint(size, (value.numel(),), generator=draw).to(value.device)
            sign = None if whole else torch.randint(2, (value.numel(),), generator=draw).to(value) * 2 - 1
            places.append(drawn)
            signs.append(sign)
        return cls(tuple(places), tuple(signs), tuple(sizes))

    def __call__(self, message: Params) -> Tensor:
        """Return the kept values of a message as one vector."""
        parts = []
        for value, place, sign, size in zip(message.values(), self.places, self.signs, self.sizes, strict=True):
            flat = value.detach().reshape(-1)
            if place is not None and sign is not None:
                flat = torch.zeros(size, dtype=flat.dtype, device=flat.device).index_add_(0, place, flat * sign)
            parts.append(flat.float())
        return torch.cat(parts)


@dataclass(frozen=True, eq=False)
class Products:
    """The inner products of messages, separately for groups of tensors.

    Args:
        groups: The inner products of each pair of rehearsed messages, (groups, N, N).
        observed: The inner products of the observed message with each rehearsed message, (groups, N).
        lengths: The squared lengths of the parts of the observed message, (groups,).
    """

    groups: Tensor
    observed: Tensor
    lengths: Tensor

    @classmethod
    def of(cls, messages: Tensor, observed: Tensor, sizes: Sequence[int]) -> Products:
        """Compute the inner products.

        Args:
            messages: The kept values of the rehearsed messages, (N, values).
            observed: The kept values of the observed message.
            sizes: The number of values of each tensor.
        """
        step = -(-len(sizes) // MOST_GROUPS)
        widths = [sum(sizes[first : first + step]) for first in range(0, len(sizes), step)]
        pairs = list(zip(messages.split(widths, 1), observed.split(widths), strict=True))
        return cls(
            torch.stack([(rows @ rows.T).double() for rows, _ in pairs]),
            torch.stack([(rows @ one).double() for rows, one in pairs]),
            torch.stack([one.double().square().sum() for _, one in pairs]),
        )


@dataclass(frozen=True, eq=False)
class Kernel:
    """A similarity of messages.

    Args:
        name: The name of the similarity.
        among: The similarity of each pair of rehearsed messages, (N, N).
        observed: The similarity of the observed message with each rehearsed message, (N,).
    """

    name: str
    among: Tensor
    observed: Tensor


def kernels(products: Products, *, directions_only: bool = False) -> list[Kernel]:
    """Return the similarities of this module. They have a mean of about 1 on the diagonal.

    Args:
        products: The inner products of the messages.
        directions_only: Whether only the similarities that ignore lengths are returned. An unknown defence may have
            changed the length of the observed message.
    """
    whole, row, length = products.groups.sum(0), products.observed.sum(0), products.lengths.sum()
    tiny = torch.finfo(torch.float).tiny
    mean = whole.diagonal().mean().clamp(min=tiny)
    sizes = products.groups.diagonal(dim1=1, dim2=2).mean(1)
    weights = torch.where(sizes > tiny, 1 / sizes.clamp(min=tiny), torch.zeros_like(sizes)) / max(1, len(sizes))
    norms = whole.diagonal().clamp(min=tiny).sqrt()
    cosines = whole / norms / norms[:, None]
    cosine = row / norms / length.clamp(min=tiny).sqrt()
    width = (2 - 2 * cosines).median().clamp(min=tiny)
    directed = [
        Kernel("direction", cosines, cosine),
        Kernel("nearness", (-(2 - 2 * cosines) / width).exp(), (-(2 - 2 * cosine) / width).exp()),
    ]
    if directions_only:
        return directed
    balanced = torch.einsum("g,gnm->nm", weights, products.groups)
    return [
        Kernel("linear", whole / mean, row / mean),
        Kernel("balanced", balanced, torch.einsum("g,gn->n", weights, products.observed)),
        *directed,
    ]


def strangeness(products: Products) -> float:
    """Return how far the observed message is from the rehearsed messages, relative to their distances from each other.

    The distance of a message is that to the nearest rehearsed message, as an angle. The result is the squared distance
    of the observed message divided by the largest squared distance of a rehearsed message.

    Args:
        products: The inner products of the messages.
    """
    tiny = torch.finfo(torch.float).tiny
    whole, row = products.groups.sum(0), products.observed.sum(0)
    norms = whole.diagonal().clamp(min=tiny).sqrt()
    cosines = (whole / norms / norms[:, None]).fill_diagonal_(-1)
    cosine = row / norms / products.lengths.sum().clamp(min=tiny).sqrt()
    usual = (1 - cosines.amax(1)).amax().clamp(min=1e-6)
    return float((1 - cosine.max()).clamp(min=0) / usual)


def within_classes(kernel: Kernel, labels: Tensor, label: Tensor, share: float = 0.3) -> Kernel:
    """Return a similarity that is larger for messages with the same labels as each other.

    Args:
        kernel: The similarity of messages.
        labels: The labels of each rehearsed message, (N, samples).
        label: The labels of the observed message, (samples,).
        share: The share of the similarity that messages with other labels keep.
    """
    _, index = torch.cat([labels, label[None]]).unique(dim=0, return_inverse=True)
    same = (index[:-1, None] == index[None, :-1]).to(kernel.among)
    here = (index[:-1] == index[-1]).to(kernel.among)
    total = 1 + share
    return Kernel(
        f"{kernel.name}, by label", kernel.among * (same + share) / total, kernel.observed * (here + share) / total
    )
