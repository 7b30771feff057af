"""Pictures of samples in rows with captions, and pictures of the intermediate results of attacks."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from PIL import Image
from PIL.PngImagePlugin import PngInfo
from torch import Tensor

from leakgauge.attacks.base import Reconstruction
from leakgauge.core.errors import InvalidInput
from leakgauge.core.observation import DataSpec
from leakgauge.reports.drawing import PAPER, Canvas

_FRAME, _BROKEN = (190, 190, 190), (255, 0, 255)
#: The keyword of the text in PNG files that show clients' samples. By this text, ``leakgauge forget`` finds them.
MARK = "leakgauge"
_GAP, _MARGIN, _CAPTION_HEIGHT, _FONT_SIZE = 10, 16, 18, 13


def contact_sheet(
    rows: Mapping[str, Tensor], captions: Mapping[str, Sequence[str]] | None = None, *, size: int = 96, columns: int = 8
) -> Image.Image:
    """Draw several rows of images, one below the other. The images of the same sample are in the same column.

    Pixels are enlarged without smoothing, so that the picture shows exactly what was reconstructed.

    Args:
        rows: A mapping from the title of each row to its images, (images, channels, height, width) in [0, 1].
        captions: A mapping from the title of a row to the texts below its images.
        size: The width and the height of an image on the sheet, in pixels.
        columns: The largest number of samples side by side. Further samples are drawn in a new block of rows below.
    """
    count = max((len(images) for images in rows.values()), default=0)
    if not count:
        raise InvalidInput("a contact sheet needs at least one image")
    captions = captions or {}
    layout = _Layout(rows, captions, size, columns)
    canvas = Canvas(layout.sheet_size(count), _FONT_SIZE)
    for index in range(count):
        x, y = layout.corner(index)
        for title, images in rows.items():
            if index % columns == 0:
                canvas.text(_MARGIN, y + size / 2, title, "lm")
            if index < len(images):
                canvas.image.paste(_picture(images[index], size), (x, y))
                canvas.pen.rectangle((x, y, x + size - 1, y + size - 1), outline=_FRAME)
            if index < len(captions.get(title, ())):
                canvas.text(x + size / 2, y + size + _CAPTION_HEIGHT / 2, captions[title][index], "mm")
            y += layout.row_height(title)
    canvas.image.info[MARK] = "samples"
    return canvas.image


@dataclass(frozen=True)
class _Layout:
    """The positions of the images on a contact sheet, which is a picture with many images in rows and columns."""

    rows: Mapping[str, Tensor]
    captions: Mapping[str, Sequence[str]]
    size: int
    columns: int

    def row_height(self, title: str) -> int:
        """Return the height of a row, including its captions and the gap below the row."""
        return self.size + _GAP + (_CAPTION_HEIGHT if title in self.captions else 0)

    @property
    def block_height(self) -> int:
        """The height of one block, which has one row for each title, including the gap below the block."""
        return sum(map(self.row_height, self.rows)) + _GAP

    @cached_property
    def title_width(self) -> int:
        """The width of the column that holds the titles of the rows."""
        measure = Canvas((1, 1), _FONT_SIZE)
        return max(int(measure.text_width(title)) for title in self.rows) + 14

    def corner(self, index: int) -> tuple[int, int]:
        """Return the upper left corner, in pixels, of a sample's topmost image.

        Each sample has a column, with one image in each row. Samples beyond the last column are drawn in a further
        block of rows below.
        """
        x = _MARGIN + self.title_width + (index % self.columns) * (self.size + _GAP)
        return x, _MARGIN + (index // self.columns) * self.block_height

    def sheet_size(self, count: int) -> tuple[int, int]:
        """Return the width and the height of a sheet of ``count`` samples."""
        blocks = -(-count // self.columns)
        width = 2 * _MARGIN + self.title_width + min(count, self.columns) * (self.size + _GAP) - _GAP
        return width, 2 * _MARGIN + blocks * self.block_height - 2 * _GAP


def progress_strip(
    iterates: Mapping[str, Sequence[tuple[int, Tensor]]],
    originals: Mapping[str, Tensor] | None = None,
    *,
    size: int = 72,
    columns: int = 10,
) -> Image.Image:
    """Draw the intermediate images of attacks side by side, like figures 1, 4 and 5 of EPAFL (Tabassum et al. 2024).

    Args:
        iterates: A mapping from the title of each attack to pairs of a step and the image at this step.
        originals: A mapping from the title of an attack to the original image, which is drawn last.
        size: The width and the height of an image on the strip, in pixels.
        columns: The largest number of intermediate images. If an attack has more, the picture shows the first, the last
            and some between them. Early steps are shown more often than late steps, because images change most in early
            steps.
    """
    rows, captions = {}, {}
    for title, course in iterates.items():
        if not course:
            raise InvalidInput(f"there are no iterates of {title!r}. Run the attack with snapshot_every=1")
        chosen = [course[place] for place in _spread(len(course), columns)]
        images, texts = [image for _, image in chosen], [f"step {step}" for step, _ in chosen]
        if originals is not None and title in originals:
            images, texts = [*images, originals[title].to(images[0])], [*texts, "original"]
        rows[title], captions[title] = torch.stack(images), texts
    return contact_sheet(rows, captions, size=size, columns=columns + 1)


def iterates_of(result: Reconstruction, data: DataSpec) -> list[tuple[int, Tensor]]:
    """Return pairs of a recorded step of an attack and the image of the first sample at this step.

    Args:
        result: The result of an attack that ran with ``snapshot_every``.
        data: The normalisation of the data. It is undone, so that pixels lie in [0, 1].
    """
    snapshots = [] if result.trace is None else result.trace.snapshots
    return [(step, data.denormalise(variables["inputs"][:1])[0].clamp(0, 1)) for step, variables in snapshots]


def _spread(count: int, limit: int) -> list[int]:
    """Choose at most ``limit`` of the indices 0 to ``count - 1``. Small indices are chosen more often than large ones.

    >>> _spread(100, 6)
    [0, 8, 23, 44, 69, 99]
    """
    if count <= limit:
        return list(range(count))
    places = [round((count - 1) * (number / (limit - 1)) ** 1.6) for number in range(limit)]
    return sorted(set(places))


def to_png(image: Image.Image) -> bytes:
    """Convert an image to the bytes of a PNG file. A picture of samples is marked as such in the file."""
    buffer, text = io.BytesIO(), PngInfo()
    text.add_text("Software", "Leakgauge")  # the mark of our files (leakgauge.core.own_files)
    if MARK in image.info:
        text.add_text(MARK, image.info[MARK])
    image.save(buffer, "PNG", optimize=True, pnginfo=text)
    return buffer.getvalue()


def _picture(sample: Tensor, size: int) -> Image.Image:
    """Draw one sample in a square of ``size`` x ``size`` pixels. Pixels that are not finite are magenta."""
    if sample.dim() != 3 or sample.shape[0] not in (1, 3):
        raise InvalidInput(f"only images with 1 or 3 channels can be drawn, not samples of shape {tuple(sample.shape)}")
    colour = sample.detach().cpu().float().expand(3, -1, -1)
    broken = ~torch.isfinite(colour).all(0)
    pixels = (colour.nan_to_num().clamp(0, 1) * 255).round().to(torch.uint8)
    pixels = torch.where(broken, torch.tensor(_BROKEN, dtype=torch.uint8)[:, None, None], pixels)
    image = Image.fromarray(pixels.permute(1, 2, 0).contiguous().numpy())
    scale = size / max(image.size)
    shape = (max(1, round(image.width * scale)), max(1, round(image.height * scale)))
    square = Image.new("RGB", (size, size), PAPER)
    square.paste(
        image.resize(shape, Image.Resampling.NEAREST if scale >= 1 else Image.Resampling.BOX),
        ((size - shape[0]) // 2, (size - shape[1]) // 2),
    )
    return square
