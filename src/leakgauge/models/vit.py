"""Vision transformers of any size (ViT; Dosovitskiy et al., ICLR 2021)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from leakgauge.core.checks import whole_number
from leakgauge.core.errors import InvalidInput
from leakgauge.models.options import choose, image_shape, seeded

Positions = Literal["learned", "fixed"]
Pooling = Literal["token", "mean"]


@dataclass(frozen=True)
class Size:
    """The sizes of a vision transformer.

    Args:
        width: The size of a token.
        depth: The number of blocks.
        heads: The number of heads of an attention layer.
    """

    width: int
    depth: int
    heads: int


class SelfAttention(nn.Module):
    """Self-attention with several heads. It uses only basic operations, so that it can be differentiated twice."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.queries_keys_values = nn.Linear(width, 3 * width)
        self.outputs = nn.Linear(width, width)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the attended tokens, of shape (N, tokens, width)."""
        parts = self.queries_keys_values(tokens).chunk(3, dim=-1)
        queries, keys, values = (part.unflatten(-1, (self.heads, -1)).transpose(-3, -2) for part in parts)
        weights = (queries @ keys.transpose(-2, -1) / math.sqrt(queries.shape[-1])).softmax(-1)
        attended: Tensor = self.outputs((weights @ values).transpose(-3, -2).flatten(-2))
        return attended


class Block(nn.Module):
    """A block of self-attention and a small perceptron, each with a normalisation before and a shortcut around it."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(width)
        self.attention = SelfAttention(width, heads)
        self.mlp_norm = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the tokens after the block, of shape (N, tokens, width)."""
        tokens = tokens + self.attention(self.attention_norm(tokens))
        mixed: Tensor = tokens + self.mlp(self.mlp_norm(tokens))
        return mixed


class VisionTransformer(nn.Module):
    """A network of attention blocks and a linear layer. Its tokens are the patches of an image. See :func:`vit`."""

    def __init__(
        self, shape: tuple[int, int, int], classes: int, patch: int, size: Size, positions: Tensor, pooling: Pooling
    ) -> None:
        super().__init__()
        self.patches = nn.Conv2d(shape[0], size.width, patch, stride=patch)
        self.class_token = nn.Parameter(torch.randn(1, 1, size.width) * 0.02) if pooling == "token" else None
        if isinstance(positions, nn.Parameter):
            self.positions = positions
        else:
            self.register_buffer("positions", positions)
        self.blocks = nn.Sequential(*(Block(size.width, size.heads) for _ in range(size.depth)))
        self.norm = nn.LayerNorm(size.width)
        self.head = nn.Linear(size.width, classes)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the class scores, of shape (N, classes)."""
        tokens = self.patches(inputs).flatten(2).transpose(1, 2)
        if self.class_token is not None:
            tokens = torch.cat([self.class_token.expand(len(tokens), -1, -1), tokens], dim=1)
        tokens = self.norm(self.blocks(tokens + self.positions))
        scores: Tensor = self.head(tokens.mean(1) if self.class_token is None else tokens[:, 0])
        return scores


def _learned(tokens: int, width: int) -> Tensor:
    return nn.Parameter(torch.randn(1, tokens, width) * 0.02)


def _fixed(tokens: int, width: int) -> Tensor:
    """Return fixed position encodings of sines and cosines, one for each token (Vaswani et al., NeurIPS 2017).

    The shape of the result is (1, tokens, width).
    """
    frequencies = torch.exp(-math.log(10_000) * torch.arange(0, width, 2) / width)
    angles = torch.arange(tokens)[:, None] * frequencies
    return torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(1)[None, :, :width]


POSITIONS: dict[str, Callable[[int, int], Tensor]] = {"learned": _learned, "fixed": _fixed}
POOLINGS: dict[str, Pooling] = {"token": "token", "mean": "mean"}


def vit(  # noqa: PLR0913
    *,
    shape: Sequence[int] = (3, 32, 32),
    classes: int = 10,
    patch: int = 4,
    width: int = 64,
    depth: int = 2,
    heads: int = 4,
    positions: Positions = "learned",
    pooling: Pooling = "token",
    seed: int | None = None,
) -> VisionTransformer:
    """Build a vision transformer with normalisation before each layer (Dosovitskiy et al., ICLR 2021).

    ViT-Tiny is ``shape=(3, 224, 224), patch=16, width=192, depth=12, heads=3``. Weights start with PyTorch's
    initialisation. The class token and learned positions are drawn from a normal distribution with a standard deviation
    of 0.02.

    Args:
        shape: The (channels, height, width) of an image.
        classes: The number of classes.
        patch: The height and width of a patch. The height and the width of an image must be multiples of ``patch``.
        width: The size of a token.
        depth: The number of blocks.
        heads: The number of heads of an attention layer. The width must be a multiple of ``heads``.
        positions: "learned" adds a trained vector to each token. "fixed" adds sines and cosines.
        pooling: "token" adds a class token, and computes the class scores from this token. "mean" computes the class
            scores from the mean of all tokens.
        seed: The seed of the initial weights. By default, they are drawn from torch's global random state.

    >>> import torch
    >>> vit(shape=(1, 8, 8), classes=10, patch=2, width=24)(torch.zeros(5, 1, 8, 8)).shape
    torch.Size([5, 10])
    """
    size = Size(whole_number("width", width), whole_number("depth", depth), whole_number("heads", heads))
    channels, rows, columns = image_shape(shape, at_least=whole_number("patch", patch))
    if rows % patch or columns % patch:
        raise InvalidInput(f"patches of {patch} x {patch} do not divide an image of {rows} x {columns}")
    if width % heads:
        raise InvalidInput(f"width must be a multiple of heads, but {width} is no multiple of {heads}")
    make_positions = choose("positions of vit", positions, POSITIONS)
    pooling = choose("pooling of vit", pooling, POOLINGS)
    tokens = (rows // patch) * (columns // patch) + (pooling == "token")
    with seeded(seed):
        return VisionTransformer(
            (channels, rows, columns),
            whole_number("classes", classes),
            patch,
            size,
            make_positions(tokens, width),
            pooling,
        )


NETWORKS = (vit,)
