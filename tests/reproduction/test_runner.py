import csv
import json
import os
import stat
from dataclasses import replace

import pytest

from leakgauge.core.errors import InvalidInput, TasksFailed, UnknownName
from leakgauge.core.params import flatten
from leakgauge.reproduction import runner
from leakgauge.reproduction.clients import client_of, clients_of
from leakgauge.reproduction.kinds import KINDS, Kind
from leakgauge.reproduction.results import read_results, save_result
from leakgauge.reproduction.rows import find_rows
from leakgauge.reproduction.runner import Choice
from leakgauge.runtime import run_tasks

ROW = """
[row]
title = "A row"
kind = "reconstruction"
threshold = 15.0
[model]
name = "lenet"
options = { shape = [1, 8, 8], classes = 10 }
[data]
name = "digits"
[training]
samples = 2
lr = 0.01
epochs = 1
batch_size = 2
[attacker]
granted = ["label_counts"]
[methods.good]
attack = "inverting_gradients"
options = { steps = 4 }
published = { psnr = 20.0 }
[methods.other]
attack = "idlg"
options = { steps = 2 }
"""

LABELS = """
[row]
title = "Labels"
kind = "labels"
[model]
name = "dlf_femnist"
[data]
name = "digits"
[training]
samples = 20
lr = 0.01
epochs = 2
batch_size = 5
[methods.interpolated]
options = { at = "interpolated" }
[methods.server]
options = { at = "server" }
"""


def run_rows(rows, *, engine="auto", jobs=1, cache=None, **choices):
    return runner.run_rows(rows, Choice(**choices), engine=engine, jobs=jobs, cache=cache)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("LEAKGAUGE_BENCHMARKS", str(tmp_path))
    (tmp_path / "mine" / "table1").mkdir(parents=True)
    (tmp_path / "mine" / "table1" / "digits.toml").write_text(ROW)
    (tmp_path / "mine" / "table1" / "labels.toml").write_text(LABELS)
    return tmp_path / "mine"


def test_a_row_gives_ours_with_an_interval_beside_the_published_and_chance(folder):
    figures = {figure.method.name: figure for figure in run_rows(find_rows("mine", "table1/digits"), clients=3)}
    good = figures["good"].to_json()
    assert (good["row"], good["clients"], good["steps"], good["published"]) == ("table1/digits", 3, 4, {"psnr": 20.0})
    assert good["ours"]["psnr"]["low"] < good["ours"]["psnr"]["mean"] < good["ours"]["psnr"]["high"]
    assert set(good["chance"]) == set(good["ours"]) >= {"psnr", "ssim", "recovered", "label_errors"}
    assert good["seconds_per_step"] == pytest.approx(good["seconds"] / 4)
    assert figures["other"].steps == 2


def test_steps_and_methods_can_be_chosen(folder):
    (figure,) = run_rows(find_rows("mine", "table1/digits"), methods=["other"], steps=1)
    assert (figure.method.name, figure.steps, figure.measures["psnr"].low) == ("other", 1, None)


def test_clients_that_were_measured_elsewhere_are_left_out(folder):
    def psnr(**options):
        (figure,) = run_rows(find_rows("mine", "table1/digits"), methods=["good"], **options)
        return figure.clients, figure.measures["psnr"].value

    (all_three, mean), (first, one), (others, rest) = psnr(clients=3), psnr(clients=1), psnr(clients=2, skip=1)
    assert (all_three, first, others) == (3, 1, 2)
    assert mean == pytest.approx((one + 2 * rest) / 3)


def test_the_same_seed_gives_the_same_figures_here_and_in_another_process(folder):
    def values(**options):
        figures = run_rows(find_rows("mine", "table1/digits"), clients=2, **options)
        return {figure.method.name: figure.to_json()["ours"] for figure in figures}

    here = values()
    assert here == values(engine="processes", jobs=1)
    assert here != values(seed=1)


def test_label_rows_count_errors(folder):
    figures = {figure.method.name: figure for figure in run_rows(find_rows("mine", "table1/labels"), clients=4)}
    errors = figures["interpolated"].measures["label_errors"]
    assert errors.above_chance
    assert 0 <= errors.value < errors.chance / 2


