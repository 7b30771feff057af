"""The client's optimiser is read, or refused by name."""

import numpy as np
import pytest
import torch
from torch import nn

from leakgauge import fedavg, load_all
from leakgauge.data import Dataset
from leakgauge.federation.recording.optimiser_settings import optimiser_settings
from tests.federation.networks import client, mlp, same
from tests.federation.recording.loops import DATA, recorder, training

__all__ = ["recorder"]  # a fixture


@pytest.mark.parametrize(
    ("make", "settings"),
    [
        (lambda p: torch.optim.SGD(p, lr=0.1), {"optimiser": "sgd", "momentum": 0.0, "weight_decay": 0.0}),
        (
            lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, nesterov=True, weight_decay=0.01),
            {"momentum": 0.9, "nesterov": True, "weight_decay": 0.01},
        ),
        (lambda p: torch.optim.Adam(p, 0.1, betas=(0.8, 0.9), eps=1e-4), {"optimiser": "adam", "betas": (0.8, 0.9)}),
        (lambda p: torch.optim.AdamW(p, lr=torch.tensor(0.25)), {"optimiser": "adamw", "lr": 0.25}),
        (lambda p: torch.optim.Adam([{"params": p[:1]}, {"params": p[1:]}], 0.1), {"optimiser": "adam", "lr": 0.1}),
    ],
)
def test_a_training_is_recorded_with_its_optimiser_and_can_be_repeated(recorder, make, settings):
    net = mlp()
    start = {name: value.clone() for name, value in net.state_dict().items()}
    optimizer = make(list(net.parameters()))
    recipe = {"epochs": 2, "batch_size": 4, "samples": 4}
    with recorder.client("hospital-3", round=4, model=net, optimizer=optimizer, **recipe):
        training(net, optimizer)
    [found] = load_all(recorder.captures.folder, mlp())
    assert {name: getattr(found.training, name) for name in settings} == settings
    assert (found.client, found.round) == ("hospital-3", 4)
    assert same(found.sent, start)
    assert same(found.returned, net.state_dict())
    net.load_state_dict(start)
    plain = Dataset(client(4).inputs, client(4).targets, DATA)
    repeated, _ = fedavg(net, plain, recipe=found.training)
    assert all(torch.allclose(repeated.returned[name], value, atol=1e-5) for name, value in found.returned.items())


def odd(p):
    return torch.optim.SGD([{"params": p[:1]}, {"params": p[1:], "lr": 0.5}], 0.1)


def used(p):
    optimizer = torch.optim.SGD(p, 0.1, momentum=0.9)
    sum(value.sum() for value in p).backward()
    optimizer.step()
    return optimizer


class Own(torch.optim.SGD):
    """An optimiser that may take any steps."""


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda p: torch.optim.RMSprop(p), "its optimiser is RMSprop, and attacks can simulate only"),
        (lambda p: Own(p, 0.1), "its optimiser is Own"),
        (lambda p: torch.optim.Adam(p, amsgrad=True), "Adam with amsgrad"),
        (lambda p: torch.optim.SGD(p, 0.1, maximize=True), "SGD with maximize"),
        (odd, r"different values of lr (0.1 and 0.5)"),
        (used, "holds averages of gradients of earlier rounds"),
    ],
)
def test_an_optimiser_that_cannot_be_repeated_is_refused_by_name(recorder, make, words, caplog):
    net = mlp()
    optimizer = make(list(net.parameters()))
    with recorder.client("hospital-3", round=1, model=net, optimizer=optimizer):
        training(net, optimizer)
    assert words in caplog.text
    assert not list(recorder.captures.folder.iterdir())


def test_the_rate_of_each_step_is_the_schedule(recorder):
    rates = {1: (0.1, 0.1), 2: (0.1, 0.05), 3: (0.0, 0.2)}
    for number, (first, second) in rates.items():
        net = mlp()
        optimizer = torch.optim.SGD(net.parameters(), lr=first)
        with recorder.client("a", round=number, model=net, optimizer=optimizer):
            training(net, optimizer, steps=1)
            optimizer.param_groups[0]["lr"] = second
            training(net, optimizer, steps=1)
            optimizer.param_groups[0]["lr"] = 0.03  # after the last step, it has no effect
    found = [one.training for one in load_all(recorder.captures.folder, mlp())]
    assert [(one.lr, one.schedule) for one in found] == [(0.1, "constant"), (0.1, (1.0, 0.5)), (0.2, (0.0, 1.0))]


def test_what_the_optimiser_leaves_out_is_not_trained(recorder):
    net = nn.DataParallel(mlp())
    optimizer = torch.optim.SGD(net.module[3].parameters(), lr=0.1)
    with recorder.client("a", round=1, model=net, optimizer=optimizer):
        training(net.module, optimizer)
    [found] = load_all(recorder.captures.folder, mlp())
    trained = [name for name, value in found.model.named_parameters() if value.requires_grad]
    assert trained == ["3.weight", "3.bias"]


def test_settings_of_an_optimiser_are_plain_values():
    found = optimiser_settings(torch.optim.Adam([torch.zeros(1, requires_grad=True)], lr=np.float64(0.5)))
    assert found == {
        "optimiser": "adam", "momentum": 0.0, "nesterov": False, "dampening": 0.0, "lr": 0.5, "weight_decay": 0,
        "betas": (0.9, 0.999), "eps": 1e-8,
    }  # fmt: skip
