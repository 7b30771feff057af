"""Many rounds of captures: models are rebuilt and kept, records asked about, and every figure stands beside a guess."""

import json
import re
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

import leakgauge as lg
from leakgauge.attacks import attribute
from leakgauge.attacks import local_model as inference
from leakgauge.core.errors import InvalidInput, LeakgaugeError, UnknownName
from leakgauge.core.observation import DataSpec
from leakgauge.core.observation_file import observation_files
from leakgauge.data import Dataset
from leakgauge.evaluation.verdict import Verdict
from leakgauge.federation.steering import Steering
from leakgauge.reports.inference import models_table, write_inference
from leakgauge.workflows.captures import Captures, ClientData
from leakgauge.workflows.infer_captures import InferenceTask, run_inference
from tests.attacks.local_model.cases import network, table_clients

METHOD = inference.build("lmra", samples=16, steps=20, training=20)
FEW_STEPS = inference.build("lmra", samples=4, steps=3, training=3)
QUICK = inference.LastReturned()


def record(root, clients, model=None, **options):
    """Captures as a recorder leaves them, and the clients' data beside them."""
    named = [one.share(range(len(one)), f"client-{place}") for place, one in enumerate(clients)]
    settings = {"rounds": 6, "lr": 0.05, "watch": range(len(named))} | options
    federation = lg.run_federation(model or network(), named, **settings)
    (root / "data").mkdir()
    for place, rounds in federation.observations.items():
        lg.save_all(rounds, root / "captures")
        np.savez(root / "data" / f"client-{place}.npz", x=named[place].inputs.numpy(), y=named[place].targets.numpy())
    return root


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    return record(tmp_path_factory.mktemp("recorded"), table_clients(rows=20))


def inferred(root, output, method=QUICK, with_data=True, **options):
    data = ClientData(root / "data") if with_data else None
    return infer_captures(observation_files(root / "captures"), method, output, model=network(), data=data, **options)


def infer_captures(files, method, output, *, model=None, know=None, client=None, **options):
    captures = Captures(tuple(files), model, know or {}, client)
    return run_inference(InferenceTask(captures, method, **options), output)


def test_records_are_asked_about_and_stand_beside_a_guess(recorded, tmp_path):
    found = inferred(recorded, tmp_path, METHOD, sensitive="secret")
    by_name = {(one.about, one.attack): one for one in found.inferences}
    assert {about for about, _ in by_name} == {"secret", "owner", "owner of 10 records", "owner of all records"}
    assert len(by_name) == 3 + 3 * 4
    equations = by_name["secret", "attribute_by_equations"]
    assert equations.measure.value == 1
    assert equations.verdict is Verdict.RECOVERS_ATTRIBUTES
    assert equations.measure.chance < 0.8
    assert by_name["owner", "source_by_equations"].verdict.leaks
    assert by_name["owner", "source_by_vote"].measure.chance == pytest.approx(1 / 3)
    counts = {"secret": 60, "owner": 60, "owner of 10 records": 6, "owner of all records": 3}
    for one in found.inferences:
        assert (len(one.shares), one.measure.n) == (3, counts[one.about])
        assert min(one.shares.values()) <= one.measure.value <= max(one.shares.values())
    assert found.verdict is Verdict.RECOVERS_ATTRIBUTES
    assert "secret: 100% right by attribute_by_equations" in found.sentence()
    assert set(found.losses["client-0"]) == {"rebuilt", "last returned", "global"}
    page = write_inference(found, tmp_path, "leakgauge infer captures").read_text()
    assert "honest-but-curious server" in page
    assert "except that column" in page
    assert "verdict red" in page
    document = json.loads((tmp_path / "inferred.json").read_text())
    assert document["leaks"] is True
    assert len(document["findings"]) == len(document["shares"]) == 15
    assert "60 of the 60 records" in page


def test_figures_are_those_of_the_attacks_themselves(recorded, tmp_path):
    found = inferred(recorded, tmp_path, sensitive="secret")
    clients = table_clients(rows=20)
    right = []
    for place, client in enumerate(clients):
        rounds = lg.load_rounds(recorded / "captures", f"client-{place}", model=network())
        records = attribute.PublicRecords.hiding(client.inputs, client.targets, client.spec, "secret")
        choice = attribute.by_model(QUICK(rounds), records).choice
        right.append(float((choice == client.inputs[:, 0].long()).double().mean()))
    [inference] = [one for one in found.inferences if one.attack == "attribute_by_model"]
    assert inference.measure.value == pytest.approx(sum(right) / 3)


