"""Conditions that make a check in continuous integration fail.

A condition compares a value with a limit. If the comparison is true, the check fails.

=========================  ==========================================================================
condition                  the value that is compared
=========================  ==========================================================================
``recovered > 0.05``       the mean over clients, for each attack
``idlg.psnr >= 20``        the mean over clients, for one attack
``worst(psnr) > 25``       the value of the client that leaks most
``excess(psnr) > 3``       the difference from chance, positive if the attacker does better than chance
``leaks``                  whether the verdict on any attack is that data leaks
``inconclusive``           whether the verdict on any set-up is that all attacks on it are too weak, or that the recipe
                           does not explain the messages
=========================  ==========================================================================

A check passes only if the value was measured. It also fails if no attack measured the value, if the value is not a
number, if a set-up or a client was left out, or if the verdict does not decide whether data leaks.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, get_args
from xml.etree import ElementTree

from leakgauge.core.errors import InvalidInput, UnknownName
from leakgauge.core.measure import Measure
from leakgauge.core.text import clean
from leakgauge.evaluation.metrics.registry import METRICS
from leakgauge.evaluation.verdict import Finding, Verdict, together

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
    """A condition under which the check of a set-up fails.

    Args:
        metric: The metric that is compared, or ``"leaks"`` or ``"inconclusive"`` for the verdict.
        sign: The comparison, such as ``">"``.
        limit: The value that the metric is compared with.
        attack: The attack that the condition is about. By default, all attacks.
        statistic: ``"mean"`` compares the mean over clients, ``"worst"`` the value of the client that leaks most, and
            ``"excess"`` the mean difference from chance.
    """

    metric: str
    sign: str = ">"
    limit: float = 0.0
    attack: str | None = None
    statistic: Statistic = "mean"

    @property
    def name(self) -> str:
        """The name of the compared value, such as ``worst(psnr)``."""
        return self.metric if self.statistic == "mean" else f"{self.statistic}({self.metric})"

    def __str__(self) -> str:
        attack = f"{self.attack}." if self.attack else ""
        return f"{attack}{self.name}" if self.on_verdict else f"{attack}{self.name} {self.sign} {self.limit:g}"

    @property
    def on_verdict(self) -> bool:
        """Whether the condition is about the verdict and not about a metric."""
        return self.metric in ("leaks", "inconclusive")

    def concerns(self, finding: Finding) -> bool:
        """Return whether the condition applies to a finding, which is the result of one attack."""
        return self.attack in (None, finding.attack)

    def value(self, finding: Finding) -> float | None:
        """Return the value that the condition compares, from an attack's result, or ``None`` if it was not measured."""
        if self.on_verdict:
            return _of_verdict(finding.verdict, self.metric)
        measure = finding.measures.get(self.metric)
        value = None if measure is None else _statistic(measure, self.statistic)
        return None if value is None or math.isnan(value) else value

    def covers(self, finding: Finding, clients: int) -> bool:
        """Return whether the finding holds the compared value, measured on at least the given number of clients."""
        named = finding.measures.values() if self.on_verdict else [finding.measures.get(self.metric)]
        return self.value(finding) is not None and any(one is not None and one.n >= clients for one in named)

    def breaks(self, finding: Finding) -> bool:
        """Return whether the condition is true for the result of an attack, so that the check fails."""
        value = self.value(finding)
        return value is not None and _COMPARE[self.sign](value, self.limit)


def _of_verdict(verdict: Verdict, word: str) -> float | None:
    """Return 1 if the word ``"leaks"`` or ``"inconclusive"`` describes a verdict, and 0 otherwise.

    A verdict that the recipe does not fit counts as inconclusive.

    For ``"leaks"``, the result is ``None`` if the verdict does not decide whether data leaks.
    """
    if word == "inconclusive":
        return float(verdict in (Verdict.UNEXPLAINED, Verdict.INCONCLUSIVE))
    return None if verdict.leaks is None else float(verdict.leaks)


