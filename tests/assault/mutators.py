"""Two mutators of captures. One changes bytes. The other changes the structure and signs the result again.

The tests of files of observations use them too.
"""

import copy
import json
import math
import random
import struct

import safetensors.torch
import torch

from leakgauge.core import container
from leakgauge.core.observation_file import KIND, VERSION


def split(raw):
    """Return the header of a capture as a JSON object, and the bytes of its tensors."""
    length = struct.unpack("<Q", raw[:8])[0]
    return json.loads(raw[8 : 8 + length]), raw[8 + length :]


def joined(header, body):
    """Return the bytes of a file with any header and any tensors."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + body


def signed(header, body):
    """Return the bytes of a file whose checksum is right, as far as its tensors can be read at all."""
    try:
        metadata = header["__metadata__"]
        tensors = safetensors.torch.load(joined(header, body))
        version, text = int(metadata["version"]), metadata["document"]
        header = {**header, "__metadata__": {**metadata, "sha256": container._digest(KIND, version, text, tensors)}}
    except Exception:  # what cannot be read has no checksum
        pass
    return joined(header, body)


def sealed(document, tensors, version=VERSION):
    """Return the bytes of a capture with any description and any tensors, and the right checksum."""
    text = document if isinstance(document, str) else json.dumps(document)
    contents = {name: value.clone().contiguous() for name, value in tensors.items()}
    digest = container._digest(KIND, version, text, contents)
    header = {"leakgauge": KIND, "version": str(version), "document": text, "sha256": digest}
    return safetensors.torch.save(contents, header)


def opened(raw):
    """Return the description and the tensors of a capture, by name: the reader has another order in each process."""
    header, _ = split(raw)
    return json.loads(header["__metadata__"]["document"]), dict(sorted(safetensors.torch.load(raw).items()))


#: The size in bytes from which a file can be changed in every way.
LEAST = 256
#: The version in the header of a file.
CURRENT = f'"version":"{VERSION}"'.encode()


def header_end(raw):
    """Return where the header ends, by the length at the start of the file."""
    return min(8 + int.from_bytes(raw[:8], "little"), len(raw))


def place_in(raw, draw):
    """Return a place in a file, which is most often in its header."""
    return draw.randrange(header_end(raw) if draw.random() < 0.7 else len(raw))


def flip_bits(raw, draw):
    for _ in range(draw.choice((1, 1, 1, 2, 8))):
        raw[place_in(raw, draw)] ^= 1 << draw.randrange(8)


def overwrite(raw, draw):
    start = place_in(raw, draw)
    size = min(draw.randint(1, 16), len(raw) - start)
    raw[start : start + size] = draw.choice(
        (draw.randbytes(size), bytes(draw.choices(b'0123456789"{}[],:-.e\\', k=size)))
    )


def write_number(raw, draw):
    start = place_in(raw, draw)
    raw[start : start + 8] = draw.choice((0, 1, 2**31, 2**62, 2**63, 2**64 - 1)).to_bytes(8, "little")


def truncate(raw, draw):
    del raw[place_in(raw, draw) :]


def insert(raw, draw):
    start = place_in(raw, draw)
    raw[start:start] = draw.choice((b"\0", b" ", b"{", b'"', b"\xff" * 9, draw.randbytes(draw.randint(1, 64))))


def remove(raw, draw):
    start = place_in(raw, draw)
    del raw[start : start + draw.randint(1, 64)]


def repeat(raw, draw):
    start = place_in(raw, draw)
    raw[start:] = raw[start : start + draw.randrange(64)]


def swap_blocks(raw, draw):
    size = draw.randint(1, 64)
    first, second = sorted(draw.sample(range(len(raw) - size), 2))
    if second - first >= size:
        block = raw[first : first + size]
        raw[first : first + size] = raw[second : second + size]
        raw[second : second + size] = block


def edit_digits(raw, draw):
    digits = [place for place in range(8, header_end(raw)) if chr(raw[place]).isdigit()]
    for place in draw.sample(digits, min(len(digits), draw.choice((1, 1, 2, 3)))):
        raw[place] = ord(draw.choice("0123456789-e. "))


def edit_header(raw, draw):
    """Replace a word of the header by another, and correct the length field."""
    end = header_end(raw)
    header = bytes(raw[8:end])
    old, new = draw.choice(
        [
            (b"F32", b"F64"), (b"F32", b"I32"), (b"F32", b"BF16"), (b"F32", b"F8_E4M3"), (b"F32", b"F4"),
            (b"I64", b"F64"), (b"I64", b"U64"), (b"I64", b"C64"), (b"shape", b"Shape"), (b"sent/", b"sent"),
            (b"[2]", b"[1,2]"), (b"[2]", b"[]"), (b"[2]", b"[18446744073709551615]"), (b"[2,2]", b"[4]"),
            (b"data_offsets", b"offsets"), (b"returned", b"gradient"), (CURRENT, b'"version":"0"'),
            (CURRENT, CURRENT.replace(b':"', b":").removesuffix(b'"')), (b"__metadata__", b"__Metadata__"),
            (b"observation", b"reconstruction"),
            (b"sha256", b"sha512"), (b"document", b"doc"), (b"{", b"["), (b",", b",,"), (b'"', b""),
        ]
    )  # fmt: skip
    places = [place for place in range(len(header)) if header.startswith(old, place)]
    if places:
        place = draw.choice(places)
        header = header[:place] + new + header[place + len(old) :]
    raw[:end] = len(header).to_bytes(8, "little") + header


def edit_length(raw, draw):
    value = draw.choice((0, 1, 7, len(raw), len(raw) - 8, 2**31, 2**63, 2**64 - 1, draw.randrange(len(raw))))
    raw[:8] = value.to_bytes(8, "little")


#: The changes of bytes.
DAMAGES = (
    flip_bits, overwrite, write_number, truncate, insert, remove, repeat, swap_blocks, edit_digits,
    edit_header, edit_length,
)  # fmt: skip


def bytes_changed(raw, seed):
    """Change bytes once or several times. Most changes are in the header."""
    draw, data = random.Random(f"bytes {seed}"), bytearray(raw)
    for _ in range(draw.choice((1, 1, 1, 2, 4, 16))):
        if len(data) > LEAST:
            draw.choice(DAMAGES)(data, draw)
    return bytes(data)


def nested(depth):
    """Return a list in a list in a list ..."""
    value = []
    for _ in range(depth):
        value = [value]
    return value


#: Values that a field may get in place of its own.
VALUES = [
    None, True, False, 0, 1, 2, 3, 4, 5, 7, 10, 100, 1000, 10**5, 10**6, 10**7, 10**9, 2**31, 2**53, 2**63 - 1, 2**63,
    2**64, 10**30, 10**308, 10**400, -1, -2, -(2**63), 0.0, -0.0, 0.5, 0.999999, 1.0, 1.5, 1e-12, 1e-30, 1e-308, 5e-324,
    1e6, 1e9, 1e30, 1e308, math.nan, math.inf, -math.inf, "", "0", "1", "NaN", "x", "x" * 300, "x" * 100_000, "\0",
    "\ud800", "\x1b[2J", "../x", "mlp", "lenet", "resnet20", "vit", "os:system", "train", "eval", "adam", "adamw",
    "sgd", "mse", "cross_entropy", "binary_cross_entropy", "cosine", "exponential(factor=1000)",
    "step(every=1, factor=1000)", "linear(start=1000, end=1000, steps=1)",
    "weights", "gradient", [], {}, [[]], [0], [1], [2, 2], [1, 8, 8],
    [1, 30_000, 30_000], [10**9], [10**30], [-1], [True], [None], [math.nan], [0.5, 0.5], [0.0] * 1000, ["a", "b"],
    ["x=1", "x=2"], {"a": 1}, {"name": "mlp"}, nested(50), nested(400), ["GaussianNoise(sigma=1e308)"],
    ["Clipping(norm=0.0)"], ["RandomPruning(share=0.9)"], ["DPSGD(noise=1e300)"],
]  # fmt: skip


def places_in(value, place=()):
    """Yield the keys that lead to each value of a JSON document."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield (*place, key)
        yield from places_in(inner, (*place, key))


