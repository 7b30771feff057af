"""A negative verdict needs evidence that the attack is strong enough."""

from dataclasses import replace

import pytest

from leakgauge.core.measure import Measure
from leakgauge.evaluation.support import (
    MAY_DETERMINE,
    TARGETS_UNKNOWN,
    TOO_LITTLE_TIME,
    Evidence,
    below_chance,
    with_support,
)
from leakgauge.evaluation.verdict import Finding, Verdict

DATA, ATTRIBUTES, _, INCONCLUSIVE, NOTHING, _ = Verdict


def finding(verdict=NOTHING, psnr=12.0, chance=12.0, worst=13.0, metric="psnr"):
    return Finding("idlg", "as it is", {metric: Measure(metric, psnr, chance=chance, worst=worst)}, verdict)


PASSED = {"one sample": finding(DATA, 40.0)}
FAILED = {"one sample": finding(DATA, 40.0), "4 samples": finding(NOTHING)}

FOUND, LOST = ({TARGETS_UNKNOWN: one} for one in (finding(DATA, 40.0), finding(NOTHING)))
LATE = {"one sample": replace(finding(INCONCLUSIVE), reason=TOO_LITTLE_TIME)}


@pytest.mark.parametrize(
    ("found", "evidence", "verdict", "words"),
    [
        (finding(), Evidence(PASSED), NOTHING, "recovers data on easier versions"),
        (finding(), Evidence(FAILED), INCONCLUSIVE, "4 samples"),
        (finding(), Evidence(LATE), INCONCLUSIVE, "--budget"),
        (finding(), Evidence({}), INCONCLUSIVE, "not tried on an easier version"),
        (finding(), Evidence(PASSED, cut_short=True), INCONCLUSIVE, "--budget"),
        (finding(psnr=5.6), Evidence(PASSED), INCONCLUSIVE, "worse than a guess"),
        (finding(psnr=11.7), Evidence(PASSED), NOTHING, "easier versions"),
        (finding(worst=0.0), Evidence(PASSED), INCONCLUSIVE, "returned no sample"),
        (finding(psnr=98.0, chance=99.0), Evidence({}), NOTHING, "guess without the message is already right"),
        (finding(), Evidence({}, undefended=finding(DATA, 40.0)), NOTHING, "without the defence"),
        (finding(), Evidence(PASSED, undefended=finding(INCONCLUSIVE)), INCONCLUSIVE, "without the defence either"),
        (finding(), Evidence(PASSED, undefended=finding(NOTHING)), NOTHING, "Nothing comes back without the defence"),
        (finding(psnr=5.6), Evidence({}, proof="No attack can."), NOTHING, "No attack can."),
        (
            finding(),
            Evidence(PASSED, determined=MAY_DETERMINE),
            INCONCLUSIVE,
            "at least as many numbers as the samples",
        ),
        (
            finding(),
            Evidence({}, undefended=finding(DATA, 40.0), determined=MAY_DETERMINE),
            INCONCLUSIVE,
            "stronger attack",
        ),
        (finding(psnr=98.0, chance=99.0), Evidence({}, determined=MAY_DETERMINE), NOTHING, "already right"),
        (finding(), Evidence({}, determined=MAY_DETERMINE, proof="No attack can."), NOTHING, "No attack can."),
        (finding(), Evidence(PASSED, unknown_targets=True), INCONCLUSIVE, "does not know the targets"),
        (finding(), Evidence(PASSED | FOUND, unknown_targets=True), NOTHING, "targets unknown"),
        (finding(), Evidence(PASSED | LOST, unknown_targets=True), INCONCLUSIVE, "targets unknown"),
        (finding(), Evidence({}, undefended=finding(DATA, 40.0), unknown_targets=True), NOTHING, "without the defence"),
        (finding(DATA, 40.0), Evidence({}, unknown_targets=True), DATA, ""),
        (finding(DATA, 40.0), Evidence({}), DATA, ""),
    ],
)
def test_only_strong_attacks_support_a_negative_verdict(found, evidence, verdict, words):
    judged = with_support(found, evidence)
    assert judged.verdict is verdict
    assert words in judged.reason


def test_leaked_labels_stay_a_leak_and_the_samples_stay_open():
    weak = with_support(finding(ATTRIBUTES, psnr=5.0), Evidence(PASSED))
    assert weak.verdict is ATTRIBUTES
    assert "Samples may leak too" in weak.reason
    assert (
        "Samples may leak too" in with_support(finding(ATTRIBUTES), Evidence(PASSED, determined=MAY_DETERMINE)).reason
    )
    assert "Samples may leak too" not in with_support(finding(ATTRIBUTES), Evidence(PASSED)).reason


def test_attacks_on_attributes_need_no_control():
    about_sex = finding(NOTHING, psnr=0.5, chance=0.5, metric="attribute_accuracy")
    assert with_support(about_sex, Evidence({})) is about_sex


@pytest.mark.parametrize("metric", ["attribute_accuracy", "source_accuracy"])
def test_inferring_less_than_a_guess_is_no_evidence_of_safety(metric):
    below = finding(NOTHING, psnr=0.6, chance=0.83, metric=metric)
    judged = with_support(below, Evidence({}, undefended=finding(ATTRIBUTES, 1.0, 0.83, metric=metric)))
    assert judged.verdict is INCONCLUSIVE
    assert "worse than a guess" in judged.reason
    assert with_support(below, Evidence({}, proof="No attack can.")).verdict is NOTHING
    leaks = finding(ATTRIBUTES, psnr=0.6, chance=0.83, metric=metric)
    assert with_support(leaks, Evidence({})) is leaks


def test_tables_can_be_below_chance_too():
    assert below_chance({"features": Measure("features", 0.4, chance=0.55)}) is not None
    assert below_chance({"features": Measure("features", 0.54, chance=0.55)}) is None
    assert below_chance({"psnr": Measure("psnr", 5.0)}) is None  # there is no guess to compare with


def test_a_guess_that_is_right_about_zeros_is_not_right():
    """Rows of rare words and pictures of one bright pixel are nearly all zeros, and the rest is private."""

    def judged(**figures):
        measures = {name: Measure(name, value, chance=chance, worst=value) for name, (value, chance) in figures.items()}
        return with_support(Finding("idlg", "as it is", measures, NOTHING), Evidence({})).verdict

    assert judged(features=(0.93, 0.982), rows=(0.0, 0.0)) is INCONCLUSIVE
    assert judged(features=(0.99, 0.99), rows=(0.99, 0.99)) is NOTHING
    assert judged(psnr=(35.0, 36.0)) is INCONCLUSIVE
    assert judged(psnr=(53.0, 54.0)) is NOTHING
