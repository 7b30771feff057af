"""Many clients as one run: the same as one by one, each with its own end, retries for those that failed."""

from dataclasses import dataclass, replace
from functools import cache

import pytest
import torch

from leakgauge import models
from leakgauge.attacks import (
    Attack,
    Inversion,
    Reconstruction,
    dlf,
    dlg,
    epafl,
    idlg,
    inverting_gradients,
    lbfgs_simulation,
)
from leakgauge.attacks.inversion import together
from leakgauge.attacks.inversion.attempts import attempt_seed
from leakgauge.attacks.inversion.lbfgs import LBFGS
from leakgauge.attacks.inversion.optimisers import Adam
from leakgauge.attacks.inversion.stopping import AnyOf, MaxSteps, Outcome, Threshold
from leakgauge.attacks.inversion.together import alike
from leakgauge.attacks.inversion.update_models import FullSimulation
from leakgauge.core.errors import InvalidInput
from leakgauge.core.seeding import generator
from leakgauge.evaluation import psnr
from leakgauge.federation.client import fedavg, fedsgd
from tests.shared import digits


def clients(count=5, dtype=torch.float32, samples=1, **options):
    """Clients with a network and digits of their own each."""
    settings = {"shape": (1, 8, 8), "classes": 10} | options
    pairs = []
    for number in range(count):
        model = models.build("lenet", seed=number, **settings).to(dtype)
        own = digits().share(range(number * samples, (number + 1) * samples))
        pairs.append(fedsgd(model, own, client=f"client-{number}"))
    return [observation for observation, _ in pairs], [truth for _, truth in pairs]


@cache
def five():
    """Return the five clients of most tests, the same objects at every call."""
    return clients()


def alone(attack, observations=None, seed=0):
    numbered = enumerate(observations or five()[0])
    return [attack(one, seed=seed + number, progress=False) for number, one in numbered]


def quality(results):
    return [
        psnr(result.samples, truth.inputs.to(result.samples)).item()
        for result, truth in zip(results, five()[1], strict=True)
    ]


@pytest.mark.parametrize(
    ("factory", "dtype", "tolerance"),
    # In single precision L-BFGS amplifies rounding: after ten iterations it is seen in the third digit.
    [(idlg, torch.float32, 0.02), (idlg, torch.float64, 1e-9), (dlg, torch.float64, 1e-9)],
    ids=["idlg, single", "idlg, double", "dlg, double"],
)
@pytest.mark.parametrize("inner", [1, 2, 5, 10])
def test_the_first_ten_inner_iterations_are_those_one_by_one(factory, dtype, tolerance, inner):
    observations, _ = clients(3, dtype)
    attack = factory().with_settings(optimiser=LBFGS(inner=inner), stop=MaxSteps(1), keep_last=True)
    for one, other in zip(attack.each(observations, progress=False), alone(attack, observations), strict=True):
        assert torch.allclose(one.samples, other.samples, rtol=tolerance, atol=tolerance)


def torchs(observation, labels, start, inner):
    """iDLG's iterate after some inner iterations of ``torch.optim.LBFGS``, by an independent reading."""
    model, dummy = observation.model, start.clone().requires_grad_()
    weights = list(model.parameters())
    optimiser = torch.optim.LBFGS([dummy], max_iter=inner)

    def closure():
        loss = torch.nn.functional.cross_entropy(model(dummy), labels)
        found = torch.autograd.grad(loss, weights, create_graph=True)
        pairs = zip(found, observation.gradient.values(), strict=True)
        value = torch.stack([(one - other).square().sum() for one, other in pairs]).sum()
        dummy.grad = torch.autograd.grad(value, dummy)[0]
        return value.detach()

    optimiser.step(closure)
    return dummy.detach()


@pytest.mark.parametrize("inner", [1, 5, 10])
def test_the_first_ten_iterates_are_torchs(inner):
    observations, _ = clients(3, torch.float64)
    attack = idlg(steps=1).with_settings(optimiser=LBFGS(inner=inner), keep_last=True)
    for number, result in enumerate(attack.each(observations, progress=False)):
        start = torch.randn(1, 1, 8, 8, generator=generator(number, "start", 0)).double()
        expected = torchs(observations[number], result.labels, start, inner)
        assert torch.allclose(result.samples, expected.clamp(0, 1), rtol=1e-8, atol=1e-9)