def test_figures_are_kept_with_date_command_and_clients(folder):
    (figure,) = run_rows(find_rows("mine", "table1/digits"), methods=["good"])
    save_result(figure, "the command")
    path = save_result(figure, "the command")
    rows = list(csv.DictReader(path.read_text().splitlines()))
    assert len(rows) == 2 * len(figure.measures)
    psnr = next(row for row in rows if row["metric"] == "psnr")
    assert (psnr["clients"], psnr["published"], psnr["command"]) == ("1", "20.0", "the command")
    assert len(psnr["date"]) == 10
    lines = read_results(folder)
    assert [line.measure.name for line in lines] == 2 * list(figure.measures)
    assert lines[0].measure.value == pytest.approx(figure.measures[lines[0].measure.name].value, rel=1e-3)
    assert (lines[0].method, lines[0].steps, lines[0].is_short) == ("good", 4, False)


def test_mistakes_are_named(folder):
    rows = find_rows("mine", "table1/digits")
    with pytest.raises(InvalidInput, match="clients must be at least 1"):
        list(run_rows(rows, clients=0))
    with pytest.raises(UnknownName, match="did you mean 'good'"):
        list(run_rows(rows, methods=["goods"]))
    with pytest.raises(InvalidInput, match="has 898 clients of 2 samples"):
        client_of(rows[0].setting, 900, 0)
    (folder / "table1" / "digits.toml").write_text(ROW.replace("lr =", "learning_rate ="))
    with pytest.raises(UnknownName, match="'learning_rate'"):
        find_rows("mine", "table1/digits")
    (folder / "table1" / "digits.toml").write_text(ROW.replace('"reconstruction"', '"reconstructions"'))
    with pytest.raises(UnknownName, match="did you mean 'reconstruction'"):
        list(run_rows(find_rows("mine", "table1/digits")))
    (folder / "table1" / "digits.toml").write_text(ROW + "[federation]\nrounds = 2")
    with pytest.raises(InvalidInput, match=r"kind reconstruction does not read \[federation\]"):
        list(run_rows(find_rows("mine", "table1/digits")))


def test_a_rows_clients_defend_themselves(folder):
    setting = find_rows("mine", "table1/digits")[0].setting
    noise, pruning = {"name": "gaussian_noise", "sigma": 0.1}, {"name": "random_pruning", "probability": 0.5}
    granted = setting.changed({"attacker": {"granted": ["label_batches"]}})
    plain, _ = client_of(setting, 0, 0)
    single, _ = client_of(replace(granted, defence=[noise]), 0, 0)
    several, _ = client_of(replace(granted, defence=[noise, pruning]), 0, 0)
    assert plain.defences is None
    assert single.defences == ("GaussianNoise(on='samples', sigma=0.1)",)
    assert several.defences == (
        "GaussianNoise(on='samples', sigma=0.1)",
        "RandomPruning(on='samples', probability=0.5)",
    )
    assert single.label_batches is not None
    hidden = setting.changed({"attacker": {"knows_defence": False}})
    assert client_of(replace(hidden, defence=[noise]), 0, 0)[0].defences is None
    updates = [flatten(observation.difference()) for observation in (plain, single, several)]
    assert len({float(update.norm()) for update in updates}) == 3
    rounds = setting.changed({"model": {"trained_rounds": 1}})
    trained, _ = client_of(replace(rounds, defence=[noise]), 0, 0)
    undefended, _ = client_of(rounds, 0, 0)
    assert float((flatten(trained.sent) - flatten(undefended.sent)).norm()) > 0


def test_the_command_line_prints_json_lines_and_keeps_results(folder, command):
    code, out, _ = command("bench", "mine", "--row", "table1/digits", "--method", "good", "--json")
    assert code == 0
    (line,) = out.splitlines()
    keys = {"row", "method", "clients", "steps", "ours", "published", "chance", "seconds", "seconds_per_step"}
    assert json.loads(line).keys() == keys
    assert "leakgauge bench mine" in (folder / "results.csv").read_text()


