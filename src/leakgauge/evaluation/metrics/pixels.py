"""The metrics :func:`mse`, :func:`psnr` and :func:`ssim`, which compare images without normalisation.

Each metric has one value for each image. Let ``e`` be the mean squared error of an image, and ``L`` the data range:

- :func:`mse` is ``e``,
- :func:`psnr` is ``10 log10(L^2 / e)`` in decibels,
- :func:`ssim` compares means, variances and covariance in a sliding Gaussian window (Wang et al., IEEE Transactions on
  Image Processing 2004, equation 13).
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import conv2d, pad

from leakgauge.core.errors import InvalidInput

#: The PSNR of an exact copy.
PSNR_CAP = 100.0

# The window of Wang et al. has 11 x 11 pixels (radius 5) and a standard deviation of 1.5.
WINDOW_RADIUS = 5
SIGMA_PER_RADIUS = 0.3
# K1 and K2 of Wang et al.
LUMINANCE_CONSTANT, CONTRAST_CONSTANT = 0.01, 0.03


def check_pair(reconstructed: Tensor, original: Tensor, *, images: bool = False) -> None:
    """Raise an error if two tensors cannot be compared sample by sample.

    Args:
        reconstructed: The reconstructions.
        original: The original of each reconstruction.
        images: Whether both tensors must be images, (N, channels, height, width).
    """
    if reconstructed.shape != original.shape:
        raise InvalidInput(
            f"reconstructions of shape {tuple(reconstructed.shape)} cannot be compared one by one with "
            f"originals of shape {tuple(original.shape)}. Pair them first with leakgauge.evaluation.pair()"
        )
    if not reconstructed.is_floating_point() or not original.is_floating_point():
        raise InvalidInput(f"samples must be floats, not {reconstructed.dtype} and {original.dtype}")
    if images and original.dim() != 4:
        raise InvalidInput(f"images must be (N, channels, height, width), not {tuple(original.shape)}")


def check_data_range(data_range: float) -> None:
    """Raise an error if the data range is not a positive number."""
    if not 0 < data_range < float("inf"):
        raise InvalidInput(f"data_range must be a positive number, not {data_range}")


def mse(reconstructed: Tensor, original: Tensor) -> Tensor:
    """Return the mean squared error of each sample, (N,).

    Args:
        reconstructed: The reconstructions, (N, *shape).
        original: The original of each reconstruction.

    >>> mse(torch.zeros(1, 1, 2, 2), torch.full((1, 1, 2, 2), 0.5))
    tensor([0.2500])
    """
    check_pair(reconstructed, original)
    return (reconstructed - original).flatten(1).square().mean(1)


def psnr(reconstructed: Tensor, original: Tensor, *, data_range: float = 1.0) -> Tensor:
    """Return the peak signal-to-noise ratio of each image in decibels, (N,).

    The PSNR is limited to 100 dB, so that an exact copy has a finite value that can be averaged. Two different
    eight-bit images with up to 150,000 values always have a PSNR below 100 dB.

    Args:
        reconstructed: The reconstructions, (N, *shape).
        original: The original of each reconstruction.
        data_range: The highest possible value of a pixel minus the lowest possible value.

    >>> psnr(torch.zeros(1, 1, 2, 2), torch.full((1, 1, 2, 2), 0.1))
    tensor([20.])
    """
    check_data_range(data_range)
    return decibels(mse(reconstructed, original), data_range)


def decibels(error: Tensor, data_range: float = 1.0) -> Tensor:
    """Convert mean squared errors to PSNR in decibels, at most 100 dB.

    Args:
        error: The mean squared errors.
        data_range: The highest possible value of a pixel minus the lowest possible value.

    >>> decibels(torch.tensor([1.0, 0.01, 0.0]))
    tensor([ -0.,  20., 100.])
    """
    return -10 * torch.log10((error / data_range**2).clamp(min=10 ** (-PSNR_CAP / 10)))


def ssim(reconstructed: Tensor, original: Tensor, *, data_range: float = 1.0) -> Tensor:
    """Return the structural similarity of each image, (N,), which is 1 for an exact copy.

    The window has 11 x 11 pixels and a standard deviation of 1.5. For smaller images, the window is the largest odd
    window that fits, with a standard deviation in proportion. The values of such images can only be compared with each
    other. Images are reflected at their borders, and the SSIM is averaged over all pixels. Some packages leave the
    borders out.

    Args:
        reconstructed: The reconstructions, (N, channels, height, width).
        original: The original of each reconstruction.
        data_range: The highest possible value of a pixel minus the lowest possible value.

    >>> ssim(torch.full((1, 1, 16, 16), 0.5), torch.full((1, 1, 16, 16), 0.6)).round(decimals=4)
    tensor([0.9836])
    """
    check_data_range(data_range)
    check_pair(reconstructed, original, images=True)
    radius = min(WINDOW_RADIUS, (min(original.shape[-2:]) - 1) // 2)
    window = _gaussian_window(radius, original)

    def local_mean(images: Tensor) -> Tensor:
        padded = pad(images.flatten(0, 1).unsqueeze(1), [radius] * 4, mode="reflect")
        return conv2d(padded, window[None, None]).view_as(images)

    first, second = local_mean(reconstructed), local_mean(original)
    first_variance = (local_mean(reconstructed.square()) - first.square()).clamp(min=0)
    second_variance = (local_mean(original.square()) - second.square()).clamp(min=0)
    covariance = local_mean(reconstructed * original) - first * second
    luminance, contrast = (LUMINANCE_CONSTANT * data_range) ** 2, (CONTRAST_CONSTANT * data_range) ** 2
    values = (2 * first * second + luminance) * (2 * covariance + contrast)
    values = values / ((first.square() + second.square() + luminance) * (first_variance + second_variance + contrast))
    return values.flatten(1).mean(1)


def _gaussian_window(radius: int, like: Tensor) -> Tensor:
    """Return a square Gaussian window whose weights sum to 1, with the device and number type of ``like``."""
    places = torch.arange(-radius, radius + 1, dtype=like.dtype, device=like.device)
    sigma = SIGMA_PER_RADIUS * max(radius, 0.1)  # the standard deviation must be positive even if the radius is zero
    line = torch.exp(-(places / sigma).square() / 2)
    line = line / line.sum()
    return torch.outer(line, line)
