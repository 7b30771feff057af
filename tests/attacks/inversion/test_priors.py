"""The priors by hand, and where they apply."""

from itertools import pairwise

import pytest
import torch

from leakgauge.attacks.inversion.priors import (
    DISTANCES,
    SUMMARIES,
    EpochAgreement,
    EpochOrderInvariant,
    PixelRange,
    SquaredVariation,
    TotalVariation,
)
from leakgauge.core.errors import InvalidInput, UnknownName
from leakgauge.core.observation import DataSpec

SPEC = DataSpec((3, 8, 8), classes=2)


def test_total_variation_by_hand():
    image = torch.tensor([[[[0.0, 1.0, 1.0], [0.5, 0.5, 0.0]]]])
    down = (0.5 + 0.5 + 1.0) / 3
    across = (1.0 + 0.0 + 0.0 + 0.5) / 4
    assert TotalVariation(weight=2.0)(image, SPEC).item() == pytest.approx(2 * (down + across))


def test_total_variation_of_opponent_channels_by_hand():
    image = torch.rand(2, 3, 5, 6, generator=torch.Generator().manual_seed(0))
    red, green, blue = image.unbind(1)
    channels = [red, green, blue, red - green, green - blue, blue - red]
    by_hand = sum(TotalVariation(weight=2.0)(channel.unsqueeze(1), SPEC).item() for channel in channels) / 6
    assert TotalVariation(weight=2.0, opponents=True)(image, SPEC).item() == pytest.approx(by_hand)
    grey = DataSpec((1, 5, 6), classes=2)
    assert TotalVariation(opponents=True)(image[:, :1], grey) == TotalVariation()(image[:, :1], grey)


