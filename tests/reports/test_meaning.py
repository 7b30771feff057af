"""The page explains the verdict: the reason, what it covers, and what to do next."""

from types import SimpleNamespace

import pytest

from leakgauge.evaluation.support import SAMPLES_OPEN, TOO_LITTLE_TIME
from leakgauge.evaluation.verdict import Finding, Verdict, worst_of
from leakgauge.reports.meaning import meaning, why

DATA, ATTRIBUTES, _, INCONCLUSIVE, NOTHING, _ = Verdict


def audit(verdicts, *, reason="The attack failed.", bounds=(), complete=True, counted=False):
    return SimpleNamespace(
        plan=SimpleNamespace(bounds=dict.fromkeys(bounds), underdetermined=counted),
        tried=list(verdicts),
        verdict=worst_of(verdicts.values()),
        verdict_on=verdicts.get,
        reason_for=lambda title: reason,
        findings=[Finding("idlg", title, {}, verdict, reason=reason) for title, verdict in verdicts.items()],
        complete=complete,
    )


@pytest.mark.parametrize(
    ("verdicts", "options", "words"),
    [
        ({"no defence": DATA}, {}, "Add a defence"),
        ({"no defence": DATA, "noise": NOTHING}, {}, "prefer “noise”"),
        ({"no defence": ATTRIBUTES}, {}, "labels"),
        ({"no defence": ATTRIBUTES}, {"reason": f"{SAMPLES_OPEN} It failed."}, "Nothing is known about the samples"),
        ({"no defence": INCONCLUSIVE}, {}, "do not release this as safe"),
        ({"no defence": INCONCLUSIVE}, {"reason": TOO_LITTLE_TIME}, "larger --budget"),
        ({"no defence": NOTHING}, {}, "whenever the model or the recipe changes"),
        ({"DP-SGD": NOTHING}, {"bounds": ["DP-SGD"]}, "the same noise"),
        ({"no defence": NOTHING}, {"complete": False}, "not complete"),
    ],
)
def test_the_next_step_follows_from_the_verdict(verdicts, options, words):
    *_, scope, next_step = meaning(audit(verdicts, **options)).sentences
    assert words in next_step
    assert next_step.startswith("What to do next: ")
    assert "does not cover" in scope
    assert ("limit for every attack" in scope) == ("bounds" in options)


def test_each_defence_has_its_verdict_and_reason():
    first, second, *_ = meaning(audit({"no defence": DATA, "DP-SGD": INCONCLUSIVE})).sentences
    assert first.startswith("No defence: recovers data.")
    assert second == "DP-SGD: inconclusive. The attack failed."


def test_counting_bounds_all_samples_together_and_no_single_sample():
    *_, scope, _ = meaning(audit({"no defence": NOTHING}, counted=True)).sentences
    assert "does not determine all of them" in scope
    assert "may still determine single samples" in scope


def test_strong_attacks_on_samples_leave_nothing_open():
    *_, next_step = meaning(audit({"no defence": ATTRIBUTES})).sentences
    assert "Nothing is known" not in next_step


def test_each_reason_is_named_once():
    assert why(audit({"no defence": ATTRIBUTES, "noise": INCONCLUSIVE})) == "The attack failed."
    assert why(audit({"no defence": DATA}, reason="")) == ""
