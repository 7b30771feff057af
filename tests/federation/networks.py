"""Small networks of every kind that clients train, and data for them."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from leakgauge.core.observation import DataSpec
from leakgauge.data import Dataset

SHAPE = (1, 4, 4)
CLASSES = 3


class Tied(nn.Module):
    """Two layers that are one."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.head = nn.Linear(16, 16), nn.Linear(16, 16), nn.Linear(16, CLASSES)
        self.second.weight = self.first.weight

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = torch.tanh(self.second(torch.tanh(self.first(inputs.flatten(1)))))
        outputs: Tensor = self.head(hidden)
        return outputs


class Spare(nn.Module):
    """A layer that forward does not use."""

    def __init__(self) -> None:
        super().__init__()
        self.spare, self.head = nn.Linear(3, 3), nn.Linear(16, CLASSES)

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.head(inputs.flatten(1))
        return outputs


def _frozen() -> nn.Module:
    model = mlp()
    model[1].weight.requires_grad_(False)
    return model


def linear(inputs: int = 6, outputs: int = 1) -> nn.Sequential:
    return nn.Sequential(nn.Flatten(), nn.Linear(inputs, outputs))


def mlp() -> nn.Sequential:
    return nn.Sequential(nn.Flatten(), nn.Linear(16, 5), nn.Tanh(), nn.Linear(5, CLASSES))


def conv() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(1, 3, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(12, CLASSES)
    )


def batch_norm() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.Sigmoid(), nn.Flatten(), nn.Linear(12, 4), nn.BatchNorm1d(4),
        nn.Tanh(), nn.Linear(4, CLASSES),
    )  # fmt: skip


def group_norm() -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.GroupNorm(2, 4), nn.SiLU(), nn.Flatten(), nn.Linear(16, CLASSES))


def dropout() -> nn.Sequential:
    return nn.Sequential(
        nn.Dropout2d(0.2), nn.Flatten(), nn.Linear(16, 8), nn.Tanh(), nn.Dropout(0.4), nn.Linear(8, CLASSES)
    )


def attention(probability: float = 0.0) -> nn.Sequential:
    layer = nn.TransformerEncoderLayer(4, 2, 8, dropout=probability, batch_first=True)
    return nn.Sequential(nn.Flatten(1, 2), layer, nn.Flatten(), nn.Linear(16, CLASSES))


NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "conv": conv,
    "batch norm": batch_norm,
    "group norm": group_norm,
    "dropout": dropout,
    "attention": attention,
    "attention with dropout": lambda: attention(0.3),
    "tied": Tied,
    "frozen": _frozen,
    "spare": Spare,
}


def same(first: Any, second: Any) -> bool:
    """Return whether two tensors, or two trees of them, are equal."""
    if isinstance(first, dict):
        return list(first) == list(second) and all(same(first[name], second[name]) for name in first)
    return torch.equal(first, second)


def make(name: str, dtype: torch.dtype = torch.float64) -> Any:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return NETWORKS[name]().to(dtype)


def samples(count: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    random = torch.Generator().manual_seed(seed)
    inputs = torch.rand(count, *SHAPE, generator=random, dtype=torch.float64).to(dtype)
    return inputs, torch.randint(CLASSES, (count,), generator=random)


def client(count: int, seed: int = 0, name: str = "someone") -> Dataset:
    inputs, targets = samples(count, seed, torch.float32)
    return Dataset(inputs, targets, DataSpec(SHAPE, CLASSES, mean=(0.4,), std=(0.3,)), name)


def table(count: int, seed: int = 0) -> Dataset:
    """A regression."""
    random = torch.Generator().manual_seed(seed)
    spec = DataSpec((6,), None, bounded=False)
    return Dataset(10 * torch.rand(count, 6, generator=random), torch.rand(count, generator=random), spec, "table")