def test_a_flat_image_has_none_and_noise_has_more_than_a_ramp():
    prior = TotalVariation(weight=1.0)
    ramp = torch.linspace(0, 1, 8).expand(2, 3, 8, 8)
    noise = torch.rand(2, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    assert prior(torch.full((2, 3, 8, 8), 0.7), SPEC).item() == 0
    assert 0 < prior(ramp, SPEC) < prior(noise, SPEC)


def test_the_value_does_not_depend_on_the_number_of_samples():
    image = torch.rand(1, 3, 5, 6, generator=torch.Generator().manual_seed(0))
    prior = TotalVariation()
    assert prior(image.repeat(4, 1, 1, 1), SPEC).item() == pytest.approx(prior(image, SPEC).item())


@pytest.mark.parametrize("time_axis", [0, 1])
def test_the_variation_of_a_series_is_along_time_alone(time_axis):
    series = torch.randn(2, 3, 4, 5, generator=torch.Generator().manual_seed(0))  # epochs, samples, and two dimensions
    data = DataSpec((4, 5), classes=2, bounded=False, time_axis=time_axis)
    differences = []
    for sample in series.flatten(0, 1):
        for channel in sample.T if time_axis == 0 else sample:
            differences += [float(there - here) for here, there in pairwise(channel)]
    absolute = [abs(step) for step in differences]
    assert TotalVariation(weight=2.0)(series, data).item() == pytest.approx(2 * sum(absolute) / len(absolute))
    squares = sum(step**2 for step in differences)
    assert SquaredVariation(weight=2.0)(series, data).item() == pytest.approx(2 * squares / 6)
    constant = series[..., :1, :].expand_as(series) if time_axis == 0 else series[..., :1].expand_as(series)
    assert TotalVariation()(constant, data) == 0


def test_a_series_of_one_channel_may_have_one_dimension():
    data = DataSpec((4,), classes=2, bounded=False, time_axis=0)
    value = TotalVariation(weight=1.0)(torch.tensor([[[0.0, 1.0, 3.0, 0.0]]]), data)
    assert value.item() == pytest.approx(2)
    assert TotalVariation().applies(data)
    assert not TotalVariation().applies(DataSpec((1, 4), classes=2, time_axis=0))
    assert not TotalVariation().applies(DataSpec((4, 4), classes=2))


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


def noise(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.double)


def test_squared_variation_by_hand_goes_around_the_edges():
    image = torch.tensor([[[[[0.0, 1.0, 3.0], [0.5, 0.5, 0.0]]]]])
    down = 2 * (0.25 + 0.25 + 9.0)  # two rows: each is above and below the other
    across = (9.0 + 1.0 + 4.0) + (0.25 + 0.0 + 0.25)
    assert SquaredVariation(weight=2.0)(image, SPEC).item() == pytest.approx(2 * (down + across))


def test_squared_variation_is_summed_over_channels_and_averaged_over_images():
    images, prior = noise(2, 4, 3, 5, 6), SquaredVariation(weight=1.0)
    each = [prior(images[epoch, row, None, None], SPEC).item() for epoch in range(2) for row in range(4)]
    assert prior(images, SPEC).item() == pytest.approx(sum(each) / 8)
    channels = [prior(images[:1, :1, channel, None], SPEC).item() for channel in range(3)]
    assert each[0] == pytest.approx(sum(channels))
    assert prior(torch.full((1, 2, 3, 5, 6), 0.7), SPEC).item() == 0


def test_the_pixel_range_by_hand():
    samples = torch.tensor([[[[[0.0, 1.0, 0.4]]], [[[-0.5, 1.2, 3.0]]]]])
    assert PixelRange(weight=3.0)(samples, SPEC).item() == pytest.approx(3 * (0.25 + 0.04 + 4.0) / 2)


def test_the_pixel_range_is_that_of_what_a_person_sees():
    data = DataSpec((2, 1, 1), classes=2, mean=(0.5, 0.2), std=(0.25, 0.1))
    inside = torch.tensor([-2.0, 8.0]).reshape(1, 1, 2, 1, 1)  # 0 and 1
    assert PixelRange()(inside, data).item() == pytest.approx(0, abs=1e-12)
    assert PixelRange()(inside.flip(2), data).item() == pytest.approx(1.5**2, rel=1e-5)  # 2.5 and 0


@pytest.mark.parametrize(
    ("prior", "data", "applies"),
    [
        (SquaredVariation(), DataSpec((1, 8, 8), 2), True),
        (SquaredVariation(), DataSpec((30,), 2), False),
        (SquaredVariation(), DataSpec((1, 1, 8), 2), False),
        (SquaredVariation(weight=0), DataSpec((1, 8, 8), 2), False),
        (PixelRange(), DataSpec((1, 8, 8), 2), True),
        (PixelRange(), DataSpec((30,), 2, bounded=False), False),
        (PixelRange(weight=0), DataSpec((1, 8, 8), 2), False),
        (EpochOrderInvariant(), DataSpec((30,), 2, bounded=False), True),
        (EpochOrderInvariant(summary="conv+max"), DataSpec((30,), 2), False),
        (EpochOrderInvariant(summary="conv+max"), DataSpec((3, 8, 8), 2), True),
        (EpochOrderInvariant(weight=0), DataSpec((3, 8, 8), 2), False),
    ],
)
def test_the_other_priors_apply_where_they_make_sense(prior, data, applies):
    assert prior.applies(data) == applies


def permuted(samples, epochs=3):
    orders = [torch.randperm(len(samples), generator=torch.Generator().manual_seed(seed)) for seed in range(epochs)]
    return torch.stack([samples[order] for order in orders])


every_summary = pytest.mark.parametrize("summary", SUMMARIES)
every_distance = pytest.mark.parametrize("distance", DISTANCES)


@every_summary
@every_distance
def test_the_order_of_an_epoch_costs_nothing_and_other_samples_do(summary, distance):
    prior = EpochOrderInvariant(2.0, summary, distance)
    copies = permuted(noise(5, 3, 6, 6))
    assert not torch.equal(copies[0], copies[1])
    assert prior(copies, SPEC).item() == pytest.approx(0, abs=1e-14)
    assert prior(noise(3, 5, 3, 6, 6), SPEC).item() > 1e-3


@every_summary
@every_distance
def test_the_order_invariant_prior_is_the_double_loop_over_epochs(summary, distance):
    prior, epochs = EpochOrderInvariant(7.0, summary, distance, seed=3), noise(3, 4, 2, 5, 5)

    def summarised(samples):
        if summary.startswith("conv"):
            samples = prior._convolved(samples[None])[0]
            assert samples.shape == (4, 96, 5, 5)
        return samples.mean(0) if summary.endswith("mean") else samples.max(0).values

    total = 0.0
    for one in epochs:
        for other in epochs:
            difference = summarised(one) - summarised(other)
            total += (difference.abs() if distance == "l1" else difference**2).mean().item()
    assert prior(epochs, SPEC).item() == pytest.approx(7 * total / 9)


@every_summary
@every_distance
def test_alike_weights_count_the_same_at_a_random_start(summary, distance):
    data, reference = DataSpec((3, 8, 8), 2), EpochOrderInvariant(1000.0, "mean", "l2")
    prior = EpochOrderInvariant(1.0, summary, distance).like(reference, data, epochs=4, samples=10)
    assert (prior.summary, prior.distance) == (summary, distance)
    start = noise(4, 10, 3, 8, 8, seed=5)
    assert prior(start, data).item() == pytest.approx(reference(start, data).item(), rel=0.1)


def test_the_convolution_is_the_same_at_every_call_and_another_for_another_seed():
    epochs = noise(2, 4, 2, 5, 5)
    same, again, other = (EpochOrderInvariant(1.0, "conv+max", seed=seed)(epochs, SPEC).item() for seed in (0, 0, 1))
    assert same == again != other


def test_one_epoch_alone_costs_nothing():
    assert EpochOrderInvariant()(noise(1, 4, 3, 5, 5), SPEC).item() == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [({"summary": "median"}, "no summary of an epoch 'median'"), ({"distance": "l3"}, "no distance of an epoch 'l3'")],
)
def test_summaries_and_distances_that_do_not_exist_are_named(options, message):
    with pytest.raises(UnknownName, match=message):
        EpochOrderInvariant(**options)


