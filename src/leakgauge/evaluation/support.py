"""The evidence that an attack without success is strong enough to show the absence of leakage.

An attack that finds nothing may be too weak. The verdict on such an attack is "nothing above chance" only if all of
these conditions hold. Otherwise the verdict is "inconclusive".

- The messages are not zero.
- The attack knows the clients' training, or what it assumes was found to be right.
- The time budget did not end the attack early, and had time for its positive controls.
- The attack returned samples, and these samples are not worse than a guess. A result that is worse than a guess shows
  that the attack failed. So does an attack that noticed this itself, and returned a guess.
- The message has too few numbers to determine the samples, or a defence has changed its numbers. If a message
  without noise has at least as many numbers as the samples, its equations may determine them, and the failure of an
  attack only shows the limit of the attack.
- The attack succeeds on easier versions of the same set-up, which are called positive controls. These are one sample
  whose label is known, and a quarter of the client's samples. If a client has a defence, the attack must instead
  succeed without the defence, or the verdict without the defence must be "nothing above chance".
- If the targets cannot be read off the message and are not granted, one of the positive controls is one sample whose
  targets are unknown too. If a client has only one sample, there is no such control, and the attack shows nothing.

In two cases, the verdict is "nothing above chance" even if the attack is weak. In the first case, a guess without the
message is already right, so the message adds nothing. In the second case, a defence has a proof
(:mod:`leakgauge.evaluation.bounds`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from leakgauge.core.measure import Measure
from leakgauge.evaluation.verdict import ATTRIBUTES, Finding, Verdict

#: A result that is this much worse than a guess is worse by more than rounding or luck.
BELOW = {"psnr": 0.5, "features": 0.03, **dict.fromkeys(ATTRIBUTES, 0.03)}
#: From this chance level on, a guess is already right. Images then differ from the guess by less than one grey level,
#: and rows are exact. Lower levels may come from black pixels or zeros alone, and what differs from them is private.
RIGHT = {"psnr": 48.0, "rows": 0.98}

#: The reason for an inconclusive verdict on an attack that Ctrl-C ended.
INTERRUPTED = "Ctrl-C ended this attack before it was done. Run the same command again."
#: The reason for an inconclusive verdict on an attack that had too little time.
TOO_LITTLE_TIME = (
    "The budget was too small for this attack or for its positive controls. Give it more time with --budget."
)
#: The beginning of the reason if labels leak, and the attack is too weak to say anything about the samples.
SAMPLES_OPEN = "Samples may leak too."
#: The reason for an inconclusive verdict on a message that may determine all samples.
MAY_DETERMINE = (
    "The message has at least as many numbers as the samples, and no noise, so a stronger attack may find the samples."
)
#: The same for a capture, whose defences may be unknown.
MAY_DETERMINE_CAPTURE = (
    "The message has at least as many numbers as the samples, and no noise is known, so a stronger attack may find the "
    "samples."
)
#: The reason for an inconclusive verdict on an attack that gave up its samples for a guess.
FAILED = (
    "The attack failed and returned a guess, so it says nothing about stronger attacks, such as one with public data."
)
#: The reason for an inconclusive verdict on clients whose messages are zero.
ZERO_UPDATE = (
    "The updates of the attacked clients are zero, so these messages hold nothing. This says nothing about clients or "
    "rounds with other updates. Check the learning rate and the recipe."
)
#: The reason for a result without samples on a rung of the ladder.
NOT_FOUND = "The attack did not find the samples of this version. No positive control was run, so this is no all-clear."
#: The name of the positive control with a single sample.
ONE_SAMPLE = "one sample, label known"
#: The name of the positive control with a single sample whose targets the attack has to find too.
TARGETS_UNKNOWN = "one sample, targets unknown"
#: The reason for an inconclusive verdict on an attack that has to find the targets too, and was not seen to find any.
TARGETS_OPEN = (
    "The attacker does not know the targets, and the attack may have failed only because it did not find them. Grant "
    "them to see what it recovers then."
)


def control_sizes(samples: int) -> dict[str, int]:
    """Return a dictionary from the names of the positive controls (easier set-ups) to their numbers of samples.

    >>> control_sizes(16)
    {'one sample, label known': 1, '4 samples, labels known': 4}

    Args:
        samples: The number of the client's samples.
    """
    quarter = -(-samples // 4)
    return {ONE_SAMPLE: 1} | ({} if quarter == 1 else {f"{quarter} samples, labels known": quarter})


@dataclass(frozen=True)
class Evidence:
    """The evidence about the strength of one attack on one set-up.

    Args:
        controls: A dictionary from the names of the positive controls (easier versions of the set-up) to the results of
            the attack on them, from the easiest control to the hardest.
        undefended: The result of the same attack without the defence. ``None`` if the set-up has no defence.
        cut_short: Whether the budget ended the attack before it had done its steps, or had no time for its controls.
        determined: The reason why a stronger attack may find the samples, such as :data:`MAY_DETERMINE`. The text is
            empty if the message has too few numbers, or if a defence has removed information from it.
        unknown_targets: Whether the attack has to find targets that are neither granted nor classes.
        zero: Whether the messages of all attacked clients are zero.
        unknown_recipe: The reason why the attack may have failed because it does not know the clients' training. The
            text is empty if there is none.
        failed: Whether the attack failed by its own reckoning for a client, and returned a guess in its place.
        proof: A sentence that proves the absence of leakage, such as a bound of differential privacy. It is empty if
            there is no proof.
    """

    controls: Mapping[str, Finding]
    undefended: Finding | None = None
    cut_short: bool = False
    determined: str = ""
    unknown_targets: bool = False
    zero: bool = False
    unknown_recipe: str = ""
    failed: bool = False
    proof: str = ""


def with_support(finding: Finding, evidence: Evidence) -> Finding:
    """Add the reason for the verdict to a result. A verdict of no leakage becomes inconclusive if evidence is missing.

    Args:
        finding: The result of an attack on a set-up, with its measures and its verdict.
        evidence: The evidence about the strength of the attack on this set-up.
    """
    labels_only = finding.verdict is Verdict.RECOVERS_ATTRIBUTES
    if not finding.about_samples:
        return _about_attributes(finding, evidence)
    if not (labels_only or finding.verdict is Verdict.NOTHING_ABOVE_CHANCE):
        return finding
    if evidence.proof:
        return replace(finding, reason=evidence.proof)
    if _guess_is_right(finding.measures):
        return replace(finding, reason="A guess without the message is already right, so the message adds nothing.")
    weakness = _weakness(finding, evidence) or evidence.determined
    if labels_only:
        words = f"{SAMPLES_OPEN} {weakness}" if weakness else _strength(evidence)
        return replace(finding, reason=_joined(words, finding.reason))
    if weakness:
        return replace(finding, verdict=Verdict.INCONCLUSIVE, reason=_joined(weakness, finding.reason))
    return replace(finding, reason=_joined(_strength(evidence), finding.reason))


def without_evidence(finding: Finding) -> Finding:
    """Return a result that no positive control supports. A verdict of no leakage becomes inconclusive.

    Args:
        finding: The result of an attack on a version of a set-up.
    """
    if finding.verdict is not Verdict.NOTHING_ABOVE_CHANCE:
        return finding
    return replace(finding, verdict=Verdict.INCONCLUSIVE, reason=NOT_FOUND)


def _about_attributes(finding: Finding, evidence: Evidence) -> Finding:
    """Add the reason for the verdict to a result about attributes or owners of records, which needs no controls."""
    if finding.verdict is not Verdict.NOTHING_ABOVE_CHANCE:
        return finding
    if evidence.proof:
        return replace(finding, reason=evidence.proof)
    below = below_chance(finding.measures)
    return finding if below is None else replace(finding, verdict=Verdict.INCONCLUSIVE, reason=_failed(below))


def _failed(below: Measure) -> str:
    return (
        f"The result is worse than a guess ({below.name} {below.value:.3g}, chance {below.chance:.3g}), so the attack "
        "failed."
    )


def _weakness(finding: Finding, evidence: Evidence) -> str:
    """Return a sentence about why an attack is too weak to show the absence of leakage, or an empty text."""
    return _own_weakness(finding, evidence) or _weakness_elsewhere(evidence)


def _own_weakness(finding: Finding, evidence: Evidence) -> str:
    """Return a sentence about why an attack failed on the set-up itself, or an empty text."""
    if evidence.zero:
        return ZERO_UPDATE
    if evidence.unknown_recipe:
        return evidence.unknown_recipe
    if evidence.cut_short:
        return TOO_LITTLE_TIME
    if evidence.failed:
        return FAILED
    if finding.returned_nothing:
        missing = "no sample" if "psnr" in finding.measures else "no sample, or no right value,"
        return f"The attack returned {missing} for some clients."
    below = below_chance(finding.measures)
    return "" if below is None else _failed(below)


def _weakness_elsewhere(evidence: Evidence) -> str:
    """Return a sentence about why an attack is too weak on other versions of the set-up, or an empty text."""
    if evidence.undefended is not None and evidence.undefended.verdict is not Verdict.RECOVERS_DATA:
        if evidence.undefended.verdict is Verdict.NOTHING_ABOVE_CHANCE:
            return ""
        return "The attack recovers nothing without the defence either, so the defence was not tested."
    failed = [name for name, control in evidence.controls.items() if control.verdict is not Verdict.RECOVERS_DATA]
    if failed and evidence.undefended is None:
        if evidence.controls[failed[0]].reason == TOO_LITTLE_TIME:
            return TOO_LITTLE_TIME
        return f"The attack recovers nothing on an easier version of this set-up either ({failed[0]})."
    if evidence.unknown_targets and evidence.undefended is None and TARGETS_UNKNOWN not in evidence.controls:
        return TARGETS_OPEN
    if not evidence.controls and evidence.undefended is None:
        return "The attack was not tried on an easier version of this set-up."
    return ""


def _joined(*sentences: str) -> str:
    return " ".join(sentence for sentence in sentences if sentence)


def _strength(evidence: Evidence) -> str:
    if evidence.undefended is not None and evidence.undefended.verdict is Verdict.RECOVERS_DATA:
        return "The same attack recovers data without the defence, so it is strong enough to test the defence."
    if evidence.undefended is not None:
        return "Nothing comes back without the defence either, although the attack succeeds on easier versions."
    easier = ", ".join(evidence.controls)
    return f"The same attack recovers data on easier versions of this set-up ({easier}), so it works on this model."


def _guess_is_right(measures: Mapping[str, Measure]) -> bool:
    chances = {metric: measures[metric].chance for metric in RIGHT if metric in measures}
    return any(chance is not None and chance >= RIGHT[metric] for metric, chance in chances.items())


def below_chance(measures: Mapping[str, Measure]) -> Measure | None:
    """Return a measure that is clearly worse than a guess, or ``None`` if there is no such measure."""
    for metric, margin in BELOW.items():
        measure = measures.get(metric)
        if measure is not None and measure.excess is not None and measure.excess < -margin:
            return measure
    return None
