"""Fully connected networks for tables, as in local model reconstruction (LMRA, Driouich et al.)."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from leakgauge.models.options import flat_size, seeded, sizes, whole


class MultilayerPerceptron(nn.Module):
    """Dense layers with ReLU between them; see :func:`mlp`."""

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
        """Class scores or predictions, (N, outputs)."""
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
    """A multilayer perceptron over the flattened sample; ``hidden=()`` is a linear model.

    ``batch_norm`` normalises before each ReLU. For a regression ``classes`` is the number of outputs.

    >>> import torch
    >>> mlp(shape=(14,), classes=1)(torch.zeros(5, 14)).shape
    torch.Size([5, 1])
    """
    with seeded(seed):
        return MultilayerPerceptron(flat_size(shape), whole("classes", classes), sizes("hidden", hidden), batch_norm)
