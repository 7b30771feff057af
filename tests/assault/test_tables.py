"""Tables of a user, of which samples can be rebuilt."""

import pytest

from leakgauge.workflows.audit import audit
from leakgauge.workflows.frontier import frontier
from tests.assault import workplace


@pytest.fixture(scope="module")
def configuration(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tables")
    workplace.tables(folder)
    return {
        "model": {"name": "mlp", "options": {"hidden": [8]}},
        "data": {"csv": str(folder / "table.csv"), "options": {"target": "label"}},
        "training": {"sends": "gradient", "samples": 1},
    }


def test_samples_of_a_table_are_rebuilt_in_an_audit(configuration, tmp_path):
    attacks = ["dense_read_off", {"name": "inverting_gradients", "steps": 3}]
    result = audit({**configuration, "audit": {"clients": 1, "attacks": attacks}}, tmp_path, engine="in-process")
    assert result.failed is None
    assert result.complete
    assert {finding.attack for finding in result.findings} == {"dense_read_off", "inverting_gradients"}
    assert all("features" in finding.measures for finding in result.findings)
    assert result.verdict.leaks


def test_samples_of_a_table_are_rebuilt_on_the_frontier(configuration, tmp_path):
    settings = {
        "attack": "dense_read_off",
        "clients": 1,
        "federation": 2,
        "federation_samples": 5,
        "rounds": 1,
        "test": 9,
    }
    result = frontier(
        {**configuration, "frontier": settings, "defence": [{"chain": []}]}, tmp_path, engine="in-process"
    )
    assert result.failed is None
    (point,) = result.points
    assert point.leakage["features"].value > 0.9
    assert point.verdict.leaks
