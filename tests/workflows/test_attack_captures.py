"""Captures are attacked with and without the truth; and a hostile folder is refused in words."""

import json
import os
import pickle
import random
import resource
import struct

import numpy as np
import pytest
import torch
from torch import nn

import leakgauge as lg
from leakgauge import attacks
from leakgauge.core import container
from leakgauge.core.errors import FileError, InvalidInput, LeakgaugeError, UnknownName, printable
from leakgauge.core.observation_file import KIND, VERSION, observation_files
from leakgauge.evaluation.verdict import Verdict
from leakgauge.reports.captures import captures_table, refused_sentences, write_captures
from leakgauge.workflows.attack_captures import run_capture_attack
from leakgauge.workflows.captures import Captures, ClientData

CLIENTS = 3


def network():
    torch.manual_seed(1)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 24), nn.Sigmoid(), nn.Linear(24, 10))


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """A folder as a recorder leaves it, and the clients' data beside it."""
    root = tmp_path_factory.mktemp("recorded")
    digits = lg.data.load("digits")
    (root / "data").mkdir()
    for number in range(CLIENTS):
        data = digits.share([number])
        np.savez(root / "data" / f"client-{number}.npz", x=data.inputs.numpy(), y=data.targets.numpy())
        seen = [lg.fedavg(network(), data, lr=0.1, client=f"client-{number}", round=r)[0] for r in (1, 2)]
        lg.save_all(seen, root / "captures" / "run-5")
    return root


ATTACK = attacks.inverting_gradients(steps=60)


def attacked(recorded, output, data=None, **options):
    captures = Captures.find(recorded / "captures", network(), **options)
    return run_capture_attack(captures, ATTACK, output, data)


@pytest.fixture(scope="module")
def scored(recorded, tmp_path_factory):
    """The attacks on all captures, scored with the clients' data."""
    return attacked(recorded, tmp_path_factory.mktemp("scored"), ClientData(recorded / "data"))


def test_without_the_truth_the_page_shows_what_the_server_sees(recorded, tmp_path):
    found = attacked(recorded, tmp_path)
    assert len(found.attacked) == 2 * CLIENTS
    assert all(one.score is None for one in found.attacked)
    assert found.verdict is Verdict.NOT_SCORED
    page = write_captures(found, tmp_path).read_text()
    assert "honest-but-curious server" in page
    assert "verdict yellow" in page
    assert "--data" in page
    assert page.count("<img") == 2 * CLIENTS


def test_data_of_other_clients_fails_before_any_attack_and_names_both(recorded, tmp_path):
    (tmp_path / "data").mkdir()
    for number in range(5):
        (tmp_path / "data" / f"hospital-{number}.npz").write_bytes((recorded / "data" / "client-0.npz").read_bytes())
    names = (
        r"'hospital-0\.npz', 'hospital-1\.npz', 'hospital-2\.npz' and 2 more, and there are captures of 'client-0', "
    )
    with pytest.raises(InvalidInput, match=rf"{names}'client-1', 'client-2'\. Rename .* such as client-0\.npz"):
        attacked(recorded, tmp_path / "out", ClientData(tmp_path / "data"))
    assert not (tmp_path / "out").exists()


def test_captures_without_data_are_named(recorded, scored, tmp_path):
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "client-1.npz").write_bytes((recorded / "data" / "client-1.npz").read_bytes())
    found = attacked(recorded, tmp_path / "out", ClientData(tmp_path / "data"))
    assert [one.score is not None for one in found.attacked] == [False, False, True, True, False, False]
    [note] = found.notes
    assert "The captures of 'client-0', 'client-2' are not scored" in note
    assert "It holds 'client-1.npz'." in note
    assert "are not scored" in write_captures(found, tmp_path).read_text()
    assert scored.notes == ()
    assert attacked(recorded, tmp_path / "none", client="client-0").notes == ()


def test_with_the_clients_data_captures_are_scored_beside_chance(recorded, scored, tmp_path):
    found = scored
    assert all(one.score is not None for one in found.attacked)
    assert found.verdict is Verdict.RECOVERS_DATA
    head, *rows = captures_table(found)
    assert "psnr (chance)" in head
    assert [row[:2] for row in rows] == [[f"client-{k}", str(r)] for k in range(CLIENTS) for r in (1, 2)]
    truth = ClientData(recorded / "data").truth(lg.load(found.attacked[0].capture.file, network()))
    assert truth is not None
    assert truth.reference_inputs is not None
    assert len(truth.reference_inputs) == CLIENTS - 1
    assert "verdict red" in write_captures(found, tmp_path).read_text()
    document = json.loads((tmp_path / "captures.json").read_text())
    assert document["leaks"] is True
    assert len(document["captures"]) == 2 * CLIENTS


