"""DLF: its methods and presets, epochs of their own, and the start from a cheaper inversion."""

import math
from dataclasses import replace

import pytest
import torch
from torch import nn

from leakgauge.attacks import Inversion, WarmStart, dlf, dlf_paper, surrogate
from leakgauge.attacks.inversion.matching import average_epochs
from leakgauge.attacks.inversion.objectives import L2, Cosine, Logarithmic
from leakgauge.attacks.inversion.optimisers import Adam, Decay, Ramp
from leakgauge.attacks.inversion.priors import EpochOrderInvariant, PixelRange, SquaredVariation
from leakgauge.attacks.inversion.refined_labels import RefinedLabels
from leakgauge.attacks.inversion.stopping import MaxSteps
from leakgauge.attacks.inversion.update_models import FullSimulation, OneBatch, Surrogate
from leakgauge.core.errors import InvalidInput, UnknownName
from leakgauge.core.seeding import derive, seeded
from leakgauge.data import load
from leakgauge.evaluation import mse, pair
from leakgauge.federation.client import fedavg
from tests.shared import shared_case

METHODS = ("prior", "no-prior", "shared", "fedsgd-epoch", "fedsgd")


def weights():
    """Return a client that sends weights, and its truth."""
    return shared_case("weights", "cnn")


def plain_pixels():
    """Return the message of a client whose pixels are not normalised."""
    return shared_case("weights")[0]


def run(attack, observation=None, **options):
    return attack(observation or weights()[0], progress=False, **options)


def first_match(attack, observation=None):
    result = run(attack, observation)
    assert result.trace is not None
    return result.trace.terms["match"][0].item()


def test_every_epoch_is_reconstructed_and_their_average_is_the_result():
    result = run(dlf_paper(steps=5))
    assert result.epochs is not None
    assert result.epochs.shape == (2, 4, 1, 8, 8)
    assert result.samples.shape == (4, 1, 8, 8)
    assert not torch.equal(result.epochs[0], result.epochs[1])
    for tensor in (result.samples, result.epochs):
        assert (tensor.min() >= 0, tensor.max() <= 1) == (True, True)
    # Averaged before pixels are cut off: near, not equal.
    assert (average_epochs(result.epochs) - result.samples).abs().mean() < 0.2
    assert sorted(result.labels.tolist()) == sorted(weights()[1].targets.tolist())


@pytest.mark.parametrize("method", METHODS)
def test_only_methods_with_variables_for_each_epoch_have_epochs(method):
    result = run(dlf_paper(method=method, steps=2))
    assert result.samples.shape == (4, 1, 8, 8)
    assert (result.epochs is not None) == (method in ("prior", "no-prior"))
    assert result.trace is not None
    assert set(result.trace.terms) == {"match", "tv", "range"} | ({"epochs"} if method == "prior" else set())


@pytest.mark.parametrize(
    ("method", "update_model"),
    [
        ("prior", FullSimulation(per_epoch=True)),
        ("no-prior", FullSimulation(per_epoch=True)),
        ("shared", FullSimulation()),
        ("fedsgd-epoch", FullSimulation(one_batch=True)),
        ("fedsgd", OneBatch()),
    ],
)
def test_a_method_is_a_model_of_the_client(method, update_model):
    attack = dlf_paper(method=method)
    assert attack.matching.update_model == update_model
    assert any(isinstance(prior, EpochOrderInvariant) for prior in attack.priors) == (method == "prior")


def test_the_presets_are_those_of_the_authors():
    grey, colour = dlf_paper(preset="femnist"), dlf_paper(preset="cifar100")
    assert (grey.descent.optimiser, colour.descent.optimiser) == (Adam(lr=0.4), Adam(lr=0.1))
    assert (grey.descent.schedule, colour.descent.schedule) == (Decay(0.995, 10), Decay(0.997, 20))
    assert (grey.matching.weight, colour.matching.weight) == (Ramp(1, 2), Ramp(4, 2))
    assert grey.priors == (SquaredVariation(0.001), PixelRange(2), EpochOrderInvariant(1000, "mean", "l2"))
    assert colour.priors == (SquaredVariation(0.0002), PixelRange(10), EpochOrderInvariant(6.075, "conv+max", "l2"))
    for attack in (grey, colour):
        assert attack.matching.objective == L2(decay=math.exp(-1))
        assert (attack.stop, attack.space.start, attack.effort.restarts) == (MaxSteps(400), "normal", 1)
        assert (attack.matching.per_batch, attack.space.box, attack.descent.keep_last) == (True, False, True)


