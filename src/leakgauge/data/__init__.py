"""Datasets, functions that divide a dataset among clients, and loaders for your own data.

>>> from leakgauge.data import load, iid
>>> clients = iid(load("digits"), clients=10, seed=0)
>>> len(clients), len(clients[0])
(10, 180)
"""

from leakgauge.data.dataset import Dataset
from leakgauge.data.dataset_source import PackageFile, Remote, Source
from leakgauge.data.own import from_csv, from_images, from_npz
from leakgauge.data.partition import adult_phd, by_group, dirichlet, iid, orl_lmra
from leakgauge.data.registry import DATASETS, load, locate
from leakgauge.data.where import Place

__all__ = [
    "DATASETS",
    "Dataset",
    "PackageFile",
    "Place",
    "Remote",
    "Source",
    "adult_phd",
    "by_group",
    "dirichlet",
    "from_csv",
    "from_images",
    "from_npz",
    "iid",
    "load",
    "locate",
    "orl_lmra",
]
