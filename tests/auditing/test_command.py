"""The audit as people call it: on the command line, from Python, in a test."""

import sys

import pytest

import leakscope as ls
from leakscope import cli
from leakscope.testing import assert_no_leak

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
    monkeypatch.setattr(sys, "argv", ["leakscope", *map(str, arguments)])
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
        (["--fail-if", "recovered"], "is no condition"),
        (["--redact", "all"], "omit"),
    ],
)
def test_a_mistake_in_the_call_exits_with_two(config, monkeypatch, capsys, arguments, words):
    code, said = run(monkeypatch, capsys, "audit", config, *arguments)
    assert code == 2
    assert words in said.err


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
    assert "leakscope audit mine.toml" in said.out
    assert (config.parent / "mine.toml").exists()


def test_from_python(config, tmp_path):
    found = ls.audit(config, tmp_path / "page")
    assert found.overall() == "recovers data"
    assert (tmp_path / "page" / "audit.json").exists()


def test_in_a_test(config, tmp_path):
    with pytest.raises(AssertionError, match="this set-up leaks: idlg"):
        assert_no_leak(config)
    noisy = tmp_path / "noisy.toml"
    noisy.write_text(NOISE)
    assert_no_leak(noisy)
