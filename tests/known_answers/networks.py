"""The networks of the known answers that Leakgauge itself does not have."""

from collections.abc import Callable, Sequence
from itertools import pairwise
from math import prod

import torch
from torch import Tensor, nn

from leakgauge.models.vit import Pooling, vit


class Sine(nn.Module):
    """The sine, an activation that is neither monotone nor saturated."""

    def forward(self, inputs: Tensor) -> Tensor:
        return torch.sin(inputs)


ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {
    "relu": nn.ReLU,
    "leaky_relu": nn.LeakyReLU,
    "elu": nn.ELU,
    "gelu": nn.GELU,
    "silu": nn.SiLU,
    "softplus": nn.Softplus,
    "tanh": nn.Tanh,
    "sigmoid": nn.Sigmoid,
    "hardswish": nn.Hardswish,
    "sine": Sine,
}
NORMS: dict[str, Callable[[int], nn.Module]] = {
    "none": lambda channels: nn.Identity(),
    "batch": nn.BatchNorm2d,
    "group": lambda channels: nn.GroupNorm(4, channels),
    "layer": lambda channels: nn.GroupNorm(1, channels),
}


def dense(
    *,
    shape: Sequence[int],
    classes: int,
    hidden: Sequence[int] = (128, 64),
    activation: str = "relu",
    bias: bool = True,
) -> nn.Module:
    """Return dense layers with an activation between them."""
    sizes = [prod(shape), *hidden]
    layers: list[nn.Module] = [nn.Flatten()]
    for before, after in pairwise(sizes):
        layers += [nn.Linear(before, after, bias=bias), ACTIVATIONS[activation]()]
    return nn.Sequential(*layers, nn.Linear(sizes[-1], classes, bias=bias))


def one_logit(*, shape: Sequence[int], hidden: Sequence[int] = (64, 32), activation: str = "relu") -> nn.Module:
    """Return dense layers that end in a single logit, whatever the number of classes."""
    return dense(shape=shape, classes=1, hidden=hidden, activation=activation)


