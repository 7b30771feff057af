"""Limits that a set-up must keep, for continuous integration.

=========================  ==========================================================================
``recovered > 0.05``       the mean over clients, for any attack
``idlg.psnr >= 20``        the mean over clients, for one attack
``worst(psnr) > 25``       the value of the client that leaks most
``excess(psnr) > 3``       the difference from chance, positive if the attacker does better than chance
``leaks``                  a verdict of any attack that data leaks
``inconclusive``           a verdict of any attack that it is too weak
=========================  ==========================================================================

A limit that nothing measured counts as broken.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, get_args
from xml.etree import ElementTree

from leakgauge.core.errors import InvalidInput, UnknownName
from leakgauge.core.measure import Measure
from leakgauge.evaluation.metrics.registry import METRICS
from leakgauge.evaluation.verdict import Finding, Verdict

Statistic = Literal["mean", "worst", "excess"]
_COMPARE: dict[str, Callable[[float, float], bool]] = {
    ">": operator.gt, ">=": operator.ge, "<": operator.lt, "<=": operator.le,
}  # fmt: skip
_FORM = re.compile(
    r"^(?:(?P<attack>\w+)\.)?(?:(?P<statistic>\w+)\()?(?P<metric>\w+)\)?\s*(?P<sign>>=|<=|>|<)\s*(?P<limit>\S+)$"
)
_VERDICT = re.compile(r"^(?:(?P<attack>\w+)\.)?(?P<verdict>leaks|inconclusive)$")


@dataclass(frozen=True)
class Condition:
    """One way for a set-up to fail.

    Args:
        metric: The metric that is compared, or ``"leaks"`` or ``"inconclusive"`` for the verdict.
        sign: The comparison, such as ``">"``.
        limit: The number to compare with.
        attack: The attack that the condition is about. By default, all attacks.
        statistic: The mean over clients, the value of the worst client, or the mean difference from chance.
    """

    metric: str
    sign: str = ">"
    limit: float = 0.0
    attack: str | None = None
    statistic: Statistic = "mean"

    @property
    def name(self) -> str:
        """The compared number, such as ``worst(psnr)``."""
        return self.metric if self.statistic == "mean" else f"{self.statistic}({self.metric})"

    def __str__(self) -> str:
        attack = f"{self.attack}." if self.attack else ""
        return f"{attack}{self.name}" if self.on_verdict else f"{attack}{self.name} {self.sign} {self.limit:g}"

    @property
    def on_verdict(self) -> bool:
        """Whether the condition is about the verdict and not about a figure."""
        return self.metric in ("leaks", "inconclusive")

    def concerns(self, finding: Finding) -> bool:
        """Return whether the condition is about the attack of a finding."""
        return self.attack in (None, finding.attack)

    def value(self, finding: Finding) -> float | None:
        """Return the number that is compared, or ``None`` if it was not measured."""
        if self.on_verdict:
            return _of_verdict(finding.verdict, self.metric)
        measure = finding.measures.get(self.metric)
        return None if measure is None else _statistic(measure, self.statistic)

    def breaks(self, finding: Finding) -> bool:
        """Return whether a finding breaks the limit."""
        value = self.value(finding)
        return value is not None and _COMPARE[self.sign](value, self.limit)


def _of_verdict(verdict: Verdict, word: str) -> float | None:
    """Return 1 if a word is true of a verdict, 0 if it is not, and ``None`` if that is not known."""
    if word == "inconclusive":
        return float(verdict is Verdict.INCONCLUSIVE)
    return None if verdict.leaks is None else float(verdict.leaks)


def _statistic(measure: Measure, statistic: Statistic) -> float | None:
    return {"mean": measure.value, "worst": measure.worst, "excess": measure.excess}[statistic]


@dataclass(frozen=True)
class Check:
    """One condition on one attack.

    Args:
        condition: The condition.
        attack: The attack that was compared.
        setup: The set-up that it attacked.
        value: The number that was compared. ``None`` if it was not measured.
        failed: Whether the limit is broken.
    """

    condition: Condition
    attack: str
    setup: str
    value: float | None
    failed: bool

    def sentence(self) -> str:
        """Return what was compared, in words."""
        where = f"{self.attack} ({self.setup})"
        if self.value is None:
            return f"{where}: {self.condition.metric} was not measured"
        if self.condition.on_verdict:
            words = {"leaks": ("leaks", "does not leak"), "inconclusive": ("is inconclusive", "is not inconclusive")}
            return f"{where}: {words[self.condition.metric][0 if self.failed else 1]}"
        verb = "is" if self.failed else "is not"
        return (
            f"{where}: {self.condition.name} = {self.value:.4g} {verb} {self.condition.sign} {self.condition.limit:g}"
        )


def read_condition(text: str, attacks: Sequence[str]) -> Condition:
    """Return the condition in a text.

    Args:
        text: The condition as it is written on the command line.
        attacks: The attacks that will run. A condition on another one is refused.
    """
    stripped = text.strip()
    match = _VERDICT.match(stripped) or _FORM.match(stripped)
    if match is None or text.count("(") != text.count(")"):
        raise InvalidInput(
            f"--fail-if {text!r} is not a condition. Write for example 'recovered > 0.05', 'idlg.psnr > 20' or 'leaks'"
        )
    attack = match["attack"]
    if attack is not None and attack not in attacks:
        raise UnknownName(f"attack in this run for --fail-if {text!r} called", attack, attacks)
    if match.re is _VERDICT:
        return Condition(match["verdict"], attack=attack)
    if match["metric"] not in METRICS:
        raise UnknownName(f"metric for --fail-if {text!r} called", match["metric"], [*METRICS, "leaks", "inconclusive"])
    statistic = match["statistic"] or "mean"
    if statistic not in get_args(Statistic):
        raise UnknownName(f"statistic for --fail-if {text!r} called", statistic, get_args(Statistic))
    return Condition(match["metric"], match["sign"], _limit(text, match["limit"]), attack, statistic)  # type: ignore[arg-type]


def _limit(text: str, number: str) -> float:
    try:
        limit = float(number)
    except ValueError as problem:
        raise InvalidInput(f"--fail-if {text!r}: {number!r} is not a number") from problem
    if limit != limit:
        raise InvalidInput(f"--fail-if {text!r}: nothing can be compared with NaN")
    return limit


def check(conditions: Sequence[Condition], findings: Sequence[Finding]) -> list[Check]:
    """Return every condition on every finding that it concerns.

    A condition that no finding has measured is one broken check.

    Args:
        conditions: The limits.
        findings: What the attacks found.
    """
    checks = []
    for condition in conditions:
        concerned = [finding for finding in findings if condition.concerns(finding)]
        values = [condition.value(finding) for finding in concerned]
        for finding, value in zip(concerned, values, strict=True):
            if value is not None:
                checks.append(Check(condition, finding.attack, finding.title, value, condition.breaks(finding)))
        if all(value is None for value in values):
            checks.append(Check(condition, condition.attack or "any attack", "not measured", None, failed=True))
    return checks


def to_junit(checks: Sequence[Check], name: str = "leakgauge") -> bytes:
    """Return the checks as JUnit XML, which continuous integration systems show.

    Args:
        checks: The limits and what they were compared with.
        name: The name of the test suite.
    """
    failed = sum(one.failed for one in checks)
    suite = ElementTree.Element("testsuite", name=name, tests=str(len(checks)), failures=str(failed), errors="0")
    for one in checks:
        case = ElementTree.SubElement(
            suite, "testcase", classname=f"{name}.{one.attack}", name=f"{one.setup}: not {one.condition}"
        )
        if one.failed:
            ElementTree.SubElement(case, "failure", message=one.sentence(), type="leak").text = one.sentence()
    ElementTree.indent(suite)
    return b'<?xml version="1.0" encoding="utf-8"?>\n' + ElementTree.tostring(suite)