def test_without_data_models_are_rebuilt_and_the_verdict_is_open(recorded, tmp_path):
    found = inferred(recorded, tmp_path, with_data=False)
    assert found.verdict is Verdict.NOT_SCORED
    assert "--data" in found.sentence()
    assert [row[:2] for row in models_table(found)[1:]] == [[f"client-{k}", "6"] for k in range(3)]
    assert "verdict yellow" in write_inference(found, tmp_path, "x").read_text()


def test_one_client_has_no_sources_but_columns(recorded, tmp_path):
    own = recorded / "data" / "client-1.npz"
    files = observation_files(recorded / "captures")
    options = {"model": network(), "client": "client-1", "data": ClientData(own)}
    found = infer_captures(files, QUICK, tmp_path, sensitive="job", **options)
    assert {one.about for one in found.inferences} == {"job"}
    assert all(one.measure.low is not None for one in found.inferences)  # Wilson's, over its records
    nothing = infer_captures(files, QUICK, tmp_path, **options)
    assert nothing.verdict is Verdict.NOT_SCORED
    assert "Nothing was inferred" in nothing.sentence()
    with pytest.raises(InvalidInput, match="data of one client"):
        infer_captures(files, QUICK, tmp_path, model=network(), data=ClientData(own))


def test_a_model_that_was_rebuilt_is_not_rebuilt_again(recorded, tmp_path, monkeypatch):
    first = inferred(recorded, tmp_path, FEW_STEPS, seed=1)
    runs = []
    original = type(FEW_STEPS).run
    monkeypatch.setattr(type(FEW_STEPS), "run", lambda *a: runs.append(1) or original(*a))
    again = inferred(recorded, tmp_path, FEW_STEPS, seed=1)
    assert not runs
    assert again.losses == first.losses
    assert again.models["client-0"].outcome == first.models["client-0"].outcome
    for change in ({"seed": 2}, {"seed": 2, "know": {"momentum": 0.0, "lr": 0.04}}):
        runs.clear()
        inferred(recorded, tmp_path, FEW_STEPS, **change)
        assert len(runs) == 3


def test_what_cannot_be_asked_is_said(recorded, tmp_path):
    with pytest.raises(InvalidInput, match="with --data"):
        inferred(recorded, tmp_path / "none", with_data=False, sensitive="secret")
    with pytest.raises(InvalidInput, match="no column or category 'height'"):
        inferred(recorded, tmp_path / "none", sensitive="height")
    with pytest.raises(InvalidInput, match="'number' has 60 values"):
        inferred(recorded, tmp_path / "none", sensitive="number")
    with pytest.raises(InvalidInput, match="hide 'job'"):
        inferred(recorded, tmp_path / "none", sensitive="job=a")
    with pytest.raises(UnknownName, match="loss 'foo'"):
        inferred(recorded, tmp_path / "none", know={"loss": "foo"})
    with pytest.raises(InvalidInput, match="must be a whole number"):
        inference.build("lmra", steps="abc")
    with pytest.raises(UnknownName, match="rate"):
        inferred(recorded, tmp_path / "none", know={"rate": 1.0})
    with pytest.raises(InvalidInput, match="'nobody'"):
        inferred(recorded, tmp_path / "none", client="nobody")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "stranger.npz").write_bytes((recorded / "data" / "client-0.npz").read_bytes())
    with pytest.raises(
        InvalidInput,
        match=r"none of the captured clients.*'stranger\.npz'.*captures of 'client-0', 'client-1', 'client-2'",
    ):
        infer_captures(
            observation_files(recorded / "captures"), QUICK, tmp_path / "none", model=network(),
            data=ClientData(tmp_path / "other"),
        )  # fmt: skip
    for x, words in (
        (np.zeros((0, 6)), r"holds samples of shape \(0, 6\)"),
        (np.full((4, 6), np.nan), r"NaN.*client-0\.npz"),
    ):
        np.savez(tmp_path / "other" / "client-0.npz", x=x, y=np.zeros(len(x), dtype=int))
        with pytest.raises(LeakgaugeError, match=words):
            infer_captures(
                observation_files(recorded / "captures"), QUICK, tmp_path / "none", model=network(),
                data=ClientData(tmp_path / "other"),
            )  # fmt: skip
    assert not (tmp_path / "none").exists()  # said before any work


def test_clients_without_data_are_named(recorded, tmp_path):
    (tmp_path / "some").mkdir()
    for number in (0, 2):
        name = f"client-{number}.npz"
        (tmp_path / "some" / name).write_bytes((recorded / "data" / name).read_bytes())
    data = ClientData(tmp_path / "some")
    found = infer_captures(observation_files(recorded / "captures"), QUICK, tmp_path, model=network(), data=data)
    assert any("The captures of 'client-1' are not scored" in note for note in found.notes)
    assert not any("not scored" in note for note in inferred(recorded, tmp_path).notes)


