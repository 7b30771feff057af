import pytest

from leakgauge.core.errors import CorruptFile, InvalidInput
from leakgauge.data import from_csv


def written(folder, text):
    path = folder / "table.csv"
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("age;job;y\n1;a;0\n2;b;1\n", "is separated by semicolons"),
        ("age\tjob\ty\n1\ta\t0\n", "is separated by tabs"),
        ("1,2,3\n4,5,6\n", "begins with numbers"),
        ("a,a,y\n1,2,0\n", "column 'a' is there twice"),
        (",a,y\n1,2,0\n", "a column called ''"),
        ("a,y\n1,0\nNA,1\n", r"'NA' \(line 3\) stands for a missing value"),
        ("a,y\n1,0\ntall,1\n", r"'tall' \(line 3\) is a word"),
        ("a,y\n1,0\n1_000,1\n", "'1_000'"),
        ("a,y\n1,0\n1e400,1\n", "line 3 has the a 1e400"),
        ("a,y\n1,0\ninf,1\n", "line 3 has the a inf"),
        ("a,y\n1,0\n2,NA\n", "column 'y' holds numbers, but 'NA'"),
        ("a,y\n1,0\n2,200000\n", "classes of the target 'y' run from 0 to 200000"),
        ("a,y\n1,-1\n2,1\n", "run from -1 to 1"),
    ],
)
def test_tables_that_would_become_other_data_are_refused(tmp_path, text, words):
    with pytest.raises((InvalidInput, CorruptFile), match=words):
        from_csv(written(tmp_path, text), target="y")


def test_a_name_in_every_row_is_no_category(tmp_path):
    rows = "".join(f"person{row},{row % 2}\n" for row in range(1200))
    with pytest.raises(InvalidInput, match="1,200 different words"):
        from_csv(written(tmp_path, f"name,y\n{rows}"), target="y")


def test_the_kind_of_target_that_the_user_names_must_fit(tmp_path):
    path = written(tmp_path, "a,b,c\n1,0.5,x\n2,0.25,y\n")
    with pytest.raises(InvalidInput, match="holds words, so it is no regression"):
        from_csv(path, target="c", regression=True)
    with pytest.raises(InvalidInput, match="holds fractions, so it is no class"):
        from_csv(path, target="b", regression=False)
    assert from_csv(path, target="b").spec.classes is None
    assert from_csv(path, target="c").targets.tolist() == [0, 1]
