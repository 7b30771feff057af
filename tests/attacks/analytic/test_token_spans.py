"""The patches of one sample of a vision transformer with fixed positions, in closed form."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from leakgauge import attacks, models
from leakgauge.attacks.analytic.token_equations import solve
from leakgauge.attacks.analytic.token_spans import _known, fits
from leakgauge.core.errors import MissingKnowledge
from leakgauge.core.local_training import LocalTraining
from leakgauge.evaluation import score
from leakgauge.federation.client import fedavg, fedsgd
from leakgauge.federation.defences.clipping import Clipping
from leakgauge.federation.defences.noise import GaussianNoise
from leakgauge.workflows.audit.first_look import first_look
from tests.attacks.analytic.transformers import DIGITS, Encoder, OwnTransformer, RootMeanSquare, frozen, true_patches
from tests.known_answers import populations


def attacked(observation, truth):
    """Return the PSNR of the attack in dB, and its outcome."""
    assert fits(observation).applies, fits(observation).reason
    result = attacks.token_spans()(observation, progress=False)
    assert torch.equal(result.labels, truth.targets)
    assert result.outcome.kind == ("converged" if ", exact, " in str(result.outcome) else "finished")
    return score(result, truth)["psnr"].value, str(result.outcome)


def mean(first, second):
    """Return the mean of two gradients."""
    return {name: (value + second.gradient[name]) / 2 for name, value in first.gradient.items()}


@pytest.mark.parametrize("pooling", ["token", "mean"])
def test_one_gradient_of_one_sample_is_solved_exactly(pooling):
    model = frozen(pooling=pooling)
    for number in (0, 7):
        psnr, outcome = attacked(*fedsgd(model, DIGITS.share([number])))
        assert psnr > 60
        assert outcome.startswith("16 patches solved from the spans of patches and blocks.0.attention.queries_keys_val")
        assert ", exact, with an estimated error of 0.0" in outcome
        assert "a replay gives the same message (relative distance " in outcome
    look = first_look(fedsgd(model, DIGITS.share([0]))[0])
    assert look.applies["token_spans"] == "one sample in patches with fixed positions"
    assert look.risk == "high"


MODELS = {
    "trained norm": lambda: OwnTransformer(trained_norm),
    "norm without affine": lambda: OwnTransformer(lambda width: nn.LayerNorm(width, elementwise_affine=False)),
    "norm by hand": lambda: OwnTransformer(RootMeanSquare),
    "no norm": lambda: OwnTransformer(nn.Identity),
    "no bias": lambda: OwnTransformer(bias=False),
    "scaled patches": lambda: OwnTransformer(scale=3.0),
    "dense patches": lambda: OwnTransformer(dense=True),
    "norm first": lambda: Encoder(norm_first=True),
    "norm last": lambda: Encoder(norm_first=False),
    "sequence first": lambda: Encoder(norm_first=True, batch_first=False),
    "frozen patches' bias": lambda: without_bias(frozen()),
}


def trained_norm(width):
    norm = nn.LayerNorm(width)
    nn.init.normal_(norm.weight)
    nn.init.normal_(norm.bias)
    return norm


def without_bias(model):
    nn.init.normal_(model.patches.bias, std=0.1)
    model.patches.bias.requires_grad_(False)
    return model


@pytest.mark.parametrize("name", MODELS)
def test_any_module_is_solved_exactly(name):
    psnr, outcome = attacked(*fedsgd(MODELS[name](), DIGITS.share([5])))
    assert psnr > 60
    assert ", exact, " in outcome


def test_normalised_colours_with_fewer_patches_than_pixels_of_a_patch():
    """The span of the patches is then smaller than the space of all patches."""
    spec = replace(DIGITS.spec, shape=(3, 8, 8), mean=(0.4, 0.5, 0.6), std=(0.2, 0.3, 0.4))
    draws = torch.Generator().manual_seed(0)
    inputs = torch.rand(1, 3, 8, 8, generator=draws)
    colours = replace(DIGITS.share([0]), inputs=inputs, spec=spec, population=None, rows=None)
    for options in ({"patch": 4, "width": 24}, {"patch": 2, "width": 48}):
        psnr, outcome = attacked(*fedsgd(frozen(shape=(3, 8, 8), **options), colours))
        assert psnr > 60
        assert ", exact, " in outcome


@pytest.mark.parametrize("recipe", [{}, {"weight_decay": 0.01}, {"momentum": 0.9, "nesterov": True}])
def test_one_local_step_is_solved(recipe):
    observation, truth = fedavg(frozen().double(), DIGITS.share([3]), lr=0.05, recipe=LocalTraining(**recipe))
    psnr, outcome = attacked(observation, truth)
    assert psnr > 60
    assert ", exact, " in outcome


def test_small_local_steps_are_corrected():
    """The tokens move little. The solution for as many steps at the sent weights is a start, which is corrected."""
    observation, truth = fedavg(frozen().double(), DIGITS.share([3]), lr=1e-4, epochs=3)
    known = _known(observation)
    update = {name: observation.difference()[name] for name in known.names}
    start = float((solve(known, update).patches - true_patches(known.layer, observation, truth)).square().mean().sqrt())
    psnr, outcome = attacked(observation, truth)
    assert psnr > 90
    assert 10 ** (-psnr / 20) < start / 10
    assert ", exact, " in outcome


@pytest.mark.parametrize("rounding", [None, 1, 4, 7])
def test_five_local_steps_are_solved(rounding):
    """Positions of the size of patches keep the tokens apart, so corrections converge, however weights are rounded."""
    observation, truth = fedavg(Encoder(norm_first=True), DIGITS.share([3]), lr=0.1, epochs=5)
    if rounding is not None:
        draws = torch.Generator().manual_seed(rounding)
        returned = {
            name: value * (1 + 6e-8 * torch.randn(value.shape, generator=draws))
            for name, value in observation.returned.items()
        }
        observation = replace(observation, returned=returned)
    psnr, outcome = attacked(observation, truth)
    assert psnr > 60
    assert ", exact, " in outcome
    assert fits(observation).reason.endswith("exact if the local steps are small")


@pytest.mark.parametrize("lr", [0.01, 0.3])
def test_large_local_steps_are_not_called_exact(lr):
    observation, truth = fedavg(frozen(), DIGITS.share([3]), lr=lr, epochs=5)
    if not fits(observation).applies:
        assert "directions of a patch free" in fits(observation).reason
        return
    result = attacks.token_spans()(observation, progress=False)
    assert result.outcome.kind == "finished" or score(result, truth)["psnr"].value > 45


@pytest.mark.parametrize("sigma", [1e-5, 1e-3])
def test_noise_is_never_called_exact(sigma):
    for number in (0, 9):
        observation, truth = fedsgd(frozen(), DIGITS.share([number]), defences=GaussianNoise(sigma=sigma))
        if fits(observation).applies:
            result = attacks.token_spans()(observation, progress=False)
            assert result.outcome.kind == "finished" or score(result, truth)["psnr"].value > 50
        else:
            assert "most tokens are unseen" in fits(observation).reason


def test_wrong_positions_are_never_called_exact():
    """The attacker's model has other positions than the client's."""
    model, other = frozen(), frozen()
    observation, _ = fedsgd(model, DIGITS.share([0]))
    with torch.no_grad():
        other.positions += 0.005 * torch.randn(other.positions.shape, generator=torch.Generator().manual_seed(1))
    sent = {**observation.sent, "positions": other.positions.detach()}
    result = attacks.token_spans()(replace(observation, sent=sent), progress=False)
    assert result.outcome.kind == "finished"
    assert "not exact" in str(result.outcome)


def test_the_gradient_of_two_samples_is_never_called_exact():
    model = frozen(width=64)
    (first, _), (second, _) = (fedsgd(model, DIGITS.share([number])) for number in (0, 7))
    result = attacks.token_spans()(replace(first, gradient=mean(first, second)), progress=False)
    assert result.outcome.kind == "finished"


def test_the_message_of_other_layers_is_checked_by_the_replay():
    model = frozen()
    (first, truth), (second, _) = (fedsgd(model, DIGITS.share([number])) for number in (0, 7))
    used = set(_known(first).names)
    mixed = {name: value if name in used else second.gradient[name] for name, value in first.gradient.items()}
    result = attacks.token_spans()(replace(first, gradient=mixed), progress=False)
    assert score(result, truth)["psnr"].value > 60
    assert result.outcome.kind == "finished"
    assert "not exact, since a replay gives another message" in str(result.outcome)


def test_dropout_after_the_attention_is_no_obstacle_and_named():
    observation, truth = fedsgd(OwnTransformer(dropout=0.2), DIGITS.share([5]), mode="train")
    psnr, outcome = attacked(observation, truth)
    assert psnr > 60
    assert outcome.endswith(", not checked by a replay, since its dropout is random")


def test_clipping_hides_nothing():
    psnr, outcome = attacked(*fedsgd(frozen(), DIGITS.share([0]), defences=Clipping(0.1)))
    assert psnr > 60
    assert ", exact, " in outcome


def test_directions_that_stay_free_are_named_and_filled():
    """A width of 30 and 16 tokens leave 14 equations for the 16 unknowns of a patch."""
    blobs = populations.blobs(shape=(3, 16, 16)).share([3])
    model = frozen(shape=(3, 16, 16), classes=3, patch=4, width=30, heads=2, pooling="mean")
    observation, truth = fedsgd(model, blobs)
    assert fits(observation).reason.endswith(" of 15 directions stay free")
    psnr, outcome = attacked(observation, truth)
    assert psnr > 20
    assert " of 15 directions of a patch are chosen by the least total variation" in outcome
    assert "not exact" in outcome


class SinglePrecision(nn.Module):
    """A transformer with a tensor that is neither a parameter nor a buffer, so it keeps its precision."""

    def __init__(self):
        super().__init__()
        self.inner, self.turn = frozen(), torch.eye(8)

    def forward(self, pictures):
        return self.inner(pictures @ self.turn)


def refused():
    yield fedsgd(SinglePrecision(), DIGITS.share([0]))[0], "a forward pass on chosen tokens in double precision fails"
    yield fedsgd(frozen(), DIGITS.share([0, 1]))[0], "2 samples have one span"
    yield fedsgd(models.lenet(shape=(1, 8, 8)), DIGITS.share([0]))[0], "no trained layer of this model embeds separate"
    yield (
        fedsgd(models.vit(shape=(1, 8, 8), patch=2, width=40), DIGITS.share([0]))[0],
        "april solves models with trained",
    )
    yield fedsgd(frozen(width=16), DIGITS.share([0]))[0], "17 tokens of the width 16 span every direction"
    yield fedsgd(frozen(depth=1), DIGITS.share([0]))[0], "so most tokens are unseen"
    yield (
        fedsgd(
            models.vit(shape=(1, 8, 8), patch=2, width=24, positions="fixed", pooling="mean", depth=1, seed=0),
            DIGITS.share([0]),
        )[0],
        ("made for positions that differ in many directions"),
    )
    adam = fedavg(frozen(), DIGITS.share([0]), lr=0.1, recipe=LocalTraining(optimiser="adam"))[0]
    yield adam, "the steps of Adam are no sums of gradients"
    yield fedavg(frozen(), DIGITS.share([0]), lr=0.1, hidden=["samples"])[0], "the number of samples is unknown"


@pytest.mark.parametrize(("observation", "reason"), list(refused()))
def test_it_does_not_apply_elsewhere_and_gives_the_reason(observation, reason):
    assert not fits(observation).applies
    assert reason in fits(observation).reason
    assert reason in first_look(observation).refused["token_spans"]
    with pytest.raises(MissingKnowledge):
        attacks.token_spans()(observation)
