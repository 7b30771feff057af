"""One module decides whether a message is a gradient, and computes it."""

import pytest
import torch

from leakgauge.core.errors import MissingKnowledge
from leakgauge.core.local_training import LocalTraining
from leakgauge.core.one_gradient import gradient_of, mixes_linearly, optimiser_of, why_no_gradient
from leakgauge.federation.client import fedavg, fedsgd
from tests.federation.networks import client, make

LR = 0.01


def message(lr=LR, hidden=(), name="conv", **settings):
    return fedavg(make(name), client(4), lr=lr, hidden=hidden, recipe=LocalTraining(**settings))[0]


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"momentum": 0.9, "nesterov": True, "weight_decay": 0.3},
        {"momentum": 0.9, "dampening": 0.5},
        {"proximal": 2.0},
        {"schedule": (0.5, 1.0)},
        {"clip_norm": 1e6},
        {"batch_size": 1, "accumulation": 4},
    ],
)
def test_one_step_of_sgd_is_a_gradient(settings):
    expected, _ = fedsgd(make("conv"), client(4))
    observation = message(**settings)
    assert why_no_gradient(observation) is None
    assert mixes_linearly(observation)
    for name, value in gradient_of(observation).items():
        torch.testing.assert_close(value, expected.gradient[name], rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"optimiser": "adam"}, "a step of Adam keeps little more than the signs"),
        ({"optimiser": "adamw"}, "a step of AdamW"),
        ({"epochs": 2}, "the result of 2 local steps"),
        ({"clip_norm": 1e-3}, "clipped its gradient to the norm 0.001"),
        ({"hidden": ["lr"]}, "learning rate is unknown"),
        ({"hidden": ["epochs"]}, "number of local steps is unknown"),
        ({"hidden": ["weight_decay"]}, "weight decay is unknown"),
    ],
)
def test_what_is_no_gradient_is_refused_with_the_reason(settings, words):
    observation = message(**settings)
    assert words in why_no_gradient(observation)
    with pytest.raises(MissingKnowledge, match=words):
        gradient_of(observation)


def test_a_clipped_gradient_keeps_its_direction():
    expected, _ = fedsgd(make("conv"), client(4))
    for observation in (
        message(clip_norm=1e-3),
        fedsgd(make("conv"), client(4), recipe=LocalTraining(clip_norm=1e-3))[0],
    ):
        assert why_no_gradient(observation) is not None
        found = gradient_of(observation, length=False)
        flat, whole = (torch.cat([value.flatten() for value in tree.values()]) for tree in (found, expected.gradient))
        assert float(torch.cosine_similarity(flat, whole, dim=0)) == pytest.approx(1, abs=1e-9)
        assert float(flat.norm()) == pytest.approx(1e-3, rel=1e-3)


@pytest.mark.parametrize("epochs", [1, 3])
@pytest.mark.parametrize("optimiser", ["sgd", "adam"])
@pytest.mark.parametrize("name", ["conv", "frozen", "group norm"])
def test_an_unknown_optimiser_is_guessed_from_the_update(name, optimiser, epochs):
    observation = message(name=name, lr=1e-3, optimiser=optimiser, epochs=epochs, hidden=["optimiser"])
    assert observation.training.optimiser is None
    assert observation.training.betas is None
    assert optimiser_of(observation) == optimiser