def test_few_rounds_are_said_to_be_few(recorded, tmp_path):
    assert any("Fewer than 10 rounds were captured of 3 clients" in note for note in inferred(recorded, tmp_path).notes)
    (tmp_path / "long").mkdir()
    long = record(tmp_path / "long", table_clients(rows=4), rounds=10)
    assert not any("rounds were captured" in note for note in inferred(long, tmp_path / "of long").notes)


def test_what_is_given_and_what_was_trained_on_are_compared(recorded, tmp_path):
    (tmp_path / "fewer").mkdir()
    for file in (recorded / "data").glob("*.npz"):
        with np.load(file) as own:
            np.savez(tmp_path / "fewer" / file.name, x=own["x"][:8], y=own["y"][:8])
    files, data = observation_files(recorded / "captures"), ClientData(tmp_path / "fewer")
    found = infer_captures(files, QUICK, tmp_path, model=network(), data=data, sensitive="secret")
    assert any("trained on 20 records, and --data holds 8" in note for note in found.notes)


def test_a_damaged_model_is_rebuilt_and_another_architecture_is_noticed(recorded, tmp_path):
    first = inferred(recorded, tmp_path, FEW_STEPS)
    for file in (tmp_path / "cache" / "tensors").iterdir():
        file.write_bytes(b"half")
    assert inferred(recorded, tmp_path, FEW_STEPS).losses == first.losses
    other = network()
    other.features[1] = nn.Tanh()
    files, data = observation_files(recorded / "captures"), ClientData(recorded / "data")
    changed = infer_captures(files, FEW_STEPS, tmp_path, model=other, data=data)
    assert changed.losses != first.losses


def test_a_client_that_cannot_be_rebuilt_is_left_out(tmp_path):
    root = record(tmp_path, table_clients(rows=10), rounds=4)
    for number in (1, 2):
        (root / "captures" / f"client-0_round-00000{number}.safetensors").unlink()
    (root / "one").mkdir()
    (root / "data" / "client-0.npz").rename(root / "one" / "client-0.npz")
    files = observation_files(root / "captures")
    secant = inference.build("secant")
    found = infer_captures(files, secant, root / "out", data=ClientData(root / "one"), sensitive="secret")
    assert set(found.models) == {"client-1", "client-2"}
    assert not found.inferences
    assert "all of client-0: the secant method needs" in found.refused[0]
    with pytest.raises(InvalidInput, match="no client's model could be rebuilt"):
        infer_captures(files, secant, root / "out", client="client-0")


def captured_as(names, folder):
    """Captures of clients with these names, under names of files that do not tell them."""
    clients = [one.share(range(10), name) for one, name in zip(table_clients(len(names)), names, strict=True)]
    rounds = lg.run_federation(network(), clients, rounds=2, lr=0.1, watch=range(len(names))).observations
    for place, own in rounds.items():
        for one in own:
            lg.save(replace(one, client=names[place]), folder / f"{place}-{one.round}.safetensors")
    return observation_files(folder)


def test_names_from_files_are_harmless(tmp_path):
    found = infer_captures(captured_as(["a\x1b[31m", "[/bold]"], tmp_path / "odd"), QUICK, tmp_path / "out")
    assert len(found.models) == 2
    assert "\x1b" not in write_inference(found, tmp_path / "out", "x").read_text()
    assert not any("\x1b" in cell for row in models_table(found) for cell in row)
    found = infer_captures(captured_as(["client 0", "client-0"], tmp_path / "twins"), QUICK, tmp_path / "out")
    assert set(found.models) == {"client-0"}  # the other name cannot take its place
    assert len(found.refused) == 2
    assert all("'client 0' and 'client-0' have the same name as files" in reason for reason in found.refused)
    with pytest.raises(InvalidInput, match="same name as files"):
        infer_captures(captured_as(["a b", "a:b"], tmp_path / "both"), QUICK, tmp_path / "out")


BAD = {
    "shape": lambda one: replace(one, data=replace(one.data, shape=(7,), columns=())),
    "columns": lambda one: replace(one, data=replace(one.data, columns=())),
    "more samples than fit": lambda one: replace(one, training=replace(one.training, samples=10**9, batch_size=10**9)),
    "more classes": lambda one: replace(one, data=replace(one.data, classes=10**6)),
    "unknown loss": lambda one: replace(one, training=replace(one.training, loss="no:such_loss")),
}


