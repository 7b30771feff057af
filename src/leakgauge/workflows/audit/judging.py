"""The verdicts of an audit, from the results of all attacks on all clients and on the positive controls."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from leakgauge.core.measure import Measure
from leakgauge.evaluation.bounds import supports_nothing_found
from leakgauge.evaluation.support import (
    INTERRUPTED,
    ONE_SAMPLE,
    TARGETS_UNKNOWN,
    TOO_LITTLE_TIME,
    Evidence,
    with_support,
)
from leakgauge.evaluation.verdict import Finding, Verdict, judge_against_shuffled, over_clients
from leakgauge.workflows.audit.attackers import measures_of
from leakgauge.workflows.audit.plan import UNDEFENDED, AuditPlan, Work

#: An attack, the title of a defence, and whether the attacker knows the defence.
Key = tuple[str, str, bool]


@dataclass(frozen=True, eq=False)
class ClientResult:
    """The result of one attack on one client.

    Args:
        work: The attack and the client.
        document: The figures and texts of the result, as plain values.
        tensors: The original and the reconstructed samples, and other tensors of the result.
    """

    work: Work
    document: dict[str, Any]
    tensors: dict[str, Tensor]

    @property
    def measures(self) -> dict[str, Measure]:
        """A dictionary from metrics to measures."""
        return measures_of(self.document)

    @property
    def shuffled(self) -> dict[str, Measure]:
        """The same for the control with shuffled messages. It is empty for attacks without public data."""
        return measures_of(self.document, "shuffled")

    @property
    def cut_short(self) -> bool:
        """Whether the budget or Ctrl-C ended the attack before it had done its steps.

        A second attempt is never cut short, because the first attempt has done all steps.
        """
        return self.work.attempt == 0 and bool(self.document.get("cut_short"))

    @property
    def interrupted(self) -> bool:
        """Whether Ctrl-C ended the attack. Such a result counts as cut short, and is replaced by the next run."""
        return bool(self.document.get("interrupted"))


def key_of_work(work: Work) -> Key:
    """Return the key of the finding that an attack on one client belongs to."""
    return work.attack, work.defence, work.knows_defence


def key_of(finding: Finding) -> Key:
    """Return the key of a finding."""
    return finding.attack, finding.setup, finding.knows_defence


def judged(plan: AuditPlan, results: Sequence[ClientResult]) -> list[Finding]:
    """Return the measures and the verdict for each combination of attack, defence and knowledge of the defence.

    These verdicts do not yet consider whether an attack that found nothing is too weak.

    Args:
        plan: The plan of the audit.
        results: One result for each attack on each client.
    """
    findings = []
    for key in dict.fromkeys(key_of_work(result.work) for result in results):
        mine = [result for result in results if key_of_work(result.work) == key]
        scores, shuffled = [result.measures for result in mine], [result.shuffled for result in mine]
        granted = plan.scenario.labels_granted
        verdict, reason = judge_against_shuffled(scores, shuffled, labels_granted=granted)
        attack, defence, knows_defence = key
        findings.append(Finding(attack, defence, over_clients(scores), verdict, knows_defence, reason))
    return findings


def findings_on_versions(results: Iterable[ClientResult], versions: Collection[str]) -> list[Finding]:
    """Return the measures and the verdict of each attack on each of the named versions of the set-up.

    An attack that the budget ended early on such a version, and that found nothing, is inconclusive.

    Args:
        results: Results on any versions of the set-up.
        versions: The names of the versions.
    """
    groups: dict[tuple[str, str], list[ClientResult]] = {}
    for result in results:
        if result.work.control in versions:
            groups.setdefault((result.work.attack, result.work.control), []).append(result)
    return [_on_version(attack, version, group) for (attack, version), group in groups.items()]


def _on_version(attack: str, version: str, results: Sequence[ClientResult]) -> Finding:
    scores, shuffled = [result.measures for result in results], [result.shuffled for result in results]
    verdict, reason = judge_against_shuffled(scores, shuffled, labels_granted=True)
    if verdict is not Verdict.RECOVERS_DATA and any(result.cut_short for result in results):
        verdict, reason = Verdict.INCONCLUSIVE, TOO_LITTLE_TIME
    return Finding(attack, version, over_clients(scores), verdict, reason=reason)


def findings_with_support(
    plan: AuditPlan,
    results: Sequence[ClientResult],
    controls: Sequence[Finding],
    without_controls: Collection[str] = (),
) -> list[Finding]:
    """Return the results with reasons. A verdict of no leakage becomes inconclusive if the attack may be too weak.

    The set-up without a defence is judged first, because the verdicts on defences depend on it.

    Args:
        plan: The plan of the audit.
        results: One result for each attack on each client.
        controls: The findings on the positive controls.
        without_controls: The attacks for whose positive controls the budget had no time.
    """
    cut = {key_of_work(result.work) for result in results if result.cut_short}
    interrupted = {key_of_work(result.work) for result in results if result.interrupted}
    failed = {key_of_work(result.work) for result in results if result.document.get("failed")}
    told = {key_of_work(result.work) for result in results if not result.document.get("zero")}
    findings = {key_of(finding): finding for finding in judged(plan, results)}
    undefended = next((title for title, chain in plan.chains.items() if not chain), None)
    order = sorted(findings, key=lambda key: key[1] != undefended)
    failed_self_test = plan.self_test is not None and plan.self_test.explained is False
    for key in order:
        attack, defence, _ = key
        mine = {one.setup: one for one in controls if one.attack == attack}
        baseline = mine.pop(UNDEFENDED, None) if undefended is None else findings.get((attack, undefended, False))
        if baseline is not None and undefended is None:
            unknown = plan.scenario.targets_unknown
            baseline = with_support(baseline, Evidence(_needed(plan, mine), unknown_targets=unknown))
        bound = plan.bounds.get(defence)
        proof = bound.sentence if bound is not None and supports_nothing_found(bound) else ""
        evidence = Evidence(
            _needed(plan, mine),
            None if defence == undefended else baseline,
            cut_short=key in cut or attack in without_controls,
            determined=plan.determined.get(defence, ""),
            unknown_targets=plan.scenario.targets_unknown,
            zero=key not in told,
            unknown_recipe=plan.self_tested if failed_self_test else "",
            failed=key in failed,
            proof=proof,
        )
        findings[key] = with_support(findings[key], evidence)
        if key in interrupted and findings[key].reason == TOO_LITTLE_TIME:
            findings[key] = replace(findings[key], reason=INTERRUPTED)
    return list(findings.values())


def _needed(plan: AuditPlan, controls: Mapping[str, Finding]) -> dict[str, Finding]:
    """Return the positive controls (easier versions of the set-up) on which an attack must succeed.

    If the message is too small to determine all samples, only the controls with one sample are needed.
    """
    alone = (ONE_SAMPLE, TARGETS_UNKNOWN)
    return {name: one for name, one in controls.items() if not plan.underdetermined or name in alone}


def loss_in(document: dict[str, Any]) -> float:
    """Return the loss of an attack, or infinity if it has none.

    Args:
        document: The result of the attack on a client.
    """
    loss = document.get("loss")
    return math.inf if loss is None else float(loss)
