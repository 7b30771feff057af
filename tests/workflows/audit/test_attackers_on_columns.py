"""The sensitive column as an attack of the audit."""

import json

import pytest
import torch
from leakgauge.workflows.audit.hidden_column import guess

from leakgauge import audit
from leakgauge.attacks.attribute import PublicRecords
from leakgauge.core.observation import DataSpec
from leakgauge.core.truth import Truth
from leakgauge.workflows.audit import read_audit

DOCUMENT = {
    "model": {"name": "mlp", "options": {"hidden": [64]}},
    "data": {"name": "diabetes"},
    "training": {"sends": "gradient", "samples": 20},
    "audit": {"attacks": ["attribute_inference"], "clients": 3},
}


def test_a_column_is_inferred_from_one_gradient_and_the_verdict_says_so(tmp_path):
    found = audit(DOCUMENT, tmp_path)
    assert found.overall() == "recovers labels or attributes only"
    (group,) = found.groups().values()
    accuracy = found.figures(group)["attribute_accuracy"]
    assert accuracy.mean > 0.95 > accuracy.chance
    text = (tmp_path / "audit.html").read_text()
    assert "all but the column &#39;sex&#39;" in text
    assert "a sensitive column of its records" in text
    document = json.loads((tmp_path / "audit.json").read_text())
    assert document["results"][0]["figures"]["attribute_accuracy"]["clients"] == 3


def test_noise_hides_it(tmp_path):
    chain = [{"name": "gaussian_noise", "sigma": 1e6}]
    found = audit(DOCUMENT | {"defence": [{"title": "noise", "chain": chain}]}, tmp_path)
    assert found.overall() == "nothing above chance"


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


def _hidden(reference: bool) -> tuple[PublicRecords, Truth]:
    spec = DataSpec((2,), 2, bounded=False, columns=("height", "sex"))
    rows = torch.tensor([[0.0, 0.0], [1.0, 1.0]]).repeat(10, 1)
    targets = torch.zeros(20).long()
    truth = Truth(rows, targets, spec, (), rows if reference else None, targets if reference else None)
    return PublicRecords.hiding(truth.inputs, truth.targets, spec, "sex"), truth


def test_a_column_that_the_others_tell_is_no_leak():
    assert guess(*_hidden(reference=True)) == (1.0, "what the other columns tell")


def test_without_other_people_the_more_frequent_value_is_the_guess():
    assert guess(*_hidden(reference=False)) == (0.5, "always the more frequent value")