@pytest.mark.parametrize("prior", [SquaredVariation, PixelRange, EpochOrderInvariant, EpochAgreement])
def test_no_prior_takes_a_negative_weight(prior):
    with pytest.raises(InvalidInput, match="must be a number of at least 0"):
        prior(weight=-1)


@pytest.mark.parametrize("seed", [11, 12])
def test_vectorised_problems_share_one_random_convolution(seed):
    prior, problems = EpochOrderInvariant(1.0, "conv+max", seed=seed), noise(3, 2, 4, 3, 6, 6)
    gradients, values = torch.func.vmap(torch.func.grad_and_value(prior), in_dims=(0, None), randomness="different")(
        problems, SPEC
    )
    assert torch.allclose(values, torch.stack([prior(problem, SPEC) for problem in problems]), rtol=1e-12)
    first = problems[0].clone().requires_grad_()
    assert torch.allclose(gradients[0], torch.autograd.grad(prior(first, SPEC), first)[0], rtol=1e-9, atol=1e-12)


def test_the_random_convolution_is_that_of_its_seed():
    epochs = noise(3, 4, 3, 6, 6)
    one, again, other = (EpochOrderInvariant(1.0, "conv+mean", seed=seed).value(epochs).item() for seed in (0, 0, 1))
    assert one == again != other


def test_the_agreement_of_epochs_by_hand():
    copies = torch.stack([torch.zeros(2, 1, 2, 2), torch.ones(2, 1, 2, 2)])
    assert EpochAgreement(3.0)(copies, SPEC).item() == pytest.approx(3 * 4 * 0.25)
    assert EpochAgreement(3.0)(copies[:1], SPEC).item() == 0
    same = noise(1, 4, 1, 3, 3).expand(5, 4, 1, 3, 3)
    assert EpochAgreement()(same, SPEC).item() == pytest.approx(0, abs=1e-12)
    assert EpochAgreement()(torch.stack([same[0], same[0].flip(0)]), SPEC).item() > 0  # the order counts
