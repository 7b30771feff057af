"""A copy of the client's model, on which the exact attacks run."""

from __future__ import annotations

import copy

import torch
from torch import nn

from leakgauge.core.observation import Observation


def copy_of_model(observation: Observation, dtype: torch.dtype) -> nn.Module:
    """Return a copy of the model with the weights that the server sent, in the mode of the client's training.

    Args:
        observation: The message of the client.
        dtype: The precision of the copy.
    """
    model = copy.deepcopy(observation.model).to(observation.device, dtype)
    model.train(observation.training.mode == "train")
    buffers = observation.model_buffers()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(observation.sent[name])
            parameter.requires_grad_(False)
        for name, buffer in model.named_buffers():
            buffer.copy_(buffers[name])
    return model
