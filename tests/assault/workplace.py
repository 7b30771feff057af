"""A folder with small data, factories and captures, right and wrong, for the mistakes of this suite."""

import os
import socket
import struct
import zipfile
import zlib
from pathlib import Path

import numpy as np

#: The file that a user writes with factories of models, data and losses. Most of them are wrong.
OWN = (Path(__file__).parent / "own_factories.txt").read_text()
ROWS = 120


def furnish(folder: Path) -> Path:
    """Fill a folder with all files that the mistakes name, and return it."""
    folder.mkdir(exist_ok=True)
    (folder / "own_factories.py").write_text(OWN)
    (folder / "broken_syntax.py").write_text("def model(:\n")
    (folder / "imports_missing.py").write_text("import no_such_package_at_all\n")
    (folder / "raises_at_import.py").write_text("raise KeyError('at import')\n")
    tables(folder)
    _arrays(folder)
    _pictures(folder)
    _documents(folder)
    return folder


def tables(folder: Path) -> None:
    """Write a right table and many wrong ones."""
    draw = np.random.default_rng(0)
    head = "age,height,job,sex,label"
    rows = [
        f"{draw.integers(18, 90)},{draw.normal(170, 10):.1f},{('clerk', 'cook', 'nurse')[place % 3]},"
        f"{'fm'[draw.integers(2)]},{place % 2}"
        for place in range(ROWS)
    ]
    lines = [head, *rows]

    def write(name: str, content: str | bytes) -> None:
        (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())

    def with_cell(name: str, row: int, column: int, value: str) -> None:
        cells = rows[row].split(",")
        cells[column] = value
        write(name, "\n".join([head, *rows[:row], ",".join(cells), *rows[row + 1 :]]))

    write("table.csv", "\n".join(lines))
    write("numbers.csv", "\n".join(["a,b,c,label", *(f"{a},{a * 2},{-a},{a % 2}" for a in range(ROWS))]))
    write("semicolon.csv", "\n".join(line.replace(",", ";") for line in lines))
    write("tabs.csv", "\n".join(line.replace(",", "\t") for line in lines))
    write("decimal_comma.csv", "\n".join(line.replace(",", ";").replace(".", ",") for line in lines))
    for name, value in {
        "na": "NA", "null": "null", "question": "?", "nan": "nan", "infinite": "inf", "too_large": "1e400",
        "single_overflow": "1e39", "word": "tall", "unit": "45 kg", "thousands": "1_000", "blank": "", "nul": "4\0",
    }.items():  # fmt: skip
        with_cell(f"cell_{name}.csv", 5, 0, value)
    for name, value in {
        "nan": "nan",
        "infinite": "inf",
        "na": "NA",
        "huge": "1e30",
        "large": "1000000000",
        "blank": "",
    }.items():
        with_cell(f"target_{name}.csv", 5, 4, value)
    write(
        "negative_classes.csv",
        "\n".join([head, *(row[:-1] + ("-1" if place % 2 else "1") for place, row in enumerate(rows))]),
    )
    write(
        "sparse_classes.csv",
        "\n".join([head, *(row[:-1] + str(1 + 100000 * (place % 2)) for place, row in enumerate(rows))]),
    )
    write("every_word_differs.csv", "\n".join(["name,label", *(f"person{place},{place % 2}" for place in range(3000))]))
    write("empty.csv", "")
    write("spaces.csv", "\n\n  \n")
    write("header_only.csv", head)
    write("no_header.csv", "\n".join(rows))
    write("one_row.csv", "\n".join(lines[:2]))
    write("ragged.csv", "\n".join([*lines[:5], "1,2", *lines[5:]]))
    write("too_wide.csv", "\n".join([*lines[:5], lines[5] + ",9", *lines[6:]]))
    write("only_target.csv", "label\n" + "\n".join("01" * 30))
    write("twice.csv", "age,age,label\n" + "\n".join(f"{place},{place},{place % 2}" for place in range(ROWS)))
    write("nameless.csv", ",age,label\n" + "\n".join(f"{place},{place},{place % 2}" for place in range(ROWS)))
    write("latin1.csv", "\n".join(lines).replace("cook", "k\u00f6chin").encode("latin1"))
    write("utf16.csv", "\n".join(lines).encode("utf-16"))
    write("binary.csv", bytes(range(256)) * 40)
    write("nul_header.csv", "a\0ge,label\n1,0\n2,1\n")
    write("open_quote.csv", "\n".join([head, '"' + rows[0], *rows[1:]]))
    write("long_field.csv", "name,label\n" + "x" * 200_000 + ",1\ny,0\n")
    write("fake.csv.gz", b"\x1f\x8b\x08\0no gzip")
    (folder / "folder.csv").mkdir()
    os.mkfifo(folder / "pipe.csv")
    (folder / "loop.csv").symlink_to(folder / "loop.csv")


