"""Captures whose recipe does not explain their message get no score and no all-clear."""

from dataclasses import replace

import numpy as np
import pytest

import leakgauge as lg
from leakgauge.evaluation.verdict import Verdict
from tests.workflows.test_attack_captures import network

DIGITS = lg.data.load("digits")
SPEC = replace(DIGITS.spec, mean=(0.3,), std=(0.35,))


@pytest.fixture(scope="module")
def federation(tmp_path_factory):
    """The captures of two clients with the right recipe, with a wrong one, and the clients' data."""
    root = tmp_path_factory.mktemp("federation")
    (root / "data").mkdir()
    (root / "exchanged").mkdir()
    for number in range(2):
        client = replace(DIGITS.share(range(8 * number, 8 * number + 8)), spec=SPEC)
        observation, _ = lg.fedavg(network(), client, lr=0.1, batch_size=8, client=f"client-{number}")
        lg.save_all([observation], root / "right")
        lg.save_all([replace(observation, data=replace(SPEC, mean=(0.0,), std=(1.0,)))], root / "wrong")
        for folder, name in (("data", f"client-{number}"), ("exchanged", f"client-{1 - number}")):
            np.savez(root / folder / f"{name}.npz", x=client.inputs.numpy(), y=client.targets.numpy())
    return root


def attacked(federation, captures, output, data="data", **options):
    return lg.attack(
        federation / captures, "inverting_gradients", output, options={"steps": 3}, model=network(),
        data=federation / data, engine="in-process", **options,
    )  # fmt: skip


def test_right_recipes_are_checked_and_shown(federation, tmp_path):
    result = attacked(federation, "right", tmp_path)
    assert all(one.capture.check.explained for one in result.attacked)
    assert all(one.score is not None for one in result.attacked)
    assert "gives this update" in (tmp_path / "captures.html").read_text()


def test_a_wrong_normalisation_is_no_all_clear(federation, tmp_path):
    result = attacked(federation, "wrong", tmp_path, fail_if=["recovered > 0.9", "inconclusive"])
    assert result.verdict is Verdict.UNEXPLAINED
    assert result.verdict.leaks is None
    assert [one.score for one in result.attacked] == [None, None]
    assert "inputs normalised with" in result.findings[0].reason
    assert "1 further captures are not explained" in result.findings[0].reason
    assert all(check.failed for check in result.checks)
    page = (tmp_path / "captures.html").read_text()
    assert "The recipe does not explain this update" in page
    assert '"explained": false' in (tmp_path / "captures.json").read_text()


def test_the_data_of_the_wrong_client_is_never_scored(federation, tmp_path):
    result = attacked(federation, "right", tmp_path, "exchanged")
    assert result.verdict is Verdict.UNEXPLAINED
    assert "the samples of 'client-1'" in result.findings[0].reason


def test_checks_are_cached(federation, tmp_path, monkeypatch):
    first = attacked(federation, "right", tmp_path)
    monkeypatch.setattr("leakgauge.workflows.recipe_checks.check_recipe", None)
    again = attacked(federation, "right", tmp_path)
    assert [one.capture.check for one in again.attacked] == [one.capture.check for one in first.attacked]
