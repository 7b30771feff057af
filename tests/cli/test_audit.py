"""The audit as people call it: on the command line, from Python, in a test."""

import csv
import json
import sys
import tomllib
from xml.etree import ElementTree

import pytest
import torch

import leakgauge as lg
from leakgauge import cli
from leakgauge.core.errors import InvalidInput
from leakgauge.evaluation.verdict import Verdict
from leakgauge.testing import assert_no_leak
from leakgauge.workflows.audit import read_audit, run_audit
from leakgauge.workflows.audit import run as work
from leakgauge.workflows.result import Running

TOML = """
[model]
name = "lenet"
[data]
name = "digits"
[training]
sends = "gradient"
samples = 1
[audit]
attacks = [{ name = "idlg", steps = 8 }]
clients = 2
"""
NOISE = TOML + '[[defence]]\nchain = [{ name = "gaussian_noise", sigma = 0.5 }]\n'


def run(monkeypatch, capsys, *arguments):
    monkeypatch.setattr(sys, "argv", ["leakgauge", *map(str, arguments)])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    return ended.value.code, capsys.readouterr()


@pytest.fixture
def config(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "audit.toml").write_text(TOML)
    return tmp_path / "audit.toml"


def test_a_leak_exits_with_one_and_says_where_the_page_is(config, monkeypatch, capsys):
    code, said = run(monkeypatch, capsys, "audit", config, "--fail-if", "recovered > 0.05", "--junit", "junit.xml")
    assert code == 1
    assert "high risk" in said.out
    assert "limit broken: idlg (no defence): recovered = 1 is > 0.05" in said.out
    assert (config.parent / "audit" / "audit.html").exists()
    assert 'failures="1"' in (config.parent / "junit.xml").read_text()
    code, said = run(monkeypatch, capsys, "audit", config, "--fail-if", "recovered > 1")
    assert not code
    assert "recovers data" in said.out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--fail-if", "recoverd > 0.05"], "did you mean 'recovered'"),
        (["--fail-if", "recovered"], "is not a condition"),
        (["--redact", "all"], "omit"),
        (["--redact", "blur"], "was removed, because blurred samples can still be recognised"),
    ],
)
def test_a_mistake_in_the_call_exits_with_two(config, monkeypatch, capsys, arguments, words):
    code, said = run(monkeypatch, capsys, "audit", config, *arguments)
    assert code == 2
    assert words in said.err


def titled(title):
    return f"{TOML}[[defence]]\ntitle = {title}\nchain = [{{ name = 'gaussian_noise', sigma = 0.5 }}]\n"


def test_the_reason_of_a_verdict_is_printed(config, monkeypatch, capsys):
    config.write_text(NOISE)
    _, said = run(monkeypatch, capsys, "audit", config)
    result = json.loads((config.parent / "audit" / "audit.json").read_text())
    reasons = {finding["reason"] for finding in result["findings"]} - {""}
    assert reasons
    assert any(reason in said.out + said.err for reason in reasons)


@pytest.mark.parametrize("character", [r"\u001b[2J", r"\u009b", r"\u0000", r"\u202e", r"\n"])
def test_a_title_with_a_control_character_is_refused(config, monkeypatch, capsys, character):
    config.write_text(titled(f'"noise{character}"'))
    code, said = run(monkeypatch, capsys, "audit", config)
    assert code == 2
    assert "title must be a text of 1 to" in said.err
    assert said.err.endswith("\n")
    assert (said.out + said.err[:-1]).isprintable()


def test_a_title_reaches_no_output_as_a_formula_or_as_markup(config, monkeypatch, capsys):
    config.write_text(titled('"=1+1<b>&"'))
    words = ["audit", config, "--fail-if", "recovered > 0.05", "--junit", "junit.xml"]
    _, shown = run(monkeypatch, capsys, *words)
    _, as_json = run(monkeypatch, capsys, *words, "--json")
    assert "=1+1<b>&" in shown.out
    setup = json.loads(as_json.out)["findings"][0]["setup"]
    assert setup == "=1+1<b>&"
    files = [config.parent / "junit.xml", *((config.parent / "audit" / name) for name in ("audit.html", "audit.json"))]
    table = (config.parent / "audit" / "results.csv").read_bytes().decode()
    for text in (shown.out, shown.err, setup, *(path.read_text() for path in files), table.replace("\r\n", "\n")):
        assert text.replace("\n", "").isprintable()
    ElementTree.parse(files[0])
    assert "=1+1&lt;b&gt;&amp;" in files[1].read_text()
    assert "=1+1<b>" not in files[1].read_text()
    assert {row["defence"] for row in csv.DictReader(table.splitlines())} == {"'=1+1<b>&"}
    values = [row["value"] for row in csv.DictReader(table.splitlines())]
    assert all(isinstance(float(value), float) for value in values)


def test_a_dead_cluster_ends_in_one_sentence_at_the_first_attempt(config, monkeypatch, capsys):
    on_ray = pytest.importorskip("leakgauge.runtime.on_ray")
    attempts, join = [], on_ray._join
    monkeypatch.setattr(on_ray, "_join", lambda *words: (attempts.append(words), join(*words)))
    code, said = run(monkeypatch, capsys, "audit", config, "--engine", "ray:127.0.0.1:1", "--quiet")
    assert code == 2
    assert said.err.startswith("leakgauge: there is no Ray cluster at '127.0.0.1:1'")
    assert said.err.count("\n") == 1
    assert len(attempts) == 1


