"""The section of an audit's page that explains the verdict: its reason, what it does not cover, and what to do next."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from leakgauge.evaluation.support import SAMPLES_OPEN, TOO_LITTLE_TIME
from leakgauge.evaluation.verdict import Verdict
from leakgauge.reports.page import Section

if TYPE_CHECKING:
    from leakgauge.workflows.audit.run import Audit

_NEXT = {
    Verdict.RECOVERS_DATA: (
        "treat these updates like the data itself. Add a defence as [[defence]] to the configuration, such as noise, "
        "DP-SGD or secure aggregation, and run the audit again."
    ),
    Verdict.RECOVERS_ATTRIBUTES: (
        "decide whether the labels or the inferred attribute are private. If they are, add a defence as [[defence]] to "
        "the configuration, and run the audit again."
    ),
    Verdict.INCONCLUSIVE: (
        "do not release this as safe. Give the attacks more time with --budget, or use DP-SGD with a small epsilon, "
        "whose proof covers attacks that were not tried. The section on why attacks found nothing has more hints."
    ),
    Verdict.NOTHING_ABOVE_CHANCE: (
        "run the audit again whenever the model or the recipe changes, for example in CI with --fail-if leaks. Only a "
        "proof such as that of DP-SGD covers attacks that were not tried."
    ),
}
_SAMPLES_OPEN = (
    " Nothing is known about the samples, because these attacks are too weak to judge them. Give the attacks more time "
    "with --budget before you rely on it."
)


def meaning(audit: Audit) -> Section:
    """Return a section that explains the verdict to a reader who does not know the attacks.

    Args:
        audit: The result of the audit.
    """
    return Section("What this means", [*_reasons(audit), _scope(audit), *_next_steps(audit)])


def why(audit: Audit) -> str:
    """Return the reasons for the verdicts on the defences as sentences, each reason once.

    Args:
        audit: The result of the audit.
    """
    return " ".join(dict.fromkeys(filter(None, map(audit.reason_for, audit.tried))))


def _reasons(audit: Audit) -> Iterator[str]:
    """Yield one sentence for each defence with the verdict and the reason for the verdict."""
    for title in audit.tried:
        verdict, reason = audit.verdict_on(title), audit.reason_for(title)
        yield f"{title.capitalize() if title.islower() else title}: {verdict}.{f' {reason}' if reason else ''}"


def _scope(audit: Audit) -> str:
    """Return sentences about what the verdict covers and what it does not cover."""
    proof = " The section on what no attack can exceed has a limit for every attack." if audit.plan.bounds else ""
    counting = (
        " The message holds fewer numbers than the samples of a client, so it alone does not determine all of them. It "
        "may still determine single samples."
        if audit.plan.underdetermined
        else ""
    )
    return (
        "What it covers: one message of each client, read by an honest server that knows what the section Threat model "
        "lists. It does not cover servers that change the model to attack, many rounds of the same client, or what the "
        f"trained model itself reveals.{proof}{counting}"
    )


def _next_steps(audit: Audit) -> Iterator[str]:
    """Yield sentences about what to do next."""
    if not audit.complete:
        yield "What to do next: run the same command again, because this audit is not complete."
        return
    safe = [title for title in audit.tried if audit.verdict_on(title) is Verdict.NOTHING_ABOVE_CHANCE]
    if audit.verdict.leaks and safe:
        named = " or ".join(f"“{title}”" for title in safe)
        yield (
            f"What to do next: prefer {named}, where these attacks found nothing above chance, and measure with "
            "leakgauge frontier how much accuracy the defence costs."
        )
    elif audit.verdict is Verdict.INCONCLUSIVE and _all_late(audit):
        yield "What to do next: run the audit again with a larger --budget. Until then, nothing is known."
    elif audit.verdict is Verdict.NOTHING_ABOVE_CHANCE and audit.plan.bounds:
        yield (
            "What to do next: check that real clients add the same noise. Count every round in which a client takes "
            "part, because each of them uses up privacy. Run the audit again when the model or the recipe changes."
        )
    elif audit.verdict in _NEXT:
        yield f"What to do next: {_NEXT[audit.verdict]}{_SAMPLES_OPEN if _samples_are_open(audit) else ''}"


def _samples_are_open(audit: Audit) -> bool:
    """Return whether only labels came back, and no attack was strong enough to say anything about the samples."""
    reasons = [audit.reason_for(title) for title in audit.tried if audit.verdict_on(title) is audit.verdict]
    return audit.verdict is Verdict.RECOVERS_ATTRIBUTES and any(one.startswith(SAMPLES_OPEN) for one in reasons)


def _all_late(audit: Audit) -> bool:
    reasons = {one.reason for one in audit.findings if one.verdict is Verdict.INCONCLUSIVE}
    return reasons == {TOO_LITTLE_TIME}