def test_what_a_caller_names_replaces_the_preset():
    attack = dlf_paper(loss="cosine", summary="conv+mean", distance="l1", invariance=3.0, lr=0.2, steps=7, restarts=2)
    assert attack.matching.objective == Cosine()
    assert attack.priors[-1] == EpochOrderInvariant(3.0, "conv+mean", "l1")
    assert (attack.descent.optimiser, attack.stop, attack.effort.restarts) == (Adam(lr=0.2), MaxSteps(7), 2)


@pytest.mark.parametrize(
    ("factory", "options", "message"),
    [
        (dlf_paper, {"preset": "femnst"}, "no preset of DLF 'femnst'; did you mean 'femnist'"),
        (dlf, {"preset": "mnist5k"}, r"no preset of DLF 'mnist5k'.*known: cifar100, femnist"),
        (dlf_paper, {"method": "priors"}, "no method of dlf_paper\\(\\) 'priors'; did you mean 'prior'"),
        (dlf_paper, {"loss": "l1"}, "no loss of dlf_paper\\(\\) 'l1'"),
        (dlf_paper, {"summary": "median"}, "no summary of an epoch 'median'"),
        (dlf_paper, {"distance": "l3"}, "no distance of an epoch 'l3'"),
    ],
)
def test_names_that_do_not_exist_are_refused_with_those_that_do(factory, options, message):
    with pytest.raises(UnknownName, match=message):
        factory(**options)


def test_the_surrogate_learns_its_place_slowly():
    attack = surrogate(tv=0.1, lr=0.5, steps=9, restarts=2)
    assert attack.matching.update_model == Surrogate()
    assert attack.descent.optimiser == Adam(lr=0.5, rates=(("position", 0.001),))
    observation, truth = weights()
    solution, copies = attack.optimise(observation, truth.targets, 0, lambda *_: None)
    assert copies == 1
    assert 0 < abs(solution.variables["position"].item() - 0.5) <= 0.0091


def test_dlf_starts_from_the_surrogate():
    attack = dlf(warm_steps=11, label_steps=12)
    assert attack.space.start == WarmStart(surrogate(steps=11), 0.2)
    assert attack.labels == RefinedLabels(surrogate(steps=12))
    assert attack.matching.update_model == FullSimulation(per_epoch=True, new_orders=True)
    result = run(dlf(steps=2, warm_steps=2))
    assert result.epochs is not None
    assert result.epochs.shape == (2, 4, 1, 8, 8)
    assert result.trace is not None
    assert len(result.trace.losses) == 2


def test_no_weight_of_dlf_depends_on_a_dataset_and_all_layers_count_alike():
    attack = dlf()
    assert attack.matching.objective == Logarithmic(L2(relative=True))
    assert (attack.space.common_units, attack.descent.keep_last) == (True, False)
    old = dlf(preset="cifar100", steps=7)
    assert old.matching.objective == L2(decay=math.exp(-1), relative=True)
    assert old.space.start == WarmStart(surrogate(), 0.2)
    assert old.priors[:2] == (SquaredVariation(0.0002), PixelRange(10))
    assert (old.descent.optimiser.lr, old.stop) == (0.1, MaxSteps(7))


def normalised_network(seed=0):
    """Return a small network with group norm after each convolution."""
    with seeded(seed, "network"):
        channels, layers = 1, []
        for _ in range(3):
            layers += [nn.Conv2d(channels, 16, 3, padding=1), nn.GroupNorm(4, 16), nn.ReLU()]
            channels = 16
        return nn.Sequential(*layers, nn.AvgPool2d(2), nn.Flatten(), nn.Linear(256, 10))


