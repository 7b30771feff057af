"""Models of a client whose products are computed in bfloat16, where the processor has instructions for it."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache

import torch
from torch import Tensor

from leakgauge.attacks.inversion.update_models import ClientModel, UpdateModel
from leakgauge.attacks.requirements import Simulation
from leakgauge.core.checks import boolean
from leakgauge.core.local_training import LocalTraining
from leakgauge.core.observation import Observation
from leakgauge.core.params import Params

log = logging.getLogger("leakgauge")


@dataclass(frozen=True)
class MixedPrecision:
    """A model of the client whose convolutions and matrix products are computed in bfloat16.

    The error of a predicted update is a few thousandths of the update's length. Weights, sums and the loss keep their
    precision. This model is faster if the network is large. Models in double precision are not changed. On a processor
    without instructions for bfloat16, this model would be several times slower. There it is the base, and one line in
    the log says so.

    Args:
        base: The model of the client that is computed in bfloat16.
    """

    base: UpdateModel

    @property
    def new_orders(self) -> bool:
        """Whether the dummy samples of all epochs are stored in the same order, as in ``FullSimulation``."""
        return getattr(self.base, "new_orders", False)

    @property
    def simulation(self) -> Callable[[LocalTraining, int], Simulation] | None:
        """The function that returns the size of one prediction, if the base has one."""
        return getattr(self.base, "simulation", None)

    def begin(self, observation: Observation, *, functional: bool) -> ClientModel:
        """Return the attacker's model of one client, which predicts updates.

        Args:
            observation: The client's message (gradient or weights), as the server sees it.
            functional: Whether predictions must run under ``torch.func.vmap``.
        """
        client = self.base.begin(observation, functional=functional)
        device = next(iter(observation.sent.values())).device
        if not computes_bfloat16(device):
            _say_once(device.type)
            return client

        def predict(inputs: Tensor, targets: Tensor, **extra: Tensor) -> Params:
            with torch.autocast(inputs.device.type, dtype=torch.bfloat16):
                update = client.predict(inputs, targets, **extra)
            return {name: value.to(observation.sent[name].dtype) for name, value in update.items()}

        return replace(client, predict=predict)


def in_precision(update_model: UpdateModel, mixed: bool) -> UpdateModel:
    """Return a model of the client, in mixed precision if requested.

    Args:
        update_model: The model of the client.
        mixed: Whether convolutions and matrix products are computed in bfloat16.
    """
    boolean("mixed", mixed)
    return MixedPrecision(update_model) if mixed else update_model


def computes_bfloat16(device: torch.device) -> bool:
    """Return whether a device has instructions for products in bfloat16. Unknown kinds of devices are taken to have.

    Args:
        device: The device of the model.
    """
    if device.type == "cuda":
        if torch.version.hip is not None:  # every GPU that PyTorch supports on ROCm has them
            return True
        return torch.cuda.get_device_capability(device)[0] >= 8
    return device.type != "cpu" or _processor_has_bfloat16()


@cache
def _processor_has_bfloat16() -> bool:
    features: dict[str, object] = getattr(torch.cpu, "get_capabilities", dict)()
    if features:
        return any(has for name, has in features.items() if "bf16" in name)  # such as avx512_bf16 and amx_bf16
    checks = ("_is_avx512_bf16_supported", "_is_amx_tile_supported")  # before PyTorch 2.7
    return any(check() for check in (getattr(torch.cpu, name, None) for name in checks) if check is not None)


@cache
def _say_once(device: str) -> None:
    log.warning("mixed is ignored, because this %s has no instructions for bfloat16 and would be slower", device)
