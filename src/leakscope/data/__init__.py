"""Datasets and partitions.

>>> from leakscope.data import load, iid
>>> clients = iid(load("digits"), clients=10, seed=0)
>>> len(clients), len(clients[0])
(10, 180)
"""

from leakscope.data.dataset import Dataset
from leakscope.data.own import from_csv, from_images, from_npz
from leakscope.data.partition import adult_phd, by_group, dirichlet, iid, orl_lmra
from leakscope.data.registry import DATASETS, Source, load
from leakscope.data.where import Place, locate

__all__ = [
    "DATASETS",
    "Dataset",
    "Place",
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
