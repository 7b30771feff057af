"""Samples as pictures: rows of images under each other, each with a caption."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence

import torch
import torch.nn.functional as F
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

from leakgauge.attacks.base import Reconstruction
from leakgauge.core.errors import InvalidInput
from leakgauge.core.observation import DataSpec

_INK, _PAPER, _FRAME = (32, 33, 36), (255, 255, 255), (190, 190, 190)


def contact_sheet(
    rows: Mapping[str, Tensor], captions: Mapping[str, Sequence[str]] | None = None, *, size: int = 96, columns: int = 8
) -> Image.Image:
    """Rows of images ``{title: (N, C, H, W) in [0, 1]}`` under each other, the same sample in one column.

    ``captions`` puts a line under each image of a row. More than ``columns`` samples start a new block below.
    Pixels are enlarged without smoothing: what is shown is what was reconstructed.
    """
    count = max((len(images) for images in rows.values()), default=0)
    if not count:
        raise InvalidInput("a contact sheet needs at least one image")
    captions = captions or {}
    font = ImageFont.load_default(size=13)
    gap, margin, text = 10, 16, 18
    title_width = max(int(font.getlength(title)) for title in rows) + 14
    heights = [size + gap + (text if title in captions else 0) for title in rows]
    block = sum(heights) + gap
    blocks = -(-count // columns)
    width = 2 * margin + title_width + min(count, columns) * (size + gap) - gap
    sheet = Image.new("RGB", (width, 2 * margin + blocks * block - 2 * gap), _PAPER)
    draw = ImageDraw.Draw(sheet)
    for index in range(count):
        x = margin + title_width + (index % columns) * (size + gap)
        y = margin + (index // columns) * block
        for (title, images), height in zip(rows.items(), heights, strict=True):
            if index % columns == 0:
                draw.text((margin, y + size / 2), title, fill=_INK, font=font, anchor="lm")
            if index < len(images):
                sheet.paste(_picture(images[index], size), (x, y))
                draw.rectangle((x, y, x + size - 1, y + size - 1), outline=_FRAME)
            if title in captions and index < len(captions[title]):
                draw.text((x + size / 2, y + size + text / 2), captions[title][index], _INK, font, anchor="mm")
            y += height
    return sheet


def progress_strip(
    iterates: Mapping[str, Sequence[tuple[int, Tensor]]],
    originals: Mapping[str, Tensor] | None = None,
    *,
    size: int = 72,
    columns: int = 10,
) -> Image.Image:
    """The course of attacks, iterates side by side (figures 1, 4 and 5 of EPAFL): ``{title: [(step, image), ...]}``.

    Of more than ``columns`` iterates some are shown: the first, the last, and others between them, more of the early
    ones, for that is where most happens. The ``originals`` of the same titles come last.
    """
    rows, captions = {}, {}
    for title, course in iterates.items():
        if not course:
            raise InvalidInput(f"there are no iterates of {title!r}; keep some with snapshot_every=1")
        chosen = [course[place] for place in _spread(len(course), columns)]
        images, words = [image for _, image in chosen], [f"step {step}" for step, _ in chosen]
        if originals is not None and title in originals:
            images, words = [*images, originals[title].to(images[0])], [*words, "original"]
        rows[title], captions[title] = torch.stack(images), words
    return contact_sheet(rows, captions, size=size, columns=columns + 1)


def iterates_of(result: Reconstruction, data: DataSpec) -> list[tuple[int, Tensor]]:
    """What a person sees of the first sample at each step that an attack with ``snapshot_every`` kept."""
    kept = [] if result.trace is None else result.trace.snapshots
    return [(step, data.denormalise(variables["inputs"][:1])[0].clamp(0, 1)) for step, variables in kept]


def _spread(count: int, wanted: int) -> list[int]:
    """Up to ``wanted`` of the places 0 to ``count - 1``, closer to each other at the beginning."""
    if count <= wanted:
        return list(range(count))
    places = [round((count - 1) * (number / (wanted - 1)) ** 1.6) for number in range(wanted)]
    return sorted(set(places))


def blurred(images: Tensor) -> Tensor:
    """Return images as four by four blocks, too coarse to show what is on them."""
    return F.interpolate(F.adaptive_avg_pool2d(images, 4), size=images.shape[-2:], mode="nearest")


def to_png(image: Image.Image) -> bytes:
    """The bytes of a PNG file."""
    buffer = io.BytesIO()
    image.save(buffer, "PNG", optimize=True)
    return buffer.getvalue()


def _picture(sample: Tensor, size: int) -> Image.Image:
    """One sample in a square of ``size`` pixels; NaN shows as magenta, so that it cannot pass for a picture."""
    if sample.dim() != 3 or sample.shape[0] not in (1, 3):
        raise InvalidInput(f"only images of 1 or 3 channels can be drawn, not samples of shape {tuple(sample.shape)}")
    colour = sample.detach().cpu().float().expand(3, -1, -1)
    broken = ~torch.isfinite(colour).all(0)
    pixels = (colour.nan_to_num().clamp(0, 1) * 255).round().to(torch.uint8)
    pixels = torch.where(broken, torch.tensor([255, 0, 255], dtype=torch.uint8)[:, None, None], pixels)
    image = Image.fromarray(pixels.permute(1, 2, 0).contiguous().numpy())
    scale = size / max(image.size)
    shape = (max(1, round(image.width * scale)), max(1, round(image.height * scale)))
    square = Image.new("RGB", (size, size), _PAPER)
    square.paste(
        image.resize(shape, Image.Resampling.NEAREST if scale >= 1 else Image.Resampling.BOX),
        ((size - shape[0]) // 2, (size - shape[1]) // 2),
    )
    return square
