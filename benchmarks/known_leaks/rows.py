"""The set-ups whose leaks earlier versions missed, and the known attack that finds each leak."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from leakgauge import attacks
from leakgauge.attacks.base import Attack
from leakgauge.attacks.inversion.update_models import FullSimulation


@dataclass(frozen=True)
class Row:
    """One set-up.

    Args:
        name: The set-up in words.
        model: The table ``[model]``.
        data: The name of the dataset.
        training: The table ``[training]``.
        known: The name of the known attack, and the function that returns it.
        granted: What the attacker is granted.
        only: The attacks of the default audit that run. By default, all of them.
    """

    name: str
    model: Mapping[str, Any]
    data: str
    training: Mapping[str, Any]
    known: tuple[str, Callable[[], Attack]]
    granted: tuple[str, ...] = ()
    only: tuple[str, ...] = ()

    def document(self, seed: int) -> dict[str, Any]:
        """Return the set-up as the document of an audit."""
        tables = {"model": dict(self.model), "data": {"name": self.data}, "training": dict(self.training)}
        return {**tables, "seed": seed, **({"attacker": {"granted": list(self.granted)}} if self.granted else {})}


def gradient(samples: int) -> dict[str, Any]:
    """Return the table ``[training]`` of a client that sends one gradient."""
    return {"sends": "gradient", "samples": samples}


def weights(samples: int, epochs: int, batch_size: int, lr: float) -> dict[str, Any]:
    """Return the table ``[training]`` of a client that sends its weights after local training."""
    return {"samples": samples, "epochs": epochs, "batch_size": batch_size, "lr": lr}


def simulating_lbfgs() -> Attack:
    """Return L-BFGS through the simulation of the local training, as EPAFL with another model of the update."""
    return attacks.epafl(retries=2).with_settings(update_model=FullSimulation())


def variation(weight: float, steps: int = 1000) -> tuple[str, Callable[[], Attack]]:
    """Return ``inverting_gradients`` with a weight of total variation."""
    options = {"tv": weight, "steps": steps}
    return f"inverting_gradients, tv {weight:g}", lambda: attacks.inverting_gradients(**options)


LBFGS = ("epafl through the simulation", simulating_lbfgs)
LENET, MLP = {"name": "lenet"}, {"name": "mlp", "options": {"hidden": [512, 256]}}
GROUP_NORM, CNN = {"name": "networks:group_norm_cnn"}, {"name": "networks:cifar_cnn"}
APRIL = ("april", attacks.april)
ROWS = (
    Row("ViT, one gradient of 1", {"name": "vit"}, "cifar10", gradient(1), APRIL),
    Row("ViT, 5 local steps on 1", {"name": "vit"}, "cifar10", weights(1, 5, 1, 0.01), APRIL),
    Row("sigmoid LeNet, 1 local step on 1", LENET, "mnist", weights(1, 1, 1, 0.01), LBFGS),
    Row("sigmoid LeNet, 2 local steps on 1", LENET, "mnist", weights(1, 2, 1, 0.01), LBFGS),
    Row("sigmoid LeNet, 2 epochs of batches of 2 on 4, lr .01", LENET, "mnist", weights(4, 2, 2, 0.01), LBFGS),
    Row("sigmoid LeNet, 2 epochs of batches of 2 on 4, lr .1", LENET, "mnist", weights(4, 2, 2, 0.1), LBFGS),
    Row("GroupNorm CNN, 1 epoch of batches of 2 on 4", GROUP_NORM, "femnist", weights(4, 1, 2, 0.01),
        variation(1e-4)),
    Row("DLF's network, 1 epoch of batches of 5 on 50", {"name": "dlf_femnist"}, "femnist", weights(50, 1, 5, 0.004),
        ("surrogate, 300 steps", lambda: attacks.surrogate(steps=300)), ("label_counts",)),
    Row("sigmoid LeNet, one gradient of 1", LENET, "mnist", gradient(1), variation(1e-4)),
    Row("CIFAR CNN, one gradient of 8", CNN, "cifar10", gradient(8), variation(1e-2)),
    Row("GroupNorm CNN, chest X-rays, 1 step on 5", GROUP_NORM, "pneumoniamnist", weights(5, 1, 5, 0.01),
        variation(1e-1)),
    Row("MLP, 1 epoch of batches of 4 on 8, lr .01", MLP, "mnist", weights(8, 1, 4, 0.01), variation(1e-4)),
    Row("MLP, 5 epochs of batches of 4 on 16, lr .1", MLP, "mnist", weights(16, 5, 4, 0.1), variation(1e-4)),
    Row("MLP, 5 epochs of batches of 8 on 32, lr .01", MLP, "mnist", weights(32, 5, 8, 0.01), variation(1e-4)),
    Row("MLP, 10 epochs of batches of 5 on 50, lr .004", MLP, "mnist", weights(50, 10, 5, 0.004), variation(1e-4)),
    *(
        Row(f"DLF's network for {place}, one gradient of {samples}", {"name": f"dlf_{place.lower()}"}, place.lower(),
            gradient(samples), variation(1e-2, 600), only=("dense_tail_features",))
        for place in ("FEMNIST", "CIFAR100") for samples in (4, 16, 32)
    ),
)  # fmt: skip
