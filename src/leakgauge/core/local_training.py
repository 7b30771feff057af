"""The local training of a client, as far as an attacker knows it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from leakgauge.core.checks import finite, whole_number
from leakgauge.core.errors import InvalidInput, MissingKnowledge

Mode = Literal["train", "eval"]


@dataclass(frozen=True)
class LocalTraining:
    """The known settings of a client's local SGD. ``None`` stands for an unknown setting.

    Args:
        lr: The learning rate.
        epochs: The number of passes over the client's samples.
        batch_size: The number of samples in a batch. The last batch of an epoch may be smaller.
        samples: The number of the client's samples.
        momentum: The momentum of SGD.
        weight_decay: The weight decay of SGD.
        loss: The name of the loss, from :data:`leakgauge.federation.training.LOSSES`.
        mode: The mode of the client's model, "train" (with batch statistics and dropout) or "eval".
    """

    lr: float | None = None
    epochs: int | None = None
    batch_size: int | None = None
    samples: int | None = None
    momentum: float | None = 0.0
    weight_decay: float | None = 0.0
    loss: str = "cross_entropy"
    mode: Mode = "train"

    def __post_init__(self) -> None:
        for name in ("epochs", "batch_size", "samples"):
            value = getattr(self, name)
            if value is not None:  # stored as a plain integer, which JSON can hold
                object.__setattr__(self, name, whole_number(name, value))
        for name in ("lr", "momentum", "weight_decay"):
            value = getattr(self, name)
            if value is not None:
                finite(name, value)
        if self.lr is not None and self.lr <= 0:
            raise InvalidInput(f"lr must be above 0, not {self.lr}")
        if self.momentum is not None and not 0 <= self.momentum < 1:
            raise InvalidInput(f"momentum must lie in [0, 1), not {self.momentum}")
        if self.weight_decay is not None and self.weight_decay < 0:
            raise InvalidInput(f"weight_decay must not be negative, but is {self.weight_decay}")
        if not isinstance(self.loss, str):
            raise InvalidInput(f"loss must be the name of a loss, not {self.loss!r}")
        if self.mode not in ("train", "eval"):
            raise InvalidInput(f"mode must be 'train' or 'eval', not {self.mode!r}")

    @property
    def batch_sizes(self) -> tuple[int, ...]:
        """The sizes of the batches of one epoch. The last batch may be smaller."""
        samples, size = self.need("samples"), self.need("batch_size")
        full, rest = divmod(int(samples), int(size))
        return (int(size),) * full + ((rest,) if rest else ())

    @property
    def steps(self) -> int:
        """The number of local steps in all epochs."""
        return len(self.batch_sizes) * int(self.need("epochs"))

    @property
    def applied_gradients(self) -> float:
        """The number of gradients that the client applies. With momentum ``m``, it is larger than the number of steps.

        The velocity applies the gradients of earlier steps again. A gradient that is ``s`` steps older than the last
        gradient counts as ``1 + m + ... + m^s`` gradients.
        """
        momentum, steps = float(self.momentum or 0.0), self.steps
        if not momentum:
            return steps
        return sum((1 - momentum ** (steps - step)) / (1 - momentum) for step in range(steps))

    def need(self, name: str) -> float:
        """Return a setting, or raise :class:`~leakgauge.core.errors.MissingKnowledge` if the setting is unknown."""
        value = getattr(self, name)
        if value is None:
            raise MissingKnowledge(
                f"this attack needs the client's {name}, which this observation does not have. "
                f"Supply it with observation.knowing({name}=...), or with --know {name}=... on the command line."
            )
        return float(value) if isinstance(value, float) else int(value)
