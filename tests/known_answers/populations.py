"""The generated data of the known answers."""

from dataclasses import replace

import torch

from leakgauge.core.data_spec import DataSpec
from leakgauge.core.seeding import generator
from leakgauge.data import Dataset, load


def _labelled(inputs: torch.Tensor, classes: int, name: str, draw: torch.Generator, **options: object) -> Dataset:
    targets = torch.randint(classes, (len(inputs),), generator=draw)
    spec = DataSpec(tuple(inputs.shape[1:]), classes, **options)  # type: ignore[arg-type]
    return Dataset(inputs, targets, spec, name=name)


def constant_images(*, tone: float = 0.502, count: int = 400) -> Dataset:
    """Return pictures that are all the same grey."""
    return _labelled(torch.full((count, 1, 8, 8), tone), 4, "constant images", generator(0, "constant"))


def near_identical_images(*, noise: float = 0.0005, count: int = 400) -> Dataset:
    """Return copies of one digit with noise that is far below one of 255 grey levels."""
    draw = generator(0, "near-identical")
    digit = load("digits").inputs[7:8]
    inputs = (digit + noise * torch.randn(count, 1, 8, 8, generator=draw)).clamp(0, 1)
    return _labelled(inputs, 4, "near-identical images", draw)


def few_pictures(*, count: int = 400) -> Dataset:
    """Return digits of which every picture belongs to several people."""
    digits = load("digits")
    draw = generator(0, "few pictures")
    rows = torch.randint(40, (count,), generator=draw)
    return Dataset(digits.inputs[rows], digits.targets[rows], digits.spec, name="few pictures")


def blobs(*, shape: tuple[int, int, int] = (2, 20, 12), classes: int = 3, count: int = 400) -> Dataset:
    """Return pictures of smooth blobs, in any shape and number of channels."""
    draw = generator(0, "blobs")
    channels, height, width = shape
    coarse = torch.rand(count, channels, 4, 3, generator=draw)
    inputs = torch.nn.functional.interpolate(coarse, (height, width), mode="bicubic").clamp(0, 1)
    return _labelled(inputs, classes, "blobs", draw)


def textures(*, shape: tuple[int, int, int] = (3, 32, 32), classes: int = 4, count: int = 400) -> Dataset:
    """Return pictures of smooth blobs with a fine grain."""
    draw = generator(0, "textures")
    channels, height, width = shape
    coarse = torch.rand(count, channels, 5, 5, generator=draw)
    smooth = torch.nn.functional.interpolate(coarse, (height, width), mode="bicubic")
    inputs = (smooth + 0.05 * torch.randn(count, *shape, generator=draw)).clamp(0, 1)
    return _labelled(inputs, classes, "textures", draw)


def waves(*, length: int = 48, classes: int = 4, count: int = 400) -> Dataset:
    """Return series of one channel, which are sums of three sines."""
    draw = generator(0, "waves")
    time = torch.linspace(0, 1, length)
    frequencies = 1 + 6 * torch.rand(count, 3, 1, generator=draw)
    phases = 6.28 * torch.rand(count, 3, 1, generator=draw)
    inputs = torch.sin(6.28 * frequencies * time + phases).sum(1, keepdim=True)
    return _labelled(inputs, classes, "waves", draw, bounded=False)


def word_counts(*, words: int = 80, classes: int = 3, count: int = 400) -> Dataset:
    """Return texts as rows of word counts, most of which are zero."""
    draw = generator(0, "words")
    rates = 2.0 / torch.arange(1, words + 1).float().sqrt() - 0.2
    inputs = torch.poisson(rates.clamp(min=0.02).expand(count, -1).contiguous(), generator=draw)
    spec_options = {"bounded": False, "columns": tuple(f"word {number}" for number in range(words))}
    return _labelled(inputs, classes, "word counts", draw, **spec_options)


def black_slices(*, share: float = 0.7, count: int = 600) -> Dataset:
    """Return digits of which most are black, as the outer slices of a scan."""
    digits = load("digits")
    inputs = digits.inputs[:count].clone()
    inputs[torch.rand(count, generator=generator(0, "black")) < share] = 0
    return Dataset(inputs, digits.targets[:count], digits.spec, name="black slices")


def rare_words(*, words: int = 200, count: int = 600) -> Dataset:
    """Return texts as rows of a few words among many, so that a guess of no word is right about most of them."""
    inputs = (torch.rand(count, words, generator=generator(0, "rare")) < 0.02).float()
    columns = tuple(f"word {number}" for number in range(words))
    return _labelled(inputs, 3, "rare words", generator(1, "rare"), bounded=False, columns=columns)


def codes(*, columns: int = 10, count: int = 600) -> Dataset:
    """Return rows of whole numbers below 12, which stand for categories."""
    draw = generator(0, "codes")
    inputs = torch.randint(0, 12, (count, columns), generator=draw).float()
    names = tuple(f"code {number}" for number in range(columns))
    return _labelled(inputs, 3, "codes", draw, bounded=False, columns=names)


def labelled_digits(*, targets: str = "labels") -> Dataset:
    """Return digits with targets that are no classes.

    Args:
        targets: The kind of the targets: ``"labels"`` (five labels of each digit), ``"numbers"`` (two numbers of each
            digit), ``"mask"`` (the bright pixels) or ``"places"`` (the class of each pixel).
    """
    digits = load("digits")
    number, bright = digits.targets, digits.inputs[:, 0] > 0.4
    kinds = {
        "labels": torch.stack([number % 2 == 0, number > 4, number % 3 == 0, number == 8, number < 2], 1).float(),
        "numbers": torch.stack([10.0 + number, 100 * digits.inputs.flatten(1).mean(1)], 1),
        "mask": bright.float(),
        "places": bright * (1 + (number > 4).long())[:, None, None],
    }
    spec = replace(digits.spec, classes=None)
    return Dataset(digits.inputs, kinds[targets], spec, name=f"digits with {targets}")


def texts(*, words: int = 300, length: int = 10, count: int = 600) -> Dataset:
    """Return texts as the ids of their words, of which some are frequent and most are rare."""
    draw = generator(0, "texts")
    frequencies = 1 / torch.arange(1, words).float() ** 0.8
    inputs = 1 + torch.multinomial(frequencies.expand(count, -1), length, replacement=True, generator=draw)
    return _labelled(inputs.float(), 3, "texts", draw, bounded=False)