def test_no_configuration_exits_with_two(config, monkeypatch, capsys):
    code, said = run(monkeypatch, capsys, "audit", "none.toml")
    assert code == 2
    assert "cannot be read" in said.err


def test_init_writes_one_that_runs(config, monkeypatch, capsys):
    code, said = run(
        monkeypatch,
        capsys,
        "init",
        "mine.toml",
        "--model",
        "mlp",
        "--data",
        "digits",
        "--sends",
        "gradient",
        "--samples",
        1,
    )
    assert not code
    assert "leakgauge audit mine.toml" in said.out
    assert (config.parent / "mine.toml").exists()


def test_from_python(config, tmp_path):
    found = lg.audit(config, tmp_path / "page")
    assert found.verdict is Verdict.RECOVERS_DATA
    assert (tmp_path / "page" / "audit.json").exists()


def test_in_a_test(config, tmp_path):
    with pytest.raises(AssertionError, match="this set-up leaks: idlg"):
        assert_no_leak(config)
    noisy = tmp_path / "noisy.toml"
    noisy.write_text(NOISE)
    assert_no_leak(noisy)


# What fails, and where it runs


def fail_on(monkeypatch, clients, error, *, controls=False):
    whole = work.attack_client

    def attack_client(work, **arguments):
        if work.client in clients and (controls or not work.control):
            raise error
        return whole(work=work, **arguments)

    monkeypatch.setattr(work, "attack_client", attack_client)


def test_what_failed_is_said_at_the_end_and_the_rest_is_on_the_page(config, monkeypatch, capsys):
    fail_on(monkeypatch, {1}, RuntimeError("the optimiser broke"))
    code, said = run(monkeypatch, capsys, "audit", config, "--jobs", 1)
    assert code == 3
    assert "1 of 2 tasks failed, the others are done" in said.err
    assert "idlg, no defence, client 1: RuntimeError: the optimiser broke" in said.err
    assert "recovers data" in said.out
    page = (config.parent / "audit" / "audit.html").read_text()
    assert "What could not be done" in page
    assert "idlg, no defence, client 1: RuntimeError: the optimiser broke" in page
    found = json.loads((config.parent / "audit" / "audit.json").read_text())
    assert found["failed"] == {"idlg, no defence, client 1": "RuntimeError: the optimiser broke"}
    code, said = run(monkeypatch, capsys, "audit", config, "--jobs", 1, "--fail-if", "recovered > 0.05")
    assert code == 1  # a broken limit is broken whatever else happened
    assert "the optimiser broke" in said.err
    monkeypatch.undo()
    monkeypatch.chdir(config.parent)
    code, said = run(monkeypatch, capsys, "audit", config)
    assert not code
    assert "[1/1] done: idlg, no defence, client 1" in said.err  # the other one was done before


def test_nothing_done_is_no_page(config, monkeypatch, capsys):
    fail_on(monkeypatch, {0, 1}, RuntimeError("the optimiser broke"), controls=True)
    code, said = run(monkeypatch, capsys, "audit", config, "--jobs", 1)
    assert code == 3
    assert "idlg, no defence, client 0 and 1 more: RuntimeError" in said.err
    assert not (config.parent / "audit" / "audit.html").exists()


def test_a_mistake_in_every_task_is_one_sentence(config, monkeypatch, capsys):
    fail_on(monkeypatch, {0, 1}, InvalidInput("too few samples"), controls=True)
    code, said = run(monkeypatch, capsys, "audit", config, "--jobs", 1)
    assert code == 2
    assert [line for line in said.err.splitlines() if line.startswith("leakgauge: ")] == ["leakgauge: too few samples"]


def test_an_audit_that_failed_in_part_is_no_proof(config, monkeypatch):
    fail_on(monkeypatch, {1}, RuntimeError("the optimiser broke"))
    with pytest.raises(AssertionError, match="the audit is not complete: 1 of 2 tasks failed"):
        assert_no_leak(config, fail_if=["recovered > 1"])


@pytest.mark.parametrize("command", ["audit", "frontier"])
def test_an_engine_that_there_is_not_is_refused_before_anything_is_read(config, monkeypatch, capsys, command):
    code, said = run(monkeypatch, capsys, command, "none.toml", "--engine", "proceses")
    assert code == 2
    assert "did you mean 'processes'" in said.err


def test_engines_can_be_mixed_and_nothing_is_done_twice(tmp_path):
    plan = read_audit(tomllib.loads(TOML.replace("clients = 2", "clients = 3")), "a.toml")
    part = run_audit(plan, tmp_path / "mixed", Running("in-process"), stop_after=1)
    assert len(part.results) == 1
    mixed = run_audit(plan, tmp_path / "mixed", Running("processes", 2))
    alone = run_audit(plan, tmp_path / "alone", Running("in-process"))
    assert mixed.complete
    for one, other in zip(mixed.results, alone.results, strict=True):
        assert one.document["scores"] == other.document["scores"]
        assert torch.equal(one.tensors["reconstructed"], other.tensors["reconstructed"])