def test_normalisation_layers_do_not_take_weight_from_the_layers_after_them():
    """With a decay over all layers, the preset matches little more than the first convolution."""
    digits = load("digits")
    digits = replace(digits, spec=replace(digits.spec, mean=(0.305,), std=(0.376,)))
    recipe = {"lr": 0.01, "epochs": 2, "batch_size": 1, "granted": ["labels"]}
    errors = {}
    for preset in (None, "femnist"):
        attack = dlf(preset=preset, steps=40, warm_steps=30)
        clients = [fedavg(normalised_network(row), digits.share([row, row + 1]), **recipe) for row in (70, 90)]
        results = [(run(attack, observation), truth) for observation, truth in clients]
        errors[preset] = sum(
            mse(pair(result.samples, truth.inputs).apply(result.samples), truth.inputs).mean().item()
            for result, truth in results
        )
    assert errors[None] < 0.7 * errors["femnist"]


def test_an_attack_that_ends_above_its_warm_start_returns_the_start():
    warm = surrogate(steps=10)
    wild = Inversion().with_settings(
        update_model=FullSimulation(per_epoch=True, new_orders=True), start=WarmStart(warm, noise=50.0),
        optimiser=Adam(lr=1e-9), stop=MaxSteps(1), box=False,
    )  # fmt: skip
    observation, truth = weights()
    solution, copies = wild.optimise(observation, truth.targets, 0, lambda *_: None)
    start, _ = warm.optimise(observation, truth.targets, derive(0, "warm", 0), lambda *_: None)
    assert copies == 2
    assert torch.equal(solution.variables["inputs"], start.variables["inputs"].repeat(2, 1, 1, 1))
    assert solution.loss < solution.trace.losses[0]
    assert str(solution.outcome).endswith("the warm start, whose loss is lower, is returned")


def test_a_warm_start_is_copied_to_every_epoch_with_noise_of_its_own():
    inputs = torch.rand(4, 1, 8, 8, dtype=torch.double)
    warm = WarmStart(surrogate(), noise=0.1)
    first, second = warm.spread(inputs, 2, torch.Generator().manual_seed(0)).split(4)
    assert first.dtype == torch.double
    assert not torch.equal(first, second)
    for epoch in (first, second):
        assert (epoch - inputs).std().item() == pytest.approx(0.1, rel=0.2)
    silent = WarmStart(surrogate(), noise=0.0).spread(inputs, 3, torch.Generator())
    assert torch.equal(silent, inputs.repeat(3, 1, 1, 1))


#: Steps so short that what comes out is the start.
STILL = {"optimiser": Adam(lr=1e-9), "stop": MaxSteps(1), "box": False}


@pytest.mark.parametrize("rescale", [False, True])
@pytest.mark.parametrize("warm_rescale", [False, True])
@pytest.mark.parametrize("interrupted", [False, True])
def test_a_warm_start_means_the_same_pixels_in_other_units(rescale, warm_rescale, interrupted):
    def report(step, total, loss):
        if interrupted:
            raise KeyboardInterrupt

    settings = STILL | {"stop": MaxSteps(2)}
    warm = Inversion().with_settings(start="uniform", rescale=warm_rescale, **settings)
    attack = Inversion().with_settings(start=WarmStart(warm, noise=0.0), rescale=rescale, **STILL)
    found, targets = attack(plain_pixels(), progress=report), torch.zeros(4, dtype=torch.long)
    assert found.outcome.kind == ("interrupted" if interrupted else "finished")
    # The warm inversion by itself, from the seed that the attack gives it.
    seen = []

    class Watched(Inversion):
        def _blind(self, observation, copies, draw):
            start = super()._blind(observation, copies, draw)
            seen.append(self.space.units(observation.data).denormalise(start))
            return start

    again = attack.with_settings(
        start=WarmStart(Watched().with_settings(start="uniform", rescale=warm_rescale, **settings), noise=0.0)
    )
    again.optimise(plain_pixels(), targets, 0, lambda *_: None)
    assert torch.allclose(found.samples, seen[0], atol=1e-5)


