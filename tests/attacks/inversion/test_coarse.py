"""Large pictures are optimised on a coarse grid first."""

import pytest
import torch
from torch import nn

from leakgauge.attacks import prior_path
from leakgauge.attacks.inversion import coarse
from leakgauge.attacks.inversion.coarse import Grid
from leakgauge.attacks.inversion.optimisers import Adam
from leakgauge.attacks.inversion.solve import Descent
from leakgauge.core.data_spec import DataSpec
from leakgauge.data.dataset import Dataset
from leakgauge.evaluation import score
from leakgauge.federation.client import fedsgd

SIDE = 112


@pytest.mark.parametrize(
    ("data", "factor"),
    [
        (DataSpec((3, 224, 224), classes=10), 8),
        (DataSpec((1, 96, 160), classes=10), 2),
        (DataSpec((3, 95, 400), classes=10), 1),
        (DataSpec((1, 28, 28), classes=10), 1),
        (DataSpec((500,), classes=2, bounded=False), 1),
    ],
)
def test_only_large_pictures_have_a_coarse_grid(data, factor):
    assert Grid.of(data).factor == factor


def test_a_grid_is_enlarged_to_whole_samples_and_whole_samples_stay_as_they_are():
    grid = Grid((3, 100, 98), 3)
    start = torch.randn(2, 4, 3, 100, 98)
    small = grid.thinned(start)
    assert small.shape == (2, 4, 3, 34, 33)
    assert grid.whole({"inputs": small, "labels": start})["inputs"].shape == start.shape
    assert torch.allclose(grid.whole({"inputs": torch.full_like(small, 0.3)})["inputs"], torch.tensor(0.3))
    assert grid.whole({"inputs": start})["inputs"] is start
    assert Grid((3, 100, 98)).thinned(start) is start


def test_single_pixels_get_smaller_steps_than_patches():
    descent = Descent(Adam(lr=0.2))
    assert Grid((1, 96, 96), 2).refining(descent).optimiser.lr == 0.1
    assert Grid((1, 96, 96)).refining(descent) is descent


def case():
    """A client with one smooth picture of 112 x 112, and a small network."""
    rows, columns = torch.meshgrid(torch.linspace(0, 6, SIDE), torch.linspace(0, 4, SIDE), indexing="ij")
    pictures = torch.stack([0.5 + 0.4 * torch.sin(rows + shift) * torch.cos(columns) for shift in range(2)])[:, None]
    dataset = Dataset(pictures, torch.arange(2), DataSpec((1, SIDE, SIDE), classes=2))
    torch.manual_seed(0)
    layers = [nn.Conv2d(1, 8, 5, 2, 2), nn.ReLU(), nn.Conv2d(8, 16, 5, 2, 2), nn.ReLU(), nn.AdaptiveAvgPool2d(7)]
    for layer in layers[:3:2]:
        nn.init.kaiming_normal_(layer.weight)
    model = nn.Sequential(*layers, nn.Flatten(), nn.Linear(16 * 49, 2))
    return fedsgd(model, dataset.share([0]))


def psnr(result, truth):
    return score(result, truth)["psnr"].value


def test_a_large_picture_comes_back_better_in_the_same_number_of_steps(monkeypatch):
    observation, truth = case()
    with_grid = prior_path(steps=40)(observation)
    monkeypatch.setattr(coarse, "LARGE", SIDE + 1)
    without = prior_path(steps=40)(observation)
    assert psnr(with_grid, truth) > psnr(without, truth) + 1


@pytest.mark.parametrize("moment", [3, 35])
def test_an_interrupt_in_either_stage_returns_whole_pictures(moment):
    observation, _ = case()

    def interrupt(step, total, loss):
        if step == moment:
            raise KeyboardInterrupt

    result = prior_path(steps=40)(observation, progress=interrupt)
    assert result.outcome.kind == "interrupted"
    assert result.samples.shape == (1, 1, SIDE, SIDE)
