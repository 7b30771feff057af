"""The line of an audit about a malicious server, with a forecast and a replay."""

import json

import leakgauge as lg
from leakgauge.workflows.audit import lying, read_audit
from leakgauge.workflows.audit.lying import LyingServer, lying_server

SMALL = {"shape": [1, 8, 8], "channels": [4, 16], "dense": 60, "classes": 10}


def document(model="dlf_femnist", options=None, defence=(), **training):
    return {
        "model": {"name": model, "options": options or {}},
        "data": {"name": "digits"},
        "training": {"sends": "gradient", "samples": 12} | training,
        "audit": {"clients": 1, "attacks": ["inverting_gradients"]},
        "defence": list(defence),
    }


def test_a_replay_confirms_the_forecast_and_shows_what_stops_it_and_what_a_client_sees():
    chain = [{"name": "clipping", "norm": 1.0}, {"name": "gaussian_noise", "sigma": 0.1}]
    plan = read_audit(
        document(options=SMALL, defence=[{"title": "plain", "chain": []}, {"title": "DP", "chain": chain}]), "here"
    )
    result = lying_server(plan)
    weights, block = result.lies
    assert weights.returned == {"plain": 12, "DP": 0}
    assert block.returned == {"plain": 12, "DP": 0}
    assert 0.8 < weights.formula < weights.expected <= 1
    assert weights.loss is not None
    assert weights.loss[0] != weights.loss[1]
    assert "up to 12 of 12 samples on this architecture" in result.sentence
    assert "malicious" in result.sentence
    again = LyingServer.read(json.loads(json.dumps(result.document)))
    assert again == result


def test_an_architecture_without_a_place_is_not_called_safe():
    result = lying_server(read_audit(document("lenet"), "here"))
    assert "not by the attacks known here" in result.sentence
    assert "up to 12 of 12 samples if it also adds a block" in result.sentence
    assert "safe" not in result.sentence + " ".join(lie.sentence for lie in result.lies)
    adam = lying_server(read_audit(document("lenet", sends="weights", optimiser="adam"), "here"))
    assert adam.sentence.startswith("If the server lies: not by the attacks known here.")


def test_without_time_nothing_is_claimed():
    result = lying_server(read_audit(document(options=SMALL), "here"), seconds=-1)
    assert all("time" in lie.reason for lie in result.lies)
    assert result.sentence == "If the server lies: this was not tried."
    assert "not by the attacks" not in " ".join(lie.sentence for lie in result.lies)


def test_samples_that_are_too_large_are_not_tried_and_nothing_is_claimed(monkeypatch):
    monkeypatch.setattr(lying, "LARGEST_SAMPLE", 50)
    result = lying_server(read_audit(document(options=SMALL), "here"))
    assert all("too large" in lie.reason and not lie.tried for lie in result.lies)
    assert result.sentence == "If the server lies: this was not tried."


def test_a_default_audit_has_the_line_on_its_page_and_in_its_document(tmp_path):
    own = document(options=SMALL, samples=2)
    own["audit"] = {"clients": 1, "budget": "6s"}
    lg.audit(own, tmp_path, redact="omit", engine="in-process")
    found = json.loads((tmp_path / "audit.json").read_text())["malicious_server"]
    assert found["server"] == "malicious"
    assert found["sentence"] in (tmp_path / "audit.html").read_text()
    assert [lie["way"] for lie in found["ways"]] == ["weights only", "an added block"]