def _changed_value(value, draw):
    """Return another number near a number, or any other value."""
    if isinstance(value, (int, float)) and not isinstance(value, bool) and draw.random() < 0.4:
        return draw.choice(
            (value + 1, value - 1, -value, 2 * value, value * 1000, value / 3, float(value), value * 10**6)
        )
    return copy.deepcopy(draw.choice(VALUES))


def _change(document, draw):
    """Change one place of a JSON document."""
    *outer, key = draw.choice(list(places_in(document)))
    where = document
    for step in outer:
        where = where[step]
    match draw.randrange(8):
        case 0:
            del where[key]
        case 1 if isinstance(where, dict):
            where[draw.choice((f"{key}s", "", "__class__", "seed", "name", str(key).upper()))] = where.pop(key)
        case 2:
            where[key] = [where[key]]
        case 3 if isinstance(where, dict):
            where[draw.choice(list(where))] = where[key]
        case _:
            where[key] = _changed_value(where[key], draw)


def _fill(tensors, draw):
    """Change one tensor."""
    name = draw.choice(list(tensors))
    value = tensors.pop(name)
    if value.is_floating_point():
        extremes = (3e38, -3e38, 1e-45, math.nan, math.inf, 0.0)
    elif value.dtype == torch.bool:
        extremes = (True, False)
    else:
        limits = torch.iinfo(value.dtype)
        extremes = (limits.max, limits.min, limits.max // 2, 0)
    match draw.randrange(8):
        case 0:
            tensors[name] = torch.full_like(value, draw.choice(extremes))
        case 1 if value.numel():
            value.view(-1)[draw.randrange(value.numel())] = draw.choice(extremes)
            tensors[name] = value
        case 2:
            kinds = (torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int8, torch.uint8, torch.bool)
            tensors[name] = value.nan_to_num().to(draw.choice(kinds))
        case 3:
            tensors[name] = draw.choice((value[None], value.flatten(), value.flatten()[:1], value.flatten()[:0]))
        case 4:
            tensors[draw.choice(("labels", "label_counts", "label_batches", "sent/x", "x", f"{name}/x"))] = value
        case 5:
            tensors[name], tensors["labels"] = value, torch.tensor(draw.choice(([], [0], [2**62], [0, 1, 2, 3])))
        case 6:
            counts = [draw.choice((0, 1, 2, 4, 2**62, 2**63 - 1)) for _ in range(draw.choice((2, 3, 10)))]
            tensors[name], tensors["label_counts"] = value, torch.tensor(counts)
        case _:
            tensors[name] = value * draw.choice((1000, -1)) if value.dtype != torch.bool else value


def structure_changed(raw, seed):
    """Change the description, the tensors or the header of a capture, and sign the result again."""
    draw = random.Random(f"structure {seed}")
    kind = draw.randrange(10)
    if kind == 0:  # the header of the tensors: types, shapes, places
        header, body = split(raw)
        for _ in range(draw.choice((1, 1, 2))):
            _change(header, draw)
        return signed(header, body)
    document, tensors = opened(raw)
    for _ in range(draw.choice((1, 2)) if kind in (1, 2) else 0):
        _fill(tensors, draw)
    for _ in range(draw.choice((1, 1, 1, 2, 3)) if kind != 1 else 0):
        _change(document, draw)
    text = json.dumps(document)
    if kind == 3:  # a text that is no JSON, or hardly
        place = draw.randrange(len(text))
        text = text[:place] + draw.choice('{}[]",:0-e\\') + text[place + draw.randrange(2) :]
    return sealed(text, tensors)


MUTATORS = {"bytes": bytes_changed, "structure": structure_changed}
