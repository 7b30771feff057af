"""The cells of the measurement of a malicious server. A cell is a set-up of clients that differ only in their seed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True)
class Cell:
    """A set-up of clients.

    Args:
        data: The dataset.
        model: The name of a network of Leakgauge, or ``own`` for the third architecture of ``measure.py``.
        way: ``weights``, ``half`` (half-negative rows) or ``block``.
        samples: The number of samples of a client.
        steps: The number of local steps. 0 stands for one gradient.
        batch: The number of samples in a batch, or 0 for all.
        defence: The name of a chain of defences in ``measure.py``.
        others: The number of other clients in a secure sum. ``dead`` says whether these get a dead layer.
        dead: Whether the other clients of a secure sum get a dead layer.
        public: Whether the server has samples of the same kind. Otherwise it draws random ones.
    """

    data: str
    model: str
    way: str
    samples: int
    steps: int = 0
    batch: int = 0
    defence: str = "none"
    others: int = 0
    dead: bool = False
    public: bool = True

    @property
    def name(self) -> str:
        """The name of the cell."""
        parts = [self.data, self.model, self.way, f"n{self.samples}"]
        parts += [f"steps{self.steps}"] * bool(self.steps) + [f"batch{self.batch}"] * bool(self.batch)
        parts += [self.defence] * (self.defence != "none")
        parts += [f"sum{self.others + 1}-{'dead' if self.dead else 'same'}"] * bool(self.others)
        parts += ["no-public"] * (not self.public)
        return "/".join(parts)


SIZES = (1, 16, 64, 256)
ROWS = (("mnist", "dlf_femnist"), ("cifar100", "dlf_cifar100"))


def _table() -> Iterator[Cell]:
    for way in ("weights", "block"):
        for data, model in ROWS:
            for samples in SIZES:
                yield Cell(data, model, way, samples)


def _more() -> Iterator[Cell]:
    for samples in SIZES:
        yield Cell("mnist", "dlf_femnist", "half", samples)
        yield Cell("mnist", "dlf_femnist", "weights", samples, public=False)
        yield Cell("mnist", "own", "weights", samples)
        yield Cell("cifar10", "resnet20", "block", samples)


def _steps() -> Iterator[Cell]:
    for way in ("weights", "block"):
        for steps in (1, 5, 20):
            yield Cell("mnist", "dlf_femnist", way, 64, steps)
        yield Cell("mnist", "dlf_femnist", way, 64, 20, 16)
        yield Cell("cifar100", "dlf_cifar100", way, 64, 20)


def _defences() -> Iterator[Cell]:
    for way in ("weights", "half", "block"):
        for defence in ("noise", "bits8", "clip", "clip-noise"):
            yield Cell("mnist", "dlf_femnist", way, 16, defence=defence)


def _sums() -> Iterator[Cell]:
    for dead in (False, True):
        yield Cell("mnist", "dlf_femnist", "weights", 16, others=9, dead=dead)


GROUPS: dict[str, list[Cell]] = {
    "table": list(_table()),
    "more": list(_more()),
    "steps": list(_steps()),
    "defences": list(_defences()),
    "sums": list(_sums()),
}