def test_a_quiet_command_prints_nothing_and_saves(folder, command):
    assert command("bench", "mine", "--row", "table1/digits", "--method", "other", "--quiet") == (0, "", "")
    assert (folder / "results.csv").exists()


def test_results_that_cannot_be_saved_are_refused_before_any_work(folder, command, monkeypatch):
    (folder / "results.csv").mkdir()
    monkeypatch.setattr(runner, "run_cached", lambda *_, **__: pytest.fail("a task ran"))
    code, _, errors = command("bench", "mine", "--row", "table1/digits")
    assert code == 2
    assert "results.csv: cannot be written" in errors
    assert "--no-save" in errors


@pytest.mark.parametrize("name", ["good-client0.png", "good-client0-course.csv"])
def test_pictures_of_others_are_refused_before_any_work_and_left(folder, command, tmp_path, monkeypatch, name):
    mine = tmp_path / "pictures" / "table1" / "digits" / name
    mine.parent.mkdir(parents=True)
    mine.write_text("mine")
    monkeypatch.setattr(runner, "run_cached", lambda *_, **__: pytest.fail("a task ran"))
    options = ("--row", "table1/digits", "--no-save", "--pictures", tmp_path / "pictures")
    code, _, errors = command("bench", "mine", *options)
    assert code == 2
    assert f"{name}: is not a file that Leakgauge wrote" in errors
    assert mine.read_text() == "mine"


#: Rows of each kind whose jobs draw pictures, and the picture of the method "good".
DRAWN = {
    "stopping": ("", "digits-good-failed-losses.png"),
    "search": ("", "digits-lenet-1x2x1-good-client0.png"),
    "local_models": (
        "measures = ['ssim']\n[federation]\nclients = 3\nrounds = 2\nclients_per_round = 3",
        "faces-good.png",
    ),
}


@pytest.fixture
def row_of_kind(folder, monkeypatch):
    """Return a function that writes a row of a kind, none of whose jobs may run."""
    monkeypatch.setattr(runner, "run_cached", lambda *_, **__: pytest.fail("a task ran"))

    def write(kind):
        further, _ = DRAWN.get(kind, ("", None))
        lines = ROW.replace('"reconstruction"', f'"{kind}"').replace("threshold = 15.0", further)
        lines = lines.replace("samples = 2", "samples = 1").replace("{ steps = 4 }", "{ trials = 2 }")
        if kind in ("epochs", "matching"):
            lines += "[updates]\nper_update = 1"
        (folder / "table1" / "digits.toml").write_text(lines)

    return write


@pytest.mark.parametrize("kind", DRAWN)
def test_pictures_of_others_are_refused_by_every_kind_that_draws(row_of_kind, command, tmp_path, kind):
    row_of_kind(kind)
    mine = tmp_path / "pictures" / DRAWN[kind][1]
    mine.parent.mkdir()
    mine.write_text("mine")
    options = ("--row", "table1/digits", "--method", "good", "--no-save", "--pictures", mine.parent)
    code, _, errors = command("bench", "mine", *options)
    assert (code, len(errors.strip().splitlines())) == (2, 1), errors
    assert f"{mine.name}: is not a file that Leakgauge wrote" in errors
    assert mine.read_text() == "mine"


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "linear"])
def test_more_clients_than_data_are_refused_before_any_work(row_of_kind, command, kind):
    row_of_kind(kind)
    code, _, errors = command("bench", "mine", "--row", "table1/digits", "--no-save", "--clients", 1798)
    assert (code, len(errors.strip().splitlines())) == (2, 1), errors
    assert "Attack fewer clients" in errors


def test_clients_beyond_the_data_after_those_left_out_are_refused(row_of_kind, command):
    row_of_kind("reconstruction")
    options = ("--row", "table1/digits", "--no-save", "--clients", 2)
    code, _, errors = command("bench", "mine", *options, "--skip", 1796)
    assert code == 2
    assert "has 1797 clients of 1 samples" in errors


