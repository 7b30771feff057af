"""The limits of numbers: every number of a recipe has one, and what lies beyond is refused in one sentence."""

import math
from dataclasses import fields

import pytest
import torch
from torch import nn

from leakgauge.core.errors import InvalidInput
from leakgauge.core.limits import MOST_BATCHES, RECIPE, check_batches
from leakgauge.core.observation import DataSpec, LocalTraining, Observation

#: The fields of a recipe that are no single number.
OTHERS = {"loss", "mode", "optimiser", "nesterov", "betas", "schedule"}
GRADIENT = {"weight": torch.zeros(6, 2), "bias": torch.zeros(6)}


def observed(**changes):
    given = {"model": nn.Linear(2, 6), "data": DataSpec((2,), 6), "sent": GRADIENT, "gradient": GRADIENT, **changes}
    return Observation(**given)


def test_every_number_of_a_recipe_has_a_limit():
    assert {item.name for item in fields(LocalTraining)} - OTHERS == RECIPE.keys()


@pytest.mark.parametrize("name", RECIPE)
def test_the_ends_of_a_range_are_valid_and_what_lies_beyond_is_not(name):
    limit = RECIPE[name]
    for value in (limit.least, limit.most):
        if not (limit.below and value == limit.most):
            given = int(value) if limit.whole else value
            assert getattr(LocalTraining(**{name: given}), name) == value
    beyond = [limit.most * 2, -1, math.nan, math.inf, 10**400, 10**5000, True, "1", [1], {}]
    for value in [*beyond, *([limit.most] if limit.below else []), *([0] if limit.least > 0 else [])]:
        with pytest.raises(InvalidInput, match=rf"^{name} must .{{5,600}}$"):
            LocalTraining(**{name: int(value) if limit.whole and value == limit.most * 2 else value})


def test_the_number_of_local_batches_is_limited_without_listing_them():
    assert LocalTraining(samples=MOST_BATCHES, batch_size=1, epochs=1).steps == MOST_BATCHES
    with pytest.raises(
        InvalidInput, match=r"1,000,000,000 samples in batches of 1 for 1 epochs are 1,000,000,000 local"
    ):
        LocalTraining(samples=10**9, batch_size=1)
    with pytest.raises(InvalidInput, match=r"more than the limit of 1,000,000\. Correct samples, batch_size or epochs"):
        check_batches(samples=2, batch_size=1, epochs=10**6)


@pytest.mark.parametrize(
    ("schedule", "words"),
    [
        ("exponential(factor=1000)", "multiplies the learning rate by more than 1e"),
        ("step(factor=1000, every=1)", "multiplies the learning rate by more than 1e"),
    ],
)
def test_a_schedule_cannot_overflow(schedule, words):
    recipe = LocalTraining(samples=500, batch_size=1, epochs=1, schedule=schedule)
    with pytest.raises(InvalidInput, match=words):
        _ = recipe.factors


@pytest.mark.parametrize(
    "schedule", [[1e9], [True], "cosine(per={[]: 1})", f"step(every={10**12})", "(" * 200, "constant" + " " * 300]
)
def test_schedules_beyond_the_limits(schedule):
    with pytest.raises(InvalidInput, match="schedule"):
        LocalTraining(schedule=schedule)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"shape": (10**5, 10**5)}, "has more values than the limit of 1,000,000,000"),
        ({"shape": (1,) * 9}, "may have up to 8 sizes, not 9"),
        ({"shape": (10**30,)}, "must be at most 1,000,000,000"),
        ({"classes": 10**8}, "must be at most 10,000,000"),
        ({"mean": (1e300,)}, r"mean must be at most 1e\+30"),
        ({"std": (1e-300,)}, "std must be at least 1e-30"),
        ({"shape": (1,), "columns": ("x" * 2000,)}, "the name of a column may have up to 1,000 characters"),
        ({"mean": ([[]],)}, "mean must be finite"),
    ],
)
def test_descriptions_of_data_beyond_the_limits(changes, words):
    with pytest.raises(InvalidInput, match=words):
        DataSpec(**{"shape": (2,), "classes": 2, **changes})


@pytest.mark.parametrize("counts", [[2**63 - 1, 2**63 - 1, 6, 0, 0, 0], [2**62, 2**62, 2**62, 2**62, 4, 0]])
def test_label_counts_whose_sum_wraps_around_are_refused(counts):
    wrapped = int(torch.tensor(counts).sum())
    assert wrapped == 4  # what 64 bits make of the sum
    for training in (LocalTraining(samples=wrapped), LocalTraining()):
        with pytest.raises(InvalidInput, match="the sum of label_counts must be at most 1,000,000,000"):
            observed(label_counts=torch.tensor(counts), training=training)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"round": 10**13}, "round must be at most"),
        ({"round": -1}, "round must be a whole number of at least 0"),
        ({"round": True}, "round must be a whole number"),
        ({"client": 5}, "client must be a text"),
        ({"client": "x" * 1001}, "the name of a client may have up to 1,000 characters"),
        ({"defences": ("x" * 10_001,)}, "a defence may have up to 10,000 characters"),
        ({"defences": ("x",) * 101}, "up to 100 defences"),
        ({"labels": torch.tensor([True])}, "labels must be whole numbers, not torch.bool"),
        ({"labels": torch.tensor([1], dtype=torch.uint64)}, "labels must be whole numbers, not torch.uint64"),
        ({"labels": torch.tensor([1j]), "data": DataSpec((2,), None)}, "labels must be numbers, not torch.complex64"),
    ],
)
def test_observations_beyond_the_limits(changes, words):
    with pytest.raises(InvalidInput, match=words):
        observed(**changes)
