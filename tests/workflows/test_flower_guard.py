"""A guarded strategy ends the training when a limit is broken, and never for another reason."""

import pytest

import leakgauge as lg
from leakgauge.core.errors import InvalidInput, LeakgaugeError
from leakgauge.workflows.flower_guard import guarded
from tests.federation.recording.test_flower import DATA, average, identity, network, run
from tests.federation.recording.test_flower_keeper import app_with
from tests.shared import LazyModule

recording = LazyModule("leakgauge.federation.recording.flower")
keeping = LazyModule("leakgauge.federation.recording.flower_keeper")

__all__ = ["identity"]  # a fixture


def trained(tmp_path, limit, keeper="captures", rounds=3, **options):
    config = {"batch-size": 2, "local-epochs": 1, "optimizer": "sgd", "momentum": 0.0}
    recorder = recording.Recorder(tmp_path / "captures", network(), DATA, config=config)
    strategy = guarded(
        recorder.strategy(average()), recorder, fail_if=[limit], output=tmp_path / "guarded", options={"steps": 2},
        **options,
    )  # fmt: skip
    return run(strategy, app_with(keeping.Keeper(tmp_path / keeper, DATA)), rounds=rounds)


def rounds_in(tmp_path):
    return sorted({one.round for one in lg.load_all(tmp_path / "captures", network())})


def test_a_broken_limit_ends_the_training_with_the_last_weights(tmp_path, caplog):
    weights = trained(tmp_path, "psnr > -100")
    assert rounds_in(tmp_path) == [1]
    assert "ends the training after round 1" in caplog.text
    last = [one.returned for one in lg.load_all(tmp_path / "captures", network())]
    for name in weights:
        assert (weights[name] - sum(one[name] for one in last) / len(last)).abs().max() < 1e-6
    assert (tmp_path / "guarded" / "captures.html").exists()


def test_a_limit_that_holds_lets_the_training_go_on(tmp_path, caplog):
    trained(tmp_path, "psnr > 1000", rounds=2)
    assert rounds_in(tmp_path) == [1, 2]
    assert "ends the training" not in caplog.text


def test_limits_that_cannot_be_measured_and_errors_cost_one_sentence(tmp_path, caplog, monkeypatch):
    trained(tmp_path, "psnr > 0", keeper="elsewhere", rounds=2)
    assert rounds_in(tmp_path) == [1, 2]
    assert caplog.text.count("could not be measured") == 1
    monkeypatch.setattr("leakgauge.workflows.flower_guard.attack", None)
    trained(tmp_path / "broken", "psnr > 0", rounds=2)
    assert caplog.text.count("not callable") == 1
    assert rounds_in(tmp_path / "broken") == [1, 2]


def test_mistakes_of_the_set_up_are_errors(tmp_path):
    recorder = recording.Recorder(tmp_path, network(), DATA)
    for strategy, limits in ((average(), []), (average(), ["psnr is high"]), (object(), ["psnr > 3"])):
        with pytest.raises((InvalidInput, LeakgaugeError)):
            guarded(strategy, recorder, fail_if=limits)
