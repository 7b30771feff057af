"""The update of a dense layer by Adam or AdamW, from a client's message, and the effect of weight decay on it."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from leakgauge.attacks.analytic.adam_layer import Fitted, Rows, decay_factor, fit_one_step, noise_of, roundings_of
from leakgauge.core.observation import Observation
from leakgauge.core.one_gradient import optimiser_of
from leakgauge.core.params import inside

#: The shares of Adam's weight decay that are still uncertain in each correction of the fit of one step.
LEFT = (0.3, 0.1, 0.03, 0.01, 0.0, 0.0)


def layer_update(observation: Observation, path: str) -> tuple[Rows, float]:
    """Return the update of a dense layer in units of the learning rate, and this rate. AdamW's decay is undone.

    Args:
        observation: The client's message, after local training with Adam or AdamW.
        path: The path of the layer in the model.
    """
    training, kept = observation.training, 1.0
    factors = training.factors
    assert observation.returned is not None
    pairs = [
        (observation.sent[name], observation.returned[name]) for name in (inside(path, "weight"), inside(path, "bias"))
    ]
    if training.lr is None:
        rate = max(float((sent.double() - returned.double()).abs().max()) for sent, returned in pairs) or 1.0
    else:
        rate = training.lr * (factors[0] if len(factors) == 1 else 1.0)
    if training.weight_decay and training.optimiser == "adamw":
        dtype = observation.sent[inside(path, "weight")].dtype
        kept = math.prod(decay_factor(training, training.need("lr") * factor, dtype) for factor in factors)
    updates, noise = [], []
    for sent, returned in pairs:
        left = sent * kept if len(factors) == 1 else sent.double() * kept  # one step decays as the client does
        updates.append((left.double() - returned.double()).reshape(len(sent), -1) / rate)
        noise.append(noise_of(sent, returned, rate, roundings_of(training)).reshape(len(sent), -1))
    rows = Rows(torch.cat(updates, 1), torch.cat(noise, 1))
    pull = pull_of(observation, path)
    return (rows if pull is None else rows.without_decayed(pull)), rate


def decays(observation: Observation) -> bool:
    """Return whether weight decay is part of the gradients.

    Args:
        observation: The client's message, after local training with Adam or AdamW.
    """
    return bool(observation.training.weight_decay) and optimiser_of(observation) == "adam"


def pull_of(observation: Observation, path: str) -> Tensor | None:
    """Return what Adam's weight decay adds to the gradient of a layer, or ``None`` if it adds nothing.

    Args:
        observation: The client's message, after local training with Adam or AdamW.
        path: The path of the layer in the model.
    """
    if not decays(observation):
        return None
    decay = float(observation.training.weight_decay or 0.0)
    weight, bias = (observation.sent[f"{path}.{part}"].double() for part in ("weight", "bias"))
    return decay * torch.cat([weight, bias[:, None]], 1)


def fit_layer(observation: Observation, rows: Rows, path: str) -> Fitted:
    """Return the inputs of a layer from one step of Adam, also with weight decay in the gradient.

    Args:
        observation: The client's message, after local training with Adam or AdamW.
        rows: The update of the layer.
        path: The path of the layer in the model.
    """
    pull = pull_of(observation, path)
    if pull is None:
        return fit_one_step(rows)
    eps = 1e-8 if observation.training.eps is None else observation.training.eps
    fitted = fit_one_step(rows.uncertain(pull / eps, 1.0))
    for share in LEFT:
        inputs = torch.cat([fitted.values, torch.ones_like(fitted.values[:1])])
        gradients = eps * fitted.neurons[:, None] * inputs
        fitted = fit_one_step(rows.corrected(gradients, pull).uncertain(pull / eps, share))
    return fitted
