"""Rows whose clients are attacked together: figures, stops read off one run, the reference for time, pictures."""

import csv
import json
import sys
from dataclasses import replace

import pytest
import torch

from leakgauge import cli
from leakgauge.attacks import epafl
from leakgauge.attacks.inversion.stopping import MaxSteps
from leakgauge.core.errors import CorruptFile, InvalidInput, UnknownName
from leakgauge.reproduction.kinds import many_clients as together
from leakgauge.reproduction.one_by_one import OneByOne
from leakgauge.reproduction.rows import Method, find_rows
from leakgauge.reproduction.runner import keep, run_rows
from leakgauge.reproduction.setting import client_of
from leakgauge.runtime import Watch

SETTING = """
[setting]
data = "digits"
normalise = false
model = "lenet"
model_options = { shape = [1, 8, 8], classes = 10 }
sends = "gradient"
samples = 1
clients = 4
"""
TOGETHER = f"""
title = "Together"
kind = "together"
reference = "one-by-one"
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
title = "Stopping"
kind = "stopping"
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


def figures(pattern, **options):
    return {figure.method.name: figure for figure in run_rows(find_rows("mine", pattern), **options)}


def test_all_clients_are_one_figure_beside_the_reference(folder):
    found = figures("table1/together")
    assert list(found) == ["one-by-one", "epafl"]
    for figure in found.values():
        assert figure.clients == 4
        assert figure.ours["asr"].low <= figure.ours["asr"].mean <= figure.ours["asr"].high
        assert {"asr", "ssim", "mse", "label_accuracy"} <= figure.chance.keys()
        assert figure.seconds == pytest.approx(figure.ours["seconds_in_all"].mean / 4)
    one, other = found["one-by-one"].to_json(), found["epafl"].to_json()
    assert "speedup_over_one_by_one" not in one
    assert other["speedup_over_one_by_one"] == pytest.approx(one["seconds"] / other["seconds"])
    assert other["ours"]["label_accuracy"]["mean"] == 1


def test_without_the_reference_there_is_no_comparison(folder):
    (figure,) = figures("table1/together", methods=["epafl"], clients=2).values()
    assert figure.clients == 2
    assert "speedup_over_one_by_one" not in figure.to_json()


def test_a_reference_that_is_no_method_is_refused(folder):
    (folder / "table1" / "together.toml").write_text(TOGETHER.replace('reference = "one-by-one"', 'reference = "two"'))
    with pytest.raises(CorruptFile, match="not a benchmark row"):
        find_rows("mine", "table1/together")


def test_rules_are_read_off_one_run(folder, monkeypatch):
    runs = []
    each = together._recorded

    monkeypatch.setattr(together, "_KEPT", {})
    monkeypatch.setattr(together, "_recorded", lambda *words: runs.append(len(together._KEPT)) or each(*words))
    found = figures("table1/stopping")
    assert runs == [0, 1]
    early, late = found["early"].ours, found["late"].ours
    assert early["evaluations"].mean < late["evaluations"].mean
    assert early["seconds_in_all"].mean < late["seconds_in_all"].mean
    assert early["mse"].mean >= late["mse"].mean


def test_a_stop_read_off_is_that_of_the_attack_itself(folder):
    """The same attack with its own rule: the same number of steps, a sample that is as near."""
    row = find_rows("mine", "table1/stopping")[0]
    attack = together.attack_of(row.methods["late"])
    recorded = epafl(steps=12, snapshot_every=1)
    for index in range(3):
        observation, truth = client_of(row.setting, index, 0)
        whole = recorded.with_settings(stop=MaxSteps(12))(observation, seed=index, progress=False)
        read, own = together.stopped_by(attack, whole, truth), attack(observation, seed=index, progress=False)
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
    found = together.measure(results, truths, 6.0)
    assert found["ours"]["asr"].mean == 0
    assert found["ours"]["failures_noticed"].mean == 1
    assert (found["seconds"], found["steps"], found["clients"]) == (2.0, 1, 3)
    assert "mse_of_recovered" not in found["ours"]


def test_an_exact_copy_succeeds_by_either_range_and_noise_by_neither():
    pictures = torch.rand(2, 1, 28, 28, generator=torch.Generator().manual_seed(0))
    pictures[:, :, :10] = 0
    exact = together._values(pictures, pictures)
    assert exact["asr"].tolist() == exact["asr_range0"].tolist() == [1, 1]
    assert together._values(torch.rand(2, 1, 28, 28), pictures)["asr"].tolist() == [0, 0]
    broken = together._values(torch.full_like(pictures, torch.nan), pictures)
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
    with pytest.raises(InvalidInput, match="attacked together: none can be left out"):
        figures("table1/together", skip=1)


def test_rows_are_found_by_pattern(folder):
    assert [row.name for row in find_rows("mine", "table1/s*")] == ["table1/stopping"]
    assert len(find_rows("mine", "table?/*")) == 2
    with pytest.raises(UnknownName):
        find_rows("mine", "table9/*")


def test_figures_are_kept_and_shown_where_there_is_no_chance_level(folder, monkeypatch, capsys):
    (figure,) = figures("table1/together", methods=["epafl"], clients=2).values()
    rows = {row["metric"]: row for row in csv.DictReader(keep(figure, "the command").read_text().splitlines())}
    assert rows["iterations"]["chance"] == ""
    assert rows["asr"]["clients"] == "2"
    words = ["leakgauge", "bench", "mine", "--row", "table1/together", "--clients", "2", "--no-save"]
    monkeypatch.setattr(sys, "argv", words)
    with pytest.raises(SystemExit):
        cli.main()
    assert "speedup_over_one_by_one" in capsys.readouterr().out
    monkeypatch.setattr(sys, "argv", [*words, "--json", "--method", "epafl"])
    with pytest.raises(SystemExit):
        cli.main()
    assert json.loads(capsys.readouterr().out)["clients"] == 2


def test_clients_of_several_samples_are_refused(folder):
    (folder / "table1" / "together.toml").write_text(TOGETHER.replace("samples = 1", "samples = 2"))
    with pytest.raises(CorruptFile, match="one sample each here, not 2"):
        figures("table1/together")


def test_only_inversions_can_be_read_off():
    setting = {"data": "digits", "samples": 1}
    with pytest.raises(CorruptFile, match="needs an inversion, not 'one_by_one'"):
        together.read_stop(setting, Method("a", "one_by_one"), 1, 2, 0, lambda *_: None)


def test_a_trained_network_knows_its_round(folder):
    setting = find_rows("mine", "table1/together")[0].setting
    trained = setting | {"rounds": 2, "lr": 0.1, "epochs": 1, "batch_size": 10, "training_samples": 20}
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
        together._KEPT.clear()
        with pytest.raises(KeyboardInterrupt):
            figures(f"table1/{row}", methods=[method], watch=Impatient())
    together._KEPT.clear()
