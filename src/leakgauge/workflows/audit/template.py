"""A commented configuration to begin with."""

from __future__ import annotations

import json
from pathlib import Path

from leakgauge.core.container import write_atomically
from leakgauge.core.errors import FileError, UnknownName

_TEXT = """\
# What can be rebuilt from what clients send? Run: leakgauge audit {name}
# seed = 0                    # the same seed gives the same audit

[model]
name = {model}                # one of `leakgauge list models`, or "module:factory" for your own
# options = {{ classes = 10 }}  # passed to the factory

[data]
{source} = {data}             # name of a dataset, images (a folder), npz, csv, or factory = "module:function"
# options = {{ target = "income", sensitive = "sex" }}   # for csv; see docs/data.md

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

# [audit]
# attacks = ["inverting_gradients", {{ name = "dlf", steps = 80 }}]   # default: those that fit
# clients = 4

# [[defence]]                 # without any, clients do not defend themselves
# title = "noise"
# chain = [{{ name = "gaussian_noise", sigma = 0.01 }}]
"""


def write_template(
    path: Path, *, model: str, data: str, sends: str, samples: int, lr: float, epochs: int, batch_size: int
) -> Path:
    """Write a configuration; a file that is there already is left as it is."""
    if path.exists():
        raise FileError(f"{path}: is there already, and is left as it is; choose another name")
    if sends not in ("weights", "gradient"):
        raise UnknownName("message (--sends)", sends, ("weights", "gradient"))
    text = _TEXT.format(
        name=path.name,
        model=json.dumps(model),
        source=_source(data),
        data=json.dumps(data),
        sends=json.dumps(sends),
        samples=samples,
        lr=lr,
        epochs=epochs,
        batch_size=batch_size,
    )
    write_atomically(path, text.encode())
    return path


def _source(data: str) -> str:
    """Which key of ``[data]`` this is for."""
    suffix = Path(data).suffix.lower()
    if suffix in (".npz", ".csv"):
        return suffix[1:]
    if ":" in data:
        return "factory"
    return "images" if Path(data).is_dir() else "name"
