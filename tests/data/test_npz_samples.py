"""Which arrays are pictures, series or rows of a table, and how series are read."""

import numpy as np
import pytest
import torch

from leakgauge.core.errors import LeakgaugeError
from leakgauge.data import from_npz
from tests.data.test_own import npz

TARGETS = np.array([0, 1, 2, 1])


def drawn(*shape):
    return np.random.default_rng(0).normal(3, 2, (4, *shape))


@pytest.mark.parametrize(
    ("values", "options", "shape", "time_axis"),
    [
        (drawn(12, 3), {}, (12, 3), 0),
        (drawn(3, 12), {}, (3, 12), 1),
        (drawn(12, 3), {"time_axis": 1}, (12, 3), 1),
        (np.arange(4 * 6).reshape(4, 3, 2), {}, (3, 2), 0),
        (drawn(12), {"kind": "series"}, (12,), 0),
        (drawn(5, 5), {"kind": "series"}, (5, 5), 0),
        (np.full((4, 6, 2), 0.5), {"kind": "series"}, (6, 2), 0),
        (drawn(12, 3), {"kind": "picture"}, (1, 12, 3), None),
        (drawn(5, 5), {}, (1, 5, 5), None),
        (np.full((4, 6, 2), 0.5), {}, (1, 6, 2), None),
        (np.full((4, 6, 2), 200, np.uint8), {}, (1, 6, 2), None),
        (drawn(12), {}, (12,), None),
    ],
)
def test_arrays_are_read_as_what_they_look_like_or_are_named(tmp_path, values, options, shape, time_axis):
    loaded = from_npz(npz(tmp_path / "mine.npz", x=values, y=TARGETS), **options)
    assert (loaded.spec.shape, loaded.spec.time_axis) == (shape, time_axis)
    if time_axis is not None:
        np.testing.assert_allclose(loaded.inputs.numpy(), values, rtol=1e-6)


def test_bytes_that_are_series_keep_their_values(tmp_path):
    values = np.full((4, 6, 2), 200, np.uint8)
    assert from_npz(npz(tmp_path / "mine.npz", x=values, y=TARGETS), kind="series").inputs.unique().tolist() == [200]


@pytest.mark.parametrize("time_axis", [0, 1])
def test_each_channel_of_a_series_is_standardised(tmp_path, time_axis):
    values = drawn(12, 3) * [1, 10, 100]
    loaded = from_npz(npz(tmp_path / "mine.npz", x=values if time_axis == 0 else values.transpose(0, 2, 1), y=TARGETS))
    np.testing.assert_allclose(loaded.spec.mean, values.mean((0, 1)), rtol=1e-5)
    np.testing.assert_allclose(loaded.spec.std, values.std((0, 1)), rtol=1e-5)
    inputs = loaded.spec.normalise(loaded.inputs)
    torch.testing.assert_close(inputs.mean((0, 1 + time_axis)), torch.zeros(3), atol=1e-5, rtol=0)


def test_a_series_of_one_channel_has_one_mean(tmp_path):
    loaded = from_npz(npz(tmp_path / "mine.npz", x=drawn(12), y=TARGETS), kind="series")
    assert loaded.spec.mean == pytest.approx((drawn(12).mean(),))


def test_a_note_names_what_was_guessed(tmp_path):
    series = from_npz(npz(tmp_path / "a.npz", x=drawn(12, 3), y=TARGETS))
    assert "12 steps with 3 channels as (time, channels)" in series.notes[0]
    assert 'kind = "picture"' in series.notes[0]
    pictures = from_npz(npz(tmp_path / "b.npz", x=np.full((4, 6, 2), 0.5), y=TARGETS))
    assert 'kind = "series"' in pictures.notes[0]
    assert not from_npz(npz(tmp_path / "c.npz", x=np.full((4, 6, 6), 0.5), y=TARGETS)).notes


@pytest.mark.parametrize(
    ("values", "options", "problem"),
    [
        (drawn(3, 4, 5), {"kind": "series"}, "N x time x channels"),
        (drawn(12), {"kind": "picture"}, "N x height x width"),
        (drawn(12), {"time_axis": 0}, "time_axis is for series"),
        (drawn(12, 3), {"time_axis": 2}, "time_axis must be"),
        (drawn(12, 3), {"kind": "sound"}, "kind of samples"),
    ],
)
def test_what_is_no_series(tmp_path, values, options, problem):
    with pytest.raises(LeakgaugeError, match=problem):
        from_npz(npz(tmp_path / "mine.npz", x=values, y=TARGETS), **options)
