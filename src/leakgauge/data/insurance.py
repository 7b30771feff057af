"""Medical Cost Personal: 1,338 people and what their health insurance was charged in a year, a regression.

The table comes with a textbook ("Machine Learning with R") and was simulated from US census demographics. Diana, Xu and
Neglia (AAAI 2025) infer from it who smokes.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from leakgauge.data import locations
from leakgauge.data.dataset import Dataset
from leakgauge.data.dataset_source import Remote, Source
from leakgauge.data.locations import Folder
from leakgauge.data.own import from_csv


def load(*, sensitive: Literal["smoker", "sex"] = "smoker", folder: Folder = None, download: bool = True) -> Dataset:
    """Load the people, with age, body mass index and number of children in their own units. The target is the charge.

    Args:
        sensitive: The sensitive column, ``"smoker"`` (1 for a smoker) or ``"sex"`` (1 for a man).
        folder: The data folder, which has one subfolder for each dataset. If it is given, files are read only from
            there.
        download: Whether missing files may be downloaded.
    """
    [path] = locations.obtain(SOURCE, folder, download)
    return replace(from_csv(path, target="charges", sensitive=sensitive, regression=True), name="insurance")


SOURCE = Source(
    "insurance",
    "1,338 people, a regression; sensitive: smoker",
    "folder or download",
    load,
    files=("insurance.csv",),
    remotes={
        "insurance.csv": Remote(
            "https://raw.githubusercontent.com/stedy/Machine-Learning-with-R-datasets/master/insurance.csv",
            "sha256:505c1cbc2e63d0363bac59501563df2530aadf4cdb9cfee226f4ef32f5468281",
        ),
    },
    position=115,
)
