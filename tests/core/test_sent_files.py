"""Sent weights that several captures share: stored once, bound to the captures, and never read from anywhere else."""

import stat
from dataclasses import replace

import pytest
import torch

from leakgauge import fedavg, fedsgd, load, load_all, models, save
from leakgauge.core import container, observation_file, sent_files
from leakgauge.core.container import read_container, write_container
from leakgauge.core.data_spec import DataSpec
from leakgauge.core.errors import CorruptFile, FileError
from leakgauge.core.params import flatten
from leakgauge.data import Dataset

KIND, VERSION = observation_file.KIND, observation_file.VERSION


def observed(client="Ada", seed=0):
    samples = Dataset(torch.rand(4, 2), torch.tensor([0, 1, 1, 0]), DataSpec((2,), 2, bounded=False), client)
    model = models.build("mlp", shape=(2,), classes=2, hidden=(8,), batch_norm=True, seed=seed)
    return fedavg(model, samples, lr=0.5, epochs=2, batch_size=2)[0]


def same(one, other):
    trees = ("sent", "buffers", "returned", "returned_buffers")
    return all(torch.equal(flatten(getattr(one, tree)), flatten(getattr(other, tree))) for tree in trees)


@pytest.fixture
def capture(tmp_path):
    return observation_file.save(observed(), tmp_path / "Ada.safetensors", shared=True)


@pytest.fixture
def common(capture):
    (path,) = (capture.parent / sent_files.FOLDER).iterdir()
    return path


def changed(capture, **changes):
    """Write a capture with another description and a correct checksum."""
    document, tensors = read_container(capture, KIND, VERSION)
    return write_container(capture, KIND, VERSION, {**document, **changes}, tensors)


def test_captures_of_the_same_round_share_what_was_sent(tmp_path):
    clients = [observed("Ada"), observed("Bob"), observed("Eve", seed=1)]
    paths = [observation_file.save(one, tmp_path / f"{one.client}.safetensors", shared=True) for one in clients]
    files = sorted((tmp_path / sent_files.FOLDER).iterdir())
    assert len(files) == 2  # Eve was sent other weights
    for path, observation in zip(paths, clients, strict=True):
        assert same(load(path), observation)
        _, tensors = read_container(path, KIND, VERSION)
        assert {name.partition("/")[0] for name in tensors} == {"returned", "returned_buffers"}
    assert [one.client for one in load_all(tmp_path)] == ["Ada", "Bob", "Eve"]
    assert {stat.S_IMODE(path.stat().st_mode) for path in (*files, *paths)} == {0o600}
    assert stat.S_IMODE(files[0].parent.stat().st_mode) == 0o700


def test_gradients_share_what_was_sent_too_and_other_captures_are_whole(tmp_path):
    samples = Dataset(torch.rand(2, 2), torch.tensor([0, 1]), DataSpec((2,), 2, bounded=False))
    observation, _ = fedsgd(models.build("mlp", shape=(2,), classes=2, hidden=(8,), seed=0), samples)
    shared = observation_file.save(observation, tmp_path / "x.safetensors", shared=True)
    whole = save(observation, tmp_path / "whole" / "x.safetensors")
    assert torch.equal(flatten(load(shared).gradient), flatten(load(whole).gradient))
    assert [path.name for path in whole.parent.iterdir()] == [whole.name]


def test_a_shared_file_that_is_missing_is_named_and_written_again(capture, common):
    common.unlink()
    with pytest.raises(FileError, match=rf"Ada\.safetensors: .*sent/{common.name} beside it, and this file is missing"):
        load(capture)
    observation_file.save(observed("Bob"), capture.parent / "Bob.safetensors", shared=True)
    assert torch.equal(flatten(load(capture).sent), flatten(observed().sent))


@pytest.mark.parametrize("damage", ["cut", "bit", "empty"])
def test_a_damaged_shared_file_is_an_error(capture, common, damage):
    raw = common.read_bytes()
    common.write_bytes({"cut": raw[:-4], "bit": raw[:-1] + bytes([raw[-1] ^ 1]), "empty": b""}[damage])
    with pytest.raises(CorruptFile, match=common.name):
        load(capture)


def test_another_file_in_its_place_is_an_error(capture, common):
    _, tensors = read_container(common, sent_files.KIND, sent_files.VERSION)
    for document, contents in (
        ({}, {name: value + 1 for name, value in tensors.items()}),
        ({"more": 1}, tensors),
    ):
        write_container(common, sent_files.KIND, sent_files.VERSION, document, contents)
        with pytest.raises(CorruptFile, match=r"holds other weights than those that Ada\.safetensors names"):
            load(capture)
    write_container(common, KIND, VERSION, {}, tensors)
    with pytest.raises(CorruptFile, match="expected a set of sent weights"):
        load(capture)


@pytest.mark.parametrize(
    "name",
    ["../Bob", "/etc/passwd", "a" * 63, "A" * 64, "a" * 64 + "\n", "a" * 65, 5, None, ["a" * 64], "../" * 20 + "0000"],
)
def test_a_hostile_capture_names_no_other_file(capture, name):
    with pytest.raises(CorruptFile, match="is not the checksum of sent weights"):
        load(changed(capture, shared=name))


def test_shared_tensors_that_cannot_be(capture, common):
    _, tensors = read_container(common, sent_files.KIND, sent_files.VERSION)

    def sealed(contents):
        checksum = container.digest_of(sent_files.KIND, sent_files.VERSION, {}, contents)
        path = common.with_name(f"{checksum}.safetensors")
        write_container(path, sent_files.KIND, sent_files.VERSION, {}, contents)
        return changed(capture, shared=checksum)

    for contents, words in (
        (tensors | {"returned/head.bias": torch.zeros(2)}, "unexpected tensor 'returned/head.bias'"),
        (tensors | {"truth/inputs": torch.zeros(2)}, "unexpected tensor 'truth/inputs'"),
        (tensors | {"sent/head.bias": torch.full((2,), torch.nan)}, "NaN"),
        ({name: value for name, value in tensors.items() if name != "sent/head.bias"}, "do not have the shapes"),
        ({}, "weights that were sent to the client are missing"),
    ):
        with pytest.raises(CorruptFile, match=words):
            load(sealed(contents))
    document, own = read_container(capture, KIND, VERSION)
    own |= {"sent/head.bias": torch.zeros(2)}
    write_container(capture, KIND, VERSION, document | {"shared": common.stem}, own)
    with pytest.raises(CorruptFile, match=r"'sent/head.bias' is both in this file and in the file that it shares"):
        load(capture)


def test_a_shared_file_that_is_too_big_for_the_model_is_not_read(capture, common, monkeypatch):
    monkeypatch.setattr(container, "SMALL", 10)
    monkeypatch.setattr(observation_file, "_BESIDES", 10)
    monkeypatch.setattr(observation_file, "_COPIES", 1)
    monkeypatch.setattr(container, "read_container", None)
    with pytest.raises(CorruptFile, match="more than the limit"):
        load(capture)


def test_captures_of_the_last_version_are_read(tmp_path):
    observation = replace(observed(), client="old")
    path = save(observation, tmp_path / "old.safetensors")
    document, tensors = read_container(path, KIND, VERSION)
    del document["shared"]
    write_container(path, KIND, 6, document, tensors)
    assert same(load(path), observation)
