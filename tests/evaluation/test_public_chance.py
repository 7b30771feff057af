from types import SimpleNamespace

import pytest
import torch

from leakgauge.core.data_spec import DataSpec
from leakgauge.core.public_data import PublicData
from leakgauge.core.truth import Truth
from leakgauge.evaluation import score
from leakgauge.evaluation.metrics.pixels import mse


def case(seed=0):
    """Return a client with two pictures of two classes, and 40 public pictures. Classes are dark and light."""
    draw = torch.Generator().manual_seed(seed)
    targets = torch.arange(42) % 2
    pictures = (0.2 + 0.6 * targets[:, None, None, None] + 0.05 * torch.randn(42, 1, 8, 8, generator=draw)).clamp(0, 1)
    truth = Truth(pictures[:2], targets[:2], DataSpec((1, 8, 8), 2))
    return truth, PublicData(pictures[2:], targets[2:], lambda samples, targets, seed: {})


def chance(truth, public, **options):
    result = SimpleNamespace(samples=torch.rand(2, 1, 8, 8), labels=None)
    return score(result, truth, public=public, **options)["psnr"]


def test_the_mean_of_each_class_is_a_guess():
    truth, public = case()
    means = torch.stack([public.samples[public.targets == target].mean(0) for target in truth.targets])
    expected = (-10 * mse(means, truth.inputs).log10()).mean()
    measure = chance(truth, public)
    assert measure.chance == pytest.approx(float(expected), rel=1e-4)
    assert measure.chance_source == "mean of public samples with the same label"
    assert measure.chance > chance(truth, None).chance + 5


def test_without_labels_the_best_constant_is_left():
    truth, public = case()
    assert chance(truth, public, by_label=False).chance < chance(truth, public).chance - 5


def test_a_class_without_public_samples_is_guessed_by_the_mean_of_all():
    truth, public = case()
    dark = PublicData(public.samples[public.targets == 0], public.targets[public.targets == 0], public.rehearse)
    assert chance(truth, dark).chance < chance(truth, public).chance


def test_numbers_have_no_labels_to_guess_by():
    truth, public = case()
    series = DataSpec((64,), None, bounded=False)
    own = Truth(truth.inputs.flatten(1), torch.rand(2), series)
    numbers = PublicData(public.samples.flatten(1), torch.rand(40), public.rehearse)
    result = SimpleNamespace(samples=torch.rand(2, 64), labels=None)
    level = score(result, own, public=numbers)["rms_error"] if "rms_error" in score(result, own) else None
    assert level is None or level.chance_source != "mean of public samples with the same label"
    assert "features" in score(result, own, public=numbers)
