"""One client reconstructed: its figures, and pictures of what came back and of the way there."""

import csv

import pytest

from leakgauge.core.progress import silent
from leakgauge.reproduction.kinds.reconstruction import reconstruct_client
from tests.reproduction.rows_for_tests import job_of, row_of

DOCUMENT = {
    "model": {"name": "lenet"}, "data": {"name": "digits"}, "attacker": {"granted": ["labels"]},
    "training": {"samples": 2, "lr": 0.01, "epochs": 1, "batch_size": 2},
}  # fmt: skip
ROW = row_of(DOCUMENT, threshold=15.0)


def run(options, pictures=None, row=ROW):
    return reconstruct_client(job_of(row, "awa", options, index=1, pictures=pictures), silent)


def test_what_came_back_is_drawn_and_how_good_it_was_on_the_way(tmp_path):
    outcome = run({"steps": 7, "snapshot_every": 3}, tmp_path / "pictures")
    stem = tmp_path / "pictures" / "table1" / "row" / "ours-client1"
    drawn = {path.name for path in stem.parent.iterdir()}
    assert drawn == {"ours-client1.png", "ours-client1-course.png", "ours-client1-course.csv"}
    lines = list(csv.DictReader(stem.with_name("ours-client1-course.csv").read_text().splitlines()))
    assert [line["step"] for line in lines] == ["0", "3", "6"]
    losses = [float(line["lowest_loss"]) for line in lines]
    assert losses == sorted(losses, reverse=True)
    assert float(lines[-1]["psnr"]) == pytest.approx(outcome.measures["psnr"].value, abs=3)


def test_without_iterates_there_is_no_course_and_without_a_folder_no_picture(tmp_path):
    plain, drawn = run({"steps": 3}), run({"steps": 3}, tmp_path / "pictures")
    values = [{name: one.value for name, one in outcome.measures.items()} for outcome in (plain, drawn)]
    assert values[0] == values[1]
    assert (plain.steps, set(values[0]) >= {"psnr", "recovered"}) == (3, True)
    assert [path.name for path in (tmp_path / "pictures/table1/row").iterdir()] == ["ours-client1.png"]


def test_tables_are_not_drawn(tmp_path):
    document = {
        **DOCUMENT, "model": {"name": "mlp", "options": {"hidden": [8]}}, "data": {"name": "breast_cancer"}
    }  # fmt: skip
    outcome = run({"steps": 2}, tmp_path / "pictures", row_of(document))
    assert not (tmp_path / "pictures").exists()
    assert "features" in outcome.measures
