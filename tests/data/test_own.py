"""The loaders of users' own pictures, npz files and CSV tables, and their error messages."""

import numpy as np
import pytest
import torch
from PIL import Image

from leakgauge.core.errors import CorruptFile, FileError, InvalidInput, LeakgaugeError, UnknownName
from leakgauge.data import from_csv, from_images, from_npz, own


def picture(path, value=128, size=(6, 4), mode="RGB"):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new(mode, size, value if mode == "L" else (value, 0, 255)).save(path)


def npz(path, **arrays):
    np.savez(path, **arrays)
    return path


def table(path, text):
    path.write_text(text)
    return path


def test_a_folder_of_pictures(tmp_path):
    for name, value in (("dog/2.png", 10), ("cat/1.png", 255), ("cat/0.PNG", 51)):
        picture(tmp_path / name, value)
    (tmp_path / "dog" / "notes.txt").write_text("not a picture")
    found = from_images(tmp_path)
    assert found.inputs.shape == (3, 3, 4, 6)
    assert found.targets.tolist() == [0, 0, 1]
    assert found.spec.classes == 2
    assert found.inputs[0, 0, 0, 0].item() == pytest.approx(51 / 255)
    assert torch.allclose(found.spec.normalise(found.inputs).mean((0, 2, 3)), torch.zeros(3), atol=1e-4)


def test_pictures_are_scaled_and_greyed(tmp_path):
    picture(tmp_path / "a" / "1.png", 30)
    picture(tmp_path / "b" / "2.png", 30, size=(9, 9))
    with pytest.raises(InvalidInput, match=r"2.png: has 9 x 9 pixels, but 1.png has 4 x 6 pixels. Give size"):
        from_images(tmp_path)
    assert from_images(tmp_path, size=[5, 7], grey=True, mean=0, std=1).inputs.shape == (2, 1, 5, 7)
    assert from_images(tmp_path, size=[5, 7], mean=0, std=1).spec.std == (1.0,)


def test_folders_without_pictures(tmp_path):
    with pytest.raises(FileError, match="no such folder"):
        from_images(tmp_path / "none")
    with pytest.raises(FileError, match="folders named by their class"):
        from_images(tmp_path)
    picture(tmp_path / "1.png")
    with pytest.raises(FileError, match="in no folder of their class"):
        from_images(tmp_path)
    picture(tmp_path / "b" / "1.png")
    with pytest.raises(InvalidInput, match="holds one class, b"):
        from_images(tmp_path)
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "1.png").write_bytes(b"no picture")
    with pytest.raises(CorruptFile, match=r"1.png: cannot be read"):
        from_images(tmp_path)


@pytest.mark.parametrize(
    ("values", "shape", "bounded"),
    [
        (np.full((4, 5, 6), 255, np.uint8), (1, 5, 6), True),
        (np.full((4, 5, 6, 3), 255, np.uint8), (3, 5, 6), True),
        (np.full((4, 3, 5, 6), 0.5), (3, 5, 6), True),
        (np.full((4, 1, 5, 6), 9.0), (1, 5, 6), False),
        (np.arange(8).reshape(4, 2), (2,), False),
    ],
    ids=["grey", "colours last", "colours first", "not pixels", "table"],
)
def test_arrays_of_every_shape(tmp_path, values, shape, bounded):
    found = from_npz(npz(tmp_path / "mine.npz", x=values, y=np.array([0, 1, 2, 1])))
    assert found.spec.shape == shape
    assert found.spec.bounded == bounded
    assert found.spec.classes == 3
    assert found.name == "mine"


def test_targets_may_be_numbers(tmp_path):
    path = npz(tmp_path / "mine.npz", data=np.zeros((3, 2)), value=np.array([0.5, 1.5, 2.5]))
    found = from_npz(path, inputs="data", targets="value")
    assert found.spec.classes is None
    assert from_npz(npz(tmp_path / "b.npz", x=np.zeros((2, 2)), y=np.array([True, False]))).spec.classes == 2
    assert from_npz(npz(tmp_path / "c.npz", x=np.zeros((2, 2)), y=np.array([0, 1])), classes=10).spec.classes == 10


@pytest.mark.parametrize(
    ("values", "shape", "count", "floats"),
    [
        (np.array([[0, 1, 1], [1, 0, 0]], np.uint8), (3,), 2, True),
        (np.array([[0.0, 1.0], [1.0, 0.0]]), (2,), 2, True),
        (np.array([[0.5, 1.0], [1.0, 0.0]]), (2,), None, True),
        (np.array([[0.5], [2.0]]), (1,), None, True),
        (np.array([[-3, 1], [2, 0]]), (2,), None, True),
        (np.zeros((2, 4, 6), bool), (4, 6), 2, False),
        (np.full((2, 4, 6), 3, np.uint8), (4, 6), 4, False),
        (np.zeros((2, 1, 4, 6)), (1, 4, 6), 2, True),
    ],
    ids=["labels", "labels as floats", "numbers", "a column", "whole numbers", "mask", "mask of classes", "channels"],
)
def test_targets_may_have_several_entries(tmp_path, values, shape, count, floats):
    loaded = from_npz(npz(tmp_path / "mine.npz", x=np.zeros((2, 4, 6), np.uint8), y=values))
    assert loaded.spec.classes is None
    assert (loaded.spec.target_shape, loaded.spec.target_values) == (shape, count)
    assert loaded.targets.is_floating_point() == floats
    assert loaded.share([1]).spec == loaded.spec
    np.testing.assert_allclose(loaded.targets.numpy(), values)


