"""What every named defence promises: a repr that is its record, early refusals, and gradients of the same form."""

import pytest
import torch

from leakscope import defences
from leakscope.defences import DEFENCES, build
from leakscope.errors import InvalidInput, UnknownName

SETTINGS = {
    "gaussian_noise": {"sigma": 0.5},
    "laplacian_noise": {"scale": 0.5},
    "random_pruning": {"probability": 0.25},
}
ELSEWHERE = {"mixup", "dp_sgd"}  # of another form: each has a file of its own


def gradients():
    draw = torch.Generator().manual_seed(0)
    return {"kernel": torch.randn(3, 40, 5, generator=draw), "bias": torch.randn(3, 40, generator=draw).double()}


def test_every_defence_is_tested():
    assert SETTINGS.keys() | ELSEWHERE == DEFENCES.keys()


@pytest.mark.parametrize("name", SETTINGS)
def test_the_repr_is_the_record(name):
    defence = build(name, **SETTINGS[name])
    assert eval(repr(defence), vars(defences)) == defence
    assert defence.__doc__
    assert hash(defence) == hash(build(name, **SETTINGS[name]))


@pytest.mark.parametrize("name", SETTINGS)
def test_gradients_come_back_changed_in_the_same_form_and_the_given_ones_stay(name):
    given, kept = gradients(), gradients()
    defence = build(name, **SETTINGS[name])
    first, again, other = (
        defence.on_sample_gradients(given, torch.Generator().manual_seed(seed)) for seed in (1, 1, 2)
    )
    for key, value in first.items():
        assert torch.equal(given[key], kept[key])
        assert (value.shape, value.dtype) == (given[key].shape, given[key].dtype)
        assert torch.equal(value, again[key])
        assert not torch.equal(value, other[key])
        assert not torch.equal(value, given[key])
        assert not torch.equal(value[0] - given[key][0], value[1] - given[key][1])


@pytest.mark.parametrize("name", SETTINGS)
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
