"""Total variation by hand, and where it applies."""

import pytest
import torch

from leakscope.errors import InvalidInput
from leakscope.inversion.priors import TotalVariation
from leakscope.observation import DataSpec


def test_total_variation_by_hand():
    image = torch.tensor([[[[0.0, 1.0, 1.0], [0.5, 0.5, 0.0]]]])
    down = (0.5 + 0.5 + 1.0) / 3
    across = (1.0 + 0.0 + 0.0 + 0.5) / 4
    assert TotalVariation(weight=2.0)(image).item() == pytest.approx(2 * (down + across))


def test_a_flat_image_has_none_and_noise_has_more_than_a_ramp():
    prior = TotalVariation(weight=1.0)
    ramp = torch.linspace(0, 1, 8).expand(2, 3, 8, 8)
    noise = torch.rand(2, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    assert prior(torch.full((2, 3, 8, 8), 0.7)).item() == 0
    assert 0 < prior(ramp) < prior(noise)


def test_the_value_does_not_depend_on_the_number_of_samples():
    image = torch.rand(1, 3, 5, 6, generator=torch.Generator().manual_seed(0))
    prior = TotalVariation()
    assert prior(image.repeat(4, 1, 1, 1)).item() == pytest.approx(prior(image).item())


@pytest.mark.parametrize(
    ("prior", "shape", "applies"),
    [
        (TotalVariation(), (1, 8, 8), True),
        (TotalVariation(), (3, 2, 2), True),
        (TotalVariation(), (30,), False),
        (TotalVariation(), (1, 1, 8), False),
        (TotalVariation(), (1, 8, 1), False),
        (TotalVariation(weight=0), (1, 8, 8), False),
    ],
)
def test_it_applies_to_images_that_have_neighbours(prior, shape, applies):
    assert prior.applies(DataSpec(shape, classes=2)) == applies


@pytest.mark.parametrize("weight", [-1e-4, float("nan"), float("inf"), "much"])
def test_a_weight_that_is_no_weight_is_refused(weight):
    with pytest.raises(InvalidInput, match="weight of total variation must be a number of at least 0"):
        TotalVariation(weight=weight)
