"""Promises of every registered defence: a repr that is its record, early refusals, gradients of the same form.

A new defence adds one ``Case`` to the list.
"""

import subprocess
import sys
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pytest
import torch

from leakgauge import data, defences, models
from leakgauge.core.errors import InvalidInput, UnknownName
from leakgauge.core.params import flatten
from leakgauge.federation.client import fedavg, fedsgd
from leakgauge.federation.defences import DEFENCES, GradientDefence, build


@dataclass(frozen=True)
class Case:
    """One defence with its traits."""

    name: str
    #: Valid settings, which change gradients of about unit size.
    settings: dict[str, Any]
    #: Settings that also change the small gradients of a real client, where the others do not.
    strong: dict[str, Any] = field(default_factory=dict)
    #: Whether gradients are changed at random.
    random: bool = False
    #: The setting that is a strength of at least 0, where 0 means no defence.
    strength: str = ""
    #: Settings that are refused, each with words of the error.
    refused: tuple[tuple[dict[str, Any], str], ...] = ()


CASES = [
    Case(
        "clipping",
        {"norm": 2.0},
        strong={"norm": 0.01},
        refused=(({"norm": 0}, "norm of clipping must be a number above 0"), ({"norm": float("inf")}, "above 0")),
    ),
    Case(
        "dpsgd",
        {"noise": 1.0},
        refused=(
            ({"noise": None, "epsilon": 0}, "epsilon of DP-SGD must be a number above 0"),
            ({"noise": None}, "Give one of the two"),
            ({"epsilon": 1.0}, "Give one of the two"),
            ({"noise": -1.0}, "above 0"),
            ({"delta": 1.0}, "below 1"),
            ({"clip": 0}, "above 0"),
            ({"accountant": "moments"}, "prv"),
        ),
    ),
    Case("gaussian_noise", {"sigma": 0.5}, random=True, strength="sigma"),
    Case("laplacian_noise", {"scale": 0.5}, random=True, strength="scale"),
    Case("local_work", {"epochs": 3}, refused=(({"epochs": 0}, "at least 1"), ({"epochs": None}, "neither is given"))),
    Case("mixup", {"alpha": 0.4}, refused=(({"alpha": 0.0}, "above 0"), ({"share": 1.5}, "up to 1"))),
    Case(
        "quantisation",
        {"bits": 4},
        random=True,
        refused=(({"bits": 1}, "from 2 to 16"), ({"bits": 2.5}, "from 2 to 16")),
    ),
    Case(
        "random_pruning",
        {"probability": 0.25},
        random=True,
        strength="probability",
        refused=(({"probability": 1.0}, "below 1"),),
    ),
    Case("same_model", {"clients": 2}, refused=(({"clients": 0}, "at least 1"),)),
    Case("secure_aggregation", {"clients": 3}, refused=(({"clients": 1}, "at least 2"),)),
    Case("top_k", {"keep": 0.25}, refused=(({"keep": 0.0}, "0 sends nothing"), ({"keep": 1.5}, "up to 1"))),
]


def each(cases):
    return pytest.mark.parametrize("case", cases, ids=lambda case: case.name)


GRADIENT_CASES = [case for case in CASES if issubclass(DEFENCES[case.name], GradientDefence)]
every_case, every_gradient_defence = each(CASES), each(GRADIENT_CASES)


def gradients():
    draw = torch.Generator().manual_seed(0)
    return {"kernel": torch.randn(3, 40, 5, generator=draw), "bias": torch.randn(3, 40, generator=draw).double()}


def test_every_defence_is_tested():
    assert sorted(case.name for case in CASES) == list(DEFENCES)


def test_defences_are_found_by_the_names_of_their_classes():
    for defence in DEFENCES.values():
        assert getattr(defences, defence.__name__) is defence
        assert defences.__getattr__(defence.__name__) is defence
    with pytest.raises(AttributeError, match="no attribute 'Missing'"):
        defences.Missing  # noqa: B018


def test_names_of_classes_are_declared_and_not_inherited():
    assert {defence.name: defence for defence in DEFENCES.values()} == DEFENCES
    assert all("name" in vars(defence) for defence in DEFENCES.values())


