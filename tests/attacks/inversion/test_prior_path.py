"""Held-out entries of a message choose the weight of the prior, and noise is not fitted."""

from dataclasses import replace

import pytest
import torch

from leakgauge import attacks, defences, models
from leakgauge.attacks.inversion.prior_path import NOTHING_EXPLAINED, Path, PriorPath, strongest
from leakgauge.attacks.inversion.settings import Space, WarmStart
from leakgauge.core.errors import InvalidInput
from leakgauge.evaluation import score
from leakgauge.federation.client import fedsgd
from tests.shared import digits


def observe(*chain, **options):
    network = models.build("dlf_femnist", shape=(1, 8, 8), classes=10, channels=[16, 32], dense=64, seed=0)
    own = digits().share([7, 11])
    own = replace(own, spec=replace(own.spec, mean=(0.305,), std=(0.376,)))
    return fedsgd(network, own, defences=chain, granted=["labels"], **options)


def attack(**options):
    return attacks.build("prior_path", **{"steps": 80, "lr": 0.3, **options})


def test_the_strongest_prior_that_predicts_about_as_well_is_kept():
    assert strongest([0.5, 0.2, 0.11, 0.1, 0.1], floor=0.0) == 2
    assert strongest([0.5, 0.2, 0.11, 0.1, 0.1], floor=0.1) == 3
    assert strongest([0.4, 0.3, 0.2], floor=1.0) == 2


@pytest.mark.parametrize("knows", [False, True])
def test_noise_alone_leads_to_the_guess(knows):
    observation, truth = observe(defences.GaussianNoise(3.0), knows_defence=knows)
    result = attack()(observation, progress=False)
    assert (result.outcome.kind, str(result.outcome)) == ("guess", NOTHING_EXPLAINED)
    assert torch.allclose(result.samples, torch.tensor(0.305))
    other = attacks.inverting_gradients(steps=80)(observation, progress=False)
    assert other.outcome.kind == "failed"
    assert score(other, truth)["mse"].value >= score(result, truth)["mse"].value


def test_some_noise_keeps_more_of_the_prior_and_gives_better_samples():
    observation, truth = observe(defences.GaussianNoise(0.1))
    result = attack()(observation, progress=False)
    assert str(result.outcome) != NOTHING_EXPLAINED
    measured = score(result, truth)["mse"]
    assert measured.value < measured.chance
    paper = score(attacks.inverting_gradients(steps=80)(observation, progress=False), truth)["mse"].value
    assert measured.value < paper


def test_a_clean_message_is_never_answered_with_the_guess():
    observation, truth = observe()
    result = attack()(observation, progress=False)
    assert score(result, truth)["psnr"].value > 22
    hopeless = attack(steps=1)(observation, progress=False)
    assert str(hopeless.outcome) != NOTHING_EXPLAINED
    assert hopeless.samples.std() > 0.01


@pytest.mark.parametrize("defence", [defences.TopK(0.1), defences.RandomPruning(0.7, on="update")], ids=repr)
def test_entries_that_pruning_left_out_are_not_matched(defence):
    observation, truth = observe(defence)
    result = attack()(observation, progress=False)
    paper = attacks.inverting_gradients(steps=80)(observation, progress=False)
    assert result.outcome.kind == "finished"
    assert score(result, truth)["mse"].value < 0.7 * score(paper, truth)["mse"].value


def test_a_few_entries_lead_to_the_guess():
    result = attack()(observe(defences.TopK(0.001))[0], progress=False)
    assert result.outcome.kind == "guess"


def test_both_stages_are_in_the_record():
    observation, _ = observe()
    result = attack(steps=20)(observation, progress=False)
    assert len(result.trace.losses) == 20
    assert set(result.trace.terms) == {"match", "tv"}
    assert result.trace.evaluations.diff().min() > 0
    assert "used all 20 steps" in str(result.outcome)


def test_ctrl_c_in_the_second_stage_returns_the_best_so_far():
    def report(step, total, loss):
        if step == 18:
            raise KeyboardInterrupt

    result = attack(steps=20)(observe()[0], progress=report)
    assert str(result.outcome) == "interrupted at step 17, and the best iterate so far is returned"
    assert len(result.trace.losses) == 18


def test_settings_that_cannot_work_are_refused():
    for wrong in ({"end": 0}, {"share": 1.0}, {"held_out": 0.0}, {"points": 0}):
        with pytest.raises(InvalidInput):
            Path(**wrong)
    with pytest.raises(InvalidInput, match="starts from noise"):
        PriorPath(space=Space(WarmStart(attacks.inverting_gradients())))
    with pytest.raises(InvalidInput, match="the weight of batch statistics"):
        attack(statistics=-1.0)
