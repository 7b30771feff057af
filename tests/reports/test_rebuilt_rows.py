"""The rows of a table on pages: what is shown, what is marked, and that redaction covers them."""

from dataclasses import replace

import pytest
import safetensors.torch
import torch

import leakgauge as lg
from leakgauge.core.data_spec import DataSpec
from leakgauge.data import from_csv
from leakgauge.reports.rebuilt_rows import MOST_COLUMNS, SHOWN, Rebuilt
from leakgauge.workflows.audit import audit
from leakgauge.workflows.forget import forget

SPEC = DataSpec((4,), 2, bounded=False, columns=("age", "job=cook", "job=nurse", "smoker"), std=(10.0, 1, 1, 1))
TRUE = torch.tensor([[39.0, 0.0, 1.0, 1.0], [60.0, 1.0, 0.0, 0.0]])
WORDS = {"income": ("low", "high"), "smoker": ("no", "yes")}
REBUILT = Rebuilt(
    SPEC, torch.tensor([[20.0, 0.9, 0.1, 1.0], [61.4, 0.8, 0.2, 0.1]]), TRUE, torch.tensor([45.0, 0.4, 0.6, 0.2]),
    torch.tensor([1.0, 0.0]), torch.tensor([torch.nan, 0.0]), "income", WORDS,
)  # fmt: skip


def test_rows_are_shown_as_a_person_reads_them():
    section = REBUILT.section("What came back", "Of an attack.")
    assert section.table == [
        ["row", "", "age", "job", "smoker", "income"],
        ["1", "true", "60", "cook", "no", "low"],
        ["", "rebuilt", "61", "cook", "no", "low"],
        ["", "guess", "45", "nurse", "no", "-"],
        ["2", "true", "39", "nurse", "yes", "high"],
        ["", "rebuilt", "20", "cook", "yes", "-"],
        ["", "guess", "45", "nurse", "no", "-"],
    ]
    back = {place for place, mark in section.marked.items() if mark == "back"}
    assert back == {(2, 2), (2, 3), (2, 4), (2, 5), (5, 4)}
    assert {place for place, mark in section.marked.items() if mark == "guessed"} == {(3, 4), (6, 3)}
    assert section.shows_samples
    assert section.grouped == 3
    assert (
        "1 of 2 rows came back with every value right, 0 of them as exact copies, and 67% of all values are right "
        "(the guess: 33%)."
    ) in section.sentences[0]


def test_a_number_is_compared_with_its_spread_also_as_a_target():
    spec = replace(SPEC, classes=None)
    numbers = replace(
        REBUILT,
        spec=spec,
        targets=torch.tensor([10.0, 30.0]),
        labels=torch.tensor([12.9, 40.0]),
        words={},
        target_std=10.0,
    )
    section = numbers.section("What came back", "Of an attack.")
    assert [row[5] for row in section.table] == ["income", "30", "40", "-", "10", "13", "-"]
    assert (5, 5) in section.marked
    assert (2, 5) not in section.marked


def test_without_true_rows_nothing_is_marked():
    section = Rebuilt(SPEC, REBUILT.rebuilt, labels=torch.tensor([1, 0])).section("client", "The rebuilt rows.")
    assert section.table[1:] == [
        ["1", "rebuilt", "20.0", "cook", "1.0", "1"],
        ["2", "rebuilt", "61.4", "cook", "0.1", "0"],
    ]
    assert not section.marked
    assert section.sentences == ("The rebuilt rows.",)


def test_large_tables_are_cut():
    columns = 4 * MOST_COLUMNS
    spec = DataSpec((columns,), 2, bounded=False, columns=tuple(f"column {place}" for place in range(columns)))
    rows = torch.zeros(5 * SHOWN, columns)
    section = Rebuilt(spec, rows, rows, targets=torch.zeros(len(rows))).section("What came back", "Of an attack.")
    assert len(section.table) == 1 + 2 * SHOWN
    assert {len(row) for row in section.table} == {2 + MOST_COLUMNS + 1}
    assert section.table[0][-1] == "target"
    assert "first 30 of 120 columns" in section.sentences[1]
    long = DataSpec((2,), 2, bounded=False, columns=("a", "name=" + "x" * 100))
    assert len(Rebuilt(long, torch.ones(1, 2)).section("", "").table[1][3]) < 50


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    path = tmp_path_factory.mktemp("table") / "people.csv"
    rows = [
        f"{20 + row};{'Koch' if row % 3 else 'Bäcker'};{row % 7},5;{'ja' if row % 2 else 'nein'}" for row in range(40)
    ]
    path.write_text("Alter;Beruf;Stunden;Risiko\n" + "\n".join(rows))
    return path


def audited(table, folder, **options):
    configuration = {
        "model": {"name": "mlp", "options": {"hidden": [32, 32]}},
        "data": {"csv": str(table), "options": {"target": "Risiko"}},
        "training": {"sends": "gradient", "samples": 2},
        "audit": {"clients": 1, "attacks": ["two_spans"]},
    }
    audit(configuration, folder, engine="in-process", **options)
    return (folder / "audit.html").read_text()


def test_the_page_of_an_audit_shows_the_users_own_values(table, tmp_path):
    page = audited(table, tmp_path)
    assert "2 of 2 rows came back with every value right, 2 of them as exact copies" in page
    assert '<td class="back">Koch</td>' in page or '<td class="back">Bäcker</td>' in page
    assert page.count(">rebuilt</td>") == 2
    assert ",5</td>" not in page
    assert ".5</td>" in page
    assert '<meta name="leakgauge" content="no samples">' not in page
    assert "Numbers: Alter, Stunden." in page


def test_redaction_covers_rows(table, tmp_path):
    page = audited(table, tmp_path, redact="omit")
    assert "rebuilt</td>" not in page
    assert "Koch" not in page
    assert '<meta name="leakgauge" content="no samples">' in page
    for path in tmp_path.rglob("*.safetensors"):
        assert safetensors.torch.load_file(path).keys() <= {"losses", "features", "psnr"}
    assert "The samples were not stored" in audited(table, tmp_path)


def test_captures_of_a_table_show_rows(table, tmp_path):
    import numpy as np

    data = from_csv(table, target="Risiko")
    client = data.share([0, 1], "ann")
    observation, _ = lg.fedsgd(
        lg.models.build("mlp", shape=data.spec.shape, classes=2, hidden=(32, 32), seed=0), client
    )
    lg.save(observation, tmp_path / "captures" / "ann.safetensors")
    np.savez(tmp_path / "ann.npz", x=client.inputs.numpy(), y=client.targets.numpy())
    for name, options, lines in (
        ("plain", {}, 2), ("scored", {"data": tmp_path / "ann.npz"}, 4), ("omitted", {"redact": "omit"}, 0)
    ):  # fmt: skip
        lg.attack(tmp_path / "captures", "two_spans", tmp_path / name, engine="in-process", **options)
        page = (tmp_path / name / "captures.html").read_text()
        assert page.count("<td>true</td>") + page.count("<td>rebuilt</td>") == lines, name
        assert ("Bäcker" in page) == bool(lines)


def test_forget_removes_the_rows(table, tmp_path):
    assert "rebuilt</td>" in audited(table, tmp_path)
    assert tmp_path / "audit.html" in forget(tmp_path).removed
    assert not (tmp_path / "audit.html").exists()