def test_samples_can_be_kept_out_of_pictures(scored, tmp_path):
    pages = {kind: write_captures(scored, tmp_path / kind, redact=kind).read_text() for kind in ("none", "omit")}
    assert [pages[kind].count("<img") for kind in pages] == [2 * CLIENTS, 0]
    assert not list((tmp_path / "omit").glob("*.png"))


@pytest.mark.long
def test_engines_give_the_same_reconstructions(recorded, tmp_path):
    runs = {}
    for engine in ("in-process", "processes"):
        name = "tests.workflows.test_attack_captures:network"
        options = {"model": name, "data": recorded / "data", "engine": engine, "jobs": 1, "options": {"steps": 3}}
        runs[engine] = lg.attack(recorded / "captures", "inverting_gradients", tmp_path / engine, **options)
    first, second = (run.attacked for run in runs.values())
    for one, other in zip(first, second, strict=True):
        assert torch.equal(one.reconstruction.samples, other.reconstruction.samples)


def test_one_clients_data_is_for_its_own_captures(recorded, tmp_path):
    data = ClientData(recorded / "data" / "client-1.npz")
    with pytest.raises(InvalidInput, match=r"captures of 'client-0' and 'client-1'. Choose one with --client"):
        attacked(recorded, tmp_path, data)
    found = attacked(recorded, tmp_path, data, client="client-1").attacked
    assert [one.reconstruction.client for one in found] == ["client-1"] * 2
    assert all(one.score["psnr"].value > 15 for one in found)


def test_a_sum_is_scored_with_the_samples_of_all(recorded, tmp_path):
    one = lg.load(observation_files(recorded / "captures")[0], network())
    truth = ClientData(recorded / "data").truth(one.knowing(client=f"sum of {CLIENTS} clients"))
    assert truth is not None
    assert len(truth) == CLIENTS
    assert ClientData(recorded / "data").truth(one.knowing(client="sum of 99 clients")) is None
    assert ClientData(recorded / "data").truth(one.knowing(client="stranger")) is None


def test_what_is_known_besides_is_part_of_what_was_done(recorded, tmp_path):
    attacked(recorded, tmp_path, client="client-0")
    assert all(one.cached for one in attacked(recorded, tmp_path, client="client-0").attacked)
    again = attacked(recorded, tmp_path, client="client-0", know={"lr": 0.2}).attacked
    assert not any(one.cached for one in again)
    assert "lr 0.2" in " ".join(again[0].capture.threat_model)
    with pytest.raises(UnknownName, match="did you mean 'lr'"):
        attacked(recorded, tmp_path, know={"lrr": 0.2})


@pytest.mark.parametrize(
    ("place", "words"), [("nowhere", "no such file or folder of clients' data"), ("captures", "Expected files such as")]
)
def test_clients_data_that_is_not_there(recorded, place, words):
    with pytest.raises(FileError, match=words):
        ClientData(recorded / place)


def test_clients_data_of_another_shape(recorded, tmp_path):
    np.savez(tmp_path / "client-0.npz", x=np.zeros((2, 5, 5)), y=np.zeros(2, dtype=int))
    with pytest.raises(InvalidInput, match=r"Does client-0\.npz hold this client's samples"):
        attacked(recorded, tmp_path / "out", ClientData(tmp_path))


BAD = {
    "more samples than fit": (
        {"training": {"samples": 10**9, "batch_size": 10**9}},
        "of memory for 1,000,000,000 samples",
    ),
    "endless epochs": ({"training": {"epochs": 10**6}}, "trained on 1,000,000 batches, and an attack simulates up to"),
    "shape": ({"data": {"shape": (1, 9, 9)}}, "the model does not accept the samples of client-0"),
    "more classes": ({"data": {"classes": 10**6}}, "has 1,000,000 classes, and the model returns"),
    "unknown loss": ({"training": {"loss": "no:such_loss"}}, "no loss 'no:such_loss'"),
    "hidden number of samples": ({"training": {"samples": None, "batch_size": 1}}, "needs the client's samples"),
    "scale of the data": ({"data": {"bounded": False, "mean": (0.5, 0.5)}}, "mean has 2 values"),
    "hidden learning rate": ({"training": {"lr": None, "weight_decay": 0.1}}, "needs the client's lr"),
}


