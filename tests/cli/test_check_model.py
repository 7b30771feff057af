"""The command check-model, on captures and on files of weights."""

import json

import pytest
import torch
from safetensors.torch import save_file

import leakgauge as lg
from leakgauge.core.errors import FileError
from leakgauge.workflows.received_files import read_weights
from tests.attacks.malicious.cases import digits, network, trapped

MODEL = ("--model-option", "shape=[1,8,8]", "--model-option", "classes=10", "--model-option", "channels=[4,16]")
OPTIONS = (*MODEL, "--model-option", "dense=40")


@pytest.fixture
def run(command, monkeypatch, tmp_path):
    """Run commands in an empty folder."""
    monkeypatch.chdir(tmp_path)
    return command


@pytest.mark.parametrize("suffix", ["safetensors", "pt", "npz"])
def test_honest_and_planted_weights_in_files(run, tmp_path, suffix):
    _, _, planted = trapped(network(), digits(8))
    for name, state, expected in (("honest", network().state_dict(), 0), ("planted", planted.weights, 1)):
        file = tmp_path / f"{name}.{suffix}"
        state = {key: value.contiguous() for key, value in state.items()}
        if suffix == "safetensors":
            save_file(state, file)
        elif suffix == "pt":
            torch.save(state, file)
        else:
            import numpy

            numpy.savez(file, **{key: value.numpy() for key, value in state.items()})
        code, out, _ = run("check-model", "dlf_femnist", *OPTIONS, "--weights", str(file))
        assert code == expected
        assert ("no known manipulation found" in out) == (expected == 0)
        assert ("planted traps" in out) == (expected == 1)


def test_a_capture_is_checked_and_digests_are_compared(run, tmp_path):
    observation, _ = lg.fedsgd(network(), digits(2))
    lg.save(observation, tmp_path / "honest.safetensors")
    code, out, _ = run("check-model", "honest.safetensors", "--json")
    document = json.loads(out)
    assert (code, document["refused"], document["signs"]) == (0, False, [])
    assert run("check-model", "honest.safetensors", "--digest", document["digest"].upper())[0] == 0
    code, out, _ = run("check-model", "honest.safetensors", "--digest", "0" * 64)
    assert code == 1
    assert "Another client got other weights" in out
    steered, _, _ = trapped(network(), digits(4))
    lg.save(steered, tmp_path / "planted.safetensors")
    code, out, _ = run("check-model", "planted.safetensors", "--json")
    assert code == 1
    assert {"twins", "transmit"} <= {one["name"] for one in json.loads(out)["signs"]}


def test_own_samples_are_watched_and_mistakes_have_one_sentence(run, tmp_path):
    import numpy

    own = digits(20)
    numpy.savez(tmp_path / "own.npz", x=own.inputs.numpy(), y=own.targets.numpy())
    code, out, _ = run("check-model", "dlf_femnist", *OPTIONS, "--samples", "own.npz", "--json")
    assert code == 0
    assert json.loads(out)["figures"]["d_snr"] > 0
    for words in (("--shape", "a,b"), ("--weights", "missing.pt"), ("--samples", "missing.npz")):
        code, _, error = run("check-model", "dlf_femnist", *OPTIONS, *words)
        assert code == 2
        assert len(error.strip().splitlines()) == 1
    torch.save([1, 2], tmp_path / "list.pt")
    with pytest.raises(FileError, match="dictionary of tensors"):
        read_weights(tmp_path / "list.pt")
    (tmp_path / "noise.pt").write_bytes(b"noise")
    with pytest.raises(FileError, match="holds no weights"):
        read_weights(tmp_path / "noise.pt")
