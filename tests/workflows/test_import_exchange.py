"""Weights that another program wrote to files become captures, and files that are wrong are named."""

import json
import zipfile

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

import leakgauge as lg
from leakgauge.core.errors import FileError, InvalidInput, UnknownName
from leakgauge.workflows.import_exchange import import_exchange
from tests.shared import digits
from tests.workflows.test_attack_captures import network

DESCRIPTION = {
    "data": {"shape": [1, 8, 8], "classes": 10, "mean": [0], "std": [1]},
    "training": {"lr": 0.1, "epochs": 1, "optimiser": "sgd", "momentum": 0},
}


def write(path, state):
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".npz":
        np.savez(path, **{name: value.numpy() for name, value in state.items()})
    else:
        save_file(dict(state), path)


def messages():
    return {
        f"hospital-{number}": lg.fedavg(network(), digits().share(range(4 * number, 4 * number + 4)), lr=0.1)[0]
        for number in (1, 2)
    }


@pytest.fixture
def exchange(tmp_path):
    """Two rounds of two clients, as safetensors and as npz."""
    place = tmp_path / "exchange"
    for name, one in messages().items():
        for round, suffix in (("4", ".safetensors"), ("round-5", ".npz")):
            write(place / "sent" / f"{round}{suffix}", one.sent)
            write(place / "returned" / round / f"{name}{suffix}", one.returned)
    (place / "federation.json").write_text(json.dumps(DESCRIPTION))
    (place / "training" / "4").mkdir(parents=True)
    (place / "training" / "4" / "hospital-1.json").write_text('{"samples": 4, "batch_size": 4}')
    return place


def test_both_formats_become_captures(exchange, tmp_path):
    result = import_exchange(exchange, tmp_path / "captures", model=network())
    assert result.refused == ()
    found = {(one.client, one.round): one for one in lg.load_all(tmp_path / "captures" / "run-1", network())}
    assert found.keys() == {(f"hospital-{client}", round) for client in (1, 2) for round in (4, 5)}
    for (client, _), one in found.items():
        assert all(torch.equal(one.returned[name], value) for name, value in messages()[client].returned.items())
        assert one.training.lr == 0.1
        assert one.training.weight_decay is None
    assert found["hospital-1", 4].training.samples == 4
    assert found["hospital-2", 4].training.samples is None
    assert import_exchange(exchange, tmp_path / "captures", model=network()).files[0].parent.name == "run-2"


def test_gradients_and_weights_of_single_clients(tmp_path, exchange):
    gradient, _ = lg.fedsgd(network(), digits().share(range(4)))
    write(exchange / "gradient" / "6" / "clinic.npz", gradient.gradient)
    write(exchange / "sent" / "6" / "clinic.npz", gradient.sent)
    import_exchange(exchange, tmp_path / "captures", model=network(), run="tuesday")
    [one] = lg.load_rounds(tmp_path / "captures" / "run-tuesday", "clinic", network())
    assert (one.kind, one.round) == ("gradient", 6)


def test_the_command_imports_and_attacks(exchange, tmp_path, command, monkeypatch):
    monkeypatch.chdir(tmp_path)
    model = ("--model", "tests.workflows.test_attack_captures:network")
    code, out, err = command("import", exchange, *model)
    assert code == 0, err
    assert "captures: 4" in out
    data = tmp_path / "data"
    data.mkdir()
    own = digits().share(range(4, 8))
    np.savez(data / "hospital-1.npz", x=own.inputs.numpy(), y=own.targets.numpy())
    known = ("--know", "samples=4", "--know", "batch_size=4", "--know", "weight_decay=0")
    options = ("--option", "steps=2", "--data", data, "--client", "hospital-1")
    code, out, err = command("attack", "captures", *model, *known, *options)
    assert code == 0, err
    assert "psnr" in out
    assert "gives this update" in (tmp_path / "reconstructions" / "captures.html").read_text()


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        ("pickled", "cannot be read"), ("cut", "cannot be read"), ("bomb", "too much"),
        ("large", "more than the limit"),
        ("other", "right model"), ("nan", "NaN"), ("no sent", "sent/4"), ("recipe", "momentun"),
        ("text", "not JSON"),
    ],
)  # fmt: skip
def test_a_file_that_is_wrong_is_named_and_the_others_are_imported(
    exchange, tmp_path, command, monkeypatch, spoil, words
):
    path = exchange / "returned" / "4" / "hospital-1.safetensors"
    state, npz = messages()["hospital-1"].returned, path.with_suffix(".npz")
    if spoil in ("pickled", "bomb"):
        path.unlink()
    if spoil == "pickled":
        np.savez(npz, x=np.array([{"a": 1}], dtype=object))
    elif spoil == "cut":
        path.write_bytes(path.read_bytes()[:-9])
    elif spoil == "bomb":
        with zipfile.ZipFile(npz, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("x.npy", bytes(80 * 2**20))
    elif spoil == "large":
        with path.open("r+b") as file:
            file.truncate(80 * 2**20)
    elif spoil == "other":
        write(path, {name: value[:1] for name, value in state.items()})
    elif spoil == "nan":
        write(path, {name: value * float("nan") for name, value in state.items()})
    elif spoil == "no sent":
        (exchange / "sent" / "4.safetensors").unlink()
        write(exchange / "sent" / "4" / "hospital-2.safetensors", state)
    elif spoil == "recipe":
        (exchange / "training" / "4" / "hospital-1.json").write_text('{"momentun": 0.9}')
    elif spoil == "text":
        (exchange / "training" / "4" / "hospital-1.json").write_text("momentum: 0.9")
    monkeypatch.chdir(tmp_path)
    code, out, _ = command("import", exchange, "--model", "tests.workflows.test_attack_captures:network")
    assert code == 2
    assert "captures: 3" in out
    assert words in out
    assert "hospital-1" in out


def test_a_folder_that_is_wrong_is_an_error(exchange, tmp_path):
    def imported(description=None):
        if description is not None:
            (exchange / "federation.json").write_text(json.dumps(description))
        return import_exchange(exchange, tmp_path / "captures", model=network())

    for description, error, words in [
        ({}, InvalidInput, "lacks a part"), ([], InvalidInput, "object"),
        ({**DESCRIPTION, "clients": 3}, UnknownName, "clients"),
        ({"data": {**DESCRIPTION["data"], "colour": 1}}, UnknownName, "colour"),
        ({"data": {"shape": 3}}, InvalidInput, "federation"),
        ({"data": {"shape": [1, 8, 8], "classes": 10}}, InvalidInput, "normalises"),
        ({**DESCRIPTION, "training": {"lr": -1}}, InvalidInput, "lr"),
    ]:  # fmt: skip
        with pytest.raises(error, match=words):
            imported(description)
    (exchange / "returned" / "first").mkdir()
    with pytest.raises(InvalidInput, match="called by its number"):
        imported(DESCRIPTION)
    with pytest.raises(FileError, match="no such folder"):
        import_exchange(tmp_path / "nowhere", model=network())
    (exchange / "federation.json").unlink()
    with pytest.raises(FileError, match=r"federation\.json"):
        imported()
    empty = tmp_path / "empty"
    empty.mkdir()
    (empty / "federation.json").write_text(json.dumps(DESCRIPTION))
    with pytest.raises(FileError, match="returned/1/CLIENT"):
        import_exchange(empty, model=network())
    assert not (tmp_path / "captures").exists()
