"""Limits: read, compared, and written for continuous integration."""

from xml.etree import ElementTree

import pytest

from leakgauge.core.errors import InvalidInput, UnknownName
from leakgauge.evaluation.gate import Condition, check, read_condition, to_junit
from leakgauge.evaluation.verdict import summarise

FIGURES = summarise(
    [
        {"psnr": {"value": mean, "chance": 12.0}, "recovered": {"value": share, "chance": 0.0}}
        for mean, share in ((20, 0.1), (30, 0.3))
    ]
)
RESULTS = [("idlg", "no defence", FIGURES), ("agic", "no defence", FIGURES)]


@pytest.mark.parametrize(
    ("text", "condition", "holds"),
    [
        ("recovered > 0.05", Condition("recovered", ">", 0.05), True),
        ("recovered>0.2", Condition("recovered", ">", 0.2), False),
        (" psnr >= 25 ", Condition("psnr", ">=", 25.0), True),
        ("psnr < 1e1", Condition("psnr", "<", 10.0), False),
        ("idlg.psnr <= 25", Condition("psnr", "<=", 25.0, "idlg"), True),
        ("worst(psnr) > 29", Condition("psnr", ">", 29.0, worst=True), True),
        ("agic.worst(psnr) > 30", Condition("psnr", ">", 30.0, "agic", worst=True), False),
        ("ssim > 0.1", Condition("ssim", ">", 0.1), False),
    ],
)
def test_conditions_are_read_and_compared(text, condition, holds):
    found = read_condition(text, ["idlg", "agic"])
    assert found == condition
    assert found.holds(FIGURES) == holds
    assert read_condition(str(found), ["idlg", "agic"]) == condition


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("recovered", "no condition"),
        ("recovered = 0.05", "no condition"),
        ("recovered > ", "no condition"),
        ("worst(psnr > 3", "no condition"),
        ("recovered > five", "not a number"),
        ("psnr > nan", "NaN"),
        ("recoverd > 0.05", "did you mean 'recovered'"),
        ("dlf.psnr > 3", "'dlf'"),
    ],
)
def test_wrong_conditions_are_refused_in_words(text, words):
    with pytest.raises((InvalidInput, UnknownName), match=words):
        read_condition(text, ["idlg", "agic"])


def test_every_condition_is_checked_on_every_attack_it_is_about():
    conditions = [
        read_condition(text, ["idlg", "agic"]) for text in ("recovered > 0.05", "idlg.psnr > 90", "ssim > 0.5")
    ]
    checks = check(conditions, RESULTS)
    assert [(one.attack, one.failed) for one in checks] == [
        ("idlg", True), ("agic", True), ("idlg", False), ("idlg", False), ("agic", False),
    ]  # fmt: skip
    assert checks[0].sentence() == "idlg (no defence): recovered = 0.2 is > 0.05"
    assert checks[3].sentence() == "idlg (no defence): has no ssim"


def test_junit_says_what_failed():
    conditions = [
        read_condition(text, ["idlg", "agic"])
        for text in ("idlg.recovered > 0.05", "agic.ssim > 0.5", "agic.psnr > 90")
    ]
    suite = ElementTree.fromstring(to_junit(check(conditions, RESULTS)))
    assert suite.attrib["tests"] == "3"
    assert suite.attrib["failures"] == "1"
    assert suite.attrib["skipped"] == "1"
    cases = suite.findall("testcase")
    assert cases[0].find("failure").attrib["message"] == "idlg (no defence): recovered = 0.2 is > 0.05"
    assert cases[1].find("skipped") is not None
    assert len(cases[2]) == 0
