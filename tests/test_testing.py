"""The conformance checks against attacks that each break one promise."""

import random
from contextlib import suppress
from dataclasses import dataclass, replace

import pytest
import torch

from leakgauge.attacks import Attack, Inversion, Reconstruction, idlg
from leakgauge.attacks.inversion.optimisers import Adam
from leakgauge.attacks.inversion.stopping import MaxSteps, Outcome
from leakgauge.core.errors import UnknownName
from leakgauge.testing import check_attack, random_start, small_case
from tests.shared import shared_case


@dataclass(frozen=True)
class Broken(Attack):
    """Knows the answer by heart, so that everything is right but what a subclass spoils."""

    strength: float = 1.0

    def run(self, observation, seed, report):
        return self.spoil(self.answer(), observation)

    def answer(self):
        truth = shared_case()[1]
        return Reconstruction(truth.inputs.clone(), truth.targets.clone(), Outcome("finished", 0, "knew it"))

    def spoil(self, result, observation):
        return result


class WrongShape(Broken):
    def spoil(self, result, observation):
        return replace(result, samples=result.samples[..., :4])


class TooFew(Broken):
    def spoil(self, result, observation):
        return replace(result, samples=result.samples[:1])


class NoReconstruction(Broken):
    def spoil(self, result, observation):
        return result.samples


class WholeNumbers(Broken):
    def spoil(self, result, observation):
        return replace(result, samples=result.samples.long())


class OutOfRange(Broken):
    def spoil(self, result, observation):
        return replace(result, samples=result.samples * 255)


class NotANumber(Broken):
    def spoil(self, result, observation):
        return replace(result, samples=result.samples / 0)


class TooManyLabels(Broken):
    def spoil(self, result, observation):
        return replace(result, labels=torch.zeros(3, dtype=torch.long))


class FloatLabels(Broken):
    def spoil(self, result, observation):
        return replace(result, labels=torch.zeros(2))


class ImpossibleLabels(Broken):
    def spoil(self, result, observation):
        return replace(result, labels=torch.tensor([0, 10]))


class Speechless(Broken):
    def spoil(self, result, observation):
        return replace(result, outcome=Outcome("finished", 0, " "))


GENERATOR = random.Random(0)


class Random(Broken):
    def spoil(self, result, observation):
        return replace(result, samples=(result.samples + 0.01 * GENERATOR.random()).clamp(0, 1))


class RandomLabels(Broken):
    def spoil(self, result, observation):
        return replace(result, labels=torch.tensor([GENERATOR.randrange(10), GENERATOR.randrange(10)]))


class Vandal(Broken):
    def spoil(self, result, observation):
        observation.gradient["head.bias"].mul_(1.0 + 1e-6)
        return result


class ModeChanger(Broken):
    def spoil(self, result, observation):
        observation.model.eval()
        return result


class Freezer(Broken):
    def spoil(self, result, observation):
        observation.model.head.bias.requires_grad_(False)
        return result


class LeavesHooks(Broken):
    def spoil(self, result, observation):
        observation.model.head.register_forward_hook(lambda *_: None)
        return result


class LeavesGradients(Broken):
    def spoil(self, result, observation):
        observation.model(result.samples).sum().backward()
        return result


class MovesPython(Broken):
    def spoil(self, result, observation):
        random.random()
        return result


class Blind(Broken):
    def spoil(self, result, observation):
        return replace(result, samples=random_start(observation, seed=99))


class Grey(Broken):
    def spoil(self, result, observation):
        return replace(result, samples=torch.full_like(result.samples, 0.35))


class Stubborn(Broken):
    def run(self, observation, seed, report):
        report(1, 1, 0.0)
        return self.answer()


class OddReport(Broken):
    def run(self, observation, seed, report):
        with suppress(KeyboardInterrupt):
            report("half", None, 0.0)
        return self.answer()


@dataclass(frozen=True, repr=False)
class Secretive(Broken):
    def __repr__(self):
        return "Secretive()"


@dataclass(frozen=True)
class Addressed(Broken):
    part: object = object()


class NotADataclass(Broken):
    strength: float = 2.0


