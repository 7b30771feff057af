"""Every audit repeats its own simulation, and a failure of this self-test supports no all-clear."""

from dataclasses import replace

import pytest

from leakgauge.evaluation.recipe_check import RecipeCheck
from leakgauge.evaluation.verdict import Verdict
from leakgauge.workflows.audit import read_audit, run_audit
from leakgauge.workflows.audit.self_test import self_test, sentence_of
from leakgauge.workflows.result import Running

TRAINING = {"samples": 4, "lr": 0.1, "epochs": 3, "batch_size": 2}
DOCUMENT = {
    "model": {"name": "lenet", "options": {"shape": [1, 8, 8], "classes": 10}}, "data": {"name": "digits"},
    "training": TRAINING, "audit": {"attacks": [{"name": "inverting_gradients", "steps": 2}], "clients": 1},
}  # fmt: skip


def plan(**tables):
    return read_audit({**DOCUMENT, **tables}, "audit.toml")


@pytest.mark.parametrize(
    "training",
    [
        {}, {"momentum": 0.9, "nesterov": True}, {"optimiser": "adam", "schedule": "cosine"}, {"sends": "gradient"},
        {"clip_norm": 0.5, "proximal": 0.1, "label_smoothing": 0.1, "weight_decay": 0.01}, {"mode": "eval"},
    ],
)  # fmt: skip
def test_the_simulation_of_an_audit_replays_to_rounding(training):
    found = plan(training={**TRAINING, **training} if "sends" not in training else {"samples": 4, **training})
    assert found.self_test.explained
    assert found.self_test.residual < 1e-5
    assert found.self_tested.startswith("Self-test: the simulated training was repeated with a relative distance of")


def test_what_is_hidden_from_the_attacker_is_not_hidden_from_the_self_test():
    found = plan(attacker={"hidden": ["momentum"]}, training={**TRAINING, "momentum": 0.9})
    assert found.self_test.unknown == ()
    assert found.self_test.residual < 1e-5
    assert self_test(found.scenario).explained


def test_a_failure_is_named_and_is_no_all_clear(tmp_path):
    found = replace(plan(), self_test=RecipeCheck(0.5, 0.01, 1.0, explained=False))
    assert "Self-test failed" in found.self_tested
    result = run_audit(found, tmp_path, Running("in-process"))
    assert all(one.verdict is not Verdict.NOTHING_ABOVE_CHANCE for one in result.findings)
    assert "Self-test failed" in " ".join(one.reason for one in result.findings)


def test_what_cannot_be_repeated_has_a_reason():
    assert sentence_of(RecipeCheck(not_checked="the update is zero")).endswith("because the update is zero.")
