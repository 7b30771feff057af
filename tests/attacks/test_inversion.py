"""What an Inversion's own settings do."""

from dataclasses import replace

import pytest
import torch

from leakscope import data, models
from leakscope.attacks import Inversion, idlg, inverting_gradients
from leakscope.data import Dataset
from leakscope.errors import DataNotFound, InvalidInput, MissingExtra, MissingKnowledge
from leakscope.federated.client import fedavg, fedsgd
from leakscope.inversion.lbfgs import LBFGS
from leakscope.inversion.objectives import L2, Cosine
from leakscope.inversion.optimisers import Adam
from leakscope.inversion.stopping import MaxSteps
from leakscope.inversion.update_models import SingleStep
from leakscope.metrics import psnr, score
from leakscope.observation import DataSpec
from leakscope.seeding import generator
from leakscope.testing import check_attack, small_case

GRADIENT, GRADIENT_TRUTH = small_case("gradient")


def run(attack, observation=GRADIENT, **options):
    return attack(observation, progress=False, **options)


@pytest.mark.parametrize("optimiser", [Adam(signed=True), LBFGS(inner=2)], ids=["adam", "l-bfgs"])
def test_the_restart_with_the_lowest_loss_is_the_result(optimiser):
    class Recorded(Inversion):
        """Each restart alone, from the same start as among the others."""

        restart = 0

        def _blind(self, observation, copies, draw):
            return super()._blind(observation, copies, generator(0, "start", self.restart))

    settings = {"optimiser": optimiser, "stop": MaxSteps(4)}
    alone = []
    for restart in range(3):
        single = Recorded(**settings)
        object.__setattr__(single, "restart", restart)
        alone.append(run(single))
    together = run(Inversion(restarts=3, **settings))
    best = min(alone, key=lambda result: result.loss)
    assert len({result.loss for result in alone}) == 3
    assert together.loss == best.loss
    assert torch.equal(together.samples, best.samples)


@pytest.mark.parametrize("kind", ["gradient", "weights"])
def test_vectorised_restarts_are_those_one_by_one(kind):
    observation, _ = small_case(kind, dtype=torch.double)
    one, all_ = (
        run(Inversion(stop=MaxSteps(6), restarts=3, vectorise=vectorise), observation) for vectorise in (False, True)
    )
    assert torch.allclose(one.samples, all_.samples, rtol=1e-7, atol=1e-9)
    assert one.loss == pytest.approx(all_.loss, rel=1e-7)


def test_vectorised_batch_norm_in_train_mode_is_refused_with_the_way_out():
    model = models.resnet20(shape=(1, 8, 8), seed=0)
    samples = data.load("digits").share(range(2))
    attack = inverting_gradients(steps=2, restarts=2, vectorise=True)
    with pytest.raises(InvalidInput, match=r"batch norm in train mode.*use vectorise=False"):
        run(attack, fedsgd(model, samples, mode="train")[0])
    assert run(attack, fedsgd(model, samples, mode="eval")[0]).outcome.kind == "finished"


def test_tables_come_back_without_total_variation():
    table = data.load("breast_cancer").share([4])
    model = models.mlp(shape=table.spec.shape, classes=2, hidden=(32,), seed=0)
    observation, truth = fedsgd(model, table)
    check_attack(inverting_gradients(steps=100), observation=observation, truth=truth)
    result = run(inverting_gradients(steps=300), observation)
    assert result.trace is not None
    assert list(result.trace.terms) == ["match"]
    assert result.labels is not None
    assert torch.equal(result.labels, truth.targets)
    assert score(result, truth)["mse"].mean < 0.01


def test_images_have_the_total_variation_among_the_terms():
    with_tv, without = (run(inverting_gradients(steps=2, tv=tv)) for tv in (0.1, 0.0))
    assert with_tv.trace is not None
    assert without.trace is not None
    assert list(with_tv.trace.terms) == ["match", "tv"]
    assert list(without.trace.terms) == ["match"]
    assert with_tv.trace.losses[0] > without.trace.losses[0]


