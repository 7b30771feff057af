"""The cells of the measurement of attackers with public data. A cell is a set-up with one defence."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

#: The defences by their title, each with a chain of names and settings.
DEFENCES: dict[str, tuple[Mapping[str, Any], ...]] = {
    "none": (),
    "largest 1%": ({"name": "top_k", "keep": 0.01},),
    "2 bits": ({"name": "quantisation", "bits": 2},),
    "noise 0.1": ({"name": "gaussian_noise", "sigma": 0.1},),
    "noise 1": ({"name": "gaussian_noise", "sigma": 1.0},),
    "clip 1, noise 0.1": ({"name": "clipping", "norm": 1.0}, {"name": "gaussian_noise", "sigma": 0.1}),
    "DP-SGD, epsilon 1": ({"name": "dpsgd", "epsilon": 1.0},),
}
FIRST = ("none", "largest 1%", "2 bits", "noise 0.1", "noise 1", "clip 1, noise 0.1", "DP-SGD, epsilon 1")
SOME = ("none", "largest 1%", "2 bits", "noise 0.1")


@dataclass(frozen=True)
class Setup:
    """A set-up of clients.

    Args:
        data: The name of the dataset.
        model: The name of the model.
        options: The options of the model.
        samples: The number of samples of a client, which sends one gradient.
        public: The number of public samples.
        defences: The titles of the defences.
        clients: The number of clients of each cell.
        ours: Whether the attacks without public data run too.
    """

    data: str
    model: str
    options: Mapping[str, Any] = field(default_factory=dict)
    samples: int = 1
    public: int = 1000
    defences: tuple[str, ...] = SOME
    clients: int = 20
    ours: bool = True


SETUPS = {
    "LeNet, 1 digit": Setup("mnist", "lenet", {"shape": (1, 28, 28), "classes": 10}, defences=FIRST),
    "Adult, 1 row": Setup("adult", "mlp", {"hidden": [64]}, defences=("largest 1%", "noise 0.1"), ours=False),
    "X-rays, LeNet, 1": Setup(
        "pneumoniamnist", "lenet", {"shape": (1, 28, 28), "classes": 2}, defences=("largest 1%",), ours=False
    ),
    "CNN, 8 digits": Setup("mnist", "dlf_femnist", {"classes": 10}, samples=8),
    "CIFAR LeNet, 1": Setup("cifar10", "lenet", {"shape": (3, 32, 32), "classes": 10}, defences=SOME),
}
