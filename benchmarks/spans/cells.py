"""The cells of the measurement of the span attacks. A cell is a set-up of clients that differ only in their seed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

#: The attacks on pictures, series and rows from one gradient, in the order of a default audit.
ONE_GRADIENT = ("two_spans", "dense_factorisation")
#: The widths of the hidden layers of all dense networks on pictures.
SHAPES = ((512, 256), (256, 128), (1024, 512))


@dataclass(frozen=True)
class Cell:
    """A set-up of clients.

    Args:
        data: The dataset, which is ``digits``, ``cifar``, ``adult``, ``insurance``, or ``small`` for 8 x 8 digits.
        hidden: The widths of the hidden layers.
        activation: The activation between the layers.
        trained: The number of training steps of the network before the attack, with batches of 64.
        samples: The number of samples of a client.
        attacks: The attacks. A later one runs only if no earlier one has returned every sample.
        epochs: The number of local epochs. 0 stands for one gradient.
        lr: The learning rate of the local training.
        momentum: The momentum of the local training.
        weight_decay: The weight decay of the local training.
        granted: Whether the targets are granted.
    """

    data: str
    hidden: tuple[int, ...]
    activation: str
    trained: int
    samples: int
    attacks: tuple[str, ...] = ONE_GRADIENT
    epochs: int = 0
    lr: float = 0.01
    momentum: float = 0.0
    weight_decay: float = 0.0
    granted: bool = False

    @property
    def setup(self) -> str:
        """The name of the cell without the number of samples."""
        parts = [self.data, "-".join(map(str, self.hidden)), self.activation, f"trained{self.trained}"]
        if self.epochs:
            parts.append(f"epochs{self.epochs}-lr{self.lr:g}")
        parts += [f"momentum{self.momentum:g}"] * bool(self.momentum)
        parts += [f"decay{self.weight_decay:g}"] * bool(self.weight_decay)
        parts += ["granted"] * self.granted
        return "/".join(parts)

    @property
    def name(self) -> str:
        """The name of the cell, such as ``digits/512-256/relu/trained0/n32``."""
        return f"{self.setup}/n{self.samples}"


def _pictures() -> Iterator[Cell]:
    for data in ("digits", "cifar"):
        for hidden in SHAPES:
            for activation in ("relu", "gelu", "tanh"):
                for trained in (0, 200):
                    for samples in (1, 8, 32, 64):
                        yield Cell(data, hidden, activation, trained, samples)


def _curves() -> Iterator[Cell]:
    for activation in ("relu", "gelu"):
        for hidden in ((512, 256), (1024, 512)):
            for samples in (96, 128, 192, 256):
                yield Cell("digits", hidden, activation, 0, samples)


def _training() -> Iterator[Cell]:
    for data in ("digits", "cifar"):
        for activation in ("relu", "gelu"):
            for trained in (1000, 5000):
                for samples in (8, 32):
                    yield Cell(data, (512, 256), activation, trained, samples)


def _sigmoid() -> Iterator[Cell]:
    for trained in (0, 200):
        for samples in (8, 32, 64):
            yield Cell("digits", (512, 256), "sigmoid", trained, samples)


def _one_hidden() -> Iterator[Cell]:
    for activation in ("relu", "gelu"):
        for samples in (8, 32, 64):
            yield Cell("digits", (512,), activation, 0, samples)


def _tables() -> Iterator[Cell]:
    for hidden in ((100, 100), (256, 128)):
        for trained in (0, 200, 2000):
            for samples in (1, 8, 16, 32, 48, 64, 96):
                yield Cell("adult", hidden, "relu", trained, samples, ("two_spans",))


def _local_tables() -> Iterator[Cell]:
    for lr in (0.01, 0.05):
        for epochs in (1, 5):
            for samples in (16, 32):
                yield Cell("adult", (100, 100), "relu", 0, samples, ("local_rows",), epochs, lr)
    yield Cell("adult", (100, 100), "relu", 200, 32, ("local_rows",), 1)
    yield Cell("adult", (100, 100), "relu", 0, 32, ("local_rows",), 1, momentum=0.9)
    yield Cell("adult", (100, 100), "relu", 0, 32, ("local_rows",), 1, weight_decay=1e-3)


def _insurance() -> Iterator[Cell]:
    for granted in (False, True):
        for samples in (1, 4, 8, 16, 32):
            yield Cell("insurance", (100, 100), "relu", 0, samples, granted=granted)


def _false() -> Iterator[Cell]:
    """Small clients that are hard to solve: near the largest size, learned samples, and copies of samples."""
    for hidden in ((64, 48), (48, 32), (64, 32)):
        for activation in ("relu", "gelu", "tanh"):
            for trained in (0, 300, 3000):
                for samples in (10, 16, 20, 24):
                    yield Cell("small", hidden, activation, trained, samples, ("two_spans",))


#: All cells, by the name of their group.
GROUPS: dict[str, tuple[Cell, ...]] = {
    "pictures": tuple(_pictures()),
    "curves": tuple(_curves()),
    "training": tuple(_training()),
    "sigmoid": tuple(_sigmoid()),
    "one hidden layer": tuple(_one_hidden()),
    "tables": tuple(_tables()),
    "local tables": tuple(_local_tables()),
    "insurance": tuple(_insurance()),
    "false claims": tuple(_false()),
}
