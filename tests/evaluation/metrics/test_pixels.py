"""MSE, PSNR and SSIM equal those of scikit-image and numpy."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from leakgauge.core.errors import InvalidInput
from leakgauge.evaluation import mse, psnr, ssim
from tests.shared import LazyModule

reference = LazyModule("skimage.metrics")

SHAPES = [(4, 1, 28, 28), (3, 3, 32, 32), (2, 3, 11, 40)]


def images(shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    smooth = torch.nn.functional.avg_pool2d(torch.rand(shape, generator=generator), 3, 1, 1)
    return smooth, (smooth + 0.1 * torch.rand(shape, generator=generator)).clamp(0, 1)


def skimage_ssim(first, second, *, data_range, radius=5, sigma=1.5):
    """Return the SSIM of scikit-image with reflected borders, so that every window is whole."""
    values = []
    for one, other in zip(first.double().numpy(), second.double().numpy(), strict=True):
        padded = [np.pad(image, ((0, 0), (radius, radius), (radius, radius)), mode="reflect") for image in (one, other)]
        _, full = reference.structural_similarity(
            *padded,
            channel_axis=0,
            gaussian_weights=True,
            sigma=sigma,
            use_sample_covariance=False,
            data_range=data_range,
            win_size=2 * radius + 1,
            full=True,
        )
        values.append(full[:, radius:-radius, radius:-radius].mean())
    return values


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("data_range", [1.0, 2.5])
def test_psnr_and_mse_are_those_of_scikit_image_and_numpy(shape, data_range):
    first, second = images(shape)
    pairs = list(zip(first.numpy(), second.numpy(), strict=True))
    expected = [reference.peak_signal_noise_ratio(b, a, data_range=data_range) for a, b in pairs]
    assert psnr(first, second, data_range=data_range).tolist() == pytest.approx(expected, abs=1e-4)
    assert mse(first, second).tolist() == pytest.approx([((a - b) ** 2).mean() for a, b in pairs], rel=1e-5)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("data_range", [1.0, 2.5])
def test_ssim_is_that_of_scikit_image(shape, data_range):
    first, second = images(shape)
    expected = skimage_ssim(first, second, data_range=data_range)
    assert ssim(first, second, data_range=data_range).tolist() == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize(("side", "radius"), [(10, 4), (8, 3), (7, 3), (5, 2), (3, 1)])
def test_ssim_of_small_images_uses_the_largest_odd_window_that_fits(side, radius):
    first, second = images((2, 1, side, side + 1))
    expected = skimage_ssim(first, second, data_range=1.0, radius=radius, sigma=0.3 * radius)
    assert ssim(first, second).tolist() == pytest.approx(expected, abs=1e-5)


def test_ssim_of_single_pixels_compares_luminance():
    value = ssim(torch.full((1, 1, 1, 2), 0.4), torch.full((1, 1, 1, 2), 0.6))
    assert value.item() == pytest.approx((2 * 0.4 * 0.6 + 1e-4) / (0.4**2 + 0.6**2 + 1e-4), abs=1e-6)


def test_an_exact_copy_is_finite():
    image, _ = images((2, 3, 16, 16))
    assert psnr(image, image).tolist() == [100.0, 100.0]
    assert ssim(image, image).tolist() == pytest.approx([1.0, 1.0])
    assert mse(image, image).tolist() == [0.0, 0.0]


@settings(max_examples=30, deadline=None)
@given(st.floats(1e-3, 1), st.floats(0.1, 300))
def test_psnr_does_not_depend_on_the_unit(difference, unit):
    first, second = torch.zeros(1, 1, 4, 4).double(), torch.full((1, 1, 4, 4), difference).double()
    scaled = psnr(first * unit, second * unit, data_range=unit)
    assert scaled.item() == pytest.approx(psnr(first, second).item(), abs=1e-6)


@pytest.mark.parametrize("function", [mse, psnr, ssim])
def test_what_cannot_be_compared_is_refused(function):
    with pytest.raises(InvalidInput, match=r"\(2, 1, 8, 8\).*\(3, 1, 8, 8\)"):
        function(torch.rand(2, 1, 8, 8), torch.rand(3, 1, 8, 8))
    with pytest.raises(InvalidInput, match="must be floats"):
        function(torch.zeros(1, 1, 8, 8, dtype=torch.uint8), torch.zeros(1, 1, 8, 8))


def test_data_range_and_image_shape_are_checked():
    with pytest.raises(InvalidInput, match="data_range must be a positive number"):
        psnr(torch.rand(1, 1, 8, 8), torch.rand(1, 1, 8, 8), data_range=0)
    with pytest.raises(InvalidInput, match="channels, height, width"):
        ssim(torch.rand(1, 8, 8), torch.rand(1, 8, 8))
