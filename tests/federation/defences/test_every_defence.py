"""What every named defence promises: a repr that is its record, early refusals, and gradients of the same form."""

from functools import partial
from typing import Any

import pytest
import torch

from leakgauge import data, defences, models
from leakgauge.core.errors import InvalidInput, UnknownName
from leakgauge.core.params import flatten
from leakgauge.federation.client import fedavg, fedsgd
from leakgauge.federation.defences import DEFENCES, GradientDefence, build

SETTINGS: dict[str, dict[str, Any]] = {
    "clipping": {"norm": 2.0},
    "dpsgd": {"noise": 1.0},
    "gaussian_noise": {"sigma": 0.5},
    "laplacian_noise": {"scale": 0.5},
    "local_work": {"epochs": 3},
    "mixup": {"alpha": 0.4},
    "quantisation": {"bits": 4},
    "random_pruning": {"probability": 0.25},
    "secure_aggregation": {"clients": 3},
    "top_k": {"keep": 0.25},
}
#: Those that act on gradients, and those that do so at random.
GRADIENTS = [name for name in DEFENCES if isinstance(build(name, **SETTINGS[name]), GradientDefence)]
RANDOM = ["gaussian_noise", "laplacian_noise", "random_pruning", "quantisation"]


def gradients():
    draw = torch.Generator().manual_seed(0)
    return {"kernel": torch.randn(3, 40, 5, generator=draw), "bias": torch.randn(3, 40, generator=draw).double()}


def test_every_defence_is_tested():
    assert SETTINGS.keys() == DEFENCES.keys()


@pytest.mark.parametrize("name", DEFENCES)
def test_the_repr_is_the_record(name):
    defence = build(name, **SETTINGS[name])
    assert eval(repr(defence), vars(defences)) == defence
    assert defence.__doc__
    assert hash(defence) == hash(build(name, **SETTINGS[name]))


@pytest.mark.parametrize("name", GRADIENTS)
def test_gradients_come_back_changed_in_the_same_form_and_the_given_ones_stay(name):
    given, kept = gradients(), gradients()
    defence = build(name, **SETTINGS[name])
    first, again, other = (defence.on_gradients(given, torch.Generator().manual_seed(seed)) for seed in (1, 1, 2))
    for key, value in first.items():
        assert torch.equal(given[key], kept[key])
        assert (value.shape, value.dtype) == (given[key].shape, given[key].dtype)
        assert torch.equal(value, again[key])
        assert torch.equal(value, other[key]) == (name not in RANDOM)
        assert not torch.equal(value, given[key])
        assert not torch.equal(value[0] - given[key][0], value[1] - given[key][1])


@pytest.mark.parametrize("name", [name for name in GRADIENTS if name not in RANDOM])
def test_each_gradient_is_protected_by_itself(name):
    given, defence = gradients(), build(name, **SETTINGS[name])
    together = defence.on_gradients(given, torch.Generator())
    for row in range(3):
        alone = defence.on_gradients({key: value[row : row + 1] for key, value in given.items()}, torch.Generator())
        for key, value in alone.items():
            assert torch.equal(value[0], together[key][row])


@pytest.mark.parametrize("name", GRADIENTS)
@pytest.mark.parametrize("run", ["fedsgd", "fedavg"])
@pytest.mark.parametrize("place", ["samples", "gradient", "update"])
def test_every_gradient_defence_acts_at_every_place(name, run, place):
    digits, model = data.load("digits").share(range(6)), models.mlp(shape=(1, 8, 8), classes=10, hidden=[8], seed=0)
    call = fedsgd if run == "fedsgd" else partial(fedavg, lr=0.1, epochs=2, batch_size=3)
    defence = build(name, **(SETTINGS[name] | {"on": place} | ({"norm": 0.01} if name == "clipping" else {})))
    plain, defended = call(model, digits)[0], call(model, digits, defences=defence, knows_defence=True)[0]
    assert not torch.equal(flatten(plain.difference()), flatten(defended.difference()))
    assert flatten(defended.difference()).isfinite().all()
    assert defended.defences == (repr(defence),)


@pytest.mark.parametrize("name", GRADIENTS)
def test_an_unknown_place_is_refused(name):
    with pytest.raises(UnknownName, match="update"):
        build(name, **SETTINGS[name], on="weights")


@pytest.mark.parametrize("name", ["gaussian_noise", "laplacian_noise", "random_pruning"])
@pytest.mark.parametrize("wrong", [-0.1, float("nan"), float("inf"), "0.1", None, True, [0.1]], ids=str)
def test_strengths_that_cannot_be_are_refused(name, wrong):
    (option,) = SETTINGS[name]
    with pytest.raises(InvalidInput, match=f"the {option} of .* must be a number of at least 0.*0 is no defence"):
        build(name, **{option: wrong})


def test_unknown_names_and_options_are_answered_with_the_nearest():
    with pytest.raises(UnknownName, match="no defence 'gausian_noise'; did you mean 'gaussian_noise'"):
        build("gausian_noise", sigma=1)
    with pytest.raises(UnknownName, match=r"no option of gaussian_noise 'sigmas'; did you mean 'sigma'"):
        build("gaussian_noise", sigmas=1)
    with pytest.raises(InvalidInput, match=r"gaussian_noise needs its sigma: build\('gaussian_noise', sigma=...\)"):
        build("gaussian_noise")


@pytest.mark.parametrize(
    ("name", "wrong", "words"),
    [
        ("clipping", {"norm": 0}, "norm of clipping must be a number above 0"),
        ("clipping", {"norm": float("inf")}, "above 0"),
        ("top_k", {"keep": 0.0}, "0 sends nothing"),
        ("top_k", {"keep": 1.5}, "up to 1"),
        ("random_pruning", {"probability": 1.0}, "below 1"),
        ("quantisation", {"bits": 1}, "from 2 to 16"),
        ("quantisation", {"bits": 2.5}, "from 2 to 16"),
        ("mixup", {"alpha": 0.0}, "above 0"),
        ("mixup", {"share": 1.5}, "up to 1"),
        ("local_work", {"epochs": 0}, "at least 1"),
        ("local_work", {"epochs": None}, "neither is given"),
        ("secure_aggregation", {"clients": 1}, "at least 2"),
        ("dpsgd", {"noise": None, "epsilon": 0}, "epsilon of DP-SGD must be a number above 0"),
        ("dpsgd", {"noise": None}, "give one of the two"),
        ("dpsgd", {"epsilon": 1.0}, "give one of the two"),
        ("dpsgd", {"noise": -1.0}, "above 0"),
        ("dpsgd", {"delta": 1.0}, "below 1"),
        ("dpsgd", {"clip": 0}, "above 0"),
        ("dpsgd", {"accountant": "moments"}, "prv"),
    ],
    ids=str,
)
def test_settings_that_cannot_work_are_refused_when_they_are_made(name, wrong, words):
    with pytest.raises((InvalidInput, UnknownName), match=words):
        build(name, **(SETTINGS[name] | wrong))
