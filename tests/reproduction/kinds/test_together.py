"""Rows whose clients are attacked together: figures, stops read off one run, the reference for time, pictures."""

import csv
import json
import tomllib
from dataclasses import replace

import pytest
import torch

from leakgauge.attacks import epafl
from leakgauge.attacks.inversion.stopping import MaxSteps
from leakgauge.core.errors import InvalidInput, UnknownName
from leakgauge.core.progress import silent
from leakgauge.reproduction.clients import client_of
from leakgauge.reproduction.kinds import stopping, together
from leakgauge.reproduction.one_by_one import OneByOne
from leakgauge.reproduction.results import save_result
from leakgauge.reproduction.rows import find_rows
from leakgauge.reproduction.runner import Choice, run_rows
from leakgauge.runtime import Watch
from tests.reproduction.rows_for_tests import job_of, row_of

SETTING = """
[model]
name = "lenet"
[data]
name = "digits"
normalise = false
[training]
sends = "gradient"
samples = 1
"""
TOGETHER = f"""
[row]
title = "Together"
kind = "together"
timed_against = "one-by-one"
clients = 4
{SETTING}
[methods.one-by-one]
attack = "one_by_one"
options = {{ steps = 8 }}
published = {{ asr = 0.5 }}
[methods.epafl]
attack = "epafl"
options = {{ steps = 30 }}
"""
STOPPING = f"""
[row]
title = "Stopping"
kind = "stopping"
clients = 4
{SETTING}
[methods.early]
attack = "epafl"
options = {{ threshold = 1e-1, steps = 12 }}
[methods.late]
attack = "epafl"
options = {{ threshold = 1e-6, steps = 12 }}
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("LEAKGAUGE_BENCHMARKS", str(tmp_path))
    (tmp_path / "mine" / "table1").mkdir(parents=True)
    (tmp_path / "mine" / "table1" / "together.toml").write_text(TOGETHER)
    (tmp_path / "mine" / "table1" / "stopping.toml").write_text(STOPPING)
    return tmp_path / "mine"


def figures(pattern, watch=None, **choices):
    rows = find_rows("mine", pattern)
    return {result.method.name: result for result in run_rows(rows, Choice(**choices), watch=watch)}


def test_all_clients_are_one_figure_beside_the_reference(folder):
    found = figures("table1/together")
    assert list(found) == ["one-by-one", "epafl"]
    for figure in found.values():
        assert figure.clients == 4
        measures = figure.measures
        assert measures["asr"].low <= measures["asr"].value <= measures["asr"].high
        assert all(measures[name].chance is not None for name in ("asr", "ssim", "mse", "label_accuracy"))
        assert figure.seconds == pytest.approx(measures["seconds_in_all"].value / 4)
    one, other = found["one-by-one"].to_json(), found["epafl"].to_json()
    assert "speedup_over_one_by_one" not in one
    assert other["speedup_over_one_by_one"] == pytest.approx(one["seconds"] / other["seconds"])
    assert other["ours"]["label_accuracy"]["mean"] == 1


def test_without_the_reference_there_is_no_comparison(folder):
    (figure,) = figures("table1/together", methods=["epafl"], clients=2).values()
    assert figure.clients == 2
    assert "speedup_over_one_by_one" not in figure.to_json()


def test_a_reference_that_is_no_method_is_refused(folder):
    (folder / "table1" / "together.toml").write_text(
        TOGETHER.replace('timed_against = "one-by-one"', 'timed_against = "two"')
    )
    with pytest.raises(UnknownName, match="timed_against"):
        find_rows("mine", "table1/together")


def test_rules_are_read_off_one_run(folder, monkeypatch):
    runs = []
    each = stopping._recorded

    monkeypatch.setattr(stopping, "_LATEST", {})
    monkeypatch.setattr(stopping, "_recorded", lambda *words: runs.append(len(stopping._LATEST)) or each(*words))
    found = figures("table1/stopping")
    assert runs == [0, 1]
    early, late = found["early"].measures, found["late"].measures
    assert early["evaluations"].value < late["evaluations"].value
    assert early["seconds_in_all"].value < late["seconds_in_all"].value
    assert early["mse"].value >= late["mse"].value


def test_a_stop_read_off_is_that_of_the_attack_itself(folder):
    """The same attack with its own rule: the same number of steps, a sample that is as near."""
    row = find_rows("mine", "table1/stopping")[0]
    attack = together.attack_of(row.methods["late"])
    recorded = epafl(steps=12, snapshot_every=1)
    for index in range(3):
        observation, truth = client_of(row.setting, index, 0)
        whole = recorded.with_settings(stop=MaxSteps(12))(observation, seed=index, progress=False)
        read, own = stopping.stopped_by(attack, whole, truth), attack(observation, seed=index, progress=False)
        assert read.outcome == own.outcome
        assert torch.equal(read.trace.losses, own.trace.losses)
        assert torch.equal(read.trace.evaluations, own.trace.evaluations)
        assert (read.samples - own.samples).abs().max() < 0.2


def test_failures_are_noticed_by_the_attacker(folder):
    results, truths = [], []
    for index in range(3):
        observation, truth = client_of(find_rows("mine", "table1/together")[0].setting, index, 0)
        failed = epafl(steps=1)(observation, seed=index, progress=False)
        results.append(replace(failed, samples=torch.rand(1, 1, 8, 8)))
        truths.append(truth)
    outcome = together.measure_all(results, truths, 6.0, {"asr": 0.0})
    assert outcome.measures["asr"].value == outcome.measures["asr"].chance == 0
    assert outcome.measures["failures_noticed"].value == 1
    assert (outcome.seconds, outcome.steps, outcome.clients) == (2.0, 1, 3)
    assert "mse_of_recovered" not in outcome.measures


def test_an_exact_copy_succeeds_by_either_range_and_noise_by_neither():
    pictures = torch.rand(2, 1, 28, 28, generator=torch.Generator().manual_seed(0))
    pictures[:, :, :10] = 0
    exact = together.values_of(pictures, pictures)
    assert exact["asr"].tolist() == exact["asr_range0"].tolist() == [1, 1]
    assert together.values_of(torch.rand(2, 1, 28, 28), pictures)["asr"].tolist() == [0, 0]
    broken = together.values_of(torch.full_like(pictures, torch.nan), pictures)
    assert broken["asr"].tolist() == [0, 0]


def test_the_reference_is_idlg_by_torchs_own_optimiser(folder):
    observation, truth = client_of(find_rows("mine", "table1/together")[0].setting, 0, 0)
    whole = OneByOne(steps=40)(observation, seed=0, progress=False)
    early = OneByOne(steps=40, threshold=1e-3)(observation, seed=0, progress=False)
    assert len(whole.trace.losses) == 40
    assert early.outcome.kind == "converged"
    assert torch.equal(early.trace.losses, whole.trace.losses[: len(early.trace.losses)])
    ours = epafl(threshold=None, patience=None, steps=1)(observation, seed=0, progress=False)
    assert whole.trace.losses[0] == pytest.approx(float(ours.trace.losses[0]), rel=1e-4)
    assert whole.labels.tolist() == truth.targets.tolist()


def test_pictures_are_drawn_of_recorded_runs(folder, tmp_path):
    figures("table1/stopping", methods=["late"], pictures=tmp_path / "pictures")
    names = {path.name for path in (tmp_path / "pictures").iterdir()}
    assert any(name.endswith("-progress.png") for name in names)
    assert any(name.endswith("-losses.png") for name in names)
    assert all(name.startswith("digits-late-") for name in names)


def test_none_of_those_attacked_together_is_left_out(folder):
    with pytest.raises(InvalidInput, match="attacked together, so --skip"):
        figures("table1/together", skip=1)


def test_rows_are_found_by_pattern(folder):
    assert [row.name for row in find_rows("mine", "table1/s*")] == ["table1/stopping"]
    assert len(find_rows("mine", "table?/*")) == 2
    with pytest.raises(UnknownName):
        find_rows("mine", "table9/*")


def test_figures_are_kept_and_shown_where_there_is_no_chance_level(folder, command):
    (figure,) = figures("table1/together", methods=["epafl"], clients=2).values()
    rows = {row["metric"]: row for row in csv.DictReader(save_result(figure, "the command").read_text().splitlines())}
    assert rows["iterations"]["chance"] == ""
    assert rows["asr"]["clients"] == "2"
    words = ["bench", "mine", "--row", "table1/together", "--clients", "2", "--no-save"]
    code, out, _ = command(*words)
    assert code == 0
    assert "speedup_over_one_by_one" in out
    code, out, _ = command(*words, "--json", "--method", "epafl")
    assert code == 0
    assert json.loads(out)["clients"] == 2


def test_clients_of_several_samples_are_refused(folder):
    (folder / "table1" / "together.toml").write_text(TOGETHER.replace("samples = 1", "samples = 2"))
    with pytest.raises(InvalidInput, match="one sample each here, not 2"):
        figures("table1/together")


def test_only_inversions_can_be_recorded():
    job = job_of(row_of(tomllib.loads(SETTING), kind="stopping"), "one_by_one")
    with pytest.raises(InvalidInput, match="needs an inversion, not 'one_by_one'"):
        stopping.apply_rule(job, silent)


def test_a_trained_network_knows_its_round(folder):
    setting = find_rows("mine", "table1/together")[0].setting
    training = {"lr": 0.1, "epochs": 1, "batch_size": 10}
    trained = setting.changed({"model": {"trained_rounds": 2, "trained_samples": 20}, "training": training})
    observation, _ = client_of(trained, 0, 0)
    plain, _ = client_of(setting, 0, 0)
    assert (observation.round, plain.round) == (2, 0)
    assert not torch.equal(observation.sent["head.weight"], plain.sent["head.weight"])
    assert plain.data.mean == (0.0,)


def test_an_interrupted_attack_gives_no_figure(folder):
    class Impatient(Watch):
        def step(self, task, step, total, loss):
            if step == 2:
                raise KeyboardInterrupt

    for row, method in (("together", "epafl"), ("stopping", "late")):
        stopping._LATEST.clear()
        with pytest.raises(KeyboardInterrupt):
            figures(f"table1/{row}", methods=[method], watch=Impatient())
    stopping._LATEST.clear()
