"""Rows about the updates of several epochs: what clients send, whose samples are paired, what is measured."""

import json

import pytest
import torch

from leakgauge.core.progress import silent
from leakgauge.reproduction.kinds import epochs
from leakgauge.reproduction.rows import Method

SETTING = {
    "data": "digits", "model": "lenet", "model_options": {"shape": [1, 8, 8], "classes": 10}, "samples": 4,
    "per_update": 1, "sends": "gradient", "server_lr": 0.01, "threshold": 20.0,
}  # fmt: skip


def client(**changes):
    return epochs.updates_of(json.dumps(SETTING | changes), 0, 0)


def test_every_epoch_holds_every_sample_once():
    found = client(per_update=2)
    assert [[len(rows) for rows in epoch] for epoch in found.rows] == [[2, 2], [2, 2]]
    for rows in found.rows:
        assert torch.cat(rows).sort().values.tolist() == [0, 1, 2, 3]
    same = client(per_update=2, same_batches=True)
    assert torch.equal(torch.cat(same.rows[0]), torch.cat(same.rows[1]))


@pytest.mark.parametrize("sends", ["gradient", "weights"])
def test_the_network_learns_between_updates(sends):
    found = client(sends=sends, lr=0.1, epochs=1, batch_size=1)
    (first, second, *_), _ = found.epochs
    rate = 0.01 if sends == "gradient" else 1.0
    for name, value in second.sent.items():
        assert torch.allclose(value, first.sent[name] - rate * first.difference()[name], atol=1e-7)


def run(kind, steps=40, **options):
    method = Method("m", options.pop("attack", ""), options)
    return epochs.KINDS[kind](SETTING, method, 0, steps, 0, silent)


def test_samples_are_paired_and_counted():
    rates = {
        labels: run("matching", label_filter=labels, beta=1.0)["values"]["matching_rate"]
        for labels in ("none", "batch")
    }
    assert rates["batch"][0] == 1.0
    assert rates["none"][1] == 0.25
    distinct = len(set(client().truth.targets.tolist()))
    assert rates["batch"][1] == distinct / 4


def test_pictures_of_noise_are_paired_by_chance():
    """The rate is no matter of course: after one step nothing tells the samples apart."""
    found = run("matching", steps=1, label_filter="none", beta=1.0)
    assert found["values"]["matching_rate"][0] < 1


def test_two_epochs_against_one():
    one = run("epochs", attack="agic", epochs=[1], beta=1.0)["values"]["psnr"]
    both = run("epochs", attack="agic_epochs", epochs=[1, 2], beta=1.0)["values"]["psnr"]
    assert one[1] == both[1]  # chance
    assert both[0] > one[0]
