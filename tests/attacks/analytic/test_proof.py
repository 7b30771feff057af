"""Proofs stand small errors of a point, also if a neuron is near its kink."""

import pytest
import torch

from leakgauge.attacks.analytic.dense import augmented, one_gradient_of
from leakgauge.attacks.analytic.layer_span import LayerSpan
from leakgauge.attacks.analytic.peeling import chain_of
from leakgauge.attacks.analytic.polishing import polished
from leakgauge.attacks.analytic.proof import Prover, joined
from tests.attacks.analytic.cases import DIGITS, client, dense

SAMPLES = 8


def parts(model):
    """Return the layers, the gradients of both layers, the prover, and the client's samples as augmented inputs."""
    observation, truth = client(model, SAMPLES)
    chain = chain_of(observation)
    gradient = one_gradient_of(observation)
    spans = tuple(LayerSpan.of(augmented(gradient, path), SAMPLES) for path in (chain.first, chain.second))
    inputs = DIGITS.spec.normalise(truth.inputs).flatten(1).double()
    return chain, spans, Prover(chain, 10, SAMPLES, 1, SAMPLES), torch.cat([inputs, torch.ones(SAMPLES, 1)], 1)


def test_a_neuron_that_is_active_for_the_point_and_not_for_the_sample_does_not_spoil_the_proof():
    model = dense(48, 24)
    with torch.no_grad():  # the first neuron is just not active for the first sample
        output = model[1](DIGITS.spec.normalise(DIGITS.inputs[:1]).flatten(1))[0]
        place = int(output.argmax())
        model[1].bias[place] -= output[place] + 1e-5
    _, spans, prove, points = parts(model)
    direction = model[1].weight[place].detach().double()
    points[0, :-1] += 4e-5 * direction / direction.square().sum()
    raw, found = prove._labelled(points, spans), prove(points, spans)
    assert float(raw.error[0]) > 0.05
    assert float(found.error.max()) < 5e-3
    assert torch.equal(found.targets, DIGITS.targets[:SAMPLES])


@pytest.mark.parametrize("shift", [0.05, 0.3])
def test_shifted_gradients_prove_no_wrong_points(shift):
    _, spans, prove, points = parts(dense(48, 24))
    mixed = (1 - shift) * points + shift * points.roll(1, 0)
    assert float(prove(mixed, spans).error.min()) > 0.02


def test_inexact_points_become_exact_in_the_whole_spans():
    chain, spans, prove, points = parts(dense(48, 24))
    mixed = 0.999 * points + 0.001 * points.roll(1, 0)
    found = joined([prove(mixed[:3], spans), prove(mixed[3:], spans)])
    better = polished(chain, list(spans), found, prove)
    assert float((found.inputs[0] - points).abs().max()) > 1e-4
    assert float((better.inputs[0] - points).abs().max()) < 1e-5
    assert torch.equal(better.targets, DIGITS.targets[:SAMPLES])
    assert bool((better.error <= found.error).all())
