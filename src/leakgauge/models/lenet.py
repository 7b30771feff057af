"""The LeNet of Deep Leakage from Gradients (Zhu, Liu, Han, NeurIPS 2019), also used by iDLG and EPAFL.

The network has three 5x5 convolutions of 12 channels (padding 2, strides 2, 2, 1) and one linear layer. A smooth
activation follows each convolution. The authors chose the activation and the initialisation for the attack. The attack
needs second derivatives, and the second derivative of ReLU is zero. The attack also needs widely spread weights, so
that the gradient of a sigmoid depends on the input of the sigmoid.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

from torch import Tensor, nn

from leakgauge.core.checks import whole_number
from leakgauge.models.options import ACTIVATIONS, choose, image_shape, seeded

CHANNELS = 12
STRIDES = (2, 2, 1)


class LeNet(nn.Module):
    """A network of three convolutions and a linear layer. See :func:`lenet`."""

    def __init__(self, shape: tuple[int, int, int], classes: int, activation: Callable[[], nn.Module]) -> None:
        super().__init__()
        channels, height, width = shape
        layers: list[nn.Module] = []
        for stride in STRIDES:
            layers += [nn.Conv2d(channels, CHANNELS, 5, stride, padding=2), activation()]
            channels, height, width = CHANNELS, -(-height // stride), -(-width // stride)
        self.features = nn.Sequential(*layers)
        self.head = nn.Linear(channels * height * width, classes)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the class scores, of shape (N, classes)."""
        scores: Tensor = self.head(self.features(inputs).flatten(1))
        return scores


def _uniform(model: nn.Module) -> None:
    for parameter in model.parameters():
        nn.init.uniform_(parameter, -0.5, 0.5)


INITIALISATIONS: dict[str, Callable[[nn.Module], None]] = {"uniform": _uniform, "default": lambda model: None}


def lenet(
    *,
    shape: Sequence[int] = (3, 32, 32),
    classes: int = 10,
    activation: Literal["sigmoid", "relu", "tanh"] = "sigmoid",
    initialisation: Literal["uniform", "default"] = "uniform",
    seed: int | None = None,
) -> LeNet:
    """Build the LeNet of Deep Leakage from Gradients (DLG; Zhu, Liu, Han, NeurIPS 2019).

    Args:
        shape: The (channels, height, width) of an image.
        classes: The number of classes.
        activation: "sigmoid" as in DLG, "relu" or "tanh".
        initialisation: "uniform" draws weights and biases from U(-0.5, 0.5), as in DLG. "default" is PyTorch's default.
        seed: The seed of the initial weights. By default, they are drawn from torch's global random state.

    >>> import torch
    >>> lenet(shape=(1, 28, 28), classes=62)(torch.zeros(2, 1, 28, 28)).shape
    torch.Size([2, 62])
    """
    initialise = choose("initialisation of lenet", initialisation, INITIALISATIONS)
    with seeded(seed):
        model = LeNet(
            image_shape(shape), whole_number("classes", classes), choose("activation", activation, ACTIVATIONS)
        )
        initialise(model)
    return model


NETWORKS = (lenet,)
