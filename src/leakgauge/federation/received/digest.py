"""A digest of received weights, which clients can compare with each other."""

from __future__ import annotations

import hashlib

import torch

from leakgauge.core.params import Params


def fingerprint(weights: Params) -> str:
    """Return a hash of the names, shapes, types and values of weights, which is equal for equal weights only.

    Args:
        weights: The weights by name.
    """
    digest = hashlib.sha256()
    for name in sorted(weights):
        value = weights[name].detach().cpu().contiguous()
        digest.update(f"{name}\0{tuple(value.shape)}\0{value.dtype}\0".encode())
        digest.update(value.reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
