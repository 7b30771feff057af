"""Trials on disk: each as soon as it ends, none lost, and no file of something else touched."""

import math

import pytest

from leakgauge.attacks.inversion.trials import Trial, TrialFile, done
from leakgauge.core.errors import CorruptFile, FileError, FutureVersion

SEARCH = {"seed": 0, "about": "", "ranges": {"x": {"low": -2, "high": 2, "log": False}}}
TRIALS = [
    Trial(0, {"x": 0.1}, 1 / 3, {0: 2.0, 10: 0.5}),
    Trial(2, {"x": -2.0}, 7.0, {0: 7.0}, "cut short"),
    Trial(1, {"x": 2.0}, math.nan, {}, "failed"),
]


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "folder" / "search.jsonl"
    file = TrialFile(path, SEARCH)
    for trial in TRIALS:
        file.append(trial)
    return path


def test_trials_come_back_as_they_were(path):
    assert repr(TrialFile(path, SEARCH).trials) == repr(TRIALS)  # a NaN is equal to nothing
    assert len(path.read_text().splitlines()) == 4
    assert done(TRIALS) == TRIALS[:1]


@pytest.mark.parametrize("lost", [1, 2, 30])
def test_a_line_that_was_not_written_to_its_end_is_dropped(path, lost):
    path.write_bytes(path.read_bytes()[:-lost])
    file = TrialFile(path, SEARCH)
    assert file.trials == TRIALS[:2]
    file.append(TRIALS[2])
    assert repr(TrialFile(path, SEARCH).trials) == repr(TRIALS)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"seed": 1}, "its seed is 0, not 1"),
        ({"about": "another client"}, "its about is '', not 'another client'"),
        ({"ranges": {"y": {}}}, "its ranges is {'x'"),
    ],
    ids=str,
)
def test_the_file_of_another_search_is_refused_and_left(path, change, named):
    before = path.read_bytes()
    with pytest.raises(FileError, match=f"holds another search: {named}"):
        TrialFile(path, SEARCH | change)
    assert path.read_bytes() == before


def line(number="1", x="0", value="1", curve="{}", state="done"):
    return f'{{"number": {number}, "numbers": {{"x": {x}}}, "value": {value}, "curve": {curve}, "state": "{state}"}}'


@pytest.mark.parametrize(
    ("altered", "why"),
    [
        ("{}", "number"),
        ("[1]", "list"),
        ("nonsense", "Expecting value"),
        (line().replace("x", "y"), "its numbers are y"),
        (line(x="9"), "its x is 9"),
        (line(x="NaN"), "its x is nan"),
        (line(number="-1"), "trial -1"),
        (line(number="1.5"), "trial 1.5"),
        (line(state="so-so"), "'so-so'"),
        (line(value="null"), "missing"),
        (line(state="cut short"), "missing"),
        (line(curve='{"0": Infinity}'), "infinite"),
    ],
    ids=lambda text: text[:60],
)
def test_an_altered_line_is_refused_in_words(path, altered, why):
    with path.open("a") as file:
        file.write(f"{altered}\n")
    with pytest.raises(CorruptFile, match=f"line 5 is no trial of this search .*{why}"):
        TrialFile(path, SEARCH)


@pytest.mark.parametrize(
    "content", [b"", b"\n", b"my notes", b"my notes\n", b'{"leakgauge": "observation"}\n', b"[]\n"]
)
def test_a_file_of_something_else_is_refused_and_left(path, content):
    path.write_bytes(content)
    with pytest.raises(CorruptFile, match="no file of a search"):
        TrialFile(path, SEARCH)
    assert path.read_bytes() == content


def test_a_file_of_a_newer_version_is_refused(path):
    path.write_text('{"leakgauge": "search", "version": 2}\n')
    with pytest.raises(FutureVersion, match="version 2"):
        TrialFile(path, SEARCH)


def test_what_cannot_be_read_or_written_is_said(path):
    file = TrialFile(path, SEARCH)
    with pytest.raises(FileError, match="cannot be read"):
        TrialFile(path.parent, SEARCH)
    with pytest.raises(FileError, match="cannot be read"):
        TrialFile(path / "below", SEARCH)
    path.write_bytes(b"\xff\n")
    with pytest.raises(FileError, match="cannot be read"):
        TrialFile(path, SEARCH)
    path.unlink()
    path.mkdir()
    with pytest.raises(FileError, match="cannot be written"):
        file.append(TRIALS[0])