def _arrays(folder: Path) -> None:
    draw = np.random.default_rng(1)
    x = draw.random((60, 1, 8, 8)).astype(np.float32)
    y = (np.arange(60) % 3).astype(np.int64)
    table = draw.normal(size=(60, 5)).astype(np.float32)

    def save(name: str, samples: object = x, targets: object = y, **more: object) -> None:
        np.savez(folder / f"{name}.npz", x=np.asarray(samples), y=np.asarray(targets), **more)  # type: ignore[arg-type]

    save("pictures")
    save("rows", table)
    save("real_targets", table, draw.normal(size=60))
    for name, value in {"nan": np.nan, "infinite": np.inf, "too_large": 1e300}.items():
        wrong = table.astype(np.float64)
        wrong[3, 2] = value
        save(f"x_{name}", wrong)
        real = draw.normal(size=60)
        real[3] = value
        save(f"y_{name}", table, real)
    save("x_negative_pixels", x - 0.5)
    save("x_bool", x > 0.5)
    save("x_complex", x.astype(np.complex64))
    save("x_objects", np.array([{}] * 60, dtype=object))
    save("x_words", np.full((60, 4), "a"))
    save("x_bytes", np.full((60, 4), b"a"))
    save("x_dates", np.full((60, 4), "2024-01-01", dtype="datetime64[D]"))
    save("x_record", np.zeros(60, dtype=[("a", "f4"), ("b", "i4")]))
    save("x_scalar", np.float32(1))
    save("x_vector", x[:, 0, 0, 0])
    save("x_five_axes", x[:, None])
    save("x_no_samples", x[:0], y[:0])
    save("x_no_columns", np.zeros((60, 0), np.float32))
    save("x_no_pixels", np.zeros((60, 1, 0, 0), np.float32))
    save("x_one_sample", x[:1], y[:1])
    save("x_shorter", x[:50])
    save("x_longer", x, y[:50])
    save("y_negative", targets=y - 1)
    save("y_huge", targets=np.where(y == 1, 10**12, y))
    save("y_billion", targets=np.where(y == 1, 10**9, y))
    save("y_unsigned", targets=np.where(y == 1, 2**63 + 5, y.astype(np.uint64)).astype(np.uint64))
    save("y_words", targets=np.full(60, "cat"))
    save("y_complex", targets=y.astype(np.complex64))
    save("y_objects", targets=np.array([None] * 60, dtype=object))
    save("y_scalar", targets=np.int64(1))
    save("y_fractions", targets=y + 0.5)
    np.savez(folder / "other_names.npz", data=x, target=y)
    np.savez(folder / "no_arrays.npz")
    np.save(folder / "single.npy", x)
    (folder / "single.npy").rename(folder / "single.npz")
    (folder / "empty.npz").write_bytes(b"")
    (folder / "text.npz").write_text("hello")
    whole = (folder / "pictures.npz").read_bytes()
    (folder / "cut.npz").write_bytes(whole[: len(whole) // 2])
    (folder / "flipped.npz").write_bytes(whole[:2000] + bytes(255 - byte for byte in whole[2000:2100]) + whole[2100:])
    bomb = {"bomb_header": (10**12,), "bomb_shape": (2**40, 2**40), "bomb_negative": (-1, 4)}
    for name, shape in bomb.items():
        _member(folder / f"{name}.npz", _npy_header("<f4", shape) + b"\0" * 64)
    _member(folder / "bomb_deep.npz", _npy_text("(" * 9000))
    _member(
        folder / "bomb_text.npz", _npy_text("{'descr': '<f4', 'fortran_order': False, 'shape': " + "9" * 5000 + "}")
    )
    _member(folder / "pickle.npz", _npy_header("|O", (60,)) + b"cos\nsystem\n(S'true'\ntR.")
    _zip_bomb(folder / "bomb_zeros.npz", 64 * 2**30)
    (folder / "folder.npz").mkdir()
    os.mkfifo(folder / "pipe.npz")
    (folder / "loop.npz").symlink_to(folder / "loop.npz")
    (folder / "missing_target.npz").symlink_to(folder / "nowhere.npz")


def _npy_header(kind: str, shape: tuple[int, ...]) -> bytes:
    return _npy_text(repr({"descr": kind, "fortran_order": False, "shape": shape}))


def _npy_text(text: str) -> bytes:
    padded = text + "\n"
    return b"\x93NUMPY\x02\x00" + struct.pack("<I", len(padded)) + padded.encode()


def _member(path: Path, content: bytes) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("x.npy", content)
        archive.writestr("y.npy", _npy_header("<i8", (60,)) + bytes(480))


def _zip_bomb(path: Path, size: int) -> None:
    """Write an archive that declares far more content than the machine has memory, in few bytes."""
    _member(path, _npy_header("<f4", (size // 4,)) + bytes(2**16))
    content = bytearray(path.read_bytes())
    for mark, place in ((b"PK\x03\x04", 22), (b"PK\x01\x02", 24)):
        at = content.index(mark)
        content[at + place : at + place + 4] = struct.pack("<I", 2**32 - 2)
    path.write_bytes(bytes(content))


def _pictures(folder: Path) -> None:
    def good(name: str, mode: str = "RGB", size: tuple[int, int] = (8, 8), count: int = 12) -> Path:
        from PIL import Image

        draw = np.random.default_rng(2)
        for label in ("cat", "dog"):
            (folder / name / label).mkdir(parents=True)
            for place in range(count):
                pixels = draw.integers(0, 255, (*size, 3), np.uint8)
                Image.fromarray(pixels).convert(mode).save(folder / name / label / f"{place}.png")
        return folder / name

    good("pictures")
    for name, content in {
        "empty": b"", "text": b"no picture", "eps": b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 8\n",
        "cut": (folder / "pictures/cat/0.png").read_bytes()[:60],
        "bomb": _png(60000, 60000), "large_bomb": _png(12000, 12000), "endless": _png(2**31 - 1, 2**31 - 1),
        "no_pixels": _png(0, 0),
        "text_bomb": _png(8, 8, zlib.compress(b"0" * 200_000_000)),
    }.items():  # fmt: skip
        (good(f"pictures_{name}", count=2) / "cat" / "9.png").write_bytes(content)
    os.mkfifo(good("pictures_pipe", count=2) / "cat" / "9.png")
    with socket.socket(socket.AF_UNIX) as listener:
        here = os.getcwd()
        os.chdir(good("pictures_socket", count=2) / "cat")
        listener.bind("9.png")
        os.chdir(here)
    place = good("pictures_loop", count=2) / "cat" / "9.png"
    place.symlink_to(place)
    (good("pictures_dangling", count=2) / "cat" / "9.png").symlink_to("nowhere.png")
    (good("pictures_folder", count=2) / "cat" / "9.png").mkdir()
    (good("pictures_device", count=2) / "cat" / "9.png").symlink_to("/dev/zero")
    mixed = good("pictures_sizes", count=2)
    (good("other", size=(9, 8), count=1) / "dog" / "0.png").rename(mixed / "dog" / "9.png")
    (folder / "pictures_flat").mkdir()
    for picture in (folder / "pictures/cat").iterdir():
        (folder / "pictures_flat" / picture.name).write_bytes(picture.read_bytes())
    (folder / "pictures_one_class" / "cat").mkdir(parents=True)
    for picture in (folder / "pictures/cat").iterdir():
        (folder / "pictures_one_class" / "cat" / picture.name).write_bytes(picture.read_bytes())
    (good("pictures_empty_class", count=3) / "bird").mkdir()
    (folder / "pictures_none").mkdir()
    (folder / "pictures_nothing" / "cat").mkdir(parents=True)


def _png(width: int, height: int, text: bytes = b"") -> bytes:
    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    comment = chunk(b"zTXt", b"Comment\0\0" + text) if text else b""
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", header)
        + comment
        + chunk(b"IDAT", zlib.compress(bytes(10_000)))
        + chunk(b"IEND", b"")
    )


def _documents(folder: Path) -> None:
    from leakgauge.core.observation_file import save
    from leakgauge.data import from_npz
    from leakgauge.federation.client import fedsgd
    from leakgauge.models import build

    documents = {
        "empty.toml": b"",
        "comment.toml": b"# nothing\n",
        "binary.toml": bytes(range(256)),
        "latin1.toml": '[model]\nname = "k\u00f6nig"\n'.encode("latin1"),
        "utf16.toml": '[model]\nname = "mlp"\n'.encode("utf-16"),
        "nul.toml": b'[model]\nname = "mlp"\n\0\n',
        "deep.toml": b"a = " + b"[" * 5000 + b"]" * 5000,
        "deep_table.toml": b"[" + b".".join([b"a"] * 5000) + b"]\n",
        "deep_inline.toml": b"a = " + b"{ a = " * 3000 + b"1" + b" }" * 3000,
        "twice.toml": b'[model]\nname = "mlp"\n[model]\nname = "mlp"\n',
        "key_twice.toml": b'[model]\nname = "mlp"\nname = "lenet"\n',
        "open.toml": b'[model\nname = "mlp"\n',
        "json.toml": b'{"model": {"name": "mlp"}}',
        "long_number.toml": b"seed = " + b"9" * 10_000,
    }
    for name, content in documents.items():
        (folder / name).write_bytes(content)
    (folder / "folder.toml").mkdir()
    os.mkfifo(folder / "pipe.toml")
    (folder / "loop.toml").symlink_to(folder / "loop.toml")
    (folder / "device.toml").symlink_to("/dev/zero")
    data = from_npz(folder / "rows.npz")
    observation, _ = fedsgd(build("mlp", shape=(5,), classes=3, hidden=(4,)), data.share([0, 1]))
    save(observation, folder / "capture.safetensors")
