"""The sensitive column as an attack of the audit."""

import json

import pytest

from leakgauge import audit
from leakgauge.evaluation.verdict import Verdict
from leakgauge.workflows.audit import read_audit

DOCUMENT = {
    "model": {"name": "mlp", "options": {"hidden": [64]}},
    "data": {"name": "diabetes"},
    "training": {"sends": "gradient", "samples": 20},
    "audit": {"attacks": ["attribute_inference"], "clients": 3},
}


def test_a_column_is_inferred_from_one_gradient_and_the_verdict_says_so(tmp_path):
    found = audit(DOCUMENT, tmp_path)
    assert found.verdict is Verdict.RECOVERS_ATTRIBUTES
    (finding,) = found.findings
    accuracy = finding.measures["attribute_accuracy"]
    assert accuracy.value > 0.95 > accuracy.chance
    text = (tmp_path / "audit.html").read_text()
    assert "except the column &#39;sex&#39;" in text
    assert "a sensitive column" in text
    document = json.loads((tmp_path / "audit.json").read_text())
    assert document["findings"][0]["measures"]["attribute_accuracy"]["n"] == 3


def test_noise_hides_it_but_an_attack_below_the_guess_proves_nothing(tmp_path):
    chain = [{"name": "gaussian_noise", "sigma": 1e6}]
    found = audit(DOCUMENT | {"defence": [{"title": "noise", "chain": chain}]}, tmp_path)
    (finding,) = found.findings
    assert finding.measures["attribute_accuracy"].excess < 0
    assert found.verdict is Verdict.INCONCLUSIVE
    assert "worse than a guess" in finding.reason


@pytest.mark.parametrize("hidden", [[], ["lr"]])
def test_local_training_is_searched_along_its_direction(tmp_path, hidden):
    training = {"samples": 20, "lr": 0.01, "epochs": 2, "batch_size": 10}
    found = audit(DOCUMENT | {"training": training, "attacker": {"hidden": hidden}}, tmp_path)
    assert "cosine" in found.results[0].document["outcome"]


def test_data_with_a_sensitive_column_is_tried_without_a_word():
    plain = {key: DOCUMENT[key] for key in ("model", "data", "training")}
    assert "attribute_inference" in read_audit(plain, "a").attacks
    digits = {"model": {"name": "mlp"}, "data": {"name": "digits"}, "training": {"sends": "gradient"}}
    assert "attribute_inference" not in read_audit(digits, "a").attacks
