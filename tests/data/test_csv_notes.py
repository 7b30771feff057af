"""What is printed about a table."""

from leakgauge.data import from_csv


def notes(folder, text, **options):
    path = folder / "table.csv"
    path.write_text(text)
    return from_csv(path, target="y", **options).notes


def test_the_types_of_columns_are_stated(tmp_path):
    text = "age;job;y\n" + "".join(f"{20 + row},5;{'abc'[row % 3]};{row % 2}\n" for row in range(9))
    assert notes(tmp_path, text) == (
        "9 rows, separated by semicolons, with decimal commas.",
        "Numbers: age.",
        "Categories: job (3 values).",
        "Target: y, the classes 0 to 1. If it is a quantity, set regression = true.",
    )


def test_codes_are_asked_about_until_the_user_answers(tmp_path):
    text = "grade,age,y\n" + "".join(f"{row % 4},{row}.5,{row % 2}\n" for row in range(40))
    asked = "grade: few different whole numbers, used as numbers."
    assert any(note.startswith(asked) for note in notes(tmp_path, text))
    for answer in ({"categories": ["grade"]}, {"numbers": ["grade"]}):
        assert not any("few different" in note for note in notes(tmp_path, text, **answer))


def test_a_column_of_names_is_warned_of(tmp_path):
    text = "name,age,y\n" + "".join(f"person{row % 200},{row},{row % 2}\n" for row in range(400))
    (warning,) = [note for note in notes(tmp_path, text) if note.startswith("Warning")]
    assert "name holds 200 different values, so it becomes 200 columns" in warning
    assert "leave the column out with ignore" in warning
    assert not any(note.startswith("Warning") for note in notes(tmp_path, text, ignore=["name"]))


def test_numbers_with_units_are_asked_about(tmp_path):
    text = "weight,y\n45 kg,0\n52 kg,1\n"
    asked = "weight: its categories begin with digits. If they are numbers with units, remove the units."
    assert any(note.startswith(asked) for note in notes(tmp_path, text))
    assert not any("units" in note for note in notes(tmp_path, text, categories=["weight"]))


def test_many_rows_that_are_left_out_are_a_warning(tmp_path):
    text = "a,b,y\n" + "".join(f"{row},{'' if row % 4 else row},{row % 2}\n" for row in range(40))
    assert "Warning: 30 of 40 rows were left out, because they have no value in b (30)." in notes(tmp_path, text)


def test_the_words_of_classes_are_named(tmp_path):
    assert notes(tmp_path, "a,b,y\n1,x,low\n2,x,high\n")[-2:] == (
        "b holds one value only.",
        "Target: y, 2 classes (high, low).",
    )
    assert notes(tmp_path, "a,y\n1,0.5\n2,1.5\n")[-1] == "Target: y, a number."


def test_no_cell_of_a_table_is_in_its_notes(tmp_path):
    """A page shows the notes also if samples are left out of it."""
    rows = "".join(f"{row}-secret,word{row},{row}.125,secret{row}\n" for row in range(60))
    said = " ".join(notes(tmp_path, f"id,job,size,y\n{rows}"))
    assert not any(cell in said for cell in ("secret", "word", ".125"))
    assert "60 classes" in said


def test_names_that_steer_a_terminal_are_made_harmless(tmp_path):
    assert all(note.isprintable() for note in notes(tmp_path, "a,y\n1,lo\x1b[2Jw\n2,high\n"))
