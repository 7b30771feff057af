"""Rows about the updates of several epochs: what clients send, whose samples are paired, what is measured."""

import pytest
import torch

from leakgauge.core.progress import silent
from leakgauge.reproduction.kinds import KINDS
from leakgauge.reproduction.updates import updates_of
from tests.reproduction.rows_for_tests import job_of, row_of

ROW = row_of(
    {
        "model": {"name": "lenet"},
        "data": {"name": "digits"},
        "training": {"samples": 4, "sends": "gradient"},
        "updates": {"per_update": 1, "server_lr": 0.01},
    },
    threshold=20.0,
)


def client(training=None, **updates):
    return updates_of(ROW.setting.changed({"updates": updates, "training": training or {}}), 0, 0)


def test_every_epoch_holds_every_sample_once():
    found = client(per_update=2)
    assert [[len(rows) for rows in epoch] for epoch in found.rows] == [[2, 2], [2, 2]]
    for rows in found.rows:
        assert torch.cat(rows).sort().values.tolist() == [0, 1, 2, 3]
    same = client(per_update=2, same_batches=True)
    assert torch.equal(torch.cat(same.rows[0]), torch.cat(same.rows[1]))


@pytest.mark.parametrize("sends", ["gradient", "weights"])
def test_the_network_learns_between_updates(sends):
    found = client({"sends": sends, "lr": 0.1, "epochs": 1, "batch_size": 1})
    (first, second, *_), _ = found.epochs
    rate = 0.01 if sends == "gradient" else 1.0
    for name, value in second.sent.items():
        assert torch.allclose(value, first.sent[name] - rate * first.difference()[name], atol=1e-7)


def run(kind, steps=40, attack="", **options):
    return KINDS[kind].run(job_of(ROW, attack, options, steps=steps), silent).measures


def test_samples_are_paired_and_counted():
    rates = {labels: run("matching", label_filter=labels, beta=1.0)["matching_rate"] for labels in ("none", "batch")}
    assert rates["batch"].value == 1.0
    assert rates["none"].chance == 0.25
    distinct = len(set(client().truth.targets.tolist()))
    assert rates["batch"].chance == distinct / 4


def test_pictures_of_noise_are_paired_by_chance():
    """The rate is no matter of course: after one step nothing tells the samples apart."""
    found = run("matching", steps=1, label_filter="none", beta=1.0)
    assert found["matching_rate"].value < 1


def test_two_epochs_against_one():
    one = run("epochs", attack="agic", epochs=[1], beta=1.0)["psnr"]
    both = run("epochs", attack="agic_epochs", epochs=[1, 2], beta=1.0)["psnr"]
    assert one.chance == both.chance
    assert both.value > one.value