BROKEN = {
    WrongShape: r"returned samples of shape \(1, 8, 4\)",
    TooFew: r"samples have shape \(1, 1, 8, 8\), but the client has 2",
    NoReconstruction: r"run\(\) must return a Reconstruction",
    WholeNumbers: "not floats",
    OutOfRange: r"pixels must lie in \[0, 1\]",
    NotANumber: "NaN",
    TooManyLabels: "3 labels for 2 samples",
    FloatLabels: "labels of a classification are whole numbers",
    ImpossibleLabels: "labels must lie in 0 to 9, not 0 to 10",
    Speechless: "no sentence",
    Random: "the same seed gives other samples",
    RandomLabels: "the same seed gives other",
    Vandal: r"changes the observation, because gradient\['head.bias'\]",
    ModeChanger: "changes the observation, because the mode of model",
    Freezer: "changes the observation, because model.head.bias.requires_grad",
    LeavesHooks: "changes the observation, because the hooks of model.head",
    LeavesGradients: "changes the observation, because model.*grad",
    MovesPython: "moves the global random generator of Python",
    Blind: "not clearly better than random",
    Grey: "no better than a blind guess",
    Stubborn: "Ctrl-C ends the attack without a result",
    OddReport: "progress is reported as",
    Secretive: r"does not show the setting strength=1.0",
    Addressed: "memory address",
}


@pytest.mark.parametrize("broken", BROKEN, ids=lambda broken: broken.__name__)
def test_each_broken_promise_is_found_and_named(broken):
    if "__dataclass_fields__" not in vars(broken):
        dataclass(frozen=True)(broken)
    with pytest.raises(AssertionError, match=BROKEN[broken]):
        check_attack(broken(), observation=small_case()[0], truth=shared_case()[1])


def test_without_the_decorator_settings_are_not_recorded():
    with pytest.raises(AssertionError, match=r"NotADataclass is not a dataclass. Decorate it"):
        check_attack(NotADataclass())


def test_what_cannot_be_pickled_is_found():
    @dataclass(frozen=True)
    class Local(Broken):
        pass

    with pytest.raises(AssertionError, match="cannot be pickled"):
        check_attack(Local())


def test_a_call_of_ones_own_is_found():
    class Rebel(Broken):
        def __call__(self, observation, **options):  # type: ignore[misc]
            return self.answer()

    with pytest.raises(AssertionError, match=r"Rebel overrides __call__. Write run\(\) instead"):
        check_attack(Rebel())


def test_the_unspoiled_answer_passes():
    check_attack(Broken())


def test_a_factory_will_do_and_must_make_an_attack():
    check_attack(lambda: idlg(steps=5))
    with pytest.raises(AssertionError, match="the factory makes a str, not an Attack"):
        check_attack(lambda: "attack")


def test_without_a_truth_quality_is_not_checked():
    lazy = Inversion().with_settings(optimiser=Adam(lr=1e-9), stop=MaxSteps(1))
    check_attack(lazy, observation=shared_case()[0])
    with pytest.raises(AssertionError, match="better than"):
        check_attack(lazy, observation=shared_case()[0], truth=shared_case()[1])


@pytest.mark.parametrize(("kind", "samples", "steps"), [("gradient", 2, 1), ("weights", 4, 4)])
def test_small_cases(kind, samples, steps):
    observation, truth = small_case(kind)
    assert (observation.kind, len(truth), observation.training.steps) == (kind, samples, steps)
    assert truth.reference_inputs is not None
    again, _ = small_case(kind)
    for name, value in observation.difference().items():
        assert torch.equal(value, again.difference()[name])


def test_an_unknown_small_case_is_answered_with_the_nearest():
    with pytest.raises(UnknownName, match="did you mean 'weights'"):
        small_case("weight")


def test_random_starts_depend_on_the_seed_alone():
    assert torch.equal(random_start(shared_case()[0], 1), random_start(shared_case()[0], 1))
    assert not torch.equal(random_start(shared_case()[0], 1), random_start(shared_case()[0], 2))
    assert random_start(shared_case()[0]).shape == shared_case()[1].inputs.shape