def test_the_same_samples_come_back_as_one_by_one():
    attack = epafl()
    one, other = (quality(results) for results in (attack.each(five()[0], progress=False), alone(attack)))
    assert [value > 30 for value in one] == [value > 30 for value in other]
    assert sum(value > 30 for value in one) >= 4


def test_results_know_whose_they_are():
    results = epafl(steps=2).each(five()[0], seed=7, progress=False)
    assert [result.client for result in results] == [f"client-{number}" for number in range(5)]
    assert [result.seed for result in results] == [7, 8, 9, 10, 11]
    assert all(result.attack == repr(epafl(steps=2)) and result.seconds > 0 for result in results)
    assert [int(result.labels[0]) for result in results] == [int(truth.targets[0]) for truth in five()[1]]


def test_each_ends_for_itself_and_then_costs_nothing():
    results = epafl(steps=60).each(five()[0], progress=False)
    counts = [int(result.trace.evaluations[-1]) for result in results]
    assert len({len(result.trace.losses) for result in results}) > 1
    for result, count in zip(results, counts, strict=True):
        assert count <= 20 * len(result.trace.losses)


def test_groups_do_not_change_what_comes_out(monkeypatch):
    attack = idlg(steps=3)
    whole = attack.each(five()[0], progress=False)
    monkeypatch.setattr(together, "AT_ONCE", 2)
    lines = []
    parts = attack.each(five()[0], progress=lambda *line: lines.append(line[:2]))
    for one, other in zip(whole, parts, strict=True):
        assert torch.allclose(one.samples, other.samples, atol=1e-3)
    assert lines == [(step, 9) for step in range(1, 10)]


@pytest.mark.parametrize(
    "attack",
    [
        inverting_gradients(steps=5),
        dlg(optimiser="adam", steps=5),
        Inversion().with_settings(optimiser=Adam(), stop=MaxSteps(4), box=True, start="uniform"),
    ],
    ids=["inverting_gradients", "dlg-adam", "box"],
)
def test_every_blind_inversion_can(attack):
    observations, _ = clients(3, torch.float64)
    assert alike(attack, observations)
    for one, other in zip(attack.each(observations, progress=False), alone(attack, observations), strict=True):
        assert torch.allclose(one.samples, other.samples, rtol=1e-8, atol=1e-9)
        assert one.loss == pytest.approx(other.loss, rel=1e-8)


def test_local_training_can_too():
    pairs = [
        fedavg(
            models.build("lenet", shape=(1, 8, 8), classes=10, seed=number).double(),
            digits().share(range(4 * number, 4 * number + 4)),
            lr=0.01,
            epochs=2,
            batch_size=2,
            granted=["labels"],
        )
        for number in range(3)
    ]
    observations = [observation for observation, _ in pairs]
    attack = Inversion().with_settings(update_model=FullSimulation(per_epoch=True), stop=MaxSteps(3))
    assert alike(attack, observations)
    for one, other in zip(attack.each(observations, progress=False), alone(attack, observations), strict=True):
        assert torch.allclose(one.samples, other.samples, rtol=1e-8, atol=1e-9)
        assert one.epochs.shape == (2, 4, 1, 8, 8)


def trained_weights():
    """Return the messages of two clients that train for two epochs."""
    recipe = {"lr": 0.1, "epochs": 2, "batch_size": 1}
    model = models.lenet(shape=(1, 8, 8), seed=0)
    return [fedavg(model, digits().share(rows), **recipe)[0] for rows in (range(2), range(2, 4))]


