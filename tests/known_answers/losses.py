"""The losses of the known answers that Leakgauge itself does not have."""

import torch.nn.functional as F
from torch import Tensor, nn


def focal(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the focal loss (Lin et al. 2017), which weighs certain samples less."""
    chosen = F.log_softmax(outputs, 1).gather(1, targets[:, None])
    return (-((1 - chosen.exp()) ** 2) * chosen).mean()


def multi_label(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the binary cross-entropy of every class by itself."""
    return F.binary_cross_entropy_with_logits(outputs, F.one_hot(targets, outputs.shape[1]).to(outputs.dtype))


def rebuilt(model: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
    """Return the squared error of an autoencoder, which needs no targets."""
    return F.mse_loss(model(inputs).flatten(1), inputs.flatten(1))


def shares(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the error of logarithms, for targets above 0 whose relative error matters."""
    return (F.softplus(outputs) / targets.clamp(min=1e-3)).log().abs().add(1e-3).sqrt().mean()
