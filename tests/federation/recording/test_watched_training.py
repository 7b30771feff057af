"""A recipe that the training contradicts is refused."""

import pytest
import torch

from leakgauge import load_all
from tests.federation.networks import client, mlp
from tests.federation.recording.loops import recorder, training

__all__ = ["recorder"]  # a fixture


def test_the_mode_of_the_model_is_read(recorder):
    for number, mode in enumerate(("train", "eval")):
        net = mlp().train(mode == "train")
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        with recorder.client("a", round=number, model=net, optimizer=optimizer):
            training(net, optimizer)
            net.train(mode != "train")
            with torch.no_grad():
                net(client(2).inputs)  # a validation
    found = load_all(recorder.captures.folder, mlp())
    assert [one.training.mode for one in found] == ["train", "eval"]
    assert not net._forward_pre_hooks


@pytest.mark.parametrize(
    ("recipe", "words"),
    [
        ({"epochs": 1, "batch_size": 2, "samples": 4}, ""),
        ({"local_steps": 2, "batch_size": 4, "samples": 4}, ""),
        ({"epochs": 1}, ""),
        ({"epochs": 1, "batch_size": 4, "samples": 4}, "its optimiser took 2 steps, and its recipe has 1"),
        ({"epochs": 5, "batch_size": 1, "samples": 4}, "its optimiser took 2 steps, and its recipe has 20"),
        ({"mode": "eval"}, "its model was not in eval mode"),
    ],
)
def test_a_recipe_that_the_training_contradicts_is_refused(recorder, recipe, words, caplog):
    net = mlp()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    with recorder.client("a", round=1, model=net, optimizer=optimizer, **recipe):
        training(net, optimizer)
    assert words in caplog.text
    assert len(list(recorder.captures.folder.glob("run-*/*.safetensors"))) == (not words)
    assert not optimizer._optimizer_step_post_hooks


def test_a_training_in_both_modes_is_refused(recorder, caplog):
    net = mlp()
    with recorder.client("a", round=1, model=net):
        net(client(2).inputs)
        net.eval()(client(2).inputs)
    assert "both in train mode and in eval mode" in caplog.text
