"""Audits of set-ups whose targets are no classes, from data files and without a grant."""

import numpy as np
import pytest

from leakgauge.evaluation.support import TARGETS_UNKNOWN
from leakgauge.evaluation.verdict import Verdict
from leakgauge.workflows.audit import read_audit, run_audit
from leakgauge.workflows.result import Running
from tests.known_answers.known_answer import gradient, network
from tests.known_answers.populations import labelled_digits

KINDS = {"labels": "convolutional", "numbers": "convolutional", "mask": "unet", "places": "unet"}


def document(tmp_path, kind, samples=1, **tables):
    digits = labelled_digits(targets=kind)
    np.savez(tmp_path / "mine.npz", x=digits.inputs.numpy(), y=digits.targets.numpy())
    data = {"npz": str(tmp_path / "mine.npz"), "options": {"mean": 0.0, "std": 1.0}}
    training = gradient(samples)
    return {"model": network(KINDS[kind], activation="gelu"), "data": data, "training": training, **tables}


@pytest.mark.parametrize("kind", KINDS)
def test_a_default_audit_needs_no_grant(tmp_path, kind):
    plan = read_audit(document(tmp_path, kind), "audit.toml")
    assert {"prior_path", "lbfgs_simulation"} <= set(plan.attacks)
    assert "gauss_newton" in plan.attacks
    assert not plan.first_look.missing
    assert "optimised beside the samples" in str(plan.first_look)


def test_one_sample_with_unknown_targets_is_a_control_of_its_own(tmp_path):
    several = read_audit(document(tmp_path, "labels", samples=4), "audit.toml").controls
    assert not several[TARGETS_UNKNOWN].labels_granted
    assert several[TARGETS_UNKNOWN].samples == 1
    assert TARGETS_UNKNOWN not in read_audit(document(tmp_path, "labels"), "audit.toml").controls
    granted = document(tmp_path, "labels", samples=4, attacker={"granted": ["labels"]})
    assert TARGETS_UNKNOWN not in read_audit(granted, "audit.toml").controls


def test_an_attack_that_does_not_find_the_targets_shows_nothing(tmp_path):
    audit = {"attacks": [{"name": "prior_path", "steps": 60, "lr": 0.02}], "clients": 1}
    made = run_audit(
        read_audit(document(tmp_path, "mask", audit=audit), "audit.toml"), tmp_path / "cache", Running("in-process", 1)
    )
    assert made.verdict is Verdict.INCONCLUSIVE
    assert made.reason_for("no defence")
