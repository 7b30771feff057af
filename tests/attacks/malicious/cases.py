"""Small messages of clients whose server planted traps."""

from dataclasses import replace

import torch

from leakgauge import data, models
from leakgauge.attacks.malicious import plant
from leakgauge.core.local_training import LocalTraining
from leakgauge.federation.client import fedavg, fedsgd

#: The number of digits from which the samples of clients are drawn.
OF_CLIENTS = 1300


def network(dense=40, channels=(4, 16), **options):
    return models.build("dlf_femnist", shape=(1, 8, 8), classes=10, channels=channels, dense=dense, seed=0, **options)


def trapped(model, share, rule="trap_rows", steps=None, batch=None, dtype=torch.float32, defences=(), **options):
    """Return the message of a client that got weights with traps, its samples, and the server's expectation."""
    training = LocalTraining(samples=len(share))
    if steps is not None:
        size = batch or len(share)
        training = LocalTraining(samples=len(share), lr=0.01, epochs=steps * size // len(share), batch_size=size)
    expected = plant(model, share.spec, training, **{"public": public()} | options)
    planted = expected.load_into(model).to(dtype)
    if steps is None:
        observation, truth = fedsgd(planted, share, defences=defences)
    else:
        observation, truth = fedavg(
            planted, share, lr=0.01, epochs=training.epochs, batch_size=training.batch_size, defences=defences
        )
    return replace(observation, steered=rule), truth, expected


def digits(count, seed=0):
    return data.load("digits").share(torch.randperm(OF_CLIENTS, generator=torch.Generator().manual_seed(seed))[:count])


def public():
    """Return digits that no client has."""
    return data.load("digits").inputs[OF_CLIENTS:]


def share_found(result, truth, limit=1e-4):
    """Return the share of a client's samples that are returned, and how many returned samples are none of them."""
    if not len(result.samples):
        return 0.0, 0
    errors = (result.samples[:, None].double() - truth.inputs[None].double()).square().flatten(2).mean(2)
    found = float((errors.min(0).values < limit).double().mean())
    return found, int((errors.min(1).values > 1e-2).sum())
