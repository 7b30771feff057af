"""What an Inversion's own settings do."""

from dataclasses import replace

import pytest
import torch

from leakgauge import data, models
from leakgauge.attacks import Inversion, Matching, dlf, dlf_paper, idlg, inverting_gradients
from leakgauge.attacks.inversion.lbfgs import LBFGS
from leakgauge.attacks.inversion.objectives import L2, Cosine
from leakgauge.attacks.inversion.optimisers import Adam
from leakgauge.attacks.inversion.priors import EpochOrderInvariant
from leakgauge.attacks.inversion.settings import WarmStart
from leakgauge.attacks.inversion.stopping import AnyOf, MaxSteps, Threshold
from leakgauge.attacks.inversion.update_models import FullSimulation, OneBatch
from leakgauge.core.errors import DataNotFound, InvalidInput, MissingExtra, MissingKnowledge
from leakgauge.core.observation import DataSpec
from leakgauge.core.seeding import generator
from leakgauge.data import Dataset
from leakgauge.evaluation import psnr, score
from leakgauge.federation.client import fedavg, fedsgd
from leakgauge.testing import check_attack, small_case
from tests.shared import shared_case


def run(attack, observation=None, **options):
    return attack(observation or shared_case()[0], progress=False, **options)


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
        single = Recorded().with_settings(**settings)
        object.__setattr__(single, "restart", restart)
        alone.append(run(single))
    together = run(Inversion().with_settings(restarts=3, **settings))
    best = min(alone, key=lambda result: result.loss)
    assert len({result.loss for result in alone}) == 3
    assert together.loss == best.loss
    assert torch.equal(together.samples, best.samples)


@pytest.mark.parametrize("kind", ["gradient", "weights"])
def test_vectorised_restarts_are_those_one_by_one(kind):
    observation, _ = small_case(kind, dtype=torch.double)
    one, all_ = (
        run(Inversion().with_settings(stop=MaxSteps(6), restarts=3, vectorise=vectorise), observation)
        for vectorise in (False, True)
    )
    assert torch.allclose(one.samples, all_.samples, rtol=1e-7, atol=1e-9)
    assert one.loss == pytest.approx(all_.loss, rel=1e-7)


def test_vectorised_restarts_share_the_random_convolution_of_a_prior():
    observation, _ = small_case("weights", dtype=torch.double)
    attack = Inversion().with_settings(
        update_model=FullSimulation(per_epoch=True),
        priors=(EpochOrderInvariant(1.0, "conv+max", seed=31),),
        stop=MaxSteps(3),
        restarts=3,
    )
    # With this seed the best restart is not the first, whose kernel was always the right one.
    one, all_ = (run(attack.with_settings(vectorise=vectorise), observation, seed=1) for vectorise in (False, True))
    assert all_.loss == pytest.approx(one.loss, rel=1e-7)
    assert torch.allclose(one.samples, all_.samples, rtol=1e-7, atol=1e-9)


def test_vectorised_batch_norm_in_train_mode_is_refused_with_the_way_out():
    model = models.resnet20(shape=(1, 8, 8), seed=0)
    samples = data.load("digits").share(range(2))
    attack = inverting_gradients(steps=2, restarts=2, vectorise=True)
    with pytest.raises(InvalidInput, match=r"batch norm in train mode.*Use vectorise=False"):
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
    assert score(result, truth)["mse"].value < 0.01


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
    inside, outside = (run(Inversion().with_settings(box=box, **settings), observation) for box in (True, False))

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
    result = run(Inversion().with_settings(start=start, stop=MaxSteps(1), snapshot_every=1))
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
        Inversion().with_settings(**options)


@pytest.fixture(scope="module")
def batched():
    """Six digits, two of each of three labels, and the labels of every batch."""
    digits = data.load("digits")
    rows = torch.cat([(digits.targets == label).nonzero().flatten()[:2] for label in (3, 1, 7)])
    model = models.build("dlf_femnist", shape=(1, 8, 8), classes=10, channels=[8, 16], dense=32, seed=0)
    return fedavg(model, digits.share(rows), lr=0.01, epochs=3, batch_size=2, granted=["label_batches"])


class Still(Inversion):
    """Starts, and ends, at the truth: every epoch's samples in the order trained on."""

    truth = None

    def _blind(self, observation, copies, draw):
        rows = torch.cat(self.truth.order)[: copies * len(self.truth)]
        return observation.data.normalise(self.truth.inputs[rows])


@pytest.mark.parametrize("update_model", [FullSimulation(per_epoch=True), FullSimulation(), OneBatch()], ids=repr)
def test_labels_of_every_batch_stay_with_their_samples(batched, update_model):
    observation, truth = batched
    attack = Still().with_settings(update_model=update_model, objective=L2(), optimiser=Adam(lr=1e-9), stop=MaxSteps(1))
    object.__setattr__(attack, "truth", truth)
    result = run(attack, observation)
    first = torch.cat(truth.order)[: len(truth)]
    assert result.labels is not None
    assert torch.equal(result.labels, truth.targets[first])
    assert torch.allclose(result.samples, truth.inputs[first], atol=1e-5)
    if update_model == FullSimulation(per_epoch=True):
        assert result.loss < 1e-8  # the true samples in their true batches
        assert result.epochs is not None
        assert torch.allclose(result.epochs, truth.inputs[first].expand(3, *truth.inputs.shape), atol=1e-5)


