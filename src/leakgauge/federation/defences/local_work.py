"""A defence that uses larger batches or more local epochs, but adds no noise.

An update of more samples or more steps is harder to invert, but it is not safe. The attack DLF rebuilds fifty samples
from an update of ten epochs.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from leakgauge.core.errors import InvalidInput
from leakgauge.core.limits import RECIPE
from leakgauge.core.observation import LocalTraining
from leakgauge.federation.defence import RecipeDefence


@dataclass(frozen=True)
class LocalWork(RecipeDefence):
    """A defence that replaces the number of local ``epochs`` or the ``batch_size`` in the client's training recipe.

    Args:
        epochs: The number of local epochs. By default, the number in the recipe.
        batch_size: The number of samples in a local step. By default, the number in the recipe.
    """

    name: ClassVar[str] = "local_work"
    epochs: int | None = None
    batch_size: int | None = None

    def __post_init__(self) -> None:
        for name in ("epochs", "batch_size"):
            if (value := getattr(self, name)) is not None:
                RECIPE[name].checked(f"the {name} of local work", value)
        if self.epochs is None and self.batch_size is None:
            raise InvalidInput("local work needs epochs, a batch_size, or both, and neither is given")

    def on_recipe(self, training: LocalTraining) -> LocalTraining:
        """Return the changed training settings. A batch is never larger than the client's data."""
        epochs = training.epochs if self.epochs is None else self.epochs
        size = training.batch_size if self.batch_size is None else self.batch_size
        if size is not None and training.samples is not None:
            size = min(size, training.samples)
        if training.local_steps is not None:
            if self.epochs is not None:
                return replace(training, local_steps=None, epochs=epochs, batch_size=size)
            epochs = None  # it follows from the local steps and the new batches
        return replace(training, epochs=epochs, batch_size=size)
