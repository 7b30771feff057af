"""Vision transformers whose positions are known and not trained, for tests."""

import torch
from torch import nn
from torch.nn import functional as F

from leakgauge import data, models

DIGITS = data.load("digits")


def frozen(**options):
    """Return a vision transformer whose positions were drawn at random and are not trained."""
    model = models.vit(**{"shape": (1, 8, 8), "patch": 2, "width": 40, "depth": 2, "seed": 0, **options})
    model.positions.requires_grad_(False)
    return model


class RootMeanSquare(nn.Module):
    """A normalisation without centring, written by hand."""

    def __init__(self, width):
        super().__init__()
        self.gain = nn.Parameter(1 + 0.3 * torch.randn(width))

    def forward(self, tokens):
        return self.gain * tokens * (tokens.square().mean(-1, keepdim=True) + 1e-6).rsqrt()


class SeparateAttention(nn.Module):
    """Attention with three dense layers, whose names and order are unusual."""

    def __init__(self, width, bias=True):
        super().__init__()
        self.look = nn.Linear(width, width, bias=bias)
        self.give = nn.Linear(width, width, bias=bias)
        self.seek = nn.Linear(width, width, bias=bias)
        self.heads = 4

    def forward(self, tokens):
        shape = (len(tokens), -1, self.heads, tokens.shape[-1] // self.heads)
        queries, keys, values = (
            part(tokens).reshape(shape).transpose(1, 2) for part in (self.seek, self.look, self.give)
        )
        weights = (queries @ keys.transpose(2, 3) / shape[-1]).softmax(-1)
        return (weights @ values).transpose(1, 2).flatten(2)


class OwnTransformer(nn.Module):
    """A transformer written by someone else.

    Args:
        norm: The normalisation before the attention.
        scale: The factor of the embedded patches before positions are added.
        bias: Whether the layers have biases.
        dense: Whether the patches enter a dense layer, in columns and in reverse.
        dropout: The share of dropped values after the attention.
    """

    def __init__(self, norm=nn.LayerNorm, scale=1.0, bias=True, dense=False, dropout=0.0):
        super().__init__()
        torch.manual_seed(1)
        self.see = nn.Linear(4, 48, bias=bias) if dense else nn.Conv2d(1, 48, 2, 2, bias=bias)
        self.register_buffer("where", 0.3 * torch.randn(18, 48))
        self.extra = nn.Parameter(torch.randn(2, 48))
        self.norm, self.mix, self.scale = norm(48), SeparateAttention(48, bias), scale
        self.mlp = nn.Sequential(nn.LayerNorm(48), nn.Linear(48, 96), nn.GELU(), nn.Dropout(dropout), nn.Linear(96, 48))
        self.head = nn.Linear(48, 10)

    def forward(self, pictures):
        if isinstance(self.see, nn.Linear):
            seen = self.see(F.unfold(pictures, 2, stride=2).transpose(1, 2).flip(1))
        else:
            seen = self.see(pictures).flatten(2).transpose(1, 2)
        tokens = torch.cat([self.extra.expand(len(seen), -1, -1), self.scale * seen], 1) + self.where
        tokens = tokens + self.mix(self.norm(tokens))
        return self.head((tokens + self.mlp(tokens)).mean(1))


class Encoder(nn.Module):
    """PyTorch's own encoder layers, with positions in a buffer."""

    def __init__(self, *, norm_first, batch_first=True):
        super().__init__()
        torch.manual_seed(2)
        self.see = nn.Conv2d(1, 48, 2, 2)
        self.register_buffer("where", 0.3 * torch.randn(16, 48))
        layer = nn.TransformerEncoderLayer(
            48, 4, 64, dropout=0.0, activation="gelu", batch_first=batch_first, norm_first=norm_first
        )
        self.body = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(48, 10)
        self.batch_first = batch_first

    def forward(self, pictures):
        tokens = self.see(pictures).flatten(2).transpose(1, 2) + self.where
        if self.batch_first:
            return self.head(self.body(tokens).mean(1))
        return self.head(self.body(tokens.transpose(0, 1)).mean(0))


def true_patches(layer, observation, truth):
    """Return the client's patches in the model's units."""
    return observation.data.normalise(truth.inputs).flatten()[layer.pixels]
