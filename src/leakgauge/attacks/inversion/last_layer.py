"""The part of the last layer's update from which labels are inferred."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from leakgauge.core.errors import MissingKnowledge
from leakgauge.core.observation import Observation
from leakgauge.core.params import Params, inside

Part = Literal["bias", "kernel"]


@dataclass(frozen=True, eq=False)
class LastLayerReading:
    """The part of an update from which labels are inferred. It is the last bias, or the row sums of the last kernel.

    Args:
        name: The name of the layer.
        layer: The last linear layer of the model.
        part: The part of the layer that is read, ``"bias"`` or ``"kernel"``.
    """

    name: str
    layer: nn.Linear
    part: Part

    def rows(self, difference: Params) -> Tensor:
        """Return the rows of the last kernel's update, one for each class.

        A layer with one logit for two classes has one row g. The result then has the rows -g and g.

        Args:
            difference: The difference of the sent and the returned weights, or the gradient of a FedSGD client.
        """
        value = difference[inside(self.name, "weight")]
        return torch.cat([-value, value]) if self.layer.out_features == 1 else value

    def values(self, difference: Params) -> Tensor:
        """Return the update of the last bias, or the row sums of the last kernel's update, one value for each class.

        Args:
            difference: The difference of the sent and the returned weights, or the gradient of a FedSGD client.
        """
        if self.part == "kernel":
            return self.rows(difference).sum(1)
        value = difference[inside(self.name, "bias")]
        return torch.cat([-value, value]) if self.layer.out_features == 1 else value

    def mean_gradient(self, observation: Observation, difference: Params) -> Tensor:
        """Return the mean gradient over the local steps, with one value for each class.

        With momentum, the client applies each gradient again in later steps. The mean counts a gradient each time that
        it is applied.

        Args:
            observation: The client's message (gradient or weights), as the server sees it.
            difference: The difference of the sent and the returned weights, or the gradient of a FedSGD client.
        """
        value = self.values(difference)
        if observation.kind == "gradient":
            return value
        training = observation.training
        return value / (training.need("lr") * training.applied_gradients)


def last_layer(observation: Observation, read: Part | None = None) -> LastLayerReading:
    """Return the part of the last layer from which labels can be inferred.

    Args:
        observation: The client's message (gradient or weights), as the server sees it.
        read: The part to read. By default, the bias if the layer has one, and otherwise the kernel.

    Raises:
        MissingKnowledge: If labels cannot be inferred from this model and loss.
    """
    outputs = outputs_for_labels(observation)
    if outputs is None:
        raise MissingKnowledge(
            "labels can only be inferred for classification with cross-entropy. "
            'Grant them ([attacker] granted = ["labels"] in TOML, observation.knowing(labels=...) in Python)'
        )
    name, layer = last_linear(observation.model, outputs)
    if not layer.weight.requires_grad:
        raise MissingKnowledge(
            f"labels cannot be inferred, because the last layer, {name!r}, is not trained. "
            "Supply them with observation.knowing(labels=...)"
        )
    trained_bias = layer.bias is not None and layer.bias.requires_grad
    if read == "bias" and not trained_bias:
        raise MissingKnowledge(f"labels cannot be read from the bias, because the last layer, {name!r}, trains none")
    return LastLayerReading(name, layer, "bias" if trained_bias and read != "kernel" else "kernel")


def outputs_for_labels(observation: Observation) -> int | None:
    """Return the number of model outputs from which labels are inferred, or ``None`` if the loss does not allow it.

    The result is the number of classes for cross-entropy, and 1 for binary cross-entropy with two classes.

    Args:
        observation: The client's message (gradient or weights), as the server sees it.
    """
    classes, loss = observation.data.classes, observation.training.loss
    if classes == 2 and loss == "binary_cross_entropy":
        return 1
    return classes if loss == "cross_entropy" else None


def last_linear(model: nn.Module, outputs: int) -> tuple[str, nn.Linear]:
    """Return the name of a model's last linear layer, and the layer itself.

    Args:
        model: The model, whose layers are searched from the last to the first.
        outputs: The number of outputs that the layer must have.
    """
    layers = [(name, module) for name, module in model.named_modules() if not list(module.children())]
    with_parameters = [(name, module) for name, module in layers if list(module.parameters())]
    if with_parameters:
        name, module = with_parameters[-1]
        if isinstance(module, nn.Linear) and module.out_features == outputs:
            return name, module
    raise MissingKnowledge(
        f"labels cannot be inferred, because the model does not end in a linear layer with {outputs} "
        f"output{'s' * (outputs > 1)}. Supply them with observation.knowing(labels=...)"
    )