def test_listing_defences_does_not_import_opacus():
    code = "import sys, leakgauge; assert len(leakgauge.defences.DEFENCES) > 5; print('opacus' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


@every_case
def test_the_repr_is_the_record(case):
    defence = build(case.name, **case.settings)
    assert eval(repr(defence), {one.__name__: one for one in DEFENCES.values()}) == defence
    assert defence.__doc__
    assert hash(defence) == hash(build(case.name, **case.settings))


@every_gradient_defence
def test_gradients_come_back_changed_in_the_same_form_and_the_given_ones_stay(case):
    given, original = gradients(), gradients()
    defence = build(case.name, **case.settings)
    first, again, other = (defence.on_gradients(given, torch.Generator().manual_seed(seed)) for seed in (1, 1, 2))
    for key, value in first.items():
        assert torch.equal(given[key], original[key])
        assert (value.shape, value.dtype) == (given[key].shape, given[key].dtype)
        assert torch.equal(value, again[key])
        assert torch.equal(value, other[key]) == (not case.random)
        assert not torch.equal(value, given[key])
        assert not torch.equal(value[0] - given[key][0], value[1] - given[key][1])


@each([case for case in GRADIENT_CASES if not case.random])
def test_each_gradient_is_protected_by_itself(case):
    given, defence = gradients(), build(case.name, **case.settings)
    together = defence.on_gradients(given, torch.Generator())
    for row in range(3):
        alone = defence.on_gradients({key: value[row : row + 1] for key, value in given.items()}, torch.Generator())
        for key, value in alone.items():
            assert torch.equal(value[0], together[key][row])


@every_gradient_defence
@pytest.mark.parametrize("run", ["fedsgd", "fedavg"])
@pytest.mark.parametrize("place", ["samples", "gradient", "update"])
def test_every_gradient_defence_acts_at_every_place(case, run, place):
    digits, model = data.load("digits").share(range(6)), models.mlp(shape=(1, 8, 8), classes=10, hidden=[8], seed=0)
    call = fedsgd if run == "fedsgd" else partial(fedavg, lr=0.1, epochs=2, batch_size=3)
    defence = build(case.name, **{**case.settings, **case.strong, "on": place})
    plain, defended = call(model, digits)[0], call(model, digits, defences=defence, knows_defence=True)[0]
    assert not torch.equal(flatten(plain.difference()), flatten(defended.difference()))
    assert flatten(defended.difference()).isfinite().all()
    assert defended.defences == (repr(defence),)


@every_gradient_defence
def test_an_unknown_place_is_refused(case):
    with pytest.raises(UnknownName, match="update"):
        build(case.name, **case.settings, on="weights")


@each([case for case in CASES if case.strength])
@pytest.mark.parametrize("wrong", [-0.1, float("nan"), float("inf"), "0.1", None, True, [0.1]], ids=str)
def test_impossible_strengths_are_refused(case, wrong):
    with pytest.raises(
        InvalidInput, match=f"the {case.strength} of .* must be a number of at least 0.*0 is no defence"
    ):
        build(case.name, **{case.strength: wrong})


@pytest.mark.parametrize(
    ("case", "wrong", "words"),
    [(case, wrong, words) for case in CASES for wrong, words in case.refused],
    ids=lambda value: value.name if isinstance(value, Case) else str(value),
)
def test_settings_that_cannot_work_are_refused_at_construction(case, wrong, words):
    with pytest.raises((InvalidInput, UnknownName), match=words):
        build(case.name, **(case.settings | wrong))


def test_unknown_names_and_options_are_answered_with_the_nearest():
    with pytest.raises(UnknownName, match=r"no defence 'gausian_noise'.*[Dd]id you mean 'gaussian_noise'"):
        build("gausian_noise", sigma=1)
    with pytest.raises(UnknownName, match=r"no option of gaussian_noise 'sigmas'.*[Dd]id you mean 'sigma'"):
        build("gaussian_noise", sigmas=1)
    with pytest.raises(InvalidInput, match=r"gaussian_noise needs its sigma. Use build\('gaussian_noise', sigma=...\)"):
        build("gaussian_noise")
