"""A sentence for every mistake: what is wrong, before any work, with exit code 2."""

import itertools
import os
import sys

import pytest

from leakgauge.core.errors import LeakgaugeError
from leakgauge.federation.losses import LOSSES
from tests.assault import mistakes, workplace
from tests.assault.attempts import attempt, limited, without_work

CONFIGURATIONS = list(mistakes.configurations())
KEYS = list(mistakes.keys())
FACTORIES = list(mistakes.factories())
#: Every so many generated mistakes are also made on the command line in the short form.
EVERY = 80


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Return the folder with the files that the mistakes name."""
    made = workplace.furnish(tmp_path_factory.mktemp("mistakes") / "work")
    for command, name in (("audit", "right.toml"), ("frontier", "right_frontier.toml")):
        (made / name).write_text(mistakes.toml(mistakes.changed(command)))
    losses = dict(LOSSES)
    yield made
    for name in LOSSES.keys() - losses.keys():
        del LOSSES[name]
    for name in ("own_factories", "raises_at_import", "imports_missing", "broken_syntax"):
        sys.modules.pop(name, None)


@pytest.fixture
def here(folder, monkeypatch):
    monkeypatch.chdir(folder)
    (folder / "new.toml").unlink(missing_ok=True)
    return folder


def refusal(action, *values, **options):
    """Return the error message of an action, and check that it is one sentence of printable characters."""
    try:
        with without_work(), limited():
            action(*values, **options)
    except LeakgaugeError as problem:
        text = str(problem)
        assert text.isprintable(), text
        assert 15 < len(text) < 2000, text
        return text
    raise AssertionError("accepted in silence")


def read(command, document):
    """Read a configuration, as the command does before it runs an attack."""
    from leakgauge.workflows.audit import read_audit
    from leakgauge.workflows.frontier_plan import read_frontier

    (read_audit if command == "audit" else read_frontier)(document, "wrong.toml")


def failures(cases, check):
    """Return one line about each case that the check does not accept."""
    found = []
    for case in cases:
        try:
            check(*case)
        except Exception as problem:
            found.append(f"{str(case)[:150]}: {type(problem).__name__}: {str(problem)[:200]}")
    return "\n".join(found)


@pytest.mark.parametrize(("line", "command", "document"), CONFIGURATIONS, ids=[case[0] for case in CONFIGURATIONS])
def test_a_wrong_configuration_is_refused(here, line, command, document):
    refusal(read, command, document)


@pytest.mark.parametrize(("command", "table", "key", "valid"), KEYS, ids=[f"{key[1]}.{key[2]}" for key in KEYS])
def test_wrong_values_of_a_key_are_refused(here, command, table, key, valid):
    def check(value):
        refusal(read, command, mistakes.changed(command, (table, key, value)))

    assert not failures(((value,) for value in mistakes.wrong_values(table, key, valid)), check)


@pytest.mark.parametrize(("kind", "name", "factory", "call"), FACTORIES, ids=[" ".join(case[:2]) for case in FACTORIES])
def test_wrong_values_of_an_option_are_refused(here, kind, name, factory, call):
    def check(option, value):
        text = refusal(call, **{option: value})
        # A check of the factory itself has its own words for the option.
        assert option in text or isinstance(value, str) or value in (-3, -1.0)

    assert not failures(mistakes.wrong_options(kind, factory), check)


@pytest.mark.parametrize("line", mistakes.command_lines())
def test_a_wrong_command_line_is_refused(folder, here, line):
    before = set(os.listdir(folder))
    assert_refused(attempt(mistakes.words_of(line), folder))
    assert set(os.listdir(folder)) == before, "a refused command leaves something behind"


def test_deep_and_long_words_are_refused(folder):
    for words in (
        ("attack", "capture.safetensors", "--option", "steps=" + "[" * 5000),
        ("audit", "x" * 5000),
        ("init", "x" * 5000),
        ("list", "x" * 100_000),
        ("attack", "capture.safetensors", "--attack", "x" * 100_000),
    ):
        assert_refused(attempt(words, folder))


def test_extreme_configurations_are_refused(here):
    for changes in (
        [("model", "options", {"hidden": [4] * 100_000})],
        [("model", "name", "x" * 5000 + ":y")],
        [("model", "name", "os:" + "y" * 5000)],
        [("training", "loss", "os:" + "y" * 5000)],
        [("data", "factory", "os:" + "y" * 5000)],
        [("", "defence", [{"title": "x" * 10_000, "chain": []}])],
    ):
        refusal(read, "audit", mistakes.changed("audit", *changes))


def every_generated():
    """Yield every wrong configuration, and every key with every wrong value."""
    for line, command, document in CONFIGURATIONS:
        yield line, command, document
    for command, table, key, valid in KEYS:
        for value in mistakes.wrong_values(table, key, valid):
            if value != 10**400:  # tomllib reads it, and repr() does not write it
                yield f"{table}.{key}", command, mistakes.changed(command, (table, key, value))


def check_on_the_command_line(folder, cases):
    def check(line, command, document):
        (folder / "wrong.toml").write_text(mistakes.toml(document), encoding="utf-8")
        assert_refused(attempt((command, "wrong.toml", "-q"), folder))

    assert not failures(cases, check)


def test_some_wrong_configurations_on_the_command_line(folder):
    check_on_the_command_line(folder, itertools.islice(every_generated(), 0, None, EVERY))


@pytest.mark.long
def test_every_wrong_configuration_on_the_command_line(folder):
    check_on_the_command_line(folder, every_generated())


@pytest.mark.parametrize("name", mistakes.WORKING)
def test_what_works_is_accepted(here, name):
    kind = name.partition("_")[0]
    table, key = {"data": ("data", "factory"), "loss": ("training", "loss")}.get(kind, ("model", "name"))
    read("audit", mistakes.changed("audit", (table, key, f"own_factories:{name}")))


@pytest.mark.parametrize("command", ["audit", "frontier"])
def test_a_right_configuration_reaches_the_attacks(folder, tmp_path, command):
    name = "right.toml" if command == "audit" else "right_frontier.toml"
    assert attempt((command, name, "-q", "-o", tmp_path), folder).ending == "accepted"


def assert_refused(ended):
    """Check that a command ended with exit code 2 and one error message of a few lines."""
    assert ended.ending == "refused", f"{ended.ending} with exit code {ended.code}: {ended.errors[-500:]}"
    lines = ended.errors.strip().splitlines()
    assert ended.errors.startswith("leakgauge: "), ended.errors[:500]
    assert len(lines) == 1, ended.errors
    assert lines[0].isprintable()
    assert 20 < len(lines[0]) < 2100, lines[0]
