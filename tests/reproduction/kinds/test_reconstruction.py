"""One client reconstructed: its figures, and pictures of what came back and of the way there."""

import csv

import pytest

from leakgauge.core.progress import silent
from leakgauge.reproduction.kinds.reconstruction import reconstruct_client
from leakgauge.reproduction.rows import Method

SETTING = {
    "data": "digits", "model": "lenet", "model_options": {"shape": [1, 8, 8], "classes": 10}, "samples": 2, "lr": 0.01,
    "epochs": 1, "batch_size": 2, "granted": ["labels"], "threshold": 15.0,
}  # fmt: skip


def run(options, pictures=None, setting=SETTING):
    return reconstruct_client(setting, Method("ours", "awa", options, {}), 1, None, 0, silent, pictures)


def test_what_came_back_is_drawn_and_how_good_it_was_on_the_way(tmp_path):
    found = run({"steps": 7, "snapshot_every": 3}, tmp_path / "pictures")
    stem = tmp_path / "pictures" / "ours-client1"
    drawn = {path.name for path in stem.parent.iterdir()}
    assert drawn == {"ours-client1.png", "ours-client1-course.png", "ours-client1-course.csv"}
    lines = list(csv.DictReader(stem.with_name("ours-client1-course.csv").read_text().splitlines()))
    assert [line["step"] for line in lines] == ["0", "3", "6"]
    losses = [float(line["lowest_loss"]) for line in lines]
    assert losses == sorted(losses, reverse=True)
    assert float(lines[-1]["psnr"]) == pytest.approx(found["values"]["psnr"][0], abs=3)


def test_without_iterates_there_is_no_course_and_without_a_folder_no_picture(tmp_path):
    plain, drawn = run({"steps": 3}), run({"steps": 3}, tmp_path / "pictures")
    assert plain["values"] == drawn["values"]
    assert (plain["steps"], set(plain["values"]) >= {"psnr", "recovered"}) == (3, True)
    assert [path.name for path in (tmp_path / "pictures").iterdir()] == ["ours-client1.png"]


def test_tables_are_not_drawn(tmp_path):
    model = {"model": "mlp", "model_options": {"shape": [30], "classes": 2, "hidden": [8]}}
    found = run({"steps": 2}, tmp_path / "pictures", {**SETTING, "data": "breast_cancer", **model, "threshold": None})
    assert not (tmp_path / "pictures").exists()
    assert "features" in found["values"]
