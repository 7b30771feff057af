"""Captures: messages of a framework become observations, and a failure is one sentence in the log."""

import errno
import logging
import os
import resource
import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from leakgauge import DataSpec, fedavg, fedsgd, load, load_all, load_rounds
from leakgauge.attacks.local_model import Messages
from leakgauge.core import observation_file
from leakgauge.core.errors import CorruptFile, FileError, InvalidInput, UnknownName
from leakgauge.core.observation import LocalTraining
from leakgauge.federation.recording.recorder import UNKNOWN, Captures, Exchange
from tests.federation.networks import NETWORKS, Tied, client, mlp, same

DATA = DataSpec((1, 4, 4), 3, mean=(0,), std=(1,))
AVG = {"lr": 0.1, "epochs": 2, "batch_size": 3}
REPORTED = {"lr": 0.1, "local-epochs": 2, "batch_size": 3, "num-examples": 6, "unrelated": "x", "nothing": None}


def arrays(weights, buffers=None):
    return {name: value.numpy() for name, value in {**weights, **(buffers or {})}.items()}


def exchange(observation, reported=REPORTED, run=7, **changes):
    returned = observation.returned if observation.returned is not None else observation.gradient
    given = {
        "run": run,
        "round": 1,
        "client": "client-0",
        "sent": arrays(observation.sent, observation.buffers),
        "returned": arrays(returned, observation.returned_buffers),
        "reported": reported,
    }
    return Exchange(**{**given, **changes})


@pytest.fixture
def seen():
    return fedavg(mlp(), client(6), **AVG)[0]


@pytest.fixture
def captures(tmp_path, seen):
    return Captures(tmp_path / "captures", seen.model, DATA)


@pytest.mark.parametrize("name", NETWORKS)
def test_every_network_comes_back_as_it_was_observed(tmp_path, name):
    model = NETWORKS[name]()
    observation, _ = fedavg(model, client(6), **AVG)
    path = Captures(tmp_path, model, DATA).keep(exchange(observation))
    assert path is not None
    assert path.relative_to(tmp_path).as_posix() == "run-7/client-0_round-000001.safetensors"
    found = load(path, model)
    for tree in ("sent", "returned"):
        assert same(getattr(found, tree), getattr(observation, tree))
    if observation.buffers:
        assert same(found.buffers, observation.buffers)
        assert same(found.returned_buffers, observation.returned_buffers)
    assert found.training == replace(UNKNOWN, lr=0.1, epochs=2, batch_size=3, samples=6)


def test_tied_weights_arrive_under_both_names(tmp_path):
    model = Tied()
    state = arrays(model.state_dict())
    assert "second.weight" in state
    path = Captures(tmp_path, model, DATA).keep(Exchange(1, 1, "a", state, state))
    assert path is not None
    assert "second.weight" not in load(path, model).sent


def test_gradients_are_kept_as_gradients(tmp_path):
    observation, _ = fedsgd(mlp(), client(3))
    path = Captures(tmp_path, observation.model, DATA, sends="gradient").keep(exchange(observation))
    found = load(path, observation.model)
    assert found.kind == "gradient"
    assert same(found.gradient, observation.gradient)


def test_a_message_overrides_the_configuration_and_that_overrides_the_user(captures):
    captures.training = LocalTraining(lr=0.5, momentum=0.9, mode="eval")
    captures.config = {"learning-rate": 0.4, "epochs": 3, "batch-size": 8.0}
    found = captures.recipe({"lr": 0.3, "num_examples": 40})
    assert found == LocalTraining(0.3, 3, 8, 40, momentum=0.9, mode="eval")
    assert captures.recipe({}).lr == 0.4


def test_what_is_not_reported_is_unknown(captures, seen):
    assert captures.observation(exchange(seen, {})).training == UNKNOWN
    [sentence] = [one for one in captures.observation(exchange(seen, {})).threat_model() if "does not know" in one]
    assert sentence.startswith("It does not know: lr, epochs, batch_size, samples, momentum, weight_decay, optimiser, ")
    for name in ("schedule", "clip_norm", "proximal", "label_smoothing", "accumulation"):  # unknown is not 0
        assert name in sentence


def test_the_optimiser_and_its_settings_are_read(captures):
    reported = {"optimizer": "AdamW", "max-grad-norm": 1.0, "proximal_mu": 0.1, "lr-schedule": "cosine", "eps": "small"}
    found = captures.recipe(reported | {"gradient-accumulation-steps": 2.0})
    assert (found.optimiser, found.clip_norm, found.proximal, found.schedule) == ("adamw", 1.0, 0.1, "cosine")
    assert (found.accumulation, found.eps) == (2, None)
    assert captures.recipe({"optimizer": "adagrad"}).optimiser is None


def test_an_impossible_recipe_is_unknown_and_logged(captures, caplog):
    assert captures.recipe({"lr": -1.0, "epochs": 0, "batch-size": True}).lr is None
    assert "lr must be above 0" in caplog.text
    captures.recipe({"lr": -1.0}, "client-3")  # each client has its own sentence
    assert "Leakgauge records client-3 without lr" in caplog.text


