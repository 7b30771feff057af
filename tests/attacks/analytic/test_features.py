"""Features of a dense tail are solved for exactly, and pictures are then searched for one by one."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from leakgauge import data, models
from leakgauge.attacks import dense_tail_features, specs
from leakgauge.attacks.analytic.features import fits
from leakgauge.attacks.analytic.picture_search import STUCK
from leakgauge.core.data_spec import DataSpec
from leakgauge.core.errors import InvalidInput
from leakgauge.evaluation import score
from leakgauge.federation.client import fedavg, fedsgd
from leakgauge.models.cnn import cnn
from tests.attacks.analytic.cases import DIGITS, NORMALISED, client, dense


def convolutional(dense=64):
    return models.build("dlf_femnist", shape=(1, 8, 8), classes=10, channels=[16, 32], dense=dense, seed=0)


@pytest.mark.parametrize(("digits", "samples"), [(DIGITS, 6), (NORMALISED, 2)])
def test_pictures_come_back_with_their_labels(digits, samples):
    observation, truth = client(convolutional(), samples, digits=digits)
    assert fits(observation).applies
    result = dense_tail_features(steps=700)(observation)
    scored = score(result, truth)
    assert scored["recovered"].value == 1
    assert scored["psnr"].value > 30
    assert scored["label_errors"].value == 0
    assert str(result.outcome).startswith(f"features: {samples} of {samples} samples solved for and proven, in ")
    assert result.loss < 1e-3


def smooth_pictures(count):
    """Return grey pictures without edges, all with the same label."""
    coarse = torch.rand(count, 1, 3, 3, generator=torch.Generator().manual_seed(0))
    pictures = nn.functional.interpolate(coarse, 12, mode="bilinear", align_corners=True)
    return data.Dataset(pictures, torch.ones(count, dtype=torch.long), DataSpec((1, 12, 12), 10), name="smooth")


def test_total_variation_fills_what_features_leave_open_also_for_equal_labels():
    model = cnn(shape=(1, 12, 12), classes=10, channels=(3,), dense=48, seed=0)  # 108 features, 144 pixels
    observation, truth = fedsgd(model, smooth_pictures(3))
    psnr = {}
    for tv in (0.0, 0.3):
        result = dense_tail_features(steps=200, restarts=1, tv=tv)(observation)
        assert len(result.samples) == 3
        assert result.outcome.kind == "finished"
        psnr[tv] = score(result, truth)["psnr"].value
    assert psnr[0.3] > psnr[0.0] + 10


@pytest.mark.parametrize(("bias", "kind"), [(-0.2, "finished"), (0.5, "converged")])
def test_zeros_of_relu_do_not_determine_a_picture(bias, kind):
    torch.manual_seed(0)
    convolution = nn.Conv2d(1, 1, 3, padding=1)
    with torch.no_grad():
        convolution.weight.abs_()
        convolution.bias.fill_(bias)
    layers = convolution, nn.ReLU(), nn.Flatten(), nn.Linear(64, 48), nn.ReLU(), nn.Linear(48, 10)
    observation, _ = client(nn.Sequential(*layers), 2)
    result = dense_tail_features(steps=300)(observation)
    assert len(result.samples) == 2
    assert result.loss < STUCK
    assert result.outcome.kind == kind


def test_more_samples_than_classes_are_separated():
    observation, _ = client(convolutional(dense=128), 12)
    result = dense_tail_features(steps=5, restarts=1)(observation)
    assert str(result.outcome).startswith("features: 12 of 12 samples solved for and proven, in ")


def test_an_unknown_number_of_samples_and_one_local_step_are_no_obstacle():
    observation, _ = fedavg(convolutional(), DIGITS.share(range(4)), lr=0.1, epochs=1, batch_size=4)
    assert len(dense_tail_features(steps=5)(observation).samples) == 4
    observation, _ = client(convolutional(), 4, hidden=["samples"])
    assert len(dense_tail_features(steps=5)(observation).samples) == 4


def test_noise_leaves_nothing_to_prove():
    torch.manual_seed(0)
    observation, _ = client(convolutional(), 4)
    gradient = {
        name: value + 0.3 * value.std() * torch.randn_like(value) for name, value in observation.gradient.items()
    }
    result = dense_tail_features(steps=5, attempts=1)(replace(observation, gradient=gradient))
    assert tuple(result.samples.shape) == (0, 1, 8, 8)
    assert str(result.outcome).startswith("none of 4 samples could be proven")


def test_ctrl_c_returns_the_best_pictures_so_far():
    observation, _ = client(convolutional(), 4)

    def interrupt(step, total, loss):
        if step == 3:
            raise KeyboardInterrupt

    result = dense_tail_features(steps=50)(observation, progress=interrupt)
    assert result.outcome.kind == "interrupted"
    assert len(result.samples) == 4


def mixing():
    layers = nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(144, 32), nn.ReLU(), nn.Linear(32, 10)
    return nn.Sequential(*layers)


class Coded(nn.Module):
    """A network that looks up an embedding for each pixel, rounded to a whole number."""

    def __init__(self):
        super().__init__()
        self.codes = nn.Embedding(2, 1)
        self.tail = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))

    def forward(self, inputs):
        return self.tail(self.codes((inputs.flatten(1) > 0.5).long()).flatten(1))


REFUSED = {
    "no derivative with respect to the samples": lambda: client(Coded(), 4)[0],
    "two_spans solves for them directly": lambda: client(dense(48, 24), 4)[0],
    "fewer than two dense layers": lambda: client(models.lenet(shape=(1, 8, 8), seed=0), 2)[0],
    "the features mix the samples of a batch": lambda: client(mixing(), 4)[0],
    "too many for the 64 neurons": lambda: client(convolutional(), 40)[0],
}


@pytest.mark.parametrize("reason", REFUSED)
def test_it_refuses_in_words(reason):
    fit = fits(REFUSED[reason]())
    assert not fit.applies
    assert reason in fit.reason


def test_batch_norm_in_eval_mode_does_not_mix():
    observation, _ = client(mixing(), 4, mode="eval")
    assert fits(observation).applies
    assert len(dense_tail_features(steps=5)(observation).samples) == 4


@pytest.mark.parametrize("option", ["steps", "lr", "starts", "tv"])
def test_impossible_options_are_refused(option):
    with pytest.raises(InvalidInput, match="total variation" if option == "tv" else option):
        dense_tail_features(**{option: -1})


def test_looking_does_not_move_the_random_generator():
    observation, _ = client(convolutional(), 4)
    before = torch.get_rng_state()
    fits(observation)
    assert torch.equal(before, torch.get_rng_state())


def test_exact_attacks_come_before_all_others_in_an_audit():
    names = [spec.name for spec in specs("samples", "update") if spec.audit is not None]
    assert set(names[:13]) == {
        "april",
        "local_rows",
        "local_spans",
        "token_spans",
        "dense_read_off",
        "word_read_off",
        "embedding_read_off",
        "adam_read_off",
        "two_spans",
        "dense_factorisation",
        "dense_tail_features",
        "dense_output_features",
        "feature_read_off",
    }
