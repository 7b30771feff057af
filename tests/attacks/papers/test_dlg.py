"""DLG: samples and labels together, by L-BFGS and by Adam."""

from dataclasses import replace

import pytest
import torch

from leakgauge import models
from leakgauge.attacks import dlg
from leakgauge.attacks.inversion.lbfgs import LBFGS
from leakgauge.attacks.inversion.optimisers import Adam
from leakgauge.attacks.inversion.soft_labels import SoftLabels
from leakgauge.attacks.inversion.stopping import AnyOf, MaxSteps, Threshold
from leakgauge.core.errors import UnknownName
from leakgauge.evaluation import psnr
from leakgauge.federation.client import fedsgd
from leakgauge.testing import small_case
from tests.shared import digits


@pytest.fixture(scope="module")
def one_digit():
    return fedsgd(models.lenet(shape=(1, 8, 8), seed=0), digits().share([11]))


@pytest.mark.parametrize(("optimiser", "options"), [("lbfgs", {}), ("adam", {"steps": 700})])
def test_a_digit_and_its_label_come_back(optimiser, options, one_digit):
    observation, truth = one_digit
    result = dlg(optimiser=optimiser, **options)(observation, progress=False)
    assert psnr(result.samples, truth.inputs).item() > 25
    assert result.labels.tolist() == truth.targets.tolist()
    assert result.labels.dtype == torch.long


def test_the_settings_are_the_papers():
    plain, adam = dlg(), dlg(optimiser="adam")
    assert plain.labels == adam.labels == SoftLabels()
    assert (plain.descent.optimiser, adam.descent.optimiser) == (LBFGS(lr=1.0), Adam(lr=0.1))
    assert plain.stop == AnyOf(Threshold(1e-6), MaxSteps(300))
    assert dlg(threshold=None, steps=9).stop == MaxSteps(9)
    assert adam.stop.max_steps == 4000


def test_the_labels_are_variables_with_their_own_start_for_each_restart(one_digit):
    solution, _ = dlg(steps=1, restarts=3).optimise(one_digit[0], torch.zeros(1, 10), 0, lambda *_: None)
    assert solution.variables["labels"].shape == (1, 10)
    starts = []

    class Watched(SoftLabels):
        def __call__(self, observation, generator):
            starts.append(super().__call__(observation, generator))
            return starts[-1]

    replace(dlg(steps=1, restarts=3), labels=Watched())(one_digit[0], progress=False)
    assert len(starts) == 3
    assert not torch.equal(starts[0], starts[1])


def test_granted_labels_are_taken():
    observation, truth = small_case()
    known = observation.knowing(labels=truth.targets)
    solution, _ = dlg(steps=1).optimise(known, truth.targets, 0, lambda *_: None)
    assert list(solution.variables) == ["inputs"]
    assert torch.equal(dlg(steps=1)(known, progress=False).labels, truth.targets)


def test_an_optimiser_that_there_is_not_is_named():
    with pytest.raises(UnknownName, match=r"no optimiser of dlg\(\) 'adm'; did you mean 'adam'"):
        dlg(optimiser="adm")
