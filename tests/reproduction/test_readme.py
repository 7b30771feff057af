"""The generated pages: they are current, complete, and link to what exists."""

import re

import pytest

from leakgauge.core.errors import InvalidInput, UnknownName
from leakgauge.reproduction.readme import pages, read_paper, write_pages
from leakgauge.reproduction.rows import benchmarks_folder, find_rows, papers

PAPER = 'name = "Mine"\ntitle = "A paper"\nauthors = "Somebody"\nyear = 2026\nfinding = "It works."\n'
ROW = """
[row]
title = "Digits"
kind = "reconstruction"
[model]
name = "lenet"
[data]
name = "digits"
[methods.good]
attack = "idlg"
published = { psnr = 20.0, seconds_in_all = 3.0 }
[methods.idle]
attack = "idlg"
published = { psnr = 30.0 }
"""
RESULTS = """\
date,row,method,clients,steps,metric,ours,low,high,published,chance,seconds_per_client,command
2026-01-01,table2/digits,good,4,10,psnr,21,20,22,20.0,10,12.3,leakscope bench mine --row table2/digits
2026-01-01,table2/digits,good,4,10,ssim,0.5,0.4,0.6,,0.1,12.3,leakscope bench mine --row table2/digits
2026-01-01,table2/digits,good,4,10,mse,0.5,0.4,0.6,,0.1,12.3,leakscope bench mine --row table2/digits
2026-01-01,table10/digits,good,1,10,psnr,21,,,20.0,10,2.3,leakscope bench mine --row table10/digits
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("LEAKGAUGE_BENCHMARKS", str(tmp_path))
    for table in ("table2", "table10", "figure1"):
        (tmp_path / "mine" / table).mkdir(parents=True)
        (tmp_path / "mine" / table / "digits.toml").write_text(ROW)
    (tmp_path / "mine" / "paper.toml").write_text(PAPER)
    (tmp_path / "mine" / "results.csv").write_text(RESULTS)
    return tmp_path / "mine"


def test_values_on_another_scale_stand_apart_and_have_no_status(folder):
    path = folder / "table2" / "digits.toml"
    before = read_paper("mine").statuses("table2")
    path.write_text(ROW + "[methods.other]\nattack = 'idlg'\nother_scale = { psnr = 99.5 }\n")
    paper = read_paper("mine")
    assert paper.statuses("table2")[: len(before)] == before
    page = pages()[folder / "README.md"]
    assert "| `digits` | `other` | psnr | 99.5 |" in page
    assert page.count("99.5") == 1


def test_a_row_shows_the_measurements_of_a_row_with_the_same_setting(folder):
    path = folder / "figure1" / "digits.toml"
    path.write_text(ROW.replace('kind = "reconstruction"', 'kind = "reconstruction"\nsame_as = "table2/digits"'))
    lines = {row: [figure.line for figure in found] for row, found in read_paper("mine").figures.items()}
    assert lines["figure1/digits"] == lines["table2/digits"]
    assert lines["figure1/digits"][0] is not None
    assert "The setting is that of `table2/digits`" in pages()[folder / "README.md"]
    path.write_text(path.read_text().replace('name = "lenet"', 'name = "lenet"\noptions = { classes = 9 }'))
    with pytest.raises(InvalidInput, match="same_as: table2/digits differs in setting"):
        read_paper("mine")
    path.write_text(
        ROW.replace("[methods.idle]", "[methods.lazy]").replace("[model]", 'same_as = "table2/digits"\n[model]')
    )
    with pytest.raises(InvalidInput, match=r"differs in \[methods.lazy\]"):
        read_paper("mine")


def test_the_committed_pages_are_current():
    stale = [str(path) for path, text in pages().items() if not path.exists() or path.read_text() != text]
    assert not stale, "run: leakgauge bench --readme"


@pytest.mark.parametrize("name", papers())
def test_every_row_and_method_is_on_its_page(name):
    text = (benchmarks_folder() / name / "README.md").read_text()
    for row in find_rows(name):
        assert f"`{row.name.partition('/')[2]}`: {row.title}" in text
        assert all(f"`{method}`" in text for method in row.methods) or "all methods" in text
    assert "leakscope" not in text


def test_links_lead_to_files():
    for page in [*benchmarks_folder().glob("*.md"), *benchmarks_folder().glob("*/*.md")]:
        for link in re.findall(r"\]\(([^)#]+)", page.read_text()):
            assert (page.parent / link).exists(), f"{page}: {link}"


def test_a_page_has_a_line_for_each_figure_and_a_word(folder):
    write_pages()
    text = (folder / "README.md").read_text()
    lines = [
        "| [Table 2](#table-2) | partly | 1 |  |  | 1 |",
        "| [Table 10](#table-10) | partly |  | 1 |  | 1 |",
        "| [Figure 1](#figure-1) | not run |  |  |  | 2 |",
        "| `digits` | `good` | psnr | 21 (20 to 22) | 20 | 10 | 4 | 10 | 12 | reproduced |",
        "|  | `good` | seconds_in_all | not measured | 3 |  |  |  |  | - |",
        "|  | `good` | ssim | 0.5 (0.4 to 0.6) |  | 0.1 | 4 | 10 | 12 | - |",
        "|  | `idle` |  |  |  |  |  |  |  | not run |",
        "| `digits` | `good` | psnr | 21, *one client* | 20 | 10 | 1 | 10 | 2.3 | partly |",
        "| `digits` | all methods |  |  |  |  |  |  |  | not run |",
    ]
    places = [text.index(line) for line in lines]
    assert places == sorted(places)
    assert "mse" not in text
    index = (folder.parent / "README.md").read_text()
    assert "| [Mine](mine/README.md) | It works. | partly | 1 | 1 |  | 4 |" in index
    assert write_pages() == []


def test_the_command_line_writes_pages(folder, command):
    for expected in ("README.md", "All pages are current."):
        code, out, _ = command("bench", "--readme")
        assert code == 0
        assert expected in out.replace("\n", "")


def test_mistakes_in_the_description_of_a_paper_are_named(folder):
    (folder / "paper.toml").write_text(PAPER.replace("finding", "found"))
    with pytest.raises(UnknownName, match="'found'"):
        read_paper("mine")
    (folder / "paper.toml").write_text(PAPER.replace("year = 2026", ""))
    with pytest.raises(InvalidInput, match="needs a year"):
        read_paper("mine")
