"""Corrections for the movement of the weights in several local steps on one sample."""

import torch
from torch import nn

from leakgauge import data
from leakgauge.attacks.analytic.local_steps import Iterate, accelerated, corrected
from leakgauge.attacks.analytic.replay import replay
from leakgauge.core.local_training import LocalTraining
from leakgauge.federation.client import fedavg

DIGITS = data.load("digits")
NAMES = ("1.weight", "1.bias")


def dense():
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.GELU(), nn.Linear(16, 10)).double()


def second_neuron(update):
    """Return the sample that one gradient shows: the weights of a neuron over its bias."""
    return (update[NAMES[0]][1] / update[NAMES[1]][1]).reshape(1, 1, 8, 8)


def test_the_sum_of_steps_with_momentum_is_that_of_gradients_at_the_sent_weights():
    """With the true sample, the corrected update is a multiple of the gradient at the sent weights."""
    recipe = LocalTraining(momentum=0.9, weight_decay=0.01)
    observation, truth = fedavg(dense(), DIGITS.share([3]), lr=0.1, epochs=4, recipe=recipe)
    sample = observation.data.normalise(truth.inputs).double()
    update = {name: value.double() for name, value in observation.difference().items()}
    start = Iterate(sample, replay(observation, sample))
    _, still = corrected(observation, update, start, second_neuron, lambda *line: None)
    assert (second_neuron(still) - sample).abs().max() < 1e-6
    ratio = still["3.weight"] / still["3.bias"][:, None]
    assert (ratio - ratio[:1]).abs().max() < 1e-6
    moved = update["3.weight"] / update["3.bias"][:, None]
    assert (moved - moved[:1]).abs().max() > 1e-3


def test_a_linear_iteration_is_accelerated_to_its_fixed_point():
    draws = torch.Generator().manual_seed(0)
    matrix = torch.randn(4, 4, generator=draws, dtype=torch.double)
    matrix = 0.97 * matrix / torch.linalg.matrix_norm(matrix, 2)
    constant = torch.randn(4, generator=draws, dtype=torch.double)
    truth = torch.linalg.solve(torch.eye(4) - matrix, constant)
    samples, moves = [torch.zeros(4, dtype=torch.double)], []
    for _ in range(9):
        moves.append(matrix @ samples[-1] + constant - samples[-1])
        samples.append(accelerated(samples[-6:], moves[-6:]))
    plain = torch.zeros(4, dtype=torch.double)
    for _ in range(9):
        plain = matrix @ plain + constant
    assert (samples[-1] - truth).norm() < 1e-3 * (plain - truth).norm()