@pytest.mark.parametrize("with_data", [False, True])
@pytest.mark.parametrize("kind", BAD)
def test_one_bad_capture_does_not_end_the_others(recorded, tmp_path, kind, with_data):
    changes, words = BAD[kind]
    files = observation_files(recorded / "captures")[:2]
    for file in files:
        (tmp_path / "captures").mkdir(exist_ok=True)
        (tmp_path / "captures" / file.name).write_bytes(file.read_bytes())
    document, tensors = container.read_container(files[0], KIND, VERSION)
    for part, values in changes.items():
        document[part] |= values
    container.write_container(tmp_path / "captures" / "a.safetensors", KIND, VERSION, document, tensors)
    captures = Captures.find(tmp_path / "captures", network())
    data = ClientData(recorded / "data") if with_data else None
    found = run_capture_attack(captures, attacks.dlg_simulation(steps=1), tmp_path / "out", data)
    assert len(found.attacked) == 2
    assert found.exit_code == 2
    [reason] = found.refused
    assert "a.safetensors" in reason
    assert words in reason
    alone = Captures.find(tmp_path / "captures" / "a.safetensors", network())
    with pytest.raises(LeakgaugeError, match=words.partition("(")[0]):
        run_capture_attack(alone, attacks.dlg_simulation(steps=1), tmp_path / "out", data)


def test_a_capture_that_the_data_does_not_fit_does_not_end_the_others(recorded, tmp_path):
    files = observation_files(recorded / "captures")[:2]
    captures = lg.load_all(recorded / "captures", network())
    odd = captures[0].knowing(data=lg.DataSpec((1, 8, 8), 2), labels=None)
    lg.save_all([*captures[1:3], odd.knowing(round=9)], tmp_path / "captures")
    with np.load(recorded / "data" / f"{odd.client}.npz") as own:
        assert int(own["y"].max()) < 2 or files
        (tmp_path / "data").mkdir()
        np.savez(tmp_path / "data" / "client-0.npz", x=own["x"], y=own["y"] + 5)
    found = run_capture_attack(
        Captures.find(tmp_path / "captures", network()), attacks.idlg(steps=1), tmp_path / "out",
        ClientData(tmp_path / "data"),
    )  # fmt: skip
    assert len(found.attacked) == 2
    assert "round-000009" in found.refused[0]


class Trap:
    """What a pickle runs when it is opened."""

    def __reduce__(self):
        return os.mkdir, ("executed",)


def declared(shape, dtype="F32", length=0, document=None, name="sent/1.weight"):
    """A file whose header declares a tensor that is not there."""
    metadata = {"leakgauge": KIND, "version": str(VERSION), "document": json.dumps(document or {}), "sha256": "0" * 64}
    header = {name: {"dtype": dtype, "shape": shape, "data_offsets": [0, length]}, "__metadata__": metadata}
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text


