"""Hooks on a client's model and optimiser that show whether a training is as its recipe says."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from leakgauge.core.local_training import LocalTraining
from leakgauge.core.schedules import CONSTANT

#: The largest number of steps whose learning rates are stored. After more steps, the schedule is unknown.
LONGEST = 100_000


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
        #: The learning rate of each step, or ``None`` if the groups of the optimiser have different ones.
        self.rates: list[float | None] = []
        self._counts = optimizer is not None
        self._hooks: list[Any] = [model.register_forward_pre_hook(self._forward)]
        if optimizer is not None:
            self._hooks.append(optimizer.register_step_pre_hook(self._rate))
            self._hooks.append(optimizer.register_step_post_hook(self._step))

    def _forward(self, module: nn.Module, _: Any) -> None:
        if torch.is_grad_enabled():
            self.modes.add(module.training)

    def _rate(self, optimizer: Optimizer, *_: Any) -> None:
        if len(self.rates) < LONGEST:
            rates = {float(group["lr"]) for group in optimizer.param_groups}
            self.rates.append(rates.pop() if len(rates) == 1 else None)

    def _step(self, *_: Any) -> None:
        self.steps += 1

    def stop(self) -> None:
        """Remove the hooks."""
        for hook in self._hooks:
            hook.remove()

    @property
    def settings(self) -> dict[str, Any]:
        """The settings of a recipe that the hooks show."""
        found: dict[str, Any] = {"mode": "eval"} if self.modes == {False} else {}
        if not self.rates or len(self.rates) != self.steps:
            return found
        if None in self.rates:
            return {**found, "schedule": None}
        rates = [float(rate) for rate in self.rates if rate is not None]
        if len(set(rates)) == 1:
            return {**found, "lr": rates[0], "schedule": CONSTANT}
        if not rates[0]:  # a warm-up from 0 has no factors of its first rate
            largest = max(rates)
            return {**found, "lr": largest, "schedule": tuple(rate / largest for rate in rates)}
        return {**found, "lr": rates[0], "schedule": tuple(rate / rates[0] for rate in rates)}

    def contradiction(self, training: LocalTraining) -> str:
        """Return in words how the training was not as a recipe says. The text is empty if it was.

        Args:
            training: The recipe.
        """
        if self.modes and (training.mode == "train") not in self.modes:
            return f"its model was not in {training.mode} mode"
        if len(self.modes) > 1:
            return "its model was trained both in train mode and in eval mode"
        if self.counted(training) and self.steps != training.steps:
            return f"its optimiser took {self.steps} steps, and its recipe has {training.steps}"
        return ""

    def counted(self, training: LocalTraining) -> bool:
        """Return whether the steps were counted, and a recipe has a number of steps, too.

        Args:
            training: The recipe.
        """
        known = None not in (training.samples, training.batch_size) and (training.epochs or training.local_steps)
        return self._counts and bool(known)