def test_a_column_of_whole_numbers_is_classes_and_masks_may_have_more_classes_than_they_show(tmp_path):
    column = from_npz(npz(tmp_path / "a.npz", x=np.zeros((3, 2)), y=np.array([[0], [2], [1]])))
    assert column.spec.classes == 3
    assert column.targets.tolist() == [0, 2, 1]
    path = npz(tmp_path / "b.npz", x=np.zeros((2, 4, 6)), y=np.zeros((2, 4, 6), int))
    assert from_npz(path, classes=5).spec.target_values == 5
    with pytest.raises(CorruptFile, match="classes from 0 to 7"):
        from_npz(npz(tmp_path / "c.npz", x=np.zeros((2, 4)), y=np.full((2, 2), 7) * [[0], [1]]), classes=5)


@pytest.mark.parametrize(
    ("arrays", "problem"),
    [
        ({"x": np.zeros((2, 2))}, "no array 'y'"),
        ({"x": np.zeros((2, 2)), "y": np.zeros(3)}, "targets of shape"),
        ({"x": np.zeros((2, 2)), "y": np.zeros((3, 4))}, "targets of shape"),
        ({"x": np.zeros((2, 2)), "y": np.full((2, 4), np.inf)}, "NaN or Inf"),
        ({"x": np.zeros((2, 2)), "y": np.full((2, 4), "a")}, "targets of type"),
        ({"x": np.zeros(4), "y": np.zeros(4)}, "samples of shape"),
        ({"x": np.array([["a", "b"]]), "y": np.zeros(1)}, "samples of type"),
        ({"x": np.zeros((2, 2)), "y": np.array(["a", "b"])}, "targets of type"),
        ({"x": np.full((2, 2), np.nan), "y": np.zeros(2)}, "NaN"),
        ({"x": np.zeros((2, 2)), "y": np.array([-1, 0])}, "labels run from -1"),
        ({"x": np.array([{}], dtype=object), "y": np.zeros(1)}, "cannot be read"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_arrays_that_cannot_be_used(tmp_path, arrays, problem):
    with pytest.raises(LeakgaugeError, match=problem):
        from_npz(npz(tmp_path / "mine.npz", **arrays))


def test_a_table(tmp_path):
    path = table(tmp_path / "people.csv", "age,job,sex,income\n30,nurse,f,low\n50,clerk,m,high\n41,nurse,m,low\n")
    found = from_csv(path, target="income", sensitive="sex")
    assert found.spec.columns == ("age", "job=clerk", "job=nurse", "sex")
    assert found.inputs.tolist() == [[30, 0, 1, 0], [50, 1, 0, 1], [41, 0, 1, 1]]
    assert found.targets.tolist() == [1, 0, 1]
    assert found.spec.classes == 2
    assert found.sensitive == "sex"


def test_a_regression_table(tmp_path):
    path = table(tmp_path / "a.csv", "x,y\n1,0.5\n2,1.5\n")
    assert from_csv(path, target="y").spec.classes is None
    path = table(tmp_path / "b.csv", "x,y\n1,0\n2,1\n3,2\n")
    assert from_csv(path, target="y").spec.classes == 3
    assert from_csv(path, target="y", regression=True).spec.classes is None


@pytest.mark.parametrize(
    ("text", "options", "problem"),
    [
        ("x,y\n", {}, "holds 1 lines"),
        ("x,y\n1\n", {}, "line 2 has 1 values"),
        ("x,y\n1,\n", {}, "'y' holds no value"),
        ("x,y\n1,0\n1,\n", {"missing": "refuse"}, "line 3 has no 'y'"),
        ("x,z\n1,2\n", {}, "for target 'y'"),
        ("x,y\n1,2\n", {"sensitive": "w"}, "for sensitive 'w'"),
        ("x,y\n1,2\n", {"sensitive": "y"}, "both the target"),
        ("x,y\n1,2\n5,3\n", {"sensitive": "x"}, "must hold 0 and 1"),
        ("y\n1\n", {}, "no column beside"),
    ],
)
def test_tables_that_cannot_be_used(tmp_path, text, options, problem):
    with pytest.raises((InvalidInput, CorruptFile, UnknownName), match=problem):
        from_csv(table(tmp_path / "mine.csv", text), target="y", **options)


@pytest.mark.parametrize("shape", [(9, 5, 6), (9, 5, 6, 3), (9, 3, 5, 6)])
@pytest.mark.parametrize("at_a_time", [1, 200, 2**20])
def test_statistics_are_computed_from_a_part_at_a_time(shape, at_a_time, tmp_path, monkeypatch):
    monkeypatch.setattr(own, "AT_A_TIME", at_a_time)
    pictures = np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)
    np.savez(tmp_path / "x.npz", x=pictures, y=np.arange(9) % 2)
    dataset = from_npz(tmp_path / "x.npz")
    assert dataset._stored.dtype == torch.uint8
    exact = dataset.inputs.double()
    assert dataset.spec.mean == pytest.approx(exact.mean((0, 2, 3)).tolist(), rel=1e-12)
    assert dataset.spec.std == pytest.approx(exact.std((0, 2, 3), correction=0).tolist(), rel=1e-12)
    assert torch.equal(
        dataset.inputs.flatten().sort().values, torch.from_numpy(pictures / np.float32(255)).flatten().sort().values
    )
