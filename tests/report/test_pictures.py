import io

import pytest
import torch
from PIL import Image

from leakscope.errors import InvalidInput
from leakscope.report import contact_sheet, to_png


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