def test_settings_that_contradict_each_other_are_unknown(captures, caplog):
    found = captures.recipe({"epochs": 10, "batch-size": 2, "num-examples": 10**9})
    assert (found.epochs, found.batch_size, found.samples) == (10, 2, None)
    assert "without samples" in caplog.text
    assert captures.recipe({"num-examples": 2**62}).samples is None


def test_a_sum_has_the_batches_of_all(captures, seen):
    found = captures.observation(exchange(seen, summed=10, client="sum of 10 clients"))
    assert found.training.batch_size == 30
    assert found.client == "sum of 10 clients"


def test_lists_of_arrays_are_in_the_models_order(captures, seen):
    listed = {
        side: {str(index): value for index, value in enumerate(arrays(getattr(seen, side)).values())}
        for side in ("sent", "returned")
    }
    assert same(captures.observation(exchange(seen, **listed)).returned, seen.returned)


def test_statistics_may_be_withheld_and_counters_be_averaged(tmp_path):
    model = NETWORKS["batch norm"]()
    observation, _ = fedavg(model, client(6), **AVG)
    captures = Captures(tmp_path, model, DATA)
    without = captures.observation(exchange(observation, sent=arrays(observation.sent)))
    assert without.buffers is None
    assert without.returned_buffers is not None
    before = exchange(observation).sent
    fractions = {name: value.astype(np.float64) + 0.25 * (value.ndim == 0) for name, value in before.items()}
    found = captures.observation(exchange(observation, sent=fractions))
    assert same(found.buffers, observation.buffers)
    assert all(value.dtype == observation.sent[name].dtype for name, value in found.sent.items())


def test_the_interval_of_rounds_and_the_chosen_clients(captures):
    captures.every = 3
    assert [number for number in range(1, 11) if captures.selects(number, 5)] == [1, 4, 7, 10]
    captures.every, captures.clients = 1, [2, 1000]
    assert [captures.selects(1, *who) for who in ((9, 2), (1000, 7), (9, 3), (9,))] == [True, True, False, False]
    captures.clients = 2
    assert [captures.selects(1, node) for node in (11, 12, 13, 11)] == [True, True, False, True]


def test_runs_are_kept_apart_and_nothing_is_overwritten(captures, seen, tmp_path):
    for run in (7, 7, 8):
        captures.keep(exchange(seen, run=run))
    names = sorted(path.relative_to(captures.folder).as_posix() for path in captures.folder.glob("run-*/*.safetensors"))
    assert names == [f"run-{run}/client-0_round-000001{end}.safetensors" for run, end in ((7, ""), (7, "_2"), (8, ""))]
    with pytest.raises(FileError, match=r"holds 2 runs \(run-7, run-8\)\. Give the folder of one run"):
        load_all(captures.folder, seen.model)
    assert len(load_all(captures.folder / "run-7", seen.model)) == 2


@pytest.mark.parametrize("place", ["run-7", "tuesday", "site/run-7", "site/2026/tuesday"])
def test_captures_are_found_in_subfolders_and_runs_stay_apart(captures, seen, tmp_path, place):
    first = captures.keep(exchange(seen)).parent
    run = tmp_path / "all" / place
    run.parent.mkdir(parents=True)
    first.rename(run)
    assert (run / "sent").exists()
    [found] = load_all(tmp_path / "all", seen.model)
    assert same(found.sent, seen.sent)
    (tmp_path / "all" / ".hidden").mkdir()
    (tmp_path / "all" / ".hidden" / "a.safetensors").write_bytes(b"garbage")
    (tmp_path / "all" / "run-9").mkdir()  # a run without a message
    save_file({"a": torch.zeros(1)}, tmp_path / "result.safetensors", {"leakgauge": "reconstruction"})
    (tmp_path / "all" / "results").mkdir()
    (tmp_path / "result.safetensors").rename(tmp_path / "all" / "results" / "one.safetensors")
    assert len(load_all(tmp_path / "all", seen.model)) == 1
    shutil.copytree(run, tmp_path / "all" / "other")
    with pytest.raises(FileError, match=rf"holds 2 runs \(other, {place}\)|holds 2 runs \({place}, other\)"):
        load_all(tmp_path / "all", seen.model)


def test_a_damaged_capture_in_a_subfolder_is_not_passed_over(tmp_path):
    (tmp_path / "tuesday").mkdir()
    (tmp_path / "tuesday" / "a_round-000001.safetensors").write_bytes(b"garbage")
    with pytest.raises(CorruptFile, match="not a safetensors file"):
        load_all(tmp_path)


def test_clients_of_a_round_share_the_sent_weights(captures, seen):
    for round in (1, 2):
        sent = {name: value + np.asarray(round, value.dtype) for name, value in exchange(seen).sent.items()}
        for number in range(3):
            captures.keep(exchange(seen, round=round, client=f"client-{number}", sent=sent))
    run = captures.folder / "run-7"
    assert len(list((run / "sent").iterdir())) == 2
    assert len(load_all(run, captures.model)) == 6


