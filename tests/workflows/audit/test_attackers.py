"""Attackers of an audit: by name, with mistakes said where they were made."""

import pytest

from leakgauge.core.errors import InvalidInput, UnknownName
from leakgauge.workflows.audit.attackers import InfersColumn, Rebuilds, read_attacker


def test_by_name():
    assert read_attacker("idlg", {"steps": 3}, None, "here") == Rebuilds("idlg", {"steps": 3})
    assert read_attacker("attribute_inference", {}, "sex", "here") == InfersColumn("sex")


def test_the_repr_tells_all_that_the_outcome_depends_on():
    assert repr(Rebuilds("idlg", {"steps": 3})) != repr(Rebuilds("idlg", {"steps": 4}))
    assert repr(Rebuilds("idlg")) == repr(Rebuilds("idlg", {"lr": 1.0}))
    assert repr(InfersColumn("sex")) != repr(InfersColumn("age"))


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("idlgg", {}, "did you mean 'idlg'"),
        (None, {}, "here"),
        ("idlg", {"step": 3}, "here: .*did you mean 'steps'"),
        ("attribute_inference", {}, "here: .*name a sensitive column"),
    ],
)
def test_mistakes(name, options, words):
    with pytest.raises((InvalidInput, UnknownName), match=words):
        read_attacker(name, options, None, "here")


def test_the_inference_of_a_column_has_no_options():
    with pytest.raises(InvalidInput, match="it has no options"):
        read_attacker("attribute_inference", {"steps": 3}, "sex", "here")
