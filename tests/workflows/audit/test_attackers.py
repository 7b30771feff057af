"""Attackers of an audit: by name, with mistakes said where they were made."""

import pytest

from leakgauge.core.errors import InvalidInput, UnknownName
from leakgauge.workflows.audit.attackers import Attacker, read_attacker


def test_by_name():
    assert read_attacker("idlg", {"steps": 3}, None, "here") == Attacker("idlg", {"steps": 3})
    assert read_attacker("attribute_inference", {}, "sex", "here") == Attacker("attribute_inference", {}, "sex")


def test_the_repr_tells_all_that_the_outcome_depends_on():
    assert repr(Attacker("idlg", {"steps": 3})) != repr(Attacker("idlg", {"steps": 4}))
    assert repr(Attacker("idlg")) == repr(Attacker("idlg", {"lr": 1.0}))
    assert repr(Attacker("attribute_inference", {}, "sex")) != repr(Attacker("attribute_inference", {}, "age"))


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("idlgg", {}, "did you mean 'idlg'"),
        (None, {}, "here"),
        ("idlg", {"step": 3}, "here: .*did you mean 'steps'"),
        ("attribute_inference", {}, "here: .*Name a sensitive column"),
    ],
)
def test_mistakes(name, options, words):
    with pytest.raises((InvalidInput, UnknownName), match=words):
        read_attacker(name, options, None, "here")


def test_options_that_an_attack_does_not_have_are_refused():
    with pytest.raises(InvalidInput, match=r"here: .*'steps'"):
        read_attacker("attribute_inference", {"steps": 3}, "sex", "here")


def test_attacks_on_many_rounds_are_not_for_one_message():
    with pytest.raises(UnknownName, match="lmra"):
        read_attacker("lmra", {}, None, "here")
