"""Tiny files in the formats of the real datasets."""

from __future__ import annotations

import gzip
import io
import tarfile
import zipfile
from pathlib import Path
from typing import Literal

import numpy as np

ADULT_ROWS = [
    "39, State-gov, 77516, Bachelors, 13, Never-married, Adm-clerical, Not-in-family, White, Male, "
    "2174, 0, 40, United-States, <=50K",
    "31, Private, 84154, Doctorate, 16, Divorced, ?, Unmarried, Black, Female, 0, 0, 38, ?, >50K",
    "52, Self-emp-inc, 287927, HS-grad, 9, Married-civ-spouse, Exec-managerial, Wife, White, Female, "
    "15024, 0, 40, Trinadad&Tobago, >50K",
]


def idx(array: np.ndarray) -> bytes:
    kind = {"u1": b"\x08", "i4": b"\x0c"}[array.dtype.str[1:]]
    sizes = np.asarray(array.shape, ">i4").tobytes()
    return b"\x00\x00" + kind + bytes([array.ndim]) + sizes + array.astype(array.dtype.newbyteorder(">")).tobytes()


def gz(content: bytes) -> bytes:
    return gzip.compress(content, mtime=0)


def write_mnist(folder: Path, samples: int = 6, suffix: str = ".gz") -> np.ndarray:
    images = np.random.default_rng(0).integers(0, 256, (samples, 28, 28), dtype=np.uint8)
    labels = np.arange(samples, dtype=np.uint8) % 10
    folder.mkdir(parents=True, exist_ok=True)
    pack = gz if suffix else bytes
    for prefix in ("train", "t10k"):
        (folder / f"{prefix}-images-idx3-ubyte{suffix}").write_bytes(pack(idx(images)))
        (folder / f"{prefix}-labels-idx1-ubyte{suffix}").write_bytes(pack(idx(labels)))
    return images


def cifar_records(samples: int, label_bytes: int, seed: int = 0) -> np.ndarray:
    records = np.random.default_rng(seed).integers(0, 256, (samples, label_bytes + 3072), dtype=np.uint8)
    records[:, :label_bytes] = np.arange(samples)[:, None] % 10
    return records


def tar(members: dict[str, bytes], mode: Literal["w:gz", "w:bz2"] = "w:gz") -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode=mode) as archive:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


def cifar10_members() -> dict[str, bytes]:
    names = [f"data_batch_{number}.bin" for number in range(1, 6)] + ["test_batch.bin"]
    return {f"cifar-10-batches-bin/{name}": cifar_records(2, 1, seed).tobytes() for seed, name in enumerate(names)}


def faces() -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (400, 112, 92), dtype=np.uint8)


def pgm(image: np.ndarray) -> bytes:
    return b"P5\n%d %d\n255\n" % (image.shape[1], image.shape[0]) + image.tobytes()


def faces_zip(images: np.ndarray, prefix: str = "") -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("README", "faces")
        for row, image in enumerate(images):
            archive.writestr(f"{prefix}s{row // 10 + 1}/{row % 10 + 1}.pgm", pgm(image))
    return buffer.getvalue()


def write_adult(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "adult.data.gz").write_bytes(gz(("\n".join(ADULT_ROWS) + "\n\n").encode()))
    test = ["|1x3 Cross validator", *(row + "." for row in ADULT_ROWS[:2])]
    (folder / "adult.test.gz").write_bytes(gz(("\n".join(test) + "\n").encode()))
