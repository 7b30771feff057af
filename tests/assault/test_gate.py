"""Ways in which an audit can fail to measure. None of them passes a limit."""

import math
import os
import subprocess
import sys
import tomllib
from dataclasses import replace

import pytest
import torch

import leakgauge as lg
from leakgauge.core.errors import CodeExited
from leakgauge.core.measure import Measure
from leakgauge.data import load
from leakgauge.evaluation.gate import Condition, check, read_condition
from leakgauge.evaluation.verdict import Finding, Verdict, judge, over_clients
from leakgauge.models import build
from leakgauge.runtime import Task, run_tasks
from leakgauge.workflows.audit import run as stages
from leakgauge.workflows.audit.plan import UNDEFENDED
from tests.assault.outcomes import run
from tests.assault.projects import write_project

#: A limit that a finished audit of these projects keeps.
KEPT = "recovered > 1"


@pytest.fixture
def gate(command, tmp_path, monkeypatch):
    """Return a function that audits a project, and returns the exit code and what was printed."""
    monkeypatch.chdir(tmp_path)

    def audit(limit=KEPT, *options, **lines):
        config = write_project(tmp_path, **lines)
        code, output, errors = command("audit", config, "--engine", "in-process", "--fail-if", limit, *options)
        return code, output + errors

    return audit


def test_an_audit_that_measures_passes(gate):
    code, text = gate()
    assert code == 0, text


EXIT = "the work was ended by an exit"
#: What the user's code does, the exit code, and words of the message.
CODE = {
    "exit at import": ({"top": "sys.exit(0)"}, 2, EXIT),
    "exit in the factory of the model": ({"model": "sys.exit(0)"}, 2, EXIT),
    "exit in the factory of the data": ({"data": "sys.exit(0)"}, 2, EXIT),
    "exit in the loss": ({"loss": "sys.exit(0)"}, 2, EXIT),
    "exit in forward": ({"forward": "sys.exit(0)"}, 2, EXIT),
    "exit in forward during an attack": ({"attacked": "sys.exit(0)"}, 2, EXIT),
    "exit() without a code": ({"attacked": "raise SystemExit"}, 2, EXIT),
    "quit as if a limit were broken": ({"attacked": "sys.exit(1)"}, 2, EXIT),
    "an exception that is no Exception": ({"attacked": "raise BaseException('mine')"}, 2, "mine"),
    "an interrupt by the code": ({"attacked": "raise KeyboardInterrupt"}, 130, ""),
    "no more memory": ({"attacked": "raise MemoryError"}, None, "MemoryError"),
    "endless recursion": ({"attacked": "return self.forward(x)"}, None, ""),
    "an error": ({"attacked": "raise RuntimeError('mine')"}, None, "mine"),
    "outputs that are not numbers": ({"attacked": "return self.layer(x.flatten(1)) * float('nan')"}, 2, "finite"),
}


@pytest.mark.parametrize("way", CODE)
def test_code_of_the_user_passes_no_limit(gate, way):
    lines, expected, words = CODE[way]
    code, text = gate(KEPT, "--quiet", **lines)  # a quiet audit runs no attack to measure its time
    assert code != 0, text
    assert expected in (None, code), text
    assert words in text


@pytest.mark.parametrize("limit", ["attribute_accuracy > 0.5", "idlg.source_accuracy > 0.5"])
def test_a_limit_on_a_metric_that_nothing_measured_is_not_kept(gate, limit):
    code, text = gate(limit)
    assert code == 1
    assert "was not measured" in text


def changed(monkeypatch, change, *, clients=(0, 1)):
    """Let the attacks on some clients of the audited set-up end differently."""
    whole = stages.attack_client

    def attack_client(plan, work, report, **options):
        document, tensors = whole(plan, work, report, **options)
        return (change(document) if work.client in clients and not work.control else document), tensors

    monkeypatch.setattr(stages, "attack_client", attack_client)


def without(metric):
    return lambda document: {
        **document, "scores": {name: row for name, row in document["scores"].items() if name != metric}
    }  # fmt: skip


def with_value(metric, value):
    return lambda document: {
        **document, "scores": {**document["scores"], metric: {**document["scores"][metric], "value": value}}
    }  # fmt: skip


def raising(error):
    def change(document):
        raise error

    return change