def test_without_noise_a_warm_start_begins_where_the_other_ended():
    warm = surrogate(steps=10)
    attack = Inversion().with_settings(update_model=Surrogate(), start=WarmStart(warm, noise=0.0), **STILL)
    observation, truth = weights()
    solution, _ = attack.optimise(observation, truth.targets, 0, lambda *_: None)
    blind, _ = attack.with_settings(start="normal").optimise(observation, truth.targets, 0, lambda *_: None)
    assert solution.loss < blind.loss


@pytest.mark.parametrize("restarts", [1, 2])
@pytest.mark.parametrize("when", [2, 4])
def test_ctrl_c_in_the_warm_part_returns_what_it_has(restarts, when):
    """With two restarts, step 4 of 3 + 3 belongs to the second one's warm part; with one, to the main part."""

    def report(step, total, loss):
        assert total == 3 * restarts + 5
        if step == when:
            raise KeyboardInterrupt

    result = dlf(steps=5, warm_steps=3, restarts=restarts)(weights()[0], progress=report)
    assert result.outcome.kind == "interrupted"
    assert result.samples.shape == (4, 1, 8, 8)
    assert bool(torch.isfinite(result.samples).all())
    assert (result.epochs is None) == (when <= 3 * restarts)


def test_progress_counts_on_from_the_warm_part():
    lines = []
    dlf(steps=2, warm_steps=3, restarts=2)(weights()[0], progress=lambda *line: lines.append(line[:2]))
    assert lines == [(step, 8) for step in range(1, 9)]


def test_the_weight_of_the_match_changes_from_step_to_step():
    plain = Inversion().with_settings(**STILL | {"stop": MaxSteps(4)})
    one, ramped = (run(attack).trace for attack in (plain, plain.with_settings(weight=Ramp(4, 1))))
    assert one is not None
    assert ramped is not None
    ratios = ramped.terms["match"] / one.terms["match"]
    assert ratios.tolist() == pytest.approx([4, 2, 1, 1], rel=1e-4)


@pytest.mark.parametrize(("per_epoch", "batches"), [(False, 2), (True, 4)])
def test_the_match_is_divided_by_the_simulated_batches(per_epoch, batches):
    plain = Inversion().with_settings(update_model=FullSimulation(per_epoch=per_epoch), **STILL)
    divided = plain.with_settings(per_batch=True)
    assert first_match(divided) == pytest.approx(first_match(plain) / batches, rel=1e-5)


def test_pixels_are_rescaled_only_where_the_model_takes_them_as_they_are():
    grey, black = (
        run(Inversion().with_settings(start="zeros", rescale=rescale, **STILL), plain_pixels())
        for rescale in (True, False)
    )
    assert torch.allclose(grey.samples, torch.full((4, 1, 8, 8), 0.5), atol=1e-6)
    assert torch.allclose(black.samples, torch.zeros(4, 1, 8, 8), atol=1e-6)
    normalised, same = (run(Inversion().with_settings(rescale=rescale, **STILL)) for rescale in (True, False))
    assert torch.equal(normalised.samples, same.samples)


def test_the_model_sees_rescaled_pixels_as_they_are():
    """The same start in either unit has the same loss."""
    rescaled, plain = (
        Inversion().with_settings(start="uniform", rescale=rescale, **STILL) for rescale in (True, False)
    )
    assert first_match(rescaled, plain_pixels()) == pytest.approx(first_match(plain, plain_pixels()), rel=1e-4)


@pytest.mark.parametrize("name", ["per_batch", "keep_last", "rescale", "common_units"])
def test_switches_are_true_or_false(name):
    with pytest.raises(InvalidInput, match=f"{name} must be True or False, not 1"):
        Inversion().with_settings(**{name: 1})


@pytest.mark.parametrize("start", ["warm", None, 0])
def test_a_start_that_is_none_is_refused(start):
    with pytest.raises(InvalidInput, match="start must be 'normal', 'uniform', 'zeros' or a WarmStart"):
        Inversion().with_settings(start=start)


def test_common_units_hold_for_normalised_pixels_too():
    grey = run(Inversion().with_settings(start="zeros", common_units=True, **STILL))
    assert torch.allclose(grey.samples, torch.full((4, 1, 8, 8), 0.5), atol=1e-6)
