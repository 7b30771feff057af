"""A limit that a set-up must keep: ``recovered > 0.05`` fails when any attack recovers more than that.

A condition names a metric and a limit, and may name an attack: ``idlg.psnr >= 20``. What is compared is the mean over
clients. ``worst(psnr) > 25`` compares the client that leaks most instead.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from xml.etree import ElementTree

from leakgauge.core.errors import InvalidInput, UnknownName
from leakgauge.core.measure import Measure
from leakgauge.evaluation import METRICS

_COMPARE: dict[str, Callable[[float, float], bool]] = {
    ">": operator.gt, ">=": operator.ge, "<": operator.lt, "<=": operator.le,
}  # fmt: skip
_FORM = re.compile(
    r"^(?:(?P<attack>\w+)\.)?(?:(?P<worst>worst)\()?(?P<metric>\w+)\)?\s*(?P<sign>>=|<=|>|<)\s*(?P<limit>\S+)$"
)


@dataclass(frozen=True)
class Condition:
    """One way for a set-up to fail."""

    metric: str
    sign: str
    limit: float
    attack: str | None = None
    worst: bool = False

    def __str__(self) -> str:
        name = f"worst({self.metric})" if self.worst else self.metric
        return f"{f'{self.attack}.' if self.attack else ''}{name} {self.sign} {self.limit:g}"

    def value(self, figures: Mapping[str, Measure]) -> float | None:
        """The number that is compared, if there is one."""
        figure = figures.get(self.metric)
        if figure is None:
            return None
        return figure.worst if self.worst else figure.value

    def holds(self, figures: Mapping[str, Measure]) -> bool:
        """Whether these figures are a failure."""
        value = self.value(figures)
        return value is not None and _COMPARE[self.sign](value, self.limit)


@dataclass(frozen=True)
class Check:
    """One condition on one attack: what was compared, and whether it failed."""

    condition: Condition
    attack: str
    title: str
    value: float | None
    failed: bool

    def sentence(self) -> str:
        """What was found, in words."""
        where = f"{self.attack} ({self.title})"
        if self.value is None:
            return f"{where}: has no {self.condition.metric}"
        verb = "is" if self.failed else "is not"
        return (
            f"{where}: {self.condition.metric} = {self.value:.4g} {verb} {self.condition.sign} {self.condition.limit:g}"
        )


def read_condition(text: str, attacks: Sequence[str]) -> Condition:
    """A condition from its text; attacks that do not run, metrics that there are not and wrong forms are refused."""
    found = _FORM.match(text.strip())
    if found is None or text.count("(") != text.count(")"):
        raise InvalidInput(
            f"--fail-if {text!r} is no condition; write for example 'recovered > 0.05' or 'idlg.psnr > 20'"
        )
    if found["metric"] not in METRICS:
        raise UnknownName(f"metric for --fail-if {text!r} called", found["metric"], METRICS)
    if found["attack"] is not None and found["attack"] not in attacks:
        raise UnknownName(f"attack in this audit for --fail-if {text!r} called", found["attack"], attacks)
    try:
        limit = float(found["limit"])
    except ValueError as problem:
        raise InvalidInput(f"--fail-if {text!r}: {found['limit']!r} is not a number") from problem
    if limit != limit:
        raise InvalidInput(f"--fail-if {text!r}: nothing compares with NaN")
    return Condition(found["metric"], found["sign"], limit, found["attack"], found["worst"] is not None)


def check(conditions: Sequence[Condition], results: Sequence[tuple[str, str, Mapping[str, Measure]]]) -> list[Check]:
    """Every condition on every result it is about: ``(attack, title, figures)``."""
    return [
        Check(condition, attack, title, condition.value(figures), condition.holds(figures))
        for condition in conditions
        for attack, title, figures in results
        if condition.attack in (None, attack)
    ]


def to_junit(checks: Sequence[Check], name: str = "leakgauge") -> bytes:
    """The checks as JUnit XML, which continuous integration systems show."""
    failed = sum(one.failed for one in checks)
    missing = sum(one.value is None for one in checks)
    suite = ElementTree.Element(
        "testsuite", name=name, tests=str(len(checks)), failures=str(failed), errors="0", skipped=str(missing)
    )
    for one in checks:
        case = ElementTree.SubElement(
            suite, "testcase", classname=f"{name}.{one.attack}", name=f"{one.title}: not {one.condition}"
        )
        if one.failed:
            ElementTree.SubElement(case, "failure", message=one.sentence(), type="leak").text = one.sentence()
        elif one.value is None:
            ElementTree.SubElement(case, "skipped", message=one.sentence())
    ElementTree.indent(suite)
    return b'<?xml version="1.0" encoding="utf-8"?>\n' + ElementTree.tostring(suite)
