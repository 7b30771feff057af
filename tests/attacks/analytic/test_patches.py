"""The patches of one sample of a vision transformer, in closed form."""

import math
from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from leakgauge import attacks, data, models
from leakgauge.attacks.analytic.patches import Equations, fits, solve
from leakgauge.core.errors import MissingKnowledge
from leakgauge.evaluation import score
from leakgauge.federation.client import fedavg, fedsgd
from leakgauge.federation.defences.clipping import Clipping
from leakgauge.federation.defences.noise import GaussianNoise
from leakgauge.workflows.audit.first_look import first_look

DIGITS = data.load("digits")


def transformer(bias=True, **options):
    model = models.vit(**{"shape": (1, 8, 8), "patch": 2, "width": 24, "seed": 0, **options})
    if not bias:
        model.patches = nn.Conv2d(1, model.head.in_features, 2, stride=2, bias=False)
        torch.manual_seed(0)
        nn.init.normal_(model.patches.weight, std=0.5)
    return model


class OtherTransformer(nn.Module):
    """A transformer written by someone else, with dense patches in columns, looked-up positions and two more tokens."""

    def __init__(self):
        super().__init__()
        self.where = nn.Embedding(40, 32)
        self.extra = nn.Parameter(torch.zeros(2, 32))
        self.see = nn.Linear(8, 32)
        layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, activation="gelu", batch_first=True, norm_first=True)
        self.body = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.answer = nn.Linear(32, 10)

    def forward(self, pictures):
        seen = F.unfold(pictures, (4, 2), stride=(4, 2)).transpose(1, 2).flip(1)
        tokens = torch.cat([self.extra.expand(len(seen), -1, -1), self.see(seen)], 1)
        tokens = tokens + self.where(torch.arange(tokens.shape[1]))
        return self.answer(self.body(tokens)[:, :2].mean(1))


def attacked(observation, truth):
    """Return the PSNR of the attack in dB, and its outcome."""
    assert fits(observation).applies
    result = attacks.april()(observation, progress=False)
    assert torch.equal(result.labels, truth.targets)
    assert result.outcome.kind == ("converged" if ", exact, " in str(result.outcome) else "finished")
    return score(result, truth)["psnr"].value, str(result.outcome)


@pytest.mark.parametrize("pooling", ["token", "mean"])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("depth", [1, 3])
def test_one_gradient_of_one_sample_is_solved_exactly(pooling, bias, depth):
    model = transformer(bias, pooling=pooling, depth=depth)
    for number in (0, 7):
        psnr, outcome = attacked(*fedsgd(model, DIGITS.share([number])))
        assert psnr > 60
        assert outcome.startswith("16 patches solved from the gradients of patches and positions, relative residual ")
        assert ", exact, with an estimated error of 0.0" in outcome
    assert fits(fedsgd(model, DIGITS.share([0]))[0]).reason == "exact for one sample in patches with trained positions"


def test_normalised_colours_are_solved_exactly():
    spec = replace(DIGITS.spec, shape=(3, 8, 8), mean=(0.4, 0.5, 0.6), std=(0.2, 0.3, 0.4))
    draws = torch.Generator().manual_seed(0)
    colours = replace(
        DIGITS.share([0]), inputs=torch.rand(1, 3, 8, 8, generator=draws), spec=spec, population=None, rows=None
    )
    psnr, outcome = attacked(*fedsgd(transformer(shape=(3, 8, 8)), colours))
    assert psnr > 60
    assert ", exact, " in outcome


@pytest.mark.parametrize(
    "training",
    [
        {},
        {"epochs": 8},
        {"epochs": 8, "momentum": 0.9},
        {"weight_decay": 0.1},
        {"epochs": 3, "hidden": ["lr", "epochs"]},
    ],
)
def test_local_training_on_one_sample_keeps_the_equations(training):
    psnr, outcome = attacked(*fedavg(transformer(), DIGITS.share([3]), lr=0.1, **training))
    assert psnr > 60
    assert ", exact, " in outcome


def test_weight_decay_over_several_steps_is_removed_roughly():
    training = {"lr": 0.1, "epochs": 5, "weight_decay": 0.05}
    psnr, outcome = attacked(*fedavg(transformer(), DIGITS.share([3]), **training))
    assert 15 < psnr < 60
    assert ", not exact, with an estimated error of at least " in outcome


def test_someone_elses_transformer_is_solved_exactly():
    torch.manual_seed(0)
    psnr, outcome = attacked(*fedsgd(OtherTransformer(), DIGITS.share([0])))
    assert psnr > 60
    assert "8 patches solved from the gradients of see and where.weight" in outcome
    assert ", exact, " in outcome


@pytest.mark.parametrize(("width", "free"), [(16, 1), (12, 5)])
def test_what_the_equations_leave_open_is_filled_and_named(width, free):
    observation, truth = fedsgd(transformer(width=width), DIGITS.share([1]))
    psnr, outcome = attacked(observation, truth)
    assert psnr > 30
    assert f", not exact, since {free} of 16 directions are chosen by the least total variation" in outcome
    assert f"16 patches and a width of {width} leave some of it undetermined" in fits(observation).reason