def test_a_table_of_others_is_refused_before_any_work_and_left(row_of_kind, folder, command):
    row_of_kind("reconstruction")
    (folder / "results.csv").write_text("mine,yours\n1,2\n")
    code, _, errors = command("bench", "mine", "--row", "table1/digits")
    assert (code, len(errors.strip().splitlines())) == (2, 1), errors
    assert "results.csv: is not a table of results that Leakgauge wrote" in errors
    assert (folder / "results.csv").read_text() == "mine,yours\n1,2\n"


def test_pictures_of_an_earlier_run_are_replaced(folder, command, tmp_path):
    options = ("--row", "table1/digits", "--method", "good", "--clients", 1, "--steps", 2, "--no-save", "--quiet")
    before = os.umask(0)
    try:
        for _ in range(2):
            code, _, errors = command("bench", "mine", *options, "--pictures", tmp_path / "pictures")
            assert code == 0, errors
    finally:
        os.umask(before)
    drawn = list((tmp_path / "pictures").rglob("*.png"))
    assert drawn
    assert {stat.S_IMODE(path.stat().st_mode) for path in drawn} == {0o600}


def test_the_command_line_lists_rows_and_shows_tables(folder, command):
    for words, said in ((["--list"], "good, other"), (["--method", "good", "--no-save"], "published")):
        code, out, _ = command("bench", "mine", "--row", "table1/digits", *words)
        assert code == 0
        assert said in out
    assert not (folder / "results.csv").exists()


def test_a_failed_task_does_not_stop_the_others(folder, monkeypatch, capsys):
    kind = KINDS["reconstruction"]

    def broken(job, report):
        if job.method.name == "good" and job.index == 1:
            raise RuntimeError("the optimiser broke")
        return kind.run(job, report)

    monkeypatch.setitem(KINDS, "reconstruction", Kind(broken, kind.tables))
    row = folder / "table1" / "digits.toml"
    row.write_text(row.read_text().replace("kind =", 'reference = "good"\nkind =', 1))
    results = []
    with pytest.raises(TasksFailed, match="1 of 4 tasks failed"):
        results.extend(run_rows(find_rows("mine", "table1/digits"), clients=2))
    assert [result.method.name for result in results] == ["other"]  # without a speed-up, because the reference failed
    assert "speedup_over_good" not in results[0].measures


def test_the_order_in_which_clients_end_changes_nothing(folder, monkeypatch):
    rows = find_rows("mine", "table1/digits")
    forward = [figure.to_json()["ours"] for figure in run_rows(rows, clients=3, methods=["other"])]
    monkeypatch.setattr(runner, "run_cached", lambda tasks, *_, **__: reversed(list(run_tasks(tasks))))
    assert [figure.to_json()["ours"] for figure in run_rows(rows, clients=3, methods=["other"])] == forward


def test_cached_tasks_are_not_run_again(folder, tmp_path, monkeypatch):
    rows = find_rows("mine", "table1/digits")
    first = [result.to_json() for result in run_rows(rows, clients=2, cache=tmp_path / "cache")]
    monkeypatch.setitem(KINDS, "reconstruction", Kind(None, KINDS["reconstruction"].tables))
    assert [result.to_json() for result in run_rows(rows, clients=2, cache=tmp_path / "cache")] == first
    with pytest.raises(TasksFailed):  # other steps are other work
        list(run_rows(rows, clients=2, steps=3, cache=tmp_path / "cache"))


def test_a_rows_clients_may_have_distinct_labels_only(folder):
    setting = find_rows("mine", "table1/digits")[0].setting
    all_of_them, some = (clients_of(setting.changed({"data": more}), 0) for more in ({}, {"distinct_labels": True}))
    assert 0 < len(some) < len(all_of_them)
    assert all(len(set(client.targets.tolist())) == len(client) for client in some)
    assert any(len(set(client.targets.tolist())) < len(client) for client in all_of_them)


def test_pictures_of_what_came_back_lie_in_a_folder_of_their_row(folder, tmp_path):
    list(run_rows(find_rows("mine", "table1/digits"), clients=2, methods=["good"], pictures=tmp_path / "pictures"))
    drawn = {path.name for path in (tmp_path / "pictures" / "table1" / "digits").iterdir()}
    assert drawn == {"good-client0.png", "good-client1.png"}
