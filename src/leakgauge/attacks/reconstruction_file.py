"""Functions that save the result of an attack to a file, and load it again."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from leakgauge.attacks.base import Reconstruction
from leakgauge.attacks.inversion.solve import Trace
from leakgauge.attacks.inversion.stopping import Outcome
from leakgauge.core.container import Location, read_container, write_container
from leakgauge.core.errors import CorruptFile

KIND = "reconstruction"
VERSION = 1


def to_parts(reconstruction: Reconstruction) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Split a reconstruction into a dictionary of plain values and a dictionary of tensors."""
    outcome = reconstruction.outcome
    document = {
        "attack": reconstruction.attack,
        "client": reconstruction.client,
        "round": reconstruction.round,
        "seed": reconstruction.seed,
        "seconds": reconstruction.seconds,
        "outcome": [outcome.kind, outcome.step, outcome.sentence],
    }
    tensors = {"samples": reconstruction.samples, "loss": torch.tensor(reconstruction.loss, dtype=torch.double)}
    if reconstruction.labels is not None:
        tensors["labels"] = reconstruction.labels
    if reconstruction.trace is not None:
        tensors["trace"] = reconstruction.trace.losses
    return document, tensors


def from_parts(document: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Reconstruction:
    """Create a reconstruction from the two dictionaries that :func:`to_parts` returns.

    Args:
        document: The dictionary of plain values.
        tensors: The dictionary of tensors, which holds the samples and the loss. If the reconstruction has labels or a
            loss curve, the dictionary holds these too.
    """
    return Reconstruction(
        samples=tensors["samples"],
        labels=tensors.get("labels"),
        outcome=Outcome(*document["outcome"]),
        loss=float(tensors["loss"]),
        trace=Trace(tensors["trace"], {}) if "trace" in tensors else None,
        client=document["client"],
        round=document["round"],
        attack=document["attack"],
        seed=document["seed"],
        seconds=document["seconds"],
    )


def save_reconstruction(reconstruction: Reconstruction, path: Location) -> Path:
    """Save a reconstruction with its loss curve to one file, atomically.

    Args:
        reconstruction: The result of an attack.
        path: The file to write.
    """
    return write_container(path, KIND, VERSION, *to_parts(reconstruction))


def load_reconstruction(path: Location) -> Reconstruction:
    """Load a reconstruction from a file."""
    document, tensors = read_container(path, KIND, VERSION)
    try:
        return from_parts(document, tensors)
    except (KeyError, TypeError, ValueError, RuntimeError) as problem:
        raise CorruptFile(f"{path}: its description is not that of a reconstruction ({problem!r})") from problem
