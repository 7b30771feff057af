"""Mistakes in options are refused before any attack, and files of others are left as they are."""

import csv
import os
import stat

import pytest

from leakgauge.core.own_files import MARKS
from leakgauge.runtime import engines
from tests.assault.projects import write_project

#: The words of each command, its files of results, and whether it has the option --redact.
COMMANDS = {
    "audit": (["audit", "audit.toml"], ("audit.html", "audit.json", "results.csv"), True),
    "demo": (["demo"], ("audit.html", "audit.toml"), True),
    "frontier": (
        ["frontier", "frontier.toml"],
        ("frontier.html", "frontier.json", "frontier.csv", "frontier.png"),
        False,
    ),
    "attack": (["attack", "captures"], ("captures.html", "captures.json"), True),
    "infer": (["infer", "captures"], ("inferred.html", "inferred.json"), False),
}
FRONTIER = """
[frontier]
clients = 2
federation = 1
federation_samples = 1
rounds = 1
test = 1
[[defence]]
chain = []
"""
LIMITED = [name for name in COMMANDS if name != "demo"]


@pytest.fixture
def refused(command, tmp_path, monkeypatch):
    """Return a function that runs a command, which must refuse its options before any attack."""
    monkeypatch.chdir(tmp_path)
    setup = write_project(tmp_path).read_text().partition("[audit]")[0]
    (tmp_path / "frontier.toml").write_text(setup + FRONTIER)
    monkeypatch.setattr(engines, "_on_engine", lambda *_: pytest.fail("an attack ran"))

    def run(name, *options):
        code, _, errors = command(*COMMANDS[name][0], *options)
        assert code == 2, errors
        assert len(errors.strip().splitlines()) == 1
        return errors

    return run


@pytest.mark.parametrize("name", [name for name, (_, _, redacts) in COMMANDS.items() if redacts])
def test_a_wrong_word_for_redact(refused, name):
    assert "'blurr'" in refused(name, "--redact", "blurr")


@pytest.mark.parametrize("name", LIMITED)
def test_a_junit_file_that_cannot_be_written(refused, tmp_path, name):
    (tmp_path / "file").write_text("")
    (tmp_path / "mine.xml").write_text("<mine/>")
    assert "file: cannot write results there" in refused(name, "--junit", "file/junit.xml")
    assert "cannot be written" in refused(name, "--junit", ".")
    assert "is not a file that Leakgauge wrote" in refused(name, "--junit", "mine.xml")
    assert (tmp_path / "mine.xml").read_text() == "<mine/>"


@pytest.mark.parametrize("name", LIMITED)
def test_a_wrong_limit(refused, name):
    assert "is not a condition" in refused(name, "--fail-if", "recovered")


@pytest.mark.parametrize("name", COMMANDS)
def test_an_output_folder_that_cannot_be_written(refused, tmp_path, name):
    (tmp_path / "file").write_text("")
    assert "file: cannot write results there" in refused(name, "--output", "file")


@pytest.mark.parametrize(("name", "file"), [(name, file) for name, (_, files, _) in COMMANDS.items() for file in files])
def test_a_file_of_results_that_others_wrote(refused, tmp_path, name, file):
    (tmp_path / "out").mkdir()
    mine = tmp_path / "out" / file
    mine.write_text("this is mine\n")
    assert "so it is not replaced" in refused(name, "--output", "out")
    assert mine.read_text() == "this is mine\n"


@pytest.mark.parametrize("name", ["audit", "frontier"])
def test_more_clients_than_data(refused, tmp_path, name):
    config = tmp_path / f"{name}.toml"
    config.write_text(config.read_text().replace("clients = 2", "clients = 13"))
    assert "data has 12 samples, too few for 13 clients" in refused(name)


def test_an_audit_replaces_its_own_files_and_no_others(command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_project(tmp_path)
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "notes.html").write_text("mine")
    for _ in range(2):
        code, _, errors = command(
            "audit", "audit.toml", "--output", "out", "--junit", "out/junit.xml", "--fail-if", "recovered > 1", "-q"
        )
        assert code == 0, errors
    assert (tmp_path / "out" / "notes.html").read_text() == "mine"
    for name in ("audit.html", "audit.json", "results.csv"):
        content = (tmp_path / "out" / name).read_bytes()
        assert any(mark in content[:4096] for mark in MARKS[(tmp_path / name).suffix])


@pytest.mark.parametrize("name", ["audit", "frontier"])
def test_nobody_else_can_read_the_results_and_no_title_becomes_a_formula(command, tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    config = write_project(tmp_path)
    if name == "frontier":
        config = tmp_path / "frontier.toml"
        config.write_text((tmp_path / "audit.toml").read_text().partition("[audit]")[0] + FRONTIER + 'title = "=1+1"')
    before = os.umask(0)
    try:
        code, _, errors = command(name, config.name, "--output", "out", "--engine", "in-process", "-q")
    finally:
        os.umask(before)
    assert code == 0, errors
    modes = {path: stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "out").rglob("*")}
    assert {path.name for path in modes} >= set(COMMANDS[name][1])
    assert {mode for path, mode in modes.items() if path.is_file()} == {0o600}
    assert {mode for path, mode in modes.items() if path.is_dir()} <= {0o700}
    cells = [
        cell
        for path in modes
        if path.suffix == ".csv"
        for row in csv.reader(path.read_text().splitlines())
        for cell in row
    ]
    assert not any(cell.startswith("=") for cell in cells)
    assert name == "audit" or any("=1+1" in cell for cell in cells)


def test_a_changed_demonstration_is_not_replaced(tmp_path):
    from leakgauge.core.errors import FileError
    from leakgauge.workflows.demo import write_demo

    path = write_demo(tmp_path, clients=2)
    write_demo(tmp_path, clients=3)
    changed = path.read_text().replace("samples = 1", "samples = 2")
    path.write_text(changed)
    with pytest.raises(FileError, match="is not the unchanged file of a demonstration"):
        write_demo(tmp_path)
    assert path.read_text() == changed
