"""The learned perceptual distance LPIPS (Zhang et al., CVPR 2018) with the features of AlexNet.

Let ``f_l`` be the features of layer ``l``, scaled to unit length over channels at each position. Then (equation 1)

    LPIPS(x, y) = sum over l of mean over positions of  w_l . (f_l(x) - f_l(y))^2

The weights ``w_l`` are part of torchmetrics. The weights of AlexNet are a file of 233 MB, which is never downloaded
automatically. Without the file, :func:`lpips` raises an error with the address of the file and the folder to put it in.
"""

from __future__ import annotations

import hashlib
import os
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path

import torch
from torch import Tensor, nn

from leakgauge.core.errors import CorruptFile, DataNotFound, InvalidInput
from leakgauge.evaluation.metrics.pixels import check_data_range, check_pair

FILE_NAME = "alexnet-owt-7be5be79.pth"
ADDRESS = f"https://download.pytorch.org/models/{FILE_NAME}"
#: The first digits of the SHA-256 of the file.
CHECKSUM = "7be5be79"
#: The environment variable that holds the path of the file or of its folder.
VARIABLE = "LEAKGAUGE_LPIPS_WEIGHTS"

#: Images with a smaller side are enlarged. Below 31 pixels, the second pooling of AlexNet would return nothing.
SMALLEST_SIDE = 32
# The means and the standard deviations of ImageNet's channels, for pixels in [-1, 1].
SHIFT = (-0.030, -0.088, -0.188)
SCALE = (0.458, 0.448, 0.450)


def alexnet_features() -> nn.Sequential:
    """Return the convolutional part of AlexNet, with layers numbered as in the published weights.

    The outputs of the ReLU layers are the features.
    """
    return nn.Sequential(
        nn.Conv2d(3, 64, 11, stride=4, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(3, 2),
        nn.Conv2d(64, 192, 5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(3, 2),
        nn.Conv2d(192, 384, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(384, 256, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(256, 256, 3, padding=1),
        nn.ReLU(),
    )


def lpips(
    reconstructed: Tensor, original: Tensor, *, data_range: float = 1.0, weights: str | Path | None = None
) -> Tensor:
    """Return the learned perceptual distance of each image from its original, (N,).

    The distance is 0 for an exact copy and about 0.7 for unrelated images. Grey images become three equal channels.
    Images with a side below 32 pixels are enlarged bilinearly first.

    Args:
        reconstructed: The reconstructions, (N, channels, height, width).
        original: The original of each reconstruction.
        data_range: The highest possible value of a pixel minus the lowest possible value.
        weights: The file of AlexNet's weights, or the folder of this file. The default is the value of the environment
            variable ``LEAKGAUGE_LPIPS_WEIGHTS``. If the variable is not set, the default is the folder of checkpoints
            of ``torch.hub``.

    >>> image = torch.rand(1, 3, 32, 32)
    >>> lpips(image, image)  # doctest: +SKIP
    tensor([0.])
    """
    check_data_range(data_range)
    check_pair(reconstructed, original, images=True)
    if original.shape[1] not in (1, 3):
        raise InvalidInput(f"LPIPS needs images with 1 or 3 channels, not {original.shape[1]}")
    features, heads = _network(str(find_weights(weights)))
    total = torch.zeros(len(original))
    with torch.no_grad():
        first, second = (_prepare(images, data_range) for images in (reconstructed, original))
        heads_left = iter(heads)
        for layer in features:
            first, second = layer(first), layer(second)
            if isinstance(layer, nn.ReLU):
                difference = (_unit(first) - _unit(second)).square()
                total += (difference * next(heads_left)).sum(1).mean((1, 2))
    return total


def find_weights(weights: str | Path | None = None) -> Path:
    """Return the path of the file of AlexNet's weights.

    Args:
        weights: The file, or its folder. The default is the value of the environment variable
            ``LEAKGAUGE_LPIPS_WEIGHTS``. If the variable is not set, the default is the folder of checkpoints of
            ``torch.hub``.

    >>> find_weights("no-such-file")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    leakgauge.core.errors.DataNotFound: ...
    """
    chosen = weights or os.environ.get(VARIABLE) or Path(torch.hub.get_dir(), "checkpoints", FILE_NAME)
    path = Path(chosen).expanduser()
    if path.is_dir():
        path = path / FILE_NAME
    if not path.is_file():
        raise DataNotFound(
            f"LPIPS needs AlexNet's weights, and there is no file {path}. Download {ADDRESS} to this path, "
            f"or set the environment variable {VARIABLE} to the file or its folder"
        )
    return path


@lru_cache(maxsize=1)
def _network(path: str) -> tuple[nn.Sequential, list[Tensor]]:
    with open(path, "rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if not digest.startswith(CHECKSUM):
        raise CorruptFile(
            f"{path} is not the published {FILE_NAME}. Its SHA-256 begins with {digest[: len(CHECKSUM)]}, "
            f"not {CHECKSUM}. Download it again from {ADDRESS}"
        )
    prefix = "features."
    state = torch.load(path, map_location="cpu", weights_only=True)
    features = alexnet_features()
    features.load_state_dict({k.removeprefix(prefix): v for k, v in state.items() if k.startswith(prefix)})
    return features.eval().requires_grad_(False), _heads()


def _heads() -> list[Tensor]:
    """Return the published linear weights of LPIPS, one (1, channels, 1, 1) tensor for each layer."""
    package = find_spec("torchmetrics")  # does not import torchmetrics, which would take seconds
    assert package is not None
    assert package.origin is not None
    path = Path(package.origin).parent / "functional" / "image" / "lpips_models" / "alex.pth"
    state = torch.load(path, map_location="cpu", weights_only=True)
    return [state[f"lin{number}.model.1.weight"] for number in range(5)]


def _prepare(images: Tensor, data_range: float) -> Tensor:
    images = images.detach().to("cpu", torch.float32) * (2 / data_range) - 1
    images = images.expand(-1, 3, -1, -1)
    images = (images - images.new_tensor(SHIFT).view(3, 1, 1)) / images.new_tensor(SCALE).view(3, 1, 1)
    height, width = images.shape[-2:]
    factor = SMALLEST_SIDE / min(height, width)
    if factor > 1:
        size = (max(SMALLEST_SIDE, round(height * factor)), max(SMALLEST_SIDE, round(width * factor)))
        images = nn.functional.interpolate(images, size, mode="bilinear", align_corners=False)
    return images


def _unit(features: Tensor) -> Tensor:
    return features / (features.square().sum(1, keepdim=True) + 1e-8).sqrt()
