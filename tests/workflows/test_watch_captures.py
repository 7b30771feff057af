"""A watch attacks captures as they come, and keeps one page about which clients leak, from which round on."""

from dataclasses import replace

import numpy as np
import pytest

import leakgauge as lg
from leakgauge.core.errors import LeakgaugeError
from leakgauge.core.kept_samples import kept_path
from leakgauge.evaluation.verdict import Verdict
from leakgauge.workflows.watch_captures import watch
from tests.shared import digits
from tests.workflows.test_attack_captures import network

SPEC = replace(digits().spec, mean=(0.3,), std=(0.35,))


def record(folder, client, round, sigma=0.0):
    data = replace(digits().share([client]), spec=SPEC)
    noise = [lg.defences.GaussianNoise(sigma)] if sigma else []
    observation, _ = lg.fedsgd(network(), data, client=f"client-{client}", round=round, defences=noise)
    observation = replace(observation, defences=None)
    lg.save(observation, folder / "run-1" / f"client-{client}_round-{round:06d}.safetensors")


@pytest.fixture
def data(tmp_path):
    (tmp_path / "data").mkdir()
    for client in (0, 1):
        own = digits().share([client])
        np.savez(tmp_path / "data" / f"client-{client}.npz", x=own.inputs.numpy(), y=own.targets.numpy())
    return tmp_path / "data"


def followed(tmp_path, **options):
    options = {"every": 0.01, "idle": 0.2, "engine": "in-process", "model": network(), **options}
    method = options.pop("method", "dense_read_off")
    return watch(tmp_path / "captures", method, tmp_path / "out", **options)


def test_the_page_follows_the_federation(tmp_path, data):
    states = followed(tmp_path, data=data, method="inverting_gradients", options={"steps": 200}, idle=60.0)
    record(tmp_path / "captures", 0, 1, sigma=10.0)
    first = next(states)
    assert first.clients[0].leaks_from is None
    assert first.clients[0].worst in (Verdict.INCONCLUSIVE, Verdict.UNEXPLAINED)
    assert "none leaks so far" in first.sentence
    record(tmp_path / "captures", 0, 2)
    record(tmp_path / "captures", 1, 2)
    second = next(states)
    assert [one.leaks_from for one in second.clients] == [2, 2]
    assert second.sentence == "2 of 2 clients leak: client-0 (from round 2), client-1 (from round 2)."
    page = second.page.read_text()
    assert second.page == first.page
    assert "latest captured round is 2" in page


def test_without_samples_it_is_unknown_who_leaks(tmp_path):
    record(tmp_path / "captures", 0, 1)
    [state] = followed(tmp_path, method="inverting_gradients", options={"steps": 2})
    assert state.clients[0].worst is None
    assert "unknown without their samples" in state.sentence


def test_nothing_to_see_is_no_error_and_mistakes_are(tmp_path):
    notes = []
    assert list(followed(tmp_path, note=notes.append)) == []
    assert len(notes) == 1
    assert notes[0].startswith("waiting for captures in ")
    with pytest.raises(LeakgaugeError, match="no limit was measured"):
        list(followed(tmp_path, fail_if=["psnr > 20"]))
    for wrong in ({"every": 0}, {"idle": -1.0}, {"fail_if": ["psnr is high"]}, {"method": "no_attack"}):
        with pytest.raises(LeakgaugeError):
            next(followed(tmp_path, **wrong))
    record(tmp_path / "captures", 0, 1)
    kept_path(tmp_path / "captures", 2, "a", 1).parent.mkdir(parents=True)
    notes = []
    with pytest.raises(LeakgaugeError):  # the model is another one, which the note said at once
        list(followed(tmp_path, model=lg.models.build("mlp", shape=(2,), classes=2), note=notes.append))
    assert len(notes) == 1


def test_a_limit_that_was_never_measured_fails(tmp_path, command, monkeypatch):
    monkeypatch.chdir(tmp_path)
    record(tmp_path / "captures", 0, 1)
    words = ("--model", "tests.workflows.test_attack_captures:network", "--option", "steps=2", "--idle", "0.2")
    code, out, err = command("watch", "captures", *words, "--every", "0.01", "--fail-if", "recovered > 0.05")
    assert code == 1, err
    assert "limit not measured" in out


def test_the_command_ends_when_a_limit_is_broken(tmp_path, data, command, monkeypatch):
    monkeypatch.chdir(tmp_path)
    record(tmp_path / "captures", 0, 1)
    words = ("--model", "tests.workflows.test_attack_captures:network", "--data", data, "--option", "steps=200")
    code, out, err = command("watch", "captures", *words, "--every", "0.01", "--fail-if", "recovered > 0.05")
    assert code == 1, err
    assert "client-0 (from round 1)" in out
    assert "limit broken" in out
    assert (tmp_path / "watched" / "watch.html").exists()
