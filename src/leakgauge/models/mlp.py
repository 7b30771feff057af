"""Fully connected networks for tables, as in Local Model Reconstruction Attacks (LMRA; Driouich et al.)."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from leakgauge.core.checks import whole_number
from leakgauge.models.options import flat_size, seeded, sizes


class MultilayerPerceptron(nn.Module):
    """A network of dense layers with ReLU between them. See :func:`mlp`."""

    def __init__(self, inputs: int, outputs: int, hidden: tuple[int, ...], batch_norm: bool) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for size in hidden:
            layers.append(nn.Linear(inputs, size))
            if batch_norm:
                layers.append(nn.BatchNorm1d(size))
            layers.append(nn.ReLU())
            inputs = size
        self.features = nn.Sequential(*layers)
        self.head = nn.Linear(inputs, outputs)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the class scores, or the predictions of a regression, of shape (N, outputs)."""
        outputs: Tensor = self.head(self.features(inputs.flatten(1)))
        return outputs


def mlp(
    *,
    shape: Sequence[int] = (100,),
    classes: int = 2,
    hidden: Sequence[int] = (256, 256, 256),
    batch_norm: bool = False,
    seed: int | None = None,
) -> MultilayerPerceptron:
    """Build a multilayer perceptron. Its input is the flattened sample.

    Args:
        shape: The shape of one sample.
        classes: The number of classes, or the number of outputs of a regression.
        hidden: The sizes of the hidden layers. With ``()``, the model is linear.
        batch_norm: Whether batch normalisation comes before each ReLU.
        seed: The seed of the initial weights. By default, they are drawn from torch's global random state.

    >>> import torch
    >>> mlp(shape=(14,), classes=1)(torch.zeros(5, 14)).shape
    torch.Size([5, 1])
    """
    with seeded(seed):
        outputs = whole_number("classes", classes)
        return MultilayerPerceptron(flat_size(shape), outputs, sizes("hidden", hidden), batch_norm)


NETWORKS = (mlp,)