def normalised_case(channels=3):
    """Pixels that the model sees through a mean and deviation of its own for each channel."""
    spec = DataSpec((channels, 8, 8), 10, mean=(0.3, 0.5, 0.7), std=(0.5, 0.4, 0.6))
    images = torch.rand(1, channels, 8, 8, generator=torch.Generator().manual_seed(0))
    own = Dataset(images, torch.tensor([3]), spec)
    return fedsgd(models.lenet(shape=spec.shape, seed=0), own)


@pytest.mark.parametrize("optimiser", [Adam(lr=5.0), LBFGS(lr=50.0, inner=3)], ids=["adam", "l-bfgs"])
def test_the_box_holds_every_iterate_in_what_a_person_sees(optimiser):
    observation, _ = normalised_case()
    settings = {"objective": L2(), "optimiser": optimiser, "stop": MaxSteps(4), "snapshot_every": 1}
    inside, outside = (run(Inversion(box=box, **settings), observation) for box in (True, False))

    def widest(result):
        iterates = [observation.data.denormalise(iterate["inputs"]) for _, iterate in result.trace.snapshots[1:]]
        return max(max(float(-each.min()), float(each.max() - 1)) for each in iterates)

    assert widest(inside) <= 1e-5
    assert widest(outside) > 0.1
    assert 0 <= outside.samples.min() <= outside.samples.max() <= 1


def test_normalised_pixels_come_back_as_a_person_sees_them():
    observation, truth = normalised_case()
    assert psnr(run(idlg(steps=60), observation).samples, truth.inputs).item() > 25


@pytest.mark.parametrize(("start", "low", "high"), [("zeros", 0, 0), ("uniform", 0, 1), ("normal", -9, 9)])
def test_starts(start, low, high):
    result = run(Inversion(start=start, stop=MaxSteps(1), snapshot_every=1))
    assert result.trace is not None
    first = result.trace.snapshots[0][1]["inputs"]
    assert low <= first.min() <= first.max() <= high
    assert (first.std() > 0) == (start != "zeros")
    assert bool((first < 0).any()) == (start == "normal")


@pytest.mark.parametrize(
    "options", [{"start": "ones"}, {"restarts": 0}, {"snapshot_every": 0}, {"box": 1}, {"vectorise": None}], ids=str
)
def test_settings_that_cannot_work_are_refused(options):
    (name,) = options
    with pytest.raises(InvalidInput, match=name):
        Inversion(**options)


def test_a_direction_needs_no_learning_rate_and_a_distance_does():
    model, own = models.lenet(shape=(1, 8, 8), seed=0), data.load("digits").share([0])
    observation, truth = fedavg(model, own, lr=0.01, hide=["lr"], grant=["labels"])
    attack = Inversion(Cosine(), SingleStep(), optimiser=Adam(signed=True), stop=MaxSteps(60))
    assert score(run(attack, observation), truth).above_chance("mse")
    with pytest.raises(MissingKnowledge, match="needs the client's lr"):
        run(replace(attack, objective=L2()), observation)


def test_early_stopping_stops_early():
    result = run(inverting_gradients(steps=500, threshold=1e-3))
    assert result.outcome.kind == "converged"
    assert result.trace is not None
    assert len(result.trace.losses) < 100


def test_idlg_recovers_a_digit_almost_exactly():
    own = data.load("digits").share([11])
    observation, truth = fedsgd(models.lenet(shape=(1, 8, 8), seed=0), own)
    result = run(idlg(), observation)
    assert result.outcome.kind == "converged"
    assert psnr(result.samples, truth.inputs).item() > 30
    assert result.labels is not None
    assert torch.equal(result.labels, truth.targets)


def test_idlg_recovers_a_handwritten_digit_of_mnist():
    try:
        own = data.load("mnist5k", download=False).share([0])
    except (MissingExtra, DataNotFound) as problem:
        pytest.skip(str(problem))
    observation, truth = fedsgd(models.lenet(shape=(1, 28, 28), seed=0), own)
    result = run(idlg(), observation)
    assert psnr(result.samples, truth.inputs).item() > 30
    assert score(result, truth)["ssim"].mean > 0.9
