"""The description of series, and the statistics of their channels."""

import copy
import json
import pickle
from dataclasses import asdict, replace

import pytest
import torch

from leakgauge.core.data_spec import DataSpec
from leakgauge.core.errors import InvalidInput


@pytest.mark.parametrize(("shape", "time_axis"), [((5, 2), 0), ((2, 5), 1)])
def test_each_channel_of_a_series_has_its_own_statistics(shape, time_axis):
    spec = DataSpec(shape, 3, (1.0, -4.0), (2.0, 10.0), bounded=False, time_axis=time_axis)
    samples = torch.randn(3, *shape, generator=torch.Generator().manual_seed(0))
    inputs = spec.normalise(samples)
    for channel, (mean, std) in enumerate(zip(spec.mean, spec.std, strict=True)):
        at = (slice(None), slice(None), channel) if time_axis == 0 else (slice(None), channel)
        torch.testing.assert_close(inputs[at], (samples[at] - mean) / std)
    torch.testing.assert_close(spec.denormalise(inputs), samples)
    assert (spec.is_series, spec.is_image, spec.channels) == (True, False, 2)


def test_a_series_of_one_channel_may_have_one_dimension():
    spec = DataSpec((5,), 3, (1.0,), (2.0,), bounded=False, time_axis=0)
    assert spec.channels == 1
    assert spec.normalise(torch.ones(2, 5)).tolist() == [[0.0] * 5] * 2
    with pytest.raises(InvalidInput, match="for each of the 1 columns"):
        DataSpec((5,), 3, (1.0,) * 5, bounded=False, time_axis=0)


@pytest.mark.parametrize(
    ("shape", "time_axis"), [((5,), 1), ((5, 2), 2), ((5, 2), -1), ((1, 5, 5), 0), ((5, 2), True), ((5, 2), "time")]
)
def test_a_time_axis_that_is_none_is_refused(shape, time_axis):
    with pytest.raises(InvalidInput, match="time_axis must be 0 for series"):
        DataSpec(shape, 2, time_axis=time_axis)


def test_a_normalisation_that_nobody_stated_is_told_apart_and_changes_nothing_else():
    unsaid, none = DataSpec((1, 4, 4), 3), DataSpec((1, 4, 4), 3, (0,), (1,))
    assert (unsaid.says_normalisation, none.says_normalisation) == (False, True)
    assert not DataSpec((1, 4, 4), 3, std=(0.5,)).says_normalisation
    assert unsaid == none
    assert hash(unsaid) == hash(none)
    assert repr(unsaid).replace("0.0", "0").replace("1.0", "1") == repr(none)
    for kept in (replace(unsaid, classes=2), pickle.loads(pickle.dumps(unsaid)), copy.deepcopy(unsaid)):
        assert not kept.says_normalisation
    assert json.loads(json.dumps(asdict(unsaid)))["mean"] == [0.0]
