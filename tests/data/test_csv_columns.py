"""The types of columns, and the rule for missing values."""

import random

import pytest
import torch

from leakgauge.core.errors import InvalidInput, UnknownName
from leakgauge.core.table_rows import records_of
from leakgauge.data import from_csv

PEOPLE = """age,job,grade,y
30,cook,1,a
NA,nurse,2,b
50,?,3,a
40,clerk,2,
60,none,1,b
"""


def written(folder, text):
    path = folder / "table.csv"
    path.write_text(text)
    return path


def test_rows_with_missing_values_are_left_out(tmp_path):
    read = from_csv(written(tmp_path, PEOPLE), target="y")
    assert read.inputs[:, 0].tolist() == [30, 60]
    assert read.spec.columns == ("age", "job=cook", "job=none", "grade")  # none is a word like any other in categories
    assert "3 of 5 rows were left out, because they have no value in age (1), job (1), y (1)." in read.notes[1]


def test_missing_values_are_filled_in(tmp_path):
    read = from_csv(written(tmp_path, PEOPLE), target="y", missing="fill")
    assert read.inputs[:, 0].tolist() == [30, 40, 50, 60]  # the lower one of the two in the middle
    assert "job=missing" in read.spec.columns
    assert read.inputs[2, read.spec.columns.index("job=missing")] == 1
    assert any("filled in age (1), job (1)" in note for note in read.notes)


def test_missing_values_are_refused(tmp_path):
    with pytest.raises(InvalidInput, match=r"line 3 has no 'age' \('NA'\)"):
        from_csv(written(tmp_path, PEOPLE), target="y", missing="refuse")


def test_a_number_column_with_gaps_is_never_one_of_categories(tmp_path):
    for word in ("NA", "", "?", "null", "NaN", "none", "-", "unknown"):
        read = from_csv(written(tmp_path, f"a,b,y\n1,1,0\n{word},2,1\n3,3,0\n"), target="y")
        assert read.spec.columns == ("a", "b"), word
        assert read.inputs[:, 0].tolist() == [1, 3]


def test_the_words_for_missing_values_can_be_named(tmp_path):
    text = "a,b,y\n1,NA,0\n-99,x,1\n3,x,0\n4,NA,1\n"
    read = from_csv(written(tmp_path, text), target="y", missing_words=["-99"])
    assert read.spec.columns == ("a", "b=NA", "b=x")
    assert read.inputs[:, 0].tolist() == [1, 3, 4]


def test_codes_are_categories_if_the_user_says_so(tmp_path):
    text = "grade,age,y\n10,30,2\n9,40,1\n10,50,2\n2,60,1\n"
    plain = from_csv(written(tmp_path, text), target="y")
    assert plain.spec.columns == ("grade", "age")
    coded = from_csv(written(tmp_path, text), target="y", categories=["grade", "y"])
    assert coded.spec.columns == ("grade=2", "grade=9", "grade=10", "age")
    assert coded.inputs[:, :3].argmax(1).tolist() == [2, 1, 2, 0]
    assert (coded.spec.classes, coded.targets.tolist(), coded.words["y"]) == (2, [1, 0, 1, 0], ("1", "2"))


def test_numbers_may_be_named_too(tmp_path):
    text = "a,y\n1,0\n2,1\n3,2\n"
    assert from_csv(written(tmp_path, text), target="y").spec.classes == 3
    assert from_csv(written(tmp_path, text), target="y", numbers=["y"]).spec.classes is None
    with pytest.raises(InvalidInput, match=r"'a' holds numbers, but 'x' \(line 3\) is a word"):
        from_csv(written(tmp_path, "a,y\nw,0\nx,1\n".replace("w", "1")), target="y", numbers=["a"])


def test_a_column_of_numbers_and_words_is_refused_or_one_of_categories(tmp_path):
    path = written(tmp_path, "children,y\n0,0\n1,1\n3+,0\n")
    with pytest.raises(InvalidInput, match=r"'3\+' \(line 4\) is a word.* name the column in categories"):
        from_csv(path, target="y")
    assert from_csv(path, target="y", categories=["children"]).spec.columns == (
        "children=0", "children=1", "children=3+"
    )  # fmt: skip


