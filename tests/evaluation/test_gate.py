"""Limits are read, compared with figures, and written for continuous integration."""

from functools import cache
from xml.etree import ElementTree

import pytest

from leakgauge.core.errors import InvalidInput, UnknownName
from leakgauge.core.measure import Measure
from leakgauge.evaluation.gate import Condition, check, read_condition, to_junit
from leakgauge.evaluation.verdict import Finding, Verdict, over_clients


@cache
def findings():
    """Return the findings of two attacks on two clients."""
    scores = [
        {"psnr": Measure("psnr", mean, chance=12.0), "recovered": Measure("recovered", share, chance=0.0)}
        for mean, share in ((20, 0.1), (30, 0.3))
    ]
    verdicts = {"idlg": Verdict.RECOVERS_DATA, "agic": Verdict.NOTHING_ABOVE_CHANCE}
    measures = over_clients(scores)
    return [Finding(attack, "no defence", measures, verdict) for attack, verdict in verdicts.items()]


@pytest.mark.parametrize(
    ("text", "condition", "holds"),
    [
        ("recovered > 0.05", Condition("recovered", ">", 0.05), True),
        ("recovered>0.2", Condition("recovered", ">", 0.2), False),
        (" psnr >= 25 ", Condition("psnr", ">=", 25.0), True),
        ("psnr < 1e1", Condition("psnr", "<", 10.0), False),
        ("idlg.psnr <= 25", Condition("psnr", "<=", 25.0, "idlg"), True),
        ("worst(psnr) > 29", Condition("psnr", ">", 29.0, statistic="worst"), True),
        ("agic.worst(psnr) > 30", Condition("psnr", ">", 30.0, "agic", statistic="worst"), False),
        ("ssim > 0.1", Condition("ssim", ">", 0.1), False),
        ("excess(psnr) > 12", Condition("psnr", ">", 12.0, statistic="excess"), True),
        ("excess(recovered) > 0.15", Condition("recovered", ">", 0.15, statistic="excess"), True),
        ("leaks", Condition("leaks"), True),
        ("idlg.leaks", Condition("leaks", attack="idlg"), True),
        ("inconclusive", Condition("inconclusive"), False),
    ],
)
def test_conditions_are_read_and_compared(text, condition, holds):
    read = read_condition(text, ["idlg", "agic"])
    assert read == condition
    assert read.breaks(findings()[0]) == holds
    assert read_condition(str(read), ["idlg", "agic"]) == condition


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("recovered", "not a condition"),
        ("recovered = 0.05", "not a condition"),
        ("recovered > ", "not a condition"),
        ("worst(psnr > 3", "not a condition"),
        ("recovered > five", "not a number"),
        ("psnr > nan", "NaN"),
        ("recoverd > 0.05", "did you mean 'recovered'"),
        ("dlf.psnr > 3", "'dlf'"),
        ("dlf.leaks", "'dlf'"),
        ("median(psnr) > 3", "'median'"),
    ],
)
def test_wrong_conditions_are_refused_in_words(text, words):
    with pytest.raises((InvalidInput, UnknownName), match=words):
        read_condition(text, ["idlg", "agic"])


def test_every_condition_is_checked_on_every_attack_it_is_about():
    conditions = [
        read_condition(text, ["idlg", "agic"]) for text in ("recovered > 0.05", "idlg.psnr > 90", "ssim > 0.5")
    ]
    checks = check(conditions, findings())
    assert [(one.attack, one.failed) for one in checks] == [
        ("idlg", True), ("agic", True), ("idlg", False), ("any attack", True),
    ]  # fmt: skip
    assert checks[0].sentence() == "idlg (no defence): recovered = 0.2 is > 0.05"
    assert checks[3].sentence() == "any attack (not measured): ssim was not measured"


def test_pictures_that_everybody_guesses_break_no_limit_on_the_excess():
    measures = over_clients([{"recovered": Measure("recovered", 1.0, chance=1.0)}] * 2)
    finding = Finding("idlg", "no defence", measures, Verdict.NOTHING_ABOVE_CHANCE)
    assert read_condition("recovered > 0.05", ["idlg"]).breaks(finding)
    assert not read_condition("excess(recovered) > 0.05", ["idlg"]).breaks(finding)


def test_a_limit_that_nothing_measured_is_broken():
    unscored = Finding("idlg", "3 captures", {}, Verdict.NOT_SCORED)
    assert [one.failed for one in check([Condition("leaks")], [unscored])] == [True]
    assert [one.failed for one in check([Condition("psnr", ">", 5.0)], [])] == [True]
    assert not check([Condition("leaks")], findings()[1:])[0].failed


def test_junit_says_what_failed():
    conditions = [
        read_condition(text, ["idlg", "agic"])
        for text in ("idlg.recovered > 0.05", "agic.ssim > 0.5", "agic.psnr > 90")
    ]
    suite = ElementTree.fromstring(to_junit(check(conditions, findings())))
    assert suite.attrib["tests"] == "3"
    assert suite.attrib["failures"] == "2"
    cases = suite.findall("testcase")
    assert cases[0].find("failure").attrib["message"] == "idlg (no defence): recovered = 0.2 is > 0.05"
    assert "was not measured" in cases[1].find("failure").attrib["message"]
    assert len(cases[2]) == 0


def test_junit_is_valid_whatever_a_title_holds():
    hostile = Finding("idlg\x1b[2J", "a\x00b\ufffe & <c>\udc80", findings()[0].measures, Verdict.RECOVERS_DATA)
    [case] = ElementTree.fromstring(to_junit(check([read_condition("recovered > 0.05", ["idlg"])], [hostile])))
    assert "&" in case.attrib["name"]
    assert all(text.isprintable() for text in (*case.attrib.values(), case[0].attrib["message"]))
