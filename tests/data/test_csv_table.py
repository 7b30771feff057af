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
        ("1,2,3\n4,5,6\n", "begins with numbers"),
        ("a,a,y\n1,2,0\n", "column 'a' is there twice"),
        (",a,y\n1,2,0\n", "a column called ''"),
        ("a=b,y\n1,2\n", "has the sign = in its name"),
        ("a,y\n1,0\ntall,1\n", r"'tall' \(line 3\) is a word"),
        ("a,y\n1,0\n1_000,1\n", "'1_000'"),
        ("a,y\n1,0\n1e400,1\n", "line 3 has the a 1e400"),
        ("a,y\n1,0\ninf,1\n", "line 3 has the a inf"),
        ("a,y\n1,0\n2,200000\n", "classes of the target 'y' run from 0 to 200000"),
        ("a,y\n1,-1\n2,1\n", "run from -1 to 1"),
    ],
)
def test_tables_that_would_become_other_data_are_refused(tmp_path, text, words):
    with pytest.raises((InvalidInput, CorruptFile), match=words):
        from_csv(written(tmp_path, text), target="y")


@pytest.mark.parametrize("separator", [",", ";", "\t", "|"])
def test_the_separator_is_found(tmp_path, separator):
    lines = ["age,job,y", "31,cook,0", '45,"a nurse, a cook; a clerk",1', "52,clerk,0"]
    text = "\n".join(line if place == 2 else line.replace(",", separator) for place, line in enumerate(lines))
    text = text.replace("45,", f"45{separator}").replace('",1', f'"{separator}1')
    for chosen in (None, "tab" if separator == "\t" else separator):
        read = from_csv(written(tmp_path, text), target="y", separator=chosen)
        assert read.spec.columns == ("age", "job=a nurse, a cook; a clerk", "job=clerk", "job=cook")
        assert read.inputs[:, 0].tolist() == [31, 45, 52]


def test_a_header_with_commas_in_a_table_of_semicolons(tmp_path):
    read = from_csv(written(tmp_path, "height, m;y\n1,75;0\n1,82;1\n"), target="y")
    assert read.spec.columns == ("height, m",)
    assert read.inputs.flatten().tolist() == pytest.approx([1.75, 1.82])


def test_a_line_that_does_not_fit_is_named(tmp_path):
    with pytest.raises(CorruptFile, match=r"line 3 has 2 values, expected 3, one for each .* semicolons"):
        from_csv(written(tmp_path, "a;b;y\n1;2;0\n1;2\n"), target="y")
    with pytest.raises(CorruptFile, match="seems to be separated by semicolons, expected commas"):
        from_csv(written(tmp_path, "a;b;y\n1;2;0\n1;2;1\n"), target="y", separator=",")


def test_another_encoding_is_named_by_the_user(tmp_path):
    path = tmp_path / "table.csv"
    path.write_bytes("größe;y\n1,5;ja\n1,7;nein\n".encode("cp1252"))
    with pytest.raises(CorruptFile, match="name another one with the option encoding, such as 'cp1252'"):
        from_csv(path, target="y")
    assert from_csv(path, target="y", encoding="cp1252").spec.columns == ("größe",)


def test_lines_are_those_of_the_file(tmp_path):
    with pytest.raises(InvalidInput, match=r"'tall' \(line 5\)"):
        from_csv(written(tmp_path, "a,y\n\n1,0\n\ntall,1\n"), target="y")


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