def mixed():
    """Clients that differ in one thing each from the first of five."""
    first = five()[0][0]
    relu = clients(1, activation="relu")[0][0]
    two = clients(1, samples=2)[0][0]
    norm = models.mlp(shape=(1, 8, 8), classes=10, hidden=(16,), batch_norm=True, seed=0)
    trained = fedsgd(norm, digits().share(range(4)))[0]
    return {
        "another activation": (idlg(steps=2), [first, relu]),
        "another number of samples": (idlg(steps=2), [first, two]),
        "batch norm in train mode": (idlg(steps=2), [trained, trained]),
        "several restarts": (idlg(steps=2, restarts=2), five()[0][:2]),
        "a warm start": (dlf(steps=2, warm_steps=2), five()[0][:2]),
        "random orders": (lbfgs_simulation(steps=1, pool=1), trained_weights()),
        "one client": (idlg(steps=2), five()[0][:1]),
    }


@pytest.mark.parametrize(
    "name",
    [
        "another activation",
        "another number of samples",
        "batch norm in train mode",
        "several restarts",
        "a warm start",
        "random orders",
        "one client",
    ],
)
def test_what_is_not_alike_is_attacked_one_by_one(name):
    attack, observations = mixed()[name]
    assert not alike(attack, observations)
    for one, other in zip(attack.each(observations, progress=False), alone(attack, observations), strict=True):
        assert torch.equal(one.samples, other.samples)


def test_a_model_of_a_users_own_is_alike_only_to_itself():
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10))
    pairs = [fedsgd(model, digits().share([number]))[0] for number in range(2)]
    assert not alike(idlg(), pairs)
    same = replace(pairs[1], model=pairs[0].model)
    assert alike(idlg(), [pairs[0], same])


def test_large_models_are_attacked_one_by_one(monkeypatch):
    assert alike(idlg(), five()[0])
    monkeypatch.setattr(together, "TOGETHER_BELOW", 100)
    assert not alike(idlg(), five()[0])


class Counting:
    """A stop that records the sizes of the runs it watches."""

    def __init__(self, rule):
        self.rule, self.sizes = rule, []

    @property
    def max_steps(self):
        return self.rule.max_steps

    def begin(self, problems):
        self.sizes.append(problems)
        return self.rule.begin(problems)


#: Eight steps are too few for some of the five clients.
TOO_FEW = AnyOf(Threshold(1e-4), MaxSteps(8))


@pytest.fixture(scope="module")
def once():
    """Return the results of one attempt at each of the five clients."""
    return idlg().with_settings(stop=TOO_FEW).each(five()[0], progress=False)


def test_only_those_that_failed_are_started_again(once):
    """Where eight steps are too few for some, these get others, from a new start."""
    rule = Counting(TOO_FEW)
    failed = sum(result.outcome.kind != "converged" for result in once)
    assert 0 < failed < 5
    lines = []
    again = idlg(retries=4).with_settings(stop=rule).each(five()[0], progress=lambda *line: lines.append(line[:2]))
    assert rule.sizes[:2] == [5, failed]
    assert rule.sizes[1:] == sorted(rule.sizes[1:], reverse=True)
    assert {total for _, total in lines} == {40}
    for one, other in zip(once, again, strict=True):
        assert other.loss <= one.loss
        if one.outcome.kind == "converged":
            assert torch.equal(one.samples, other.samples)


@pytest.mark.parametrize("together_", [True, False], ids=["together", "alone"])
def test_retries_are_the_same_together_and_alone(together_):
    observations, _ = clients(3, torch.float64)
    attack = idlg(retries=2).with_settings(stop=AnyOf(Threshold(1e-30), MaxSteps(2)))
    results = attack.each(observations, progress=False) if together_ else alone(attack, observations)
    attempts = [attempt_seed(0, attempt) for attempt in range(3)]
    single = attack.with_settings(retries=0)
    losses = [single(observations[0], seed=seed, progress=False).loss for seed in attempts]
    assert results[0].loss == pytest.approx(min(losses), rel=1e-6)


NEVER_CONVERGED = AnyOf(Threshold(1e-30), MaxSteps(4))


@pytest.fixture(scope="module")
def never_converged():
    """Return the results of one attempt at each of the five clients, none of which converges."""
    return alone(idlg().with_settings(stop=NEVER_CONVERGED))