#: What happens to results, to the results of which clients, and the exit code.
RESULTS = {
    "a value that is not a number": (with_value("recovered", math.nan), (0, 1), 1),
    "one value that is not a number": (with_value("recovered", math.nan), (1,), 1),
    "a value that could not be stored": (with_value("recovered", None), (1,), 1),
    "a value that one client lacks": (without("recovered"), (1,), 1),
    "one client that failed": (raising(RuntimeError("mine")), (1,), 3),
    "all clients that failed": (raising(RuntimeError("mine")), (0, 1), 3),
    "an interrupt after the first client": (raising(KeyboardInterrupt()), (1,), 130),
    "a lost connection": (raising(ConnectionResetError("mine")), (1,), 3),
}


@pytest.mark.parametrize("way", RESULTS)
def test_results_that_are_missing_pass_no_limit(gate, monkeypatch, way):
    change, clients, expected = RESULTS[way]
    changed(monkeypatch, change, clients=clients)
    code, text = gate()
    assert code == expected, text


# Findings that do not cover what a limit is about


def finding(attack="dlf", setup=UNDEFENDED, verdict=Verdict.NOTHING_ABOVE_CHANCE, clients=2, value=10.0):
    measures = over_clients([{"psnr": Measure("psnr", value, chance=12.0)}] * clients)
    return Finding(attack, setup, measures, verdict)


LIMIT = Condition("psnr", ">", 20.0)
#: The limit, the findings, and the clients of each set-up.
COVERAGE = {
    "no findings": (LIMIT, [], {}),
    "no findings of a planned set-up": (LIMIT, [finding()], {UNDEFENDED: 2, "noise": 2}),
    "fewer clients than planned": (LIMIT, [finding(clients=1)], {UNDEFENDED: 2}),
    "an attack that was skipped everywhere": (replace(LIMIT, attack="awa"), [finding()], {UNDEFENDED: 2}),
    "an attack that was skipped on settled clients": (
        replace(LIMIT, attack="dlf"), [finding(clients=1), finding("spans")], {UNDEFENDED: 2}
    ),
    "an attack that was skipped on one set-up": (
        replace(LIMIT, attack="dlf"), [finding(), finding("spans", "noise")], {UNDEFENDED: 2, "noise": 2}
    ),
    "no verdict": (Condition("leaks"), [finding(verdict=Verdict.INCONCLUSIVE)], {}),
    "no verdict on one of two set-ups": (
        Condition("leaks"), [finding(), finding(setup="noise", verdict=Verdict.INCONCLUSIVE)], {}
    ),
    "not scored": (Condition("leaks"), [finding(verdict=Verdict.NOT_SCORED)], {}),
    "no verdict of the named attack": (
        Condition("leaks", attack="dlf"), [finding(verdict=Verdict.INCONCLUSIVE), finding("spans")], {UNDEFENDED: 2}
    ),
    "no findings for the word inconclusive": (Condition("inconclusive"), [], {}),
    "not a number on one set-up": (LIMIT, [finding(), finding(setup="noise", value=math.nan)], {}),
    "no chance level for the excess": (
        replace(LIMIT, statistic="excess"),
        [Finding("dlf", UNDEFENDED, {"psnr": Measure("psnr", 10.0, n=2)}, Verdict.NOTHING_ABOVE_CHANCE)],
        {},
    ),
}  # fmt: skip


@pytest.mark.parametrize("way", COVERAGE)
def test_findings_that_do_not_cover_a_limit_do_not_pass_it(way):
    condition, findings, clients = COVERAGE[way]
    checks = check([condition], findings, clients)
    assert any(one.failed and not one.broken and "was not measured" in one.sentence() for one in checks)


def test_findings_that_cover_a_limit_pass_it():
    complete = [finding(), finding("spans"), finding("dlf", "noise"), finding("spans", "noise")]
    for limit in ("psnr > 20", "dlf.psnr > 20", "worst(psnr) > 20", "leaks", "dlf.leaks", "inconclusive"):
        checks = check([read_condition(limit, ["dlf"])], complete, {UNDEFENDED: 2, "noise": 2})
        assert checks
        assert not any(one.failed for one in checks), limit


def test_figures_that_are_not_numbers_are_no_proof_of_safety():
    for value, chance in ((math.nan, 12.0), (10.0, math.nan)):
        assert judge([{"psnr": Measure("psnr", value, chance=chance)}]) is Verdict.INCONCLUSIVE


# Captures


@pytest.fixture
def captures(tmp_path, monkeypatch):
    """Two captures of clients with one sample each, and the data of the first client only."""
    import numpy as np

    monkeypatch.chdir(tmp_path)
    (tmp_path / "data").mkdir()
    digits = load("digits")
    for client in range(2):
        share = digits.share([client], f"client-{client}")
        observation, _ = lg.fedsgd(build("lenet", shape=(1, 8, 8), classes=10, seed=0), share, granted=["labels"])
        lg.save(observation, tmp_path / "captures" / f"client-{client}.safetensors")
        if not client:
            np.savez(tmp_path / "data" / "client-0.npz", x=share.inputs.numpy(), y=share.targets.numpy())
    return tmp_path