def _statistic(measure: Measure, statistic: Statistic) -> float | None:
    return {"mean": measure.value, "worst": measure.worst, "excess": measure.excess}[statistic]


@dataclass(frozen=True)
class Check:
    """The result of one condition for one attack.

    Args:
        condition: The condition that was checked.
        attack: The attack whose value was compared.
        setup: The set-up that was attacked.
        value: The value that was compared. ``None`` if the value was not measured.
        failed: Whether the check fails, because the condition is true or the value was not measured.
    """

    condition: Condition
    attack: str
    setup: str
    value: float | None
    failed: bool

    @property
    def broken(self) -> bool:
        """Whether the value was measured and breaks the limit."""
        return self.failed and self.value is not None

    def sentence(self) -> str:
        """Return a sentence about the compared value and the limit."""
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
    """Return the condition that a text describes.

    Args:
        text: The condition as it is written on the command line.
        attacks: The attacks that will run. A condition on another attack is refused.
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


def check(
    conditions: Sequence[Condition], findings: Sequence[Finding], clients: Mapping[str, int] | None = None
) -> list[Check]:
    """Compare every condition with the results of the attacks that it applies to, and return the checks.

    If a value was not measured where the condition needs it, there is a failed check without a value.

    Args:
        conditions: The conditions under which the check fails.
        findings: The results of the attacks.
        clients: A dictionary from the title of each set-up that must be measured to the number of its clients. By
            default, the set-ups in ``findings`` are enough.
    """
    checks: list[Check] = []
    for condition in conditions:
        concerned = [finding for finding in findings if condition.concerns(finding)]
        made = _made(condition, concerned)
        for setup, number in (clients or {}).items():
            mine = [finding for finding in concerned if finding.setup == setup]
            if not any(condition.covers(finding, number) for finding in mine):
                made.append(_unmeasured(condition, setup))
        checks += made or [_unmeasured(condition, "not measured")]
    return checks


def _made(condition: Condition, findings: Sequence[Finding]) -> list[Check]:
    """Return the checks of one condition on the given findings."""
    if condition.on_verdict and condition.attack is None:
        return [one for setup, group in _by_setup(findings).items() for one in _on_verdicts(condition, setup, group)]
    # An attack that measured the value once must have measured it everywhere.
    able = {finding.attack for finding in findings if condition.on_verdict or condition.metric in finding.measures}
    return [_of(condition, finding) for finding in findings if finding.attack in able]


def _on_verdicts(condition: Condition, setup: str, findings: Sequence[Finding]) -> list[Check]:
    """Return the checks of a condition about the verdict of all attacks on one set-up together."""
    whole = Finding("all attacks", setup, {}, together(findings))
    if condition.metric == "inconclusive":
        return [_of(condition, whole)]
    decided = [finding for finding in findings if finding.verdict.leaks is not None]
    open_question = whole.verdict.leaks is None
    return [*(_of(condition, one) for one in decided), *([_unmeasured(condition, setup)] if open_question else [])]


def _of(condition: Condition, finding: Finding) -> Check:
    value = condition.value(finding)
    return Check(condition, finding.attack, finding.title, value, value is None or condition.breaks(finding))


def _unmeasured(condition: Condition, setup: str) -> Check:
    return Check(condition, condition.attack or "any attack", setup, None, failed=True)


def _by_setup(findings: Sequence[Finding]) -> dict[str, list[Finding]]:
    groups: dict[str, list[Finding]] = {}
    for finding in findings:
        groups.setdefault(finding.setup, []).append(finding)
    return groups


def to_junit(checks: Sequence[Check], name: str = "leakgauge") -> bytes:
    """Return the checks as JUnit XML, which continuous integration systems show.

    Args:
        checks: The results of the conditions.
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
    for element in suite.iter():  # XML cannot hold control characters, which titles may have
        element.text = None if element.text is None else clean(element.text)
        element.attrib.update({name: clean(value) for name, value in element.attrib.items()})
    ElementTree.indent(suite)
    return b'<?xml version="1.0" encoding="utf-8"?>\n' + ElementTree.tostring(suite)