def test_epochs_are_matched_within_labels(batched):
    """A random start shows nothing, and matching by looks alone would mix the labels."""
    observation, _ = batched
    batches = observation.label_batches
    assert batches is not None
    attack = Inversion().with_settings(
        update_model=FullSimulation(per_epoch=True), stop=MaxSteps(1), optimiser=Adam(lr=1e-9), start="uniform",
        snapshot_every=1,
    )  # fmt: skip
    result = run(attack, observation)
    assert result.trace is not None
    assert result.epochs is not None
    start = observation.data.denormalise(result.trace.snapshots[0][1]["inputs"]).unflatten(0, (3, 6))
    for epoch, before, labels in zip(result.epochs, start, batches, strict=True):
        where = torch.cdist(epoch.flatten(1), before.flatten(1)).argmin(1)
        assert torch.equal(labels[where], batches[0])


def test_a_warm_start_is_copied_to_the_places_of_its_labels(batched):
    observation, _ = batched
    batches = observation.label_batches
    assert batches is not None
    inputs = torch.rand(6, 1, 8, 8)
    spread = WarmStart(Inversion(), noise=0.0).spread(inputs, 3, generator(0), batches.long()).unflatten(0, (3, 6))
    for epoch, labels in zip(spread, batches, strict=True):
        where = [(inputs == sample).flatten(1).all(1).nonzero().item() for sample in epoch]
        assert sorted(where) == list(range(6))
        assert torch.equal(batches[0][where], labels)


@pytest.mark.parametrize("attack", [dlf(steps=2, warm_steps=2), dlf_paper(steps=2), inverting_gradients(steps=2)])
def test_attacks_take_the_labels_of_every_batch(batched, attack):
    observation, truth = batched
    result = run(attack, observation)
    assert result.labels is not None
    assert torch.equal(result.labels, truth.targets[torch.cat(truth.order)[:6]])
    check = run(attack, observation.to("cpu"))
    assert torch.equal(check.samples, result.samples)


def test_a_direction_needs_no_learning_rate_and_a_distance_does():
    model, own = models.lenet(shape=(1, 8, 8), seed=0), data.load("digits").share([0, 1])
    observation, truth = fedavg(model, own, lr=0.01, batch_size=2, hidden=["lr"], granted=["labels"])
    attack = Inversion(Matching(Cosine(), OneBatch())).with_settings(optimiser=Adam(signed=True), stop=MaxSteps(60))
    assert score(run(attack, observation), truth).above_chance("mse")
    with pytest.raises(MissingKnowledge, match="needs the client's lr"):
        run(attack.with_settings(objective=L2()), observation)


def test_early_stopping_stops_early():
    result = run(inverting_gradients(steps=500, threshold=1e-3))
    assert result.outcome.kind == "converged"
    assert result.trace is not None
    assert len(result.trace.losses) < 100


@pytest.mark.parametrize("when", [3, 4, 6])
def test_ctrl_c_in_the_last_step_of_a_warm_start_ends_the_attack(when):
    """Of two restarts, whose warm starts take three steps each: in either's last step, or in the second's first."""
    lines = []

    def report(step, total, loss):
        lines.append((step, loss))
        if step == when:
            raise KeyboardInterrupt

    warm = Inversion().with_settings(stop=MaxSteps(3))
    attack = warm.with_settings(start=WarmStart(warm), stop=MaxSteps(5), restarts=2)
    result = attack(shared_case()[0], progress=report)
    assert result.outcome.kind == "interrupted"
    assert lines[-1][0] == when
    assert result.samples.shape == shared_case()[1].inputs.shape
    # The best of both restarts is kept, not the one that was interrupted.
    assert result.loss <= min(loss for _, loss in lines)


def test_ctrl_c_is_not_lost_when_the_best_restart_had_ended_before():
    def report(step, total, loss):
        if step == 4:
            raise KeyboardInterrupt

    class OneIsDone(Inversion):
        """Two restarts, of which the first starts at the samples themselves and so converges at once."""

        def _blind(self, observation, copies, draw):
            there = torch.equal(draw.get_state(), generator(0, "start", 0).get_state())
            known = observation.data.normalise(shared_case()[1].inputs)
            return known.clone() if there else super()._blind(observation, copies, draw)

    observation = replace(shared_case()[0], labels=shared_case()[1].targets)
    stop = AnyOf(Threshold(1e-6), MaxSteps(9))
    result = OneIsDone().with_settings(restarts=2, stop=stop)(observation, progress=report)
    assert result.outcome.kind == "interrupted"
    assert result.loss < 1e-6


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
    assert score(result, truth)["ssim"].value > 0.9
