import pytest

from leakgauge.core.errors import CorruptFile, FileError, InvalidInput, LeakgaugeError
from leakgauge.core.limits import Limit
from leakgauge.workflows.documents import LARGEST, check_table, read_toml

KEYS = {"name": (str,), "lr": (int, float), "clients": Limit(1, 10, whole=True)}


def test_right_values_are_accepted():
    check_table({"name": "ä b", "lr": 1, "clients": 10}, KEYS, "[t]")


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ({"name": ""}, r"\[t\] name must be a text of 1 to"),
        ({"name": "a\nb"}, "printable"),
        ({"name": "x" * 5000}, "printable"),
        ({"lr": float("inf")}, "lr must be a finite number"),
        ({"lr": True}, "must be of type int or float"),
        ({"clients": 11}, "clients must be at most 10"),
        ({"clients": 1.0}, "whole number"),
        (3, "must be a table"),
    ],
)
def test_wrong_values_are_named_with_their_key(table, words):
    with pytest.raises(InvalidInput, match=words):
        check_table(table, KEYS, "[t]")


def test_documents_that_are_no_configuration(tmp_path):
    path = tmp_path / "a.toml"
    path.write_text("a = " + "[" * 3000 + "]" * 3000)
    with pytest.raises(InvalidInput, match="nested too deeply"):
        read_toml(path)
    path.write_text("a = " + "9" * 5000)
    with pytest.raises(InvalidInput, match="not a TOML file"):
        read_toml(path)
    with path.open("wb") as stream:
        stream.truncate(LARGEST + 1)
    with pytest.raises(CorruptFile, match="more than the limit"):
        read_toml(path)


def test_files_that_cannot_be_read(tmp_path):
    with pytest.raises(FileError, match="cannot be read"):
        read_toml(tmp_path / "none.toml")
    (tmp_path / "bad.toml").write_text("[model")
    with pytest.raises(LeakgaugeError, match="not a TOML file"):
        read_toml(tmp_path / "bad.toml")
