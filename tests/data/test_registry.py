from __future__ import annotations

import pytest

from leakgauge.core.errors import UnknownName
from leakgauge.data import DATASETS, load


def test_table() -> None:
    for name, source in DATASETS.items():
        assert source.summary, name
        assert source.origin in ("installed", "folder or download", "folder", "generated")
        assert source.splits
        assert bool(source.files) == source.origin.startswith("folder")


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