@pytest.mark.parametrize("together_", [True, False], ids=["together", "alone"])
def test_a_loss_that_is_low_enough_is_no_failure_whatever_ended_the_attempt(together_, never_converged):
    first = never_converged
    enough = sorted(one.loss for one in first)[1]
    again = idlg(retries=4).with_settings(stop=NEVER_CONVERGED, enough=enough)
    results = again.each(five()[0], progress=False) if together_ else alone(again, five()[0])
    changed = [
        not torch.allclose(one.samples, other.samples, atol=1e-3) for one, other in zip(first, results, strict=True)
    ]
    assert not any(was for was, one in zip(changed, first, strict=True) if one.loss < enough)
    assert any(changed)


@pytest.mark.parametrize("enough", [0.0, -1.0, float("nan"), True, "low"])
def test_what_is_enough_must_be_a_positive_number(enough):
    with pytest.raises(InvalidInput, match="enough must be"):
        epafl(enough=enough)


@pytest.mark.parametrize("retries", [-1, 1.5, None, True])
def test_retries_must_be_a_whole_number(retries):
    with pytest.raises(InvalidInput, match="retries must be a whole number of at least 0, not"):
        idlg(retries=retries)


def test_ctrl_c_keeps_what_is_done():
    def report(step, total, loss):
        if step == 3:
            raise KeyboardInterrupt

    results = idlg().each(five()[0], progress=report)
    assert [result.outcome.kind for result in results] == ["interrupted"] * 5
    assert all(result.loss < result.trace.losses[0] for result in results)


def test_ctrl_c_in_a_later_attempt_keeps_the_first(once):
    def report(step, total, loss):
        if step == 9:
            raise KeyboardInterrupt

    results = idlg(retries=3).with_settings(stop=TOO_FEW).each(five()[0], progress=report)
    assert len(results) == 5
    assert all(one.loss <= other.loss for one, other in zip(results, once, strict=True))
    expected = {"converged": "converged", "finished": "interrupted"}
    assert [one.outcome.kind for one in results] == [expected[one.outcome.kind] for one in once]
    failed = next(number for number, one in enumerate(once) if one.outcome.kind == "finished")
    alone = idlg(retries=3).with_settings(stop=TOO_FEW)(five()[0][failed], seed=failed, progress=report)
    assert alone.outcome.kind == "interrupted"
    assert alone.loss <= once[failed].loss * 1.01


@dataclass(frozen=True)
class Slow(Attack):
    """An attack that cannot do several at once, and is interrupted at the second."""

    def run(self, observation, seed, report):
        kind = "interrupted" if seed == 1 else "finished"
        report(1, 1, 0.0)
        samples = torch.rand(1, 1, 8, 8)
        return Reconstruction(samples, observation.labels, Outcome(kind, 0, "a sentence"))


def test_one_by_one_ends_with_the_interrupted_one():
    lines = []
    results = Slow().each(five()[0], progress=lambda *line: lines.append(line[:2]))
    assert [result.outcome.kind for result in results] == ["finished", "interrupted"]
    assert lines == [(1, 5), (2, 5)]
    assert torch.equal(Slow()(five()[0][0]).samples, results[0].samples)


def test_nothing_gives_nothing_and_what_is_no_observation_is_refused():
    assert idlg().each([]) == []
    with pytest.raises(InvalidInput, match="takes an Observation, not int"):
        idlg().each([five()[0][0], 3])
    with pytest.raises(InvalidInput, match="seed must be a whole number"):
        idlg().each(five()[0], seed="0")


def test_observations_and_models_are_left_as_they_were():
    before = [{name: value.clone() for name, value in one.sent.items()} for one in five()[0]]
    state = torch.get_rng_state()
    idlg(steps=2).each(five()[0], progress=False)
    assert torch.equal(torch.get_rng_state(), state)
    for one, kept in zip(five()[0], before, strict=True):
        assert all(torch.equal(one.sent[name], value) for name, value in kept.items())
        assert all(
            isinstance(value, torch.Tensor) and value.dim() == kept[name].dim() for name, value in one.sent.items()
        )
