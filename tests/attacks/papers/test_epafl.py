"""EPAFL: iDLG with rules for stopping."""

import pytest
import torch

from leakgauge import data, models
from leakgauge.attacks import epafl, idlg
from leakgauge.attacks.inversion.stopping import AnyOf, MaxSteps, Plateau, Threshold
from leakgauge.core.errors import InvalidInput
from leakgauge.evaluation import psnr
from leakgauge.federation.client import fedsgd


def client(row=11, **options):
    return fedsgd(models.lenet(shape=(1, 8, 8), seed=0, **options), data.load("digits").share([row]))


def test_it_is_idlg_with_another_stop():
    hybrid = AnyOf(Threshold(1e-5), Plateau(15), MaxSteps(300))
    assert epafl(tolerance=0.0) == idlg().with_settings(stop=hybrid)
    assert epafl(threshold=None, patience=5, tolerance=0.0).stop == AnyOf(Plateau(5), MaxSteps(300))
    assert epafl(threshold=1e-3, patience=None, steps=9).stop == AnyOf(Threshold(1e-3), MaxSteps(9))


def test_it_stops_earlier_with_nearly_the_same():
    observation, truth = client()
    early, late = (attack(observation, progress=False) for attack in (epafl(), idlg(threshold=None, steps=60)))
    assert early.outcome.kind == "converged"
    assert early.trace.evaluations[-1] < late.trace.evaluations[-1]
    assert psnr(early.samples, truth.inputs).item() > 25


def test_a_failure_shows_as_a_plateau_at_a_high_loss():
    observation, _ = client(activation="relu")
    results = [epafl(patience=5)(observation, seed=seed, progress=False) for seed in range(4)]
    stuck = [result for result in results if result.outcome.kind == "plateau"]
    assert stuck
    assert all(result.loss > 1e-5 and len(result.trace.losses) < 300 for result in stuck)
    assert "without improvement" in str(stuck[0].outcome)


@pytest.mark.parametrize(
    "options", [{"patience": 0}, {"patience": 1.5}, {"tolerance": 1.0}, {"tolerance": -0.1}], ids=str
)
def test_settings_that_cannot_work_are_refused(options):
    with pytest.raises(InvalidInput, match=next(iter(options))):
        epafl(**options)


def test_relative_losses_are_in_per_cent_of_the_gradients_squared_norm():
    observation, _ = client()
    plain, relative = (epafl(steps=1, relative=choice)(observation, progress=False) for choice in (False, True))
    size = sum(float(value.square().sum()) for value in observation.gradient.values())
    assert relative.trace.losses[0] == pytest.approx(100 * float(plain.trace.losses[0]) / size, rel=1e-5)


def test_a_weak_gradient_is_attacked_until_its_sample_is_near():
    """A network that knows the label already: the absolute threshold is met by a wrong sample."""
    model, own = models.lenet(shape=(1, 8, 8), seed=0), data.load("digits").share([11])
    with torch.no_grad():
        model.head.bias[int(own.targets[0])] += 12
    observation, truth = fedsgd(model, own)
    near = {}
    for relative in (False, True):
        result = epafl(threshold=1e-5, relative=relative)(observation, progress=False)
        near[relative] = psnr(result.samples, truth.inputs).item()
        assert "already gives the true labels a probability of" in str(result.outcome)
    assert near[True] > near[False] + 5
    assert near[True] > 25
