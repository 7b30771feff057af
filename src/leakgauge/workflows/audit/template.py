"""The template of a commented configuration file for an audit, which a user can adapt."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from leakgauge.core.container import write_atomically
from leakgauge.core.errors import FileError, UnknownName
from leakgauge.core.limits import RECIPE
from leakgauge.data import DATASETS
from leakgauge.models import MODELS
from leakgauge.workflows.documents import check_printable

_TEXT = """\
# How much of the clients' data can be rebuilt from what they send? Run: leakgauge audit {name}
# seed = 0                    # the same seed gives the same audit

[model]
name = {model}                # one of `leakgauge list models`, or "module:factory" for your own
# options = {{ classes = 10 }}  # passed to the factory
# trained_rounds = 20         # train the model for some rounds first; default: an untrained model

[data]
{source} = {data}             # name of a dataset, images (a folder), npz, csv, or factory = "module:function"
{options}

[training]                    # what a client does in a round
sends = {sends}               # "weights" (FedAvg) or "gradient" (FedSGD)
samples = {samples}
lr = {lr}
epochs = {epochs}
batch_size = {batch_size}
# momentum = 0.9
# mode = "eval"               # batch norm with its stored statistics

# [attacker]
# granted = ["labels"]        # labels, label_counts, label_batches
# hidden = ["lr"]             # parts of the recipe that it does not know
# knows_defence = false       # do not try attackers who know the defence
# public = "none"             # its public data: a number of your samples (default: 500), a path, a name, or none

# [audit]
# attacks = ["inverting_gradients", {{ name = "dlf", steps = 80 }}]   # default: those that fit
# clients = 4

# [[defence]]                 # without any, clients do not defend themselves
# title = "noise"
# chain = [{{ name = "gaussian_noise", sigma = 0.01 }}]
"""


#: The line with the options of the data, if none are given.
_NO_OPTIONS = '# options = { target = "income", sensitive = "sex" }   # for csv; see docs/data.md'


def write_template(
    path: Path,
    *,
    model: str,
    data: str,
    sends: str,
    options: Mapping[str, str | Sequence[str]] | None = None,
    **numbers: float,
) -> Path:
    """Write a configuration file, and return its path. Raise an error if the file exists already.

    Args:
        path: The file to write.
        model: The name of a model, or ``module:factory``.
        data: The name of a dataset, a folder of pictures, an npz or a csv file, or ``module:function``.
        sends: The message of a client, which is ``"weights"`` or ``"gradient"``.
        options: The options of the data, such as the types of a table's columns.
        numbers: The values of ``samples``, ``lr``, ``epochs`` and ``batch_size`` in the table ``[training]``.
    """
    _check_free(path)
    for name, value in numbers.items():
        RECIPE[name].checked(f"--{name.replace('_', '-')}", value)
    check_printable(model, "--model")
    check_printable(data, "--data")
    if ":" not in model and model not in MODELS:
        raise UnknownName("model", model, [*MODELS, "module:factory"])
    if source_of(data) == "name" and data not in DATASETS:
        raise UnknownName("dataset, folder of pictures, .npz or .csv file called", data, [*DATASETS, "module:function"])
    if sends not in ("weights", "gradient"):
        raise UnknownName("message (--sends)", sends, ("weights", "gradient"))
    names = {"model": json.dumps(model), "data": json.dumps(data), "sends": json.dumps(sends)}
    chosen = ", ".join(f"{name} = {json.dumps(value, ensure_ascii=False)}" for name, value in (options or {}).items())
    line = f"options = {{ {chosen} }}" if chosen else _NO_OPTIONS
    text = _TEXT.format(name=path.name, source=source_of(data), options=line, **names, **numbers)
    write_atomically(path, text.encode(), private=False)
    return path


def _check_free(path: Path) -> None:
    """Raise an error if a path exists, or if no file can have it."""
    try:
        path.lstat()
    except FileNotFoundError:
        return
    except (OSError, ValueError) as problem:  # a ValueError for a zero character in the name
        raise FileError(f"{path}: cannot be written ({getattr(problem, 'strerror', None) or problem})") from problem
    raise FileError(f"{path}: already exists, not overwritten. Choose another name")


def source_of(data: str) -> str:
    """Return the key of the table ``[data]`` for a data source, such as ``npz`` for an npz file."""
    if data.lower().endswith(".npz"):
        return "npz"
    if data.lower().endswith((".csv", ".tsv", ".csv.gz")):
        return "csv"
    if ":" in data:
        return "factory"
    return "images" if Path(data).is_dir() else "name"
