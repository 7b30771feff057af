"""The check of a received model from files: a capture, or an agreed model and a file of weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from leakgauge import models
from leakgauge.core.container import SUFFIX, Location
from leakgauge.core.data_spec import DataSpec
from leakgauge.core.errors import FileError, InvalidInput, shown
from leakgauge.core.observation_file import load
from leakgauge.data import from_npz
from leakgauge.federation.received import ModelCheck, check_model


def read_weights(path: Location) -> dict[str, Tensor]:
    """Return the tensors of a file by name. Nothing in the file is run.

    Args:
        path: A ``.safetensors`` file, an ``.npz`` file, or a file of ``torch.save`` that holds a dictionary of tensors.
    """
    file = Path(path)
    if not file.is_file():
        raise FileError(f"{file} is no file")
    try:
        if file.suffix == SUFFIX:
            return load_file(file)
        if file.suffix == ".npz":
            with np.load(file, allow_pickle=False) as arrays:
                return {name: torch.as_tensor(arrays[name]) for name in arrays.files}
        state: object = torch.load(file, map_location="cpu", weights_only=True)
    except (OSError, ValueError, RuntimeError, EOFError, KeyError, SafetensorError, UnpicklingError) as problem:
        raise FileError(f"{file} holds no weights that can be read ({type(problem).__name__})") from problem
    if not isinstance(state, Mapping) or not all(isinstance(value, Tensor) for value in state.values()):
        raise FileError(f"{file} must hold a dictionary of tensors, as torch.save(model.state_dict()) writes it")
    return {str(name): value for name, value in state.items()}


def check_received(
    model: str,
    *,
    options: Mapping[str, Any] | None = None,
    weights: Location | None = None,
    samples: Location | None = None,
    shape: Sequence[int] | None = None,
) -> ModelCheck:
    """Check a received model, as ``leakgauge check-model`` does.

    Args:
        model: A capture, whose sent weights are checked, or the agreed model: a model of Leakgauge or
            ``module:factory``.
        options: The settings of the agreed model.
        weights: The file of the received weights. By default, those of the agreed model itself.
        samples: An npz file of the client's own samples and targets, on which the layers are watched.
        shape: The shape of a sample, on random ones of which the layers are watched if there are no own ones.
    """
    own = None if samples is None else from_npz(str(samples))
    if Path(model).suffix == SUFFIX and Path(model).is_file():
        if weights is not None or options:
            raise InvalidInput("a capture holds its model and its weights. Leave out --weights and --model-option")
        observation = load(model)
        network = observation.model
        data: DataSpec | None = observation.data
        state = {**network.state_dict(), **observation.model_buffers(), **observation.sent}
        received: dict[str, Tensor] | None = {name: state[name] for name in network.state_dict()}
    else:
        network = models.build(model, **(options or {}))
        received = None if weights is None else read_weights(weights)
        data = own.spec if own is not None else _described(network, shape)
    if own is not None and data is not None and own.spec.shape != data.shape:
        raise InvalidInput(f"the samples have the shape {shown(own.spec.shape)}, and the model's {shown(data.shape)}")
    return check_model(
        network,
        data,
        weights=received,
        samples=None if own is None else own.inputs,
        targets=None if own is None else own.targets,
    )


def _described(network: nn.Module, shape: Sequence[int] | None) -> DataSpec | None:
    """Return the description of random samples, from the shape or from the settings of a model of Leakgauge."""
    recipe = models.recipe_of(network)
    stated = recipe.options.get("shape") if recipe is not None else None
    known = shape or (stated if isinstance(stated, Sequence) else None)
    return None if known is None else DataSpec(tuple(int(size) for size in known), None)
