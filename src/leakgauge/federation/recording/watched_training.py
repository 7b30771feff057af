"""Hooks on a client's model and optimiser that show whether a training is as its recipe says."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from leakgauge.core.local_training import LocalTraining


class WatchedTraining:
    """The modes of a model and the number of steps of an optimiser during a training.

    Args:
        model: The model that is trained.
        optimizer: The optimiser, if it is known.
    """

    def __init__(self, model: nn.Module, optimizer: Optimizer | None) -> None:
        #: Whether the model was in train mode, for the forward passes that a gradient could be computed of.
        self.modes: set[bool] = set()
        self.steps = 0
        self._counts = optimizer is not None
        self._hooks: list[Any] = [model.register_forward_pre_hook(self._forward)]
        if optimizer is not None:
            self._hooks.append(optimizer.register_step_post_hook(self._step))

    def _forward(self, module: nn.Module, _: Any) -> None:
        if torch.is_grad_enabled():
            self.modes.add(module.training)

    def _step(self, *_: Any) -> None:
        self.steps += 1

    def stop(self) -> None:
        """Remove the hooks."""
        for hook in self._hooks:
            hook.remove()

    @property
    def settings(self) -> dict[str, Any]:
        """The settings of a recipe that the hooks show."""
        return {"mode": "eval"} if self.modes == {False} else {}

    def contradiction(self, training: LocalTraining) -> str:
        """Return in words how the training was not as a recipe says. The text is empty if it was.

        Args:
            training: The recipe.
        """
        if self.modes and (training.mode == "train") not in self.modes:
            return f"its model was not in {training.mode} mode"
        if len(self.modes) > 1:
            return "its model was trained both in train mode and in eval mode"
        known = None not in (training.samples, training.batch_size) and (training.epochs or training.local_steps)
        if self._counts and known and self.steps != training.steps:
            return f"its optimiser took {self.steps} steps, and its recipe has {training.steps}"
        return ""
