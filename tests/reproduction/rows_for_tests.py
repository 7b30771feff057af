"""Rows without a file, for tests of single kinds."""

from pathlib import Path

from leakgauge.reproduction.kinds import Job
from leakgauge.reproduction.rows import Method, Row
from leakgauge.reproduction.setting import read_setting


def row_of(document, *, kind="reconstruction", **measuring):
    setting = read_setting(document, "test")
    return Row("mine", "table1/row", "A row", kind, setting, {}, Path("mine"), measuring=measuring)


def job_of(row, attack="", options=None, name="ours", **choices):
    return Job(row, Method(name, attack, options or {}), **choices)
