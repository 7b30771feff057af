from __future__ import annotations

import pickle
from dataclasses import replace

import pytest
import torch

from leakgauge.core.data_spec import DataSpec
from leakgauge.core.errors import InvalidInput
from leakgauge.data import Dataset

SPEC = DataSpec((2,), 3, bounded=False, columns=("a", "b"))


def toy(**changes: object) -> Dataset:
    arguments: dict[str, object] = {
        "inputs": torch.arange(12.0).reshape(6, 2),
        "targets": torch.tensor([0, 1, 2, 0, 1, 2]),
        "spec": SPEC,
        "name": "toy",
        "groups": torch.tensor([0, 0, 1, 1, 2, 2]),
        "group_names": ("x", "y", "z"),
        "sensitive": "b",
    }
    return Dataset(**(arguments | changes))  # type: ignore[arg-type]


def test_share_of_a_share_knows_the_first_population() -> None:
    dataset = toy()
    share = dataset.share([5, 3, 1]).share([0, 2], "mine")
    assert share.population is dataset
    assert share.rows is not None
    assert share.rows.tolist() == [5, 1]
    assert (share.name, share.sensitive, share.group_names) == ("mine", "b", ("x", "y", "z"))
    assert share.groups is not None
    assert share.groups.tolist() == [2, 0]
    assert torch.equal(share.inputs, dataset.inputs[[5, 1]])


def test_others() -> None:
    dataset = toy()
    others = dataset.share([0, 2]).others()
    assert others is not None
    assert others.rows is not None
    assert others.rows.tolist() == [1, 3, 4, 5]
    few = dataset.share([0]).others(limit=2, seed=1)
    assert few is not None
    assert len(few) == 2
    assert dataset.share(range(6)).others() is None
    assert dataset.others() is None


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"inputs": torch.zeros(6, 3)}, "as described"),
        ({"targets": torch.zeros(5, dtype=torch.long)}, "6 samples but 5 targets"),
        ({"inputs": torch.zeros(6, 2, dtype=torch.long)}, "must be floats"),
        ({"inputs": torch.full((6, 2), float("nan"))}, "NaN or Inf"),
        ({"targets": torch.full((6,), 3)}, "but there are 3 classes"),
        ({"targets": torch.zeros(6)}, "must be whole numbers"),
        ({"spec": DataSpec((2,), 3, columns=("a", "b"))}, r"pixels must lie in \[0, 1\]"),
        ({"groups": torch.zeros(5, dtype=torch.long)}, "one whole number for each of 6 samples"),
        ({"groups": torch.zeros(6)}, "one whole number for each"),
        ({"groups": torch.full((6,), -1)}, "must count from 0"),
        ({"group_names": ("x", "y")}, "there is a group 2, but 2 group names"),
        ({"sensitive": "c"}, r"'c' is not among the columns \(a, b\)"),
    ],
)
def test_checks(changes: dict[str, object], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        toy(**changes)


@pytest.mark.parametrize("rows", [[6], [-1, 0]])
def test_share_of_rows_that_do_not_exist(rows: list[int]) -> None:
    with pytest.raises(InvalidInput, match="toy has rows 0 to 5"):
        toy().share(rows)


def test_targets_with_several_entries_are_described() -> None:
    spec = DataSpec((2,), None, bounded=False)
    masks = Dataset(torch.zeros(3, 2), torch.tensor([[[0, 2]], [[1, 0]], [[0, 0]]]), spec)
    assert (masks.spec.target_shape, masks.spec.target_values, masks.spec.outputs) == ((1, 2), 3, 3)
    chosen = Dataset(torch.zeros(3, 2), torch.zeros(3, 1, 2), DataSpec((2,), None, bounded=False, target_values=7))
    assert chosen.spec.target_values == 7
    assert Dataset(torch.zeros(3, 2), torch.arange(3.0), spec).spec == spec
    with pytest.raises(InvalidInput, match="classes=None for several labels"):
        toy(targets=torch.zeros(6, 2, dtype=torch.long))


def test_classes_and_values_of_entries_exclude_each_other() -> None:
    with pytest.raises(InvalidInput, match="classes are for one class of each sample"):
        DataSpec((2,), 3, bounded=False, target_values=2)
    with pytest.raises(InvalidInput, match="each size of a target"):
        DataSpec((2,), None, bounded=False, target_shape=(0,))


def test_pictures_of_bytes_stay_bytes_until_they_are_used() -> None:
    pixels = torch.randint(256, (6, 3, 4, 4), dtype=torch.uint8)
    spec = DataSpec((3, 4, 4), 3)
    kept = toy(inputs=pixels, spec=spec, sensitive=None)
    plain = toy(inputs=pixels.float() / 255, spec=spec, sensitive=None)
    share = kept.share([4, 1]).share([1])
    others = share.others()
    assert others is not None
    for dataset in (kept, share, others, pickle.loads(pickle.dumps(kept))):
        assert dataset._stored.dtype == torch.uint8
        assert dataset.inputs.dtype == torch.float
    assert torch.equal(kept.inputs, plain.inputs)
    assert torch.equal(share.inputs, plain.inputs[[1]])
    assert torch.equal(replace(kept, name="other").inputs, plain.inputs)
    assert len(kept) == 6


def test_bytes_that_are_no_pictures_are_refused() -> None:
    with pytest.raises(InvalidInput, match="must be floats"):
        toy(inputs=torch.zeros(6, 2, dtype=torch.uint8))
    with pytest.raises(AttributeError):
        toy().inputs = torch.zeros(6, 2)  # type: ignore[misc]