@pytest.mark.parametrize("kind", BAD)
def test_one_bad_capture_does_not_end_the_others(recorded, tmp_path, kind):
    for file in observation_files(recorded / "captures"):
        (tmp_path / "captures").mkdir(exist_ok=True)
        (tmp_path / "captures" / file.name).write_bytes(file.read_bytes())
    bad = BAD[kind](lg.load(observation_files(recorded / "captures")[0], network()))
    lg.save(replace(bad, client="client-9"), tmp_path / "captures" / "a.safetensors")
    found = infer_captures(
        observation_files(tmp_path / "captures"), QUICK, tmp_path / "out", model=network(),
        data=ClientData(recorded / "data"), sensitive="secret",
    )  # fmt: skip
    assert set(found.models) - {"client-9"} == {f"client-{number}" for number in range(3)}
    assert found.inferences
    assert found.exit_code == (0 if kind == "more samples than fit" else 2)  # nothing here holds that many samples
    assert [reason for reason in found.refused if "a.safetensors" in reason] == list(found.refused)


def test_statistics_and_unknown_recipes_leave_attacks_out_in_words(tmp_path):
    model = network(batch_norm=True)
    root = record(tmp_path, table_clients(rows=20), model, hidden=["lr"], share_statistics=False)
    files = observation_files(root / "captures")
    found = infer_captures(
        files, QUICK, tmp_path / "out", model=model, data=ClientData(root / "data"), sensitive="secret"
    )
    tried = {one.attack for one in found.inferences}
    assert "attribute_by_equations" not in tried
    assert "source_by_equations" not in tried
    assert "source_by_vote" in tried
    assert any("attribute_by_equations does not apply" in note for note in found.notes)
    assert any("normalises over its batches" in note for note in found.notes)
    again = infer_captures(files, QUICK, tmp_path / "out", model=model, data=ClientData(root / "data"))
    assert again.losses == found.losses  # a kept model without statistics is the same


def test_the_command_refuses_a_damaged_file_and_goes_on(tmp_path, monkeypatch, command):
    root = record(tmp_path, table_clients(clients=3, rows=10), rounds=4)
    (root / "captures" / "client-0_round-000001.safetensors").write_bytes(b"nothing")
    for number in (1, 2):
        (root / "captures" / f"client-2_round-00000{number}.safetensors").unlink()
    monkeypatch.chdir(tmp_path)
    words = ["infer", "captures", "--method", "secant", "--data", "data", "--sensitive", "secret"]
    code, out, err = command(*words)
    assert code == 2
    assert "leakgauge:" not in err
    assert "refused: captures/client-0_round-000001.safetensors" in out
    assert "refused: all of client-2: the secant method needs at least 3 rounds, not 2" in out
    assert "source" in out
    assert "page: inferred/inferred.html" in out
    assert "client-0_round-000001" in (tmp_path / "inferred" / "inferred.html").read_text()


@pytest.mark.parametrize(
    ("noise", "words"), [(0.01, "at least (9[0-9]|100)%"), (5.0, "guarantees nothing about smokes")]
)
def test_a_linear_model_comes_with_the_guarantee_of_proposition_4(tmp_path, noise, words):
    spec = DataSpec((3,), None, bounded=False, columns=("age", "dose", "smokes"))
    clients = []
    for seed in range(2):
        draw = torch.Generator().manual_seed(seed)
        rows = torch.cat((torch.randn(40, 2, generator=draw), torch.arange(40).remainder(2)[:, None]), 1)
        targets = rows @ torch.tensor([1.0, -0.5, 2.0]) + noise * torch.randn(40, generator=draw)
        clients.append(Dataset(rows, targets, spec))
    model = nn.Linear(3, 1)
    recorded = record(tmp_path, clients, model, rounds=12, every=1, lr=0.1, epochs=30)
    found = infer_captures(
        observation_files(recorded / "captures"), QUICK, tmp_path / "out", model=model,
        data=ClientData(recorded / "data"), sensitive="smokes",
    )  # fmt: skip
    assert any(re.search(words, note) for note in found.notes)


def test_rounds_of_a_malicious_server_are_read_with_its_own_attack(tmp_path):
    rule = inference.ActiveAdam(lr=0.02)
    record(tmp_path, table_clients(rows=20), rounds=2, steering=Steering(rule, range(3), 12))
    files = observation_files(tmp_path / "captures")
    found = infer_captures(files, "auto", tmp_path / "out", model=network(), data=ClientData(tmp_path / "data"))
    assert {model.method for model in found.models.values()} == {repr(inference.ActiveAdam())}
    page = write_inference(found, tmp_path, "x").read_text()
    assert "a malicious server, which sends this client weights of its own making (active_adam)" in page
    losses = [one["rebuilt"] for one in found.losses.values()]
    honest = infer_captures(files, "global", tmp_path / "other", model=network(), data=ClientData(tmp_path / "data"))
    assert sum(losses) < sum(one["global"] for one in honest.losses.values()) + 1e-6
