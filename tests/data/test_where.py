from __future__ import annotations

from pathlib import Path

import pytest

from leakgauge.core.errors import UnknownName
from leakgauge.data import DATASETS, locate, locations, wheels

from . import builders


def test_every_dataset_has_a_place() -> None:
    for name in DATASETS:
        places = locate(name)
        assert places
        assert all(place.detail for place in places)


def test_nothing_set() -> None:
    places = {place.place: place for place in locate("mnist")}
    assert list(places) == ["folder", "cache", "download"]
    assert places["folder"].detail == "LEAKGAUGE_DATA is not set"
    assert not any(place.found for place in places.values())
    assert places["download"].detail.startswith("forbidden by LEAKGAUGE_OFFLINE")


def test_folder(tmp_path: Path, online: None) -> None:
    builders.write_mnist(tmp_path / "mnist")
    places = locate("mnist", tmp_path)
    assert places[0].found
    assert "t10k-images-idx3-ubyte.gz and 1 more" in places[0].detail
    assert places[-1].found
    assert "ossci-datasets.s3.amazonaws.com" in places[-1].detail
    assert "has no orl_faces.npz or att_faces.zip" in locate("orl_faces", tmp_path)[0].detail


def test_cache() -> None:
    target = locations.cache() / "adult" / "adult.test"
    target.parent.mkdir(parents=True)
    target.write_text("rows")
    [cache] = [place for place in locate("adult") if place.place == "cache"]
    assert cache.found
    assert cache.detail.endswith("has 1 of 2 files")


def test_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wheels, "find", lambda file: None)
    [package] = [place for place in locate("adult") if place.place.startswith("package")]
    assert not package.found
    assert "pip install" in package.detail


def test_generated_and_unknown() -> None:
    assert locate("leaf_synthetic")[0].found
    assert locate("digits")[0].found
    with pytest.raises(UnknownName):
        locate("nothing")
