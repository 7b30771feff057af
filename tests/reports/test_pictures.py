import io
from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from PIL import Image

from leakgauge import data, models
from leakgauge.attacks import idlg
from leakgauge.core.errors import InvalidInput
from leakgauge.core.observation import DataSpec
from leakgauge.federation.client import fedsgd
from leakgauge.reports import contact_sheet, iterates_of, progress_strip, to_png
from leakgauge.reports.pictures import _spread


def test_pixels_are_shown_enlarged_and_unsmoothed():
    image = torch.tensor([[[[0.0, 1.0], [1.0, 0.0]]]])
    sheet = contact_sheet({"": image}, size=20)
    corner = (16 + 14, 16)  # the margin, and the room for an empty title
    pixels = [sheet.getpixel((corner[0] + x, corner[1] + y)) for x, y in ((5, 5), (15, 5), (5, 15), (15, 15))]
    assert pixels == [(0, 0, 0), (255, 255, 255), (255, 255, 255), (0, 0, 0)]


def test_colours_keep_their_channels():
    red = torch.zeros(1, 3, 4, 4)
    red[:, 0] = 1
    assert (255, 0, 0) in {colour for _, colour in contact_sheet({"a": red}, size=40).getcolors(10_000)}


def test_a_broken_pixel_cannot_pass_for_a_picture():
    image = torch.full((1, 1, 2, 2), torch.nan)
    assert (255, 0, 255) in {colour for _, colour in contact_sheet({"a": image}, size=40).getcolors(10_000)}


def test_more_samples_than_columns_start_a_new_block():
    few, many = (contact_sheet({"a": torch.rand(n, 1, 8, 8), "b": torch.rand(n, 1, 8, 8)}) for n in (8, 9))
    assert many.width == few.width
    assert many.height > 1.9 * few.height


def test_rows_may_have_different_lengths_and_captions():
    sheet = contact_sheet(
        {"original": torch.rand(3, 1, 8, 8), "back": torch.rand(2, 1, 8, 8)}, {"back": ["1 dB", "2 dB"]}
    )
    assert Image.open(io.BytesIO(to_png(sheet))).size == sheet.size


@pytest.mark.parametrize("shape", [(0, 1, 8, 8), (1, 2, 8, 8), (1, 8, 8)])
def test_what_cannot_be_drawn_is_refused(shape):
    with pytest.raises(InvalidInput):
        contact_sheet({"a": torch.rand(shape)})


def course(count, size=8):
    return [(step, torch.full((1, size, size), step / count)) for step in range(count)]


def test_a_strip_shows_the_first_and_the_last_iterate_and_the_original():
    short = progress_strip({"a": course(3)})
    long = progress_strip({"a": course(300)}, {"a": torch.ones(1, 8, 8)}, columns=6)
    assert long.width > 1.9 * short.width - 100
    assert (255, 255, 255) in {colour for _, colour in long.getcolors(10_000)}


def test_early_iterates_are_shown_more_often():
    places = _spread(100, 6)
    gaps = [later - earlier for earlier, later in pairwise(places)]
    assert (places[0], places[-1], len(places)) == (0, 99, 6)
    assert gaps == sorted(gaps)
    assert _spread(4, 6) == [0, 1, 2, 3]


def test_iterates_are_what_a_person_sees():
    spec = DataSpec((1, 8, 8), 10, mean=(0.5,), std=(0.25,))
    model = models.lenet(shape=(1, 8, 8), seed=0)
    own = replace(data.load("digits"), spec=spec).share([0])
    result = idlg(steps=2, snapshot_every=1)(fedsgd(model, own)[0], progress=False)
    kept = iterates_of(result, spec)
    assert [step for step, _ in kept] == [0, 1]
    assert kept[0][1].shape == (1, 8, 8)
    assert all(0 <= image.min() <= image.max() <= 1 for _, image in kept)
    assert torch.allclose(kept[0][1], spec.denormalise(result.trace.snapshots[0][1]["inputs"])[0].clamp(0, 1))


def test_an_attack_that_kept_no_iterates_is_named():
    with pytest.raises(InvalidInput, match=r"no iterates of 'a'; keep some with snapshot_every=1"):
        progress_strip({"a": []})
