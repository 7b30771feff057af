"""Files of kept samples: what was kept comes back, and nothing else is read."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from leakgauge.core.container import read_container, write_container
from leakgauge.core.data_spec import DataSpec
from leakgauge.core.errors import CorruptFile, FileError, InvalidInput
from leakgauge.core.kept_samples import KIND, KeptSamples, kept_files, kept_path, load_kept, read_heading, save_kept
from tests.shared import key_pair

DATA = DataSpec((1, 2, 2), 3, mean=(0.5,), std=(0.2,))


def kept(**changes):
    facts = {
        "run": "tuesday", "round": 4, "names": ("client-3", "node-9"), "data": DATA,
        "inputs": torch.rand(4, 1, 2, 2), "targets": torch.tensor([0, 1, 2, 1]),
        "order": (torch.tensor([2, 0]), torch.tensor([1]), torch.tensor([3, 0, 2])), "passes": (2, 1),
    }  # fmt: skip
    return KeptSamples(**{**facts, **changes})


@pytest.mark.parametrize("encrypted", [False, True])
def test_what_was_kept_comes_back(tmp_path, encrypted):
    private, public = key_pair()
    one, path = kept(), kept_path(tmp_path, "tuesday", "client-3", 4)
    save_kept(one, path, public if encrypted else None)
    assert path.stat().st_mode & 0o077 == path.parent.stat().st_mode & 0o077 == 0
    again = load_kept(path, private)
    assert (again.run, again.round, again.names, again.data, again.passes) == ("tuesday", 4, one.names, DATA, (2, 1))
    assert torch.equal(again.inputs, one.inputs)
    assert [rows.tolist() for rows in again.order] == [[2, 0], [1], [3, 0, 2]]
    assert read_heading(path) == ("tuesday", 4, one.names)
    assert list(kept_files(tmp_path)) == [path]
    assert kept_path(tmp_path, "tuesday", "client-3", 4).name == "client-3_round-000004_2.safetensors"


def test_encrypted_samples_need_the_key_and_cannot_change_their_name(tmp_path):
    private, public = key_pair()
    path = save_kept(kept(), tmp_path / "one.safetensors", public)
    assert kept().inputs.numpy().tobytes() not in path.read_bytes()
    with pytest.raises(InvalidInput, match="--key"):
        load_kept(path)
    document, tensors = read_container(path, KIND, 1)
    write_container(path, KIND, 1, {**document, "round": 5}, tensors)
    with pytest.raises(InvalidInput, match="does not open"):
        load_kept(path, private)


@pytest.mark.parametrize(
    ("document", "tensors"),
    [
        ({"round": None}, {}), ({"data": {"shape": [1, 2, 2], "colour": 1}}, {}), ({"passes": [3, 3]}, {}),
        ({}, {"rows": torch.tensor([9, 0, 1, 3, 0, 2])}), ({}, {"rows": torch.tensor([-1, 0, 1, 3, 0, 2])}),
        ({}, {"sizes": torch.tensor([2, 1, 4])}), ({}, {"sizes": torch.tensor([2.0, 1, 3])}),
        ({}, {"inputs": torch.full((4, 1, 2, 2), torch.nan)}),
        ({}, {"targets": torch.zeros(3)}), ({}, {"more": torch.zeros(3)}), ({"more": 1}, {}),
    ],
)  # fmt: skip
def test_a_file_that_holds_anything_else_is_refused(tmp_path, document, tensors):
    path = save_kept(kept(), tmp_path / "one.safetensors")
    facts, values = read_container(path, KIND, 1)
    write_container(path, KIND, 1, {**facts, **document}, {**values, **tensors})
    with pytest.raises(CorruptFile):
        load_kept(path)


@pytest.mark.parametrize("document", [{"names": []}, {"names": 3}, {"round": "x"}, {"round": 1e400}])
def test_a_heading_that_names_no_client_is_refused(tmp_path, document):
    path = save_kept(kept(), tmp_path / "one.safetensors")
    facts, values = read_container(path, KIND, 1)
    text = json.dumps({**facts, **document})
    save_file(dict(values), path, metadata={"leakgauge": KIND, "version": "1", "document": text})
    with pytest.raises(CorruptFile):
        read_heading(path)


def test_a_changed_file_is_refused(tmp_path):
    path = save_kept(kept(), tmp_path / "one.safetensors")
    save_file({**load_file(path), "inputs": torch.zeros(4, 1, 2, 2)}, path)
    with pytest.raises(CorruptFile):
        load_kept(path)
    with pytest.raises(FileError):
        load_kept(tmp_path / "none.safetensors")


def test_samples_that_differ_in_each_pass_are_all_kept_for_the_replay():
    truth = kept().truth(DATA)
    assert len(truth) == 3
    assert truth.trained is not None
    assert len(truth.trained) == 4
    assert [len(rows) for rows in truth.trained.order] == [2, 1, 3]
    same = kept(order=(torch.arange(4), torch.arange(4)), passes=(1, 1)).truth(DATA, [kept()])
    assert same.trained is None
    assert len(same.order) == 2
    assert len(same.reference_inputs) == 4