ATTACK = ("attack", "captures", "--attack", "dlg", "--option", "steps=2", "--engine", "in-process", "--fail-if", KEPT)


def test_captures_that_are_not_scored_pass_no_limit(captures, command):
    code, output, errors = command(*ATTACK)
    assert code == 1, errors
    code, output, errors = command(*ATTACK, "--data", "data")
    assert code == 1, errors
    assert "was not measured" in output
    code, output, errors = command(*ATTACK, "--data", "data", "--client", "client-0")
    assert code == 0, output + errors
    (captures / "captures" / "client-1.safetensors").write_bytes(b"damaged")
    code, output, errors = command(*ATTACK, "--data", "data")
    assert code == 2, output + errors


FRONTIER = """
[frontier]
attack = "idlg"
clients = 2
federation = 1
federation_samples = 1
rounds = 1
test = 1
[[defence]]
title = "no defence"
"""


@pytest.mark.parametrize("name", ["frontier", "attack", "infer"])
@pytest.mark.parametrize("lines", [{"model": "sys.exit(0)"}, {"top": "sys.exit(0)"}, {"model": "os._exit(0)"}])
def test_code_of_the_user_passes_no_limit_of_other_commands(captures, command, name, lines):
    setup, _, _ = write_project(captures, **lines).read_text().partition("[audit]")
    (captures / "frontier.toml").write_text(setup + FRONTIER)
    own = tomllib.loads(setup)["model"]["name"]
    words = ["frontier", "frontier.toml"] if name == "frontier" else [name, "captures", "--model", own]
    code, output, errors = command(*words, "--engine", "in-process", "--fail-if", KEPT)
    assert code == 2, output
    assert EXIT in errors


# The process and its streams


def test_an_exit_from_python_is_an_error_too(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    before = os._exit
    for lines in ({"model": "sys.exit(0)"}, {"attacked": "os._exit(0)"}):
        with pytest.raises(CodeExited, match="Remove"):
            lg.audit(write_project(tmp_path, **lines), engine="in-process")
    assert os._exit is before


def test_an_exit_of_the_process_passes_no_limit(tmp_path):
    """An exit that no exception announces, and one that runs after the command has ended."""
    write_project(tmp_path, top="atexit.register(lambda: os._exit(0))", attacked="os._exit(0)")
    ended = run("audit", "audit.toml", "--engine", "in-process", "--fail-if", KEPT, folder=tmp_path)
    assert ended.code == 2
    assert EXIT in ended.errors


def leaves(how, report):
    if how == "sys":
        sys.exit(0)
    os._exit(0)


def test_an_exit_in_a_worker_is_a_failed_task():
    tasks = [Task(how, leaves, {"how": how}) for how in ("sys", "os")]
    with pytest.raises(CodeExited, match=EXIT):
        list(run_tasks(tasks, engine="processes", jobs=1))


def test_a_reader_that_leaves_does_not_change_the_exit_code(tmp_path):
    """As in ``leakgauge audit audit.toml | head -1``, here with a limit that is kept."""
    write_project(tmp_path)
    command = [sys.executable, "-c", "from leakgauge.cli import main; main()", "audit", "audit.toml"]
    reader, writer = os.pipe()
    os.close(reader)
    ended = subprocess.run(
        [*command, "--engine", "in-process", "--fail-if", KEPT], cwd=tmp_path, stdout=writer, stderr=subprocess.PIPE,
        text=True, check=False,
    )  # fmt: skip
    os.close(writer)
    assert ended.returncode == 0, ended.stderr
    assert "Traceback" not in ended.stderr
    assert (tmp_path / "audit" / "audit.html").exists()


def test_an_output_that_cannot_be_written_is_an_error(tmp_path):
    with open("/dev/full", "w") as full:
        ended = subprocess.run(
            [sys.executable, "-c", "from leakgauge.cli import main; main()", "list", "--json"],
            cwd=tmp_path, stdout=full, stderr=subprocess.PIPE, text=True, check=False,
        )  # fmt: skip
    assert ended.returncode == 2
    assert "the output cannot be written" in ended.stderr


def test_threads_are_as_before_when_measuring_ends(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    torch.set_num_threads(2)
    lg.audit(write_project(tmp_path), engine="in-process")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    assert threads == 2