def test_a_recorder_in_another_process_overwrites_nothing(captures, seen, monkeypatch):
    """Another process records a message of the same name after this one has looked for such a file."""
    first, save = captures.keep(exchange(seen)), observation_file.save
    content = first.read_bytes()
    first.unlink()

    def save_late(observation, path, **options):
        if not first.exists():
            first.write_bytes(content)
        return save(observation, path, **options)

    monkeypatch.setattr(observation_file, "save", save_late)
    second = captures.keep(exchange(seen))
    assert second.name == "client-0_round-000001_2.safetensors"
    assert first.read_bytes() == content
    assert sorted(first.parent.glob("*.safetensors")) == sorted([first, second])


def test_a_clients_rounds_are_read_in_their_order(captures, seen):
    for number in (10, 2, 1):
        for name in ("client-1", "client-10"):
            captures.keep(exchange(seen, round=number, client=name))
    rounds = load_rounds(captures.folder, "client-1", seen.model)
    assert [one.round for one in rounds] == [1, 2, 10]
    assert len(Messages.read(rounds)) == 3
    with pytest.raises(UnknownName, match=r"'client-2'.*known: client-1, client-10"):
        load_rounds(captures.folder, "client-2", seen.model)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda one: {**one, "5.weight": one["1.weight"]}, "hold '5.weight', which the model does not have"),
        (lambda one: {key: one[key] for key in list(one)[:-1]}, "lack '3.bias'"),
        (lambda one: {**one, "1.weight": one["1.weight"].T}, "has shape"),
        (lambda one: {**one, "1.weight": one["1.weight"] * np.nan}, "NaN or Inf"),
        (lambda one: {**one, "1.weight": one["1.weight"].astype(object)}, "type object"),
        (lambda one: {**one, "1.weight": one["1.weight"] + 1j}, "type complex64"),
        (lambda one: {**one, "1.weight": np.empty(2**40, "V0")}, "has shape (1099511627776,)"),
        (lambda one: {**one, "x" * 10**6: one["1.weight"]}, "which the model does not have"),
        (lambda one: {}, "lack '1.weight'"),
    ],
)
def test_a_message_that_does_not_fit_the_model_is_logged_once_and_not_saved(captures, seen, change, words, caplog):
    with caplog.at_level(logging.WARNING):
        for number in (1, 2):
            assert captures.keep(exchange(seen, returned=change(exchange(seen).returned), round=number)) is None
    assert len(caplog.records) == 1
    assert words in caplog.text
    assert "client-0 in round 1" in caplog.text
    assert len(caplog.text) < 1500
    assert not captures.folder.exists()


def test_a_full_disk_is_logged_and_leaves_no_file(captures, seen, monkeypatch, caplog):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    assert captures.keep(exchange(seen)) is None
    assert "No space left on device). Nothing was changed" in caplog.text
    assert [path for path in captures.folder.rglob("*") if path.is_file()] == []
    monkeypatch.undo()
    assert captures.keep(exchange(seen)) is not None


def test_memory_does_not_grow_with_the_messages(tmp_path):
    model = nn.Sequential(nn.Flatten(), nn.Linear(16, 2**17), nn.Linear(2**17, 3))  # 10 MB
    captures = Captures(tmp_path, model, DATA)
    state = arrays(model.state_dict())

    def most(messages):
        for number in range(messages):
            path = captures.keep(Exchange(1, number, "a", state, state))
            assert path is not None
            path.unlink()
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

    first = most(3)
    assert most(30) - first < 40 * 1024  # kilobytes, where keeping them would take 600 MB


def test_what_the_app_does_to_its_model_later_does_not_matter(captures, seen):
    before = {name: value.clone() for name, value in captures.model.named_parameters()}
    with torch.no_grad():
        next(seen.model.parameters()).zero_()
    assert same(dict(captures.model.named_parameters()), before)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"model": "net"}, "model must be a Module"),
        ({"data": (1, 4, 4)}, "data must be a DataSpec"),
        ({"data": DataSpec((1, 4, 4), 3)}, r"does not say how the app normalises.*or mean=\(0,\), std=\(1,\)"),
        ({"data": DataSpec((1, 4, 4), 3, mean=(0.1307,))}, "does not say how the app normalises"),
        ({"data": DataSpec((16,), 3, bounded=False)}, "does not say how the app normalises"),
        ({"data": replace(DataSpec((8, 2), 3, bounded=False, time_axis=0), classes=2)}, "how the app normalises"),
        ({"training": {"lr": 1}}, "training must be a LocalTraining"),
        ({"config": [1]}, "config must be a Mapping"),
        ({"every": 0}, "every must be at least 1"),
        ({"every": 1.5}, "every must be a whole number"),
        ({"clients": 0}, "clients must be at least 1"),
        ({"clients": 1.5}, "clients must be a number or ids"),
        ({"sends": "deltas"}, "sends must be 'weights' or 'gradient'"),
    ],
)
def test_wrong_arguments_are_refused_before_the_training(tmp_path, wrong, words):
    with pytest.raises(InvalidInput, match=words):
        Captures(**{"folder": tmp_path, "model": mlp(), "data": DATA, **wrong})