def test_columns_can_be_left_out(tmp_path):
    read = from_csv(written(tmp_path, PEOPLE), target="y", ignore=["age", "job"])
    assert read.spec.columns == ("grade",)
    assert len(read) == 4  # gaps of a column that is left out do not count
    assert "Left out, as ignore says: age, job." in read.notes


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"categories": ["jobs"]}, "'jobs'; did you mean 'job'"),
        ({"categories": ["job"], "numbers": ["job"]}, "'job' is in both categories and numbers"),
        ({"ignore": ["y"]}, "'y' is the target column, so it cannot be ignored"),
        ({"ignore": ["age", "job", "grade"]}, "no column beside the target"),
        ({"numbers": ["y"], "ignore": ["y"]}, "in both numbers and ignore"),
    ],
)
def test_names_that_contradict_each_other(tmp_path, options, words):
    with pytest.raises((InvalidInput, UnknownName), match=words):
        from_csv(written(tmp_path, PEOPLE), target="y", **options)


def test_a_table_without_a_whole_row(tmp_path):
    path = written(tmp_path, "a,b,y\n1,,0\n,2,1\n,3,1\n")
    with pytest.raises(InvalidInput, match=r"no row has a value in every column. The column 'a' lacks most \(2 of 3\)"):
        from_csv(path, target="y")
    assert from_csv(path, target="y", missing="fill").inputs.tolist() == [[1, 2], [1, 2], [1, 3]]


def test_a_column_without_a_value(tmp_path):
    with pytest.raises(InvalidInput, match=r"'a' holds no value. Leave it out with ignore = \['a'\]"):
        from_csv(written(tmp_path, "a,b,y\n,1,0\n?,2,1\n"), target="y")


def test_numbers_with_the_other_decimal_sign_are_no_categories(tmp_path):
    path = written(tmp_path, "height;y\n1.75;0\n1.82;1\n")
    assert from_csv(path, target="y").inputs[:, 0].tolist() == pytest.approx([1.75, 1.82])
    with pytest.raises(InvalidInput, match=r"numbers such as '1.(75|82)', but the decimal sign of this table is ','"):
        from_csv(path, target="y", decimal=",")
    assert len(from_csv(path, target="y", decimal=",", categories=["height"]).spec.columns) == 2


def test_a_sensitive_column_keeps_its_words(tmp_path):
    read = from_csv(written(tmp_path, "sex,age,y\nf,1,0\nm,2,1\n"), target="y", sensitive="sex")
    assert read.words == {"sex": ("f", "m")}
    assert torch.equal(read.inputs[:, 0], torch.tensor([0.0, 1.0]))
    assert read.share([1]).words == read.words


@pytest.mark.parametrize("seed", range(6))
def test_the_rows_that_are_read_are_those_of_the_file(tmp_path, seed):
    """Random tables beside a plain loop over their cells, with each separator, decimal sign and rule."""
    chance = random.Random(seed)
    separator, decimal, rule = ",;|\t"[seed % 4], ".,"[seed % 2], ("drop", "fill")[seed // 3]
    rows = [
        [chance.choice(("", "NA", f"{chance.randint(-99, 99)}.{chance.randint(1, 9)}", f"{chance.randint(0, 9)}.25")),
         chance.choice(("cook", "a b", "?", "Köchin", "1st")), str(chance.randint(1, 3)), chance.choice("ab")]
        for _ in range(60)
    ]  # fmt: skip
    lines = [["size", "job", "code", "y"], *([row[0].replace(".", decimal), *row[1:]] for row in rows)]
    cells = [separator.join(f'"{cell}"' for cell in line) for line in lines]
    read = from_csv(written(tmp_path, "\r\n".join(cells)), target="y", categories=["code"], missing=rule)
    sizes = sorted(float(row[0]) for row in rows if row[0] not in ("", "NA"))
    expected = []
    for row in rows:
        if rule == "drop" and (row[0] in ("", "NA") or row[1] == "?"):
            continue
        size = float(row[0]) if row[0] not in ("", "NA") else sizes[(len(sizes) - 1) // 2]
        expected.append([f"{size:.2f}", "missing" if row[1] == "?" else row[1], row[2]])
    assert records_of(read.inputs, read.spec) == expected