def convolutional(
    *,
    shape: Sequence[int],
    classes: int,
    channels: Sequence[int] = (16, 16),
    norm: str = "none",
    activation: str = "relu",
    tail: Sequence[int] = (),
) -> nn.Module:
    """Return 3 x 3 convolutions, of which all but the first halve the picture, and dense layers after them."""
    before, height, width = shape
    layers: list[nn.Module] = []
    for number, after in enumerate(channels):
        stride = 2 if number else 1
        layers += [nn.Conv2d(before, after, 3, stride, padding=1), NORMS[norm](after), ACTIVATIONS[activation]()]
        before, height, width = after, -(-height // stride), -(-width // stride)
    return nn.Sequential(
        *layers, dense(shape=(before, height, width), classes=classes, hidden=tail, activation=activation)
    )


def dropped_tail(*, shape: Sequence[int], classes: int, channels: int = 16) -> nn.Module:
    """Return two convolutions, and dense layers with dropout between them, as VGG has."""
    before, height, width = shape
    return nn.Sequential(
        nn.Conv2d(before, channels, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(channels, channels, 3, padding=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(channels * height * width, 64),
        nn.ReLU(),
        nn.Dropout(0.5),
        nn.Linear(64, classes),
    )


class Residual(nn.Module):
    """A body with a shortcut around it."""

    def __init__(self, body: nn.Module, activation: Callable[[], nn.Module] = nn.Identity) -> None:
        super().__init__()
        self.body = body
        self.activation = activation()

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.activation(inputs + self.body(inputs))
        return outputs


def small_resnet(
    *, shape: Sequence[int], classes: int, channels: int = 16, blocks: int = 2, norm: str = "none"
) -> nn.Module:
    """Return a residual network of a few blocks with global average pooling."""

    def convolution(before: int) -> list[nn.Module]:
        return [nn.Conv2d(before, channels, 3, padding=1), NORMS[norm](channels)]

    bodies = [nn.Sequential(*convolution(channels), nn.ReLU(), *convolution(channels)) for _ in range(blocks)]
    return nn.Sequential(
        *convolution(shape[0]),
        nn.ReLU(),
        *(Residual(body, nn.ReLU) for body in bodies),
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
        nn.Linear(4 * channels, classes),
    )


def residual_dense(*, shape: Sequence[int], classes: int, width: int = 96, blocks: int = 2) -> nn.Module:
    """Return a dense network with shortcuts and layer normalisation."""

    def body() -> nn.Module:
        return nn.Sequential(nn.LayerNorm(width), nn.Linear(width, width), nn.GELU(), nn.Linear(width, width))

    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(prod(shape), width),
        *(Residual(body()) for _ in range(blocks)),
        nn.ReLU(),
        nn.Linear(width, classes),
    )


def depthwise(*, shape: Sequence[int], classes: int, channels: int = 24) -> nn.Module:
    """Return a network of depthwise and pointwise convolutions."""
    return nn.Sequential(
        nn.Conv2d(shape[0], channels, 1),
        nn.Hardswish(),
        nn.Conv2d(channels, channels, 3, padding=1, groups=channels),
        nn.Hardswish(),
        nn.Conv2d(channels, 12, 1),
        nn.Hardswish(),
        nn.Flatten(),
        nn.Linear(12 * shape[1] * shape[2], classes),
    )


class ChannelsLast(nn.Module):
    """A network that reads pictures row by row from the right, with the channels last."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.network(inputs.permute(0, 3, 2, 1).flatten(1))
        return outputs


def channels_last(*, shape: Sequence[int], classes: int, hidden: Sequence[int] = (96, 48)) -> nn.Module:
    """Return a dense network whose input layout is transposed."""
    return ChannelsLast(dense(shape=(prod(shape),), classes=classes, hidden=hidden))


def series(*, shape: Sequence[int], classes: int, channels: int = 16) -> nn.Module:
    """Return a network of one-dimensional convolutions."""
    return nn.Sequential(
        nn.Conv1d(shape[0], channels, 5, padding=2),
        nn.SiLU(),
        nn.Conv1d(channels, channels, 5, 2, padding=2),
        nn.SiLU(),
        nn.Flatten(),
        nn.Linear(channels * -(-shape[1] // 2), classes),
    )


class Encoder(nn.Module):
    """PyTorch's own encoder layers on patches, with random positions that are not trained."""

    def __init__(self, shape: Sequence[int], classes: int, patch: int, width: int, norm_first: bool) -> None:
        super().__init__()
        self.see = nn.Conv2d(shape[0], width, patch, patch)
        self.register_buffer("where", 0.3 * torch.randn((shape[1] // patch) * (shape[2] // patch), width))
        layer = nn.TransformerEncoderLayer(
            width, 4, 2 * width, dropout=0.0, activation="gelu", batch_first=True, norm_first=norm_first
        )
        self.body = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(width, classes)

    def forward(self, inputs: Tensor) -> Tensor:
        scores: Tensor = self.head(self.body(self.see(inputs).flatten(2).transpose(1, 2) + self.where).mean(1))
        return scores


def encoder(
    *, shape: Sequence[int], classes: int, patch: int = 2, width: int = 48, norm_first: bool = True
) -> nn.Module:
    """Return PyTorch's own encoder layers on patches, with the norms before or after the attention."""
    return Encoder(shape, classes, patch, width, norm_first)


def frozen_vit(
    *, shape: Sequence[int], classes: int, patch: int = 2, width: int = 40, depth: int = 2, pooling: Pooling = "token"
) -> nn.Module:
    """Return a vision transformer whose positions are not trained, as in fine-tuning."""
    model = vit(shape=shape, classes=classes, patch=patch, width=width, depth=depth, pooling=pooling)
    model.positions.requires_grad_(False)
    return model


def dropped_out(*, shape: Sequence[int], classes: int, hidden: Sequence[int] = (96, 48)) -> nn.Module:
    """Return a dense network with dropout between its hidden layers."""
    first, second = hidden
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(prod(shape), first),
        nn.ReLU(),
        nn.Dropout(0.3),
        nn.Linear(first, second),
        nn.ReLU(),
        nn.Linear(second, classes),
    )


def autoencoder(*, shape: Sequence[int], hidden: Sequence[int] = (64, 32, 64), activation: str = "relu") -> nn.Module:
    """Return dense layers that return as many values as a sample has."""
    return dense(shape=shape, classes=prod(shape), hidden=hidden, activation=activation)


def weight_normed(*, shape: Sequence[int], classes: int, hidden: Sequence[int] = (96, 48)) -> nn.Module:
    """Return dense layers whose kernels are products of a length and a direction."""
    network = dense(shape=shape, classes=classes, hidden=hidden)
    for layer in network.modules():
        if isinstance(layer, nn.Linear):
            nn.utils.parametrizations.weight_norm(layer)
    return network


class Adapter(nn.Module):
    """A frozen dense layer, and a trained product of two thin matrices beside it (LoRA, Hu et al. 2021)."""

    def __init__(self, inputs: int, outputs: int, rank: int) -> None:
        super().__init__()
        self.base = nn.Linear(inputs, outputs).requires_grad_(False)
        self.down = nn.Parameter(torch.randn(rank, inputs) / inputs**0.5)
        self.up = nn.Parameter(torch.zeros(outputs, rank))

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.base(inputs) + inputs @ self.down.T @ self.up.T
        return outputs


def adapted(*, shape: Sequence[int], classes: int, rank: int = 8) -> nn.Module:
    """Return a dense network with adapters, whose other layers are all frozen."""
    return nn.Sequential(
        nn.Flatten(),
        Adapter(prod(shape), 128, rank),
        nn.GELU(),
        Adapter(128, 96, rank),
        nn.GELU(),
        nn.Linear(96, classes).requires_grad_(False),
    )


def frozen_body(*, shape: Sequence[int], classes: int) -> nn.Module:
    """Return frozen convolutions, and a trained layer after them."""
    network = convolutional(shape=shape, classes=classes)
    for module in network.modules():
        if isinstance(module, nn.Conv2d):
            module.requires_grad_(False)
    return network


class Embedded(nn.Module):
    """A network that looks up an embedding for each value, rounded to a whole number below 12."""

    def __init__(self, columns: int, classes: int) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(12, 8) for _ in range(columns))
        self.network = dense(shape=(8 * columns,), classes=classes, hidden=(48, 24))

    def forward(self, inputs: Tensor) -> Tensor:
        codes = inputs.round().long().clamp(0, 11)
        outputs: Tensor = self.network(torch.cat([table(codes[:, k]) for k, table in enumerate(self.tables)], 1))
        return outputs


def embedded(*, shape: Sequence[int], classes: int) -> nn.Module:
    """Return a network with an embedding for each column."""
    return Embedded(shape[0], classes)


class UNet(nn.Module):
    """One level of a U-Net (Ronneberger et al. 2015), which returns a value for each pixel."""

    def __init__(self, channels: int, outputs: int, width: int, activation: str) -> None:
        super().__init__()
        act = ACTIVATIONS[activation]
        self.before = nn.Sequential(nn.Conv2d(channels, width, 3, padding=1), act())
        self.inner = nn.Sequential(nn.AvgPool2d(2), nn.Conv2d(width, 2 * width, 3, padding=1), act())
        self.up = nn.ConvTranspose2d(2 * width, width, 2, stride=2)
        self.after = nn.Sequential(nn.Conv2d(2 * width, width, 3, padding=1), act(), nn.Conv2d(width, outputs, 1))

    def forward(self, inputs: Tensor) -> Tensor:
        before = self.before(inputs)
        values: Tensor = self.after(torch.cat([before, self.up(self.inner(before))], 1))
        return values


def unet(*, shape: Sequence[int], classes: int, width: int = 12, activation: str = "silu") -> nn.Module:
    """Return a small U-Net for masks, with an even height and width of the pictures."""
    return UNet(shape[0], classes, width, activation)


class OfWords(nn.Module):
    """A network on the embeddings of a text's words, which takes their mean or the last state of a recurrent layer."""

    def __init__(self, words: int, classes: int, body: str) -> None:
        super().__init__()
        self.table = nn.Embedding(words, 16)
        self.body = nn.GRU(16, 16, batch_first=True) if body == "gru" else None
        self.head = nn.Linear(16, classes)

    def forward(self, inputs: Tensor) -> Tensor:
        embedded = self.table(inputs.round().long())
        features = embedded.mean(1) if self.body is None else self.body(embedded)[0][:, -1]
        outputs: Tensor = self.head(features)
        return outputs


def of_words(*, shape: Sequence[int], classes: int, words: int = 300, body: str = "mean") -> nn.Module:
    """Return a network on texts, whose samples are the ids of their words."""
    return OfWords(words, classes, body)
