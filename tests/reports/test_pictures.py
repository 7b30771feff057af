"""Images stand in the right places of a sheet, with their own pixels."""

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
from tests.reports.pixels import box

FRAME = (190, 190, 190)
COLOURS = [(5 * number, 0, 255) for number in range(20)]


def plain(colours):
    """Return one image of 8 by 8 pixels in each colour."""
    return (torch.tensor(colours, dtype=torch.float) / 255)[:, :, None, None].expand(-1, -1, 8, 8)


def test_pixels_are_shown_enlarged_and_unsmoothed():
    image = torch.tensor([[[[0.0, 1.0], [1.0, 0.0]]]])
    sheet = contact_sheet({"": image}, size=20)
    left, top, right, bottom = box(sheet, FRAME)
    inside = sheet.crop((left + 1, top + 1, right, bottom))
    assert inside.size == (18, 18)
    black, white = (0, 0, 0), (255, 255, 255)
    assert {colour for _, colour in inside.getcolors()} == {black, white}
    assert [inside.getpixel(place) for place in ((1, 1), (16, 1), (1, 16), (16, 16))] == [black, white, white, black]


def test_colours_keep_their_channels():
    sheet = contact_sheet({"": plain([(255, 0, 0), (0, 255, 0)])}, size=40)
    red, green = box(sheet, (255, 0, 0)), box(sheet, (0, 255, 0))
    assert red[2] < green[0]


def test_a_broken_pixel_is_magenta():
    image = torch.zeros(1, 1, 2, 2)
    image[0, 0, 1, 1] = torch.nan
    sheet = contact_sheet({"": image}, size=40)
    left, top, right, bottom = box(sheet, FRAME)
    broken = box(sheet, (255, 0, 255))
    assert broken[0] > (left + right) / 2 - 1
    assert broken[1] > (top + bottom) / 2 - 1


def test_more_samples_than_columns_start_a_new_block():
    sheet = contact_sheet({"a": plain(COLOURS[:5]), "b": plain(COLOURS[5:10])}, columns=4)
    upper, lower = ([box(sheet, colour) for colour in row] for row in (COLOURS[:5], COLOURS[5:10]))
    assert len({top for _, top, _, _ in upper[:4]}) == 1
    assert [left for left, *_ in upper[:4]] == sorted({left for left, *_ in upper[:4]})
    for first, second in zip(upper, lower, strict=True):
        assert first[0] == second[0]  # one column for a sample
        assert first[3] < second[1]
    assert upper[4][0] == upper[0][0]
    assert upper[4][1] > lower[0][3]


def test_rows_may_have_different_lengths_and_captions(texts):
    sheet = contact_sheet({"original": plain(COLOURS[:3]), "back": plain(COLOURS[3:5])}, {"back": ["1 dB", "2 dB"]})
    captions = dict(texts)
    for text, colour in (("1 dB", COLOURS[3]), ("2 dB", COLOURS[4])):
        left, _, right, bottom = box(sheet, colour)
        assert left < captions[text][0] < captions[text][2] < right
        assert captions[text][1] > bottom
        assert captions[text][3] < sheet.height
    for title, colour in (("original", COLOURS[0]), ("back", COLOURS[3])):
        left, top, _, bottom = box(sheet, colour)
        assert captions[title][2] < left
        assert top < captions[title][1] < captions[title][3] < bottom


def test_a_png_holds_the_picture():
    sheet = contact_sheet({"a": torch.rand(2, 1, 8, 8)})
    assert Image.open(io.BytesIO(to_png(sheet))).tobytes() == sheet.tobytes()


@pytest.mark.parametrize("shape", [(0, 1, 8, 8), (1, 2, 8, 8), (1, 8, 8)])
def test_what_cannot_be_drawn_is_refused(shape):
    with pytest.raises(InvalidInput):
        contact_sheet({"a": torch.rand(shape)})


def test_a_strip_shows_the_first_and_the_last_iterate_and_the_original(texts):
    iterates = [(step, torch.full((1, 8, 8), step / 300)) for step in range(300)]
    original = torch.tensor([1.0, 0.0, 0.0])[:, None, None].expand(3, 8, 8)
    strip = progress_strip({"": [(step, image.expand(3, 8, 8)) for step, image in iterates]}, {"": original}, columns=6)
    captions = [(text, place) for text, place in texts if text]
    assert len(captions) == 7
    assert [captions[0][0], captions[5][0], captions[6][0]] == ["step 0", "step 299", "original"]
    assert [place[0] for _, place in captions] == sorted(place[0] for _, place in captions)
    left, _, right, _ = box(strip, (255, 0, 0))
    assert left < captions[6][1][0] < captions[6][1][2] < right


def test_early_iterates_are_shown_more_often():
    places = _spread(100, 6)
    gaps = [later - earlier for earlier, later in pairwise(places)]
    assert (places[0], places[-1], len(places)) == (0, 99, 6)
    assert gaps == sorted(gaps)
    assert _spread(4, 6) == [0, 1, 2, 3]


def test_iterates_are_images_without_normalisation():
    spec = DataSpec((1, 8, 8), 10, mean=(0.5,), std=(0.25,))
    model = models.lenet(shape=(1, 8, 8), seed=0)
    client = replace(data.load("digits"), spec=spec).share([0])
    result = idlg(steps=2, snapshot_every=1)(fedsgd(model, client)[0], progress=False)
    iterates = iterates_of(result, spec)
    assert [step for step, _ in iterates] == [0, 1]
    assert iterates[0][1].shape == (1, 8, 8)
    assert all(0 <= image.min() <= image.max() <= 1 for _, image in iterates)
    assert torch.allclose(iterates[0][1], spec.denormalise(result.trace.snapshots[0][1]["inputs"])[0].clamp(0, 1))


def test_an_attack_without_iterates_is_named():
    with pytest.raises(InvalidInput, match=r"no iterates of 'a'\. Run the attack with snapshot_every=1"):
        progress_strip({"a": []})