def test_clipping_hides_nothing():
    psnr, outcome = attacked(*fedsgd(transformer(), DIGITS.share([0]), defences=Clipping(0.1)))
    assert psnr > 60
    assert ", exact, " in outcome


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(("sigma", "limit"), [(1e-4, 40), (0.01, 20), (1.0, 20)])
def test_noise_lowers_the_score_and_the_attack_notices(bias, sigma, limit):
    observation, truth = fedsgd(transformer(bias), DIGITS.share([0]), defences=GaussianNoise(sigma=sigma))
    result = attacks.april()(observation, progress=False)
    assert score(result, truth)["psnr"].value < limit
    assert ", not exact, " in str(result.outcome)
    assert result.outcome.kind == "finished"


def test_noise_above_everything_is_named():
    observation, _ = fedsgd(transformer(), DIGITS.share([0]), defences=GaussianNoise(sigma=1.0))
    outcome = str(attacks.april()(observation, progress=False).outcome)
    assert outcome.endswith(", not exact, since no gradient of the positions is larger than the noise")


def test_noise_that_no_equation_shows_is_no_claim_of_exactness():
    observation, _ = fedsgd(transformer(False, width=16), DIGITS.share([0]), defences=GaussianNoise(sigma=0.03))
    outcome = attacks.april()(observation, progress=False).outcome
    assert str(outcome).endswith(", no equation is left to check them")
    assert outcome.kind == "finished"


def refused():
    yield fedsgd(transformer(), DIGITS.share([0, 1]))[0], "the positions of 2 samples share one gradient"
    yield fedavg(transformer(), DIGITS.share([0, 1]), lr=0.1, batch_size=1)[0], "2 samples share one gradient"
    yield fedsgd(models.lenet(shape=(1, 8, 8)), DIGITS.share([0]))[0], "no trained layer of this model embeds separate"
    yield fedsgd(transformer(positions="fixed"), DIGITS.share([0]))[0], "the gradient at each token is not seen"
    silent = transformer()
    nn.init.zeros_(silent.head.weight)
    yield fedsgd(silent, DIGITS.share([0]))[0], "no gradient reaches those of this model"


@pytest.mark.parametrize(("observation", "reason"), list(refused()))
def test_it_does_not_apply_elsewhere_and_gives_the_reason(observation, reason):
    assert not fits(observation).applies
    assert reason in fits(observation).reason
    assert reason in first_look(observation).refused["april"]
    with pytest.raises(MissingKnowledge, match=f"{reason}.*Use inverting_gradients"):
        attacks.april()(observation)


def test_a_last_layer_of_zeros_lets_gradients_pass_after_one_step():
    model = transformer()
    nn.init.zeros_(model.head.weight)
    psnr, _ = attacked(*fedavg(model, DIGITS.share([0]), lr=0.1, epochs=10))
    assert psnr > 30


def test_an_unknown_number_of_samples_is_a_reason():
    observation, _ = fedavg(transformer(), DIGITS.share([0]), lr=0.1, hidden=["samples"])
    assert fits(observation) == (False, "made for one sample, and the number of samples is unknown")


@pytest.mark.parametrize("number", [0, 3, 7])
def test_the_label_is_read_from_the_longest_row_without_a_bias(number):
    model = transformer()
    model.head = nn.Linear(24, 10, bias=False)
    attacked(*fedsgd(model, DIGITS.share([number])))


def test_a_sum_of_two_gradients_is_not_called_exact():
    """The sum of two samples' gradients fulfils no equation, but the residual alone may not show it."""
    model = transformer()
    (first, _), (second, _) = (fedsgd(model, DIGITS.share([number])) for number in (0, 7))
    mixed = {name: value + second.gradient[name] for name, value in first.gradient.items()}
    outcome = attacks.april()(replace(first, gradient=mixed), progress=False).outcome
    assert outcome.kind == "finished"


def test_another_sample_s_message_is_noticed_by_the_replay():
    """Layers after the patches hold the gradient of another sample, so the equations hold and the message does not."""
    model = transformer()
    (first, truth), (second, _) = (fedsgd(model, DIGITS.share([number])) for number in (0, 7))
    mixed = {
        name: value if name in ("positions", "class_token") or name.startswith("patches") else second.gradient[name]
        for name, value in first.gradient.items()
    }
    result = attacks.april()(replace(first, gradient=mixed), progress=False)
    assert score(result, truth)["psnr"].value > 60
    assert result.outcome.kind == "finished"
    assert "not exact, since a replay gives another message" in str(result.outcome)


def test_random_equations_are_solved_and_the_noise_is_estimated():
    draws = torch.Generator().manual_seed(0)
    gradients, patches = (torch.randn(10, size, generator=draws, dtype=torch.double) for size in (40, 6))
    exact = solve(Equations(gradients, gradients.T @ patches, gradients.sum(0), 1e-7))
    torch.testing.assert_close(exact.patches, patches)
    assert exact.residual < 1e-12
    assert exact.free.shape == (10, 0)
    noise = 1e-3 * torch.randn(40, 6, generator=draws, dtype=torch.double)
    noisy = solve(Equations(gradients, gradients.T @ patches + noise, gradients.sum(0), 1e-7))
    error = float((noisy.patches - patches).square().mean().sqrt())
    assert error / 3 < noisy.error < 3 * error


def test_equations_without_a_gradient_have_no_solution_and_no_error():
    nothing = solve(Equations(torch.zeros(3, 4), torch.zeros(4, 2), None, 1e-7))
    assert nothing.free.shape == (3, 3)
    assert math.isinf(nothing.error)
    assert math.isinf(nothing.residual)