def hostile(folder, good):
    """A folder with tricks in names, in contents and in what they claim."""
    folder.mkdir()
    raw = good.read_bytes()
    document, tensors = container.read_container(good, KIND, VERSION)
    for name in (
        "..%2F..%2Fx",
        "a\nb",
        "\x1b[2J\x1b[31mred",
        "x" * 200,
        "$(touch executed)",
        "-rf",
        "字🦊",
        "~",
        "con",
    ):
        (folder / f"{name}.safetensors").write_bytes(raw[: len(raw) // 2])
    (folder / "pickle.safetensors").write_bytes(pickle.dumps(Trap()))
    torch.save({"sent": Trap()}, folder / "torch.safetensors")
    for number, shape in enumerate(([2**62], [2**31, 2**31, 2**31], [0, 2**63], [-1], [10**30], [2**40] * 9)):
        for length in (0, 4, 2**62):
            (folder / f"shape-{number}-{length}.safetensors").write_bytes(declared(shape, length=length))
    for number, client in enumerate(("../../outside", "/etc/passwd", "\x1b]0;title\x07", "a" * 1000, "<script>")):
        named = {**document, "client": client}
        container.write_container(folder / f"client-{number}.safetensors", KIND, VERSION, named, tensors)
    recipe = {**document, "model": {"name": "os:getcwd", "options": {}}}
    container.write_container(folder / "recipe.safetensors", KIND, VERSION, recipe, tensors)
    (folder / "deep.safetensors").write_bytes(struct.pack("<Q", 2**20) + b"[" * 2**20)
    (folder / "link.safetensors").symlink_to("/dev/zero")
    (folder / "outside.safetensors").symlink_to("/etc/passwd")
    (folder / "folder.safetensors").mkdir()
    os.mkfifo(folder / "pipe.safetensors")
    sparse = folder / "sparse.safetensors"
    sparse.write_bytes(declared([2**38], length=2**40, document=document))
    os.truncate(sparse, 2**40 + 4096)


def memory():
    """The most memory that this process has had, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def test_a_hostile_folder_runs_nothing_writes_nothing_outside_and_fails_in_words(recorded, tmp_path, monkeypatch):
    work, output = tmp_path / "work", tmp_path / "output"
    work.mkdir()
    monkeypatch.chdir(work)
    hostile(tmp_path / "hostile", observation_files(recorded / "captures")[0])
    before, largest = {path for path in tmp_path.rglob("*") if output not in path.parents}, memory()
    files = observation_files(tmp_path / "hostile")
    for model in (network(), None):
        captures = Captures(tuple(files), model)
        if model is None:
            with pytest.raises(LeakgaugeError):
                run_capture_attack(captures, attacks.inverting_gradients(steps=1), output)
            continue
        found = run_capture_attack(captures, attacks.inverting_gradients(steps=1), output)
        assert len(found.attacked) + len(found.refused) == len(files)
        fine = {one.capture.file.stem for one in found.attacked}
        # with the model given, names of clients are but texts, and a recipe is not looked at; without, all are refused
        assert fine == {f"client-{number}" for number in range(5)} | {"recipe"}
        write_captures(found, output)
        shown = json.dumps([captures_table(found), refused_sentences(found.refused)], ensure_ascii=False)
        assert "\\u001b" not in shown
        assert len(shown) < 20_000
        assert "<script>" not in (output / "captures.html").read_text().replace("<script>\n", "")
    assert memory() - largest < 400 * 2**20
    assert {path for path in tmp_path.rglob("*") if output not in path.parents} - {output} == before
    assert not (work / "executed").exists()
    cache = output / "cache"
    assert all(path.parent == output or cache in (path, *path.parents) for path in output.rglob("*"))


def mutations(raw, count, seed=0):
    """Altered, cut, lengthened and shuffled copies of a file."""
    draw = random.Random(seed)
    header = 8 + int.from_bytes(raw[:8], "little")
    for _ in range(count):
        data = bytearray(raw)
        for _ in range(draw.choice((1, 1, 2, 8, 64))):
            place = draw.randrange(header if draw.random() < 0.7 else len(data))
            kind = draw.randrange(6)
            if kind == 0:
                data[place] ^= 1 << draw.randrange(8)
            elif kind == 1:
                data[place] = draw.choice(b'0123456789"{}[],:-.e\\\0\xff')
            elif kind == 2:
                del data[place : place + draw.randrange(1, 64)]
            elif kind == 3:
                data[place:place] = draw.randbytes(draw.randrange(1, 64))
            elif kind == 4:
                data[place : place + 8] = struct.pack("<Q", draw.choice((0, 1, 2**31, 2**32, 2**62, 2**64 - 1)))
            else:
                data[place:] = data[place : place + draw.randrange(64)]
            header = min(header, len(data)) or 1
            if len(data) < 16:
                break
        yield bytes(data)


def test_mutated_captures_of_an_own_model_fail_in_words(recorded, tmp_path):
    good, model = observation_files(recorded / "captures")[0], network()
    raw = good.read_bytes()
    expected = lg.load(good, model)
    path, largest, passed, unnamed = tmp_path / "x.safetensors", memory(), 0, 0
    for data in mutations(raw, 2000):
        path.write_bytes(data)
        try:
            found = lg.load(path, model)
        except LeakgaugeError as problem:
            unnamed += str(path) not in str(problem)
            continue
        passed += 1  # a change of the header's blanks or of the order of its keys, if anything
        assert all(torch.equal(found.sent[name], value) for name, value in expected.sent.items())
        assert (found.client, found.round, found.training) == (expected.client, expected.round, expected.training)
    assert unnamed == 0
    assert passed < 50
    assert memory() - largest < 200 * 2**20
    assert [item.name for item in tmp_path.iterdir()] == ["x.safetensors"]


def test_a_folder_of_mutated_captures_ends_in_words_on_the_command_line(recorded, tmp_path, monkeypatch, command):
    folder = tmp_path / "captures"
    folder.mkdir()
    good = observation_files(recorded / "captures")[0]
    for number, data in enumerate(mutations(good.read_bytes(), 40, seed=1)):
        (folder / f"\x1b[2J{number:03d}.safetensors").write_bytes(data)
    (tmp_path / "own_network_of_test.py").write_text("from tests.workflows.test_attack_captures import network\n")
    monkeypatch.chdir(tmp_path)
    words = ["attack", folder, "--option", "steps=1", "--model", "own_network_of_test:network"]
    code, out, err = command(*words)
    assert code == 2
    assert "\x1b[2J" not in out + err
    assert err.startswith("leakgauge: ")
    (folder / "good.safetensors").write_bytes(good.read_bytes())
    code, out, _ = command(*words)
    assert code == 2  # some files were refused
    assert "client-0" in out
    assert "28 more files" in out


def test_texts_from_files_cannot_steer_a_terminal():
    assert printable("\x1b[31mred\n\x07") == "�[31mred��"
    assert printable("a" * 1000, longest=5) == "aaaaa..."
