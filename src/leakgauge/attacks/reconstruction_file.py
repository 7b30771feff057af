"""The file format of reconstructions."""

from __future__ import annotations

from pathlib import Path

import torch

from leakgauge.attacks.base import Reconstruction
from leakgauge.attacks.inversion.solve import Trace
from leakgauge.attacks.inversion.stopping import Outcome
from leakgauge.core.container import Location, read_container, write_container
from leakgauge.core.errors import CorruptFile

KIND = "reconstruction"
VERSION = 1


def save_reconstruction(result: Reconstruction, path: Location, *, source: str = "") -> Path:
    """Save a reconstruction with its loss curve. The file is complete or absent.

    Args:
        result: The reconstruction.
        path: The file.
        source: A note on the message behind the reconstruction, such as its file.
    """
    outcome = result.outcome
    document = {
        "attack": result.attack,
        "client": result.client,
        "round": result.round,
        "seed": result.seed,
        "seconds": result.seconds,
        "outcome": [outcome.kind, outcome.step, outcome.sentence],
        "source": source,
    }
    tensors = {"samples": result.samples, "loss": torch.tensor(result.loss, dtype=torch.double)}
    if result.labels is not None:
        tensors["labels"] = result.labels
    if result.trace is not None:
        tensors["trace"] = result.trace.losses
    return write_container(path, KIND, VERSION, document, tensors)


def load_reconstruction(path: Location) -> tuple[Reconstruction, str]:
    """Load a reconstruction, and the note on its source."""
    document, tensors = read_container(path, KIND, VERSION)
    try:
        trace = Trace(tensors["trace"], {}) if "trace" in tensors else None
        result = Reconstruction(
            samples=tensors["samples"],
            labels=tensors.get("labels"),
            outcome=Outcome(*document["outcome"]),
            loss=float(tensors["loss"]),
            trace=trace,
            client=document["client"],
            round=document["round"],
            attack=document["attack"],
            seed=document["seed"],
            seconds=document["seconds"],
        )
        return result, str(document["source"])
    except (KeyError, TypeError, ValueError, RuntimeError) as problem:
        raise CorruptFile(f"{path} does not describe a reconstruction ({problem!r})") from problem
