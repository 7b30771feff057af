"""Differentiating through local training: the graph, the adjoint and torch.func against a plain loop."""

import subprocess
import sys
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.func import functional_call
from torch.nn.attention import SDPBackend, sdpa_kernel

from leakgauge.core.observation import LocalTraining
from leakgauge.core.params import buffers_of, flatten, parameters_of
from leakgauge.federation.training import local_sgd
from tests.federation.networks import CLASSES, NETWORKS, make, mlp, samples

WAYS: dict[str, dict[str, Any]] = {
    "graph": {"gradients": "graph"},
    "adjoint": {"gradients": "adjoint"},
    "functional": {"gradients": "graph", "functional": True},
}
RECIPE = LocalTraining(lr=0.2, momentum=0.6, weight_decay=0.05)


def soft(count, seed=1):
    random = torch.Generator().manual_seed(seed)
    return torch.rand(count, CLASSES, generator=random, dtype=torch.float64).softmax(1)


def plain_loop(model, weights, batches, recipe):
    """Train with a naive loop that shares no code with the package."""
    model.train(recipe.mode == "train")
    trained = {name for name, value in model.named_parameters() if value.requires_grad}
    weights = {name: value.clone().requires_grad_(name in trained) for name, value in weights.items()}
    buffers = buffers_of(model)
    velocity: dict[str, torch.Tensor] = {}
    with sdpa_kernel(SDPBackend.MATH):
        for inputs, targets in batches:
            loss = F.cross_entropy(functional_call(model, {**weights, **buffers}, (inputs,)), targets)
            found = torch.autograd.grad(loss, [weights[name] for name in trained], create_graph=True, allow_unused=True)
            for name, gradient in zip(trained, found, strict=True):
                if gradient is not None:
                    gradient = gradient + recipe.weight_decay * weights[name]
                    velocity[name] = recipe.momentum * velocity.get(name, 0) + gradient
                    weights[name] = weights[name] - recipe.lr * velocity[name]
    return weights


def gradients_of(weights, leaves):
    values = flatten(weights)
    direction = torch.rand(values.shape, generator=torch.Generator().manual_seed(2), dtype=values.dtype)
    return torch.autograd.grad((direction * values.square()).sum(), leaves)


# As the Trainer documents, torch.func has other dropout masks for transposed tensors and decays unused weights.
CASES = [(name, way) for name in NETWORKS for way in WAYS if (name, way) != ("attention with dropout", "functional")]


@pytest.mark.parametrize(("name", "way"), CASES)
def test_inputs_and_soft_labels_get_the_gradient_of_a_plain_loop(name, way):
    recipe = LocalTraining(lr=0.2, momentum=0.6) if (name, way) == ("spare", "functional") else RECIPE
    model = make(name)
    weights = parameters_of(model)
    inputs, targets = samples(5)[0].requires_grad_(), soft(5).requires_grad_()
    batches = [(inputs[:3], targets[:3]), (inputs[3:], targets[3:])] * 3
    torch.manual_seed(7)
    expected = gradients_of(plain_loop(model, weights, batches, recipe), (inputs, targets))
    torch.manual_seed(7)
    found = gradients_of(local_sgd(model, weights, batches, recipe, **WAYS[way])[0], (inputs, targets))
    for mine, theirs in zip(found, expected, strict=True):
        assert theirs.abs().max() > 1e-4
        torch.testing.assert_close(mine, theirs, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("recipe", [LocalTraining(lr=0.3), RECIPE], ids=["plain", "momentum and weight decay"])
def test_gradients_agree_with_finite_differences(recipe, way):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = mlp().double()
    weights = parameters_of(model)

    def train(inputs, targets):
        batches = [(inputs[:2], targets[:2]), (inputs[2:], targets[2:])] * 2
        return flatten(local_sgd(model, weights, batches, recipe, **WAYS[way])[0])

    assert torch.autograd.gradcheck(train, (samples(3)[0].requires_grad_(), soft(3).requires_grad_()))


@pytest.mark.parametrize("steps", [1, 2, 3, 4, 5, 9, 11])
def test_the_adjoint_works_for_any_number_of_steps(steps):
    model = make("dropout")
    inputs = samples(2 * steps)[0].requires_grad_()
    batches = list(zip(inputs.split(2), soft(2 * steps).split(2), strict=True))
    results = []
    for gradients in ("graph", "adjoint"):
        torch.manual_seed(3)
        weights, _ = local_sgd(model, parameters_of(model), batches, RECIPE, gradients=gradients)
        results.append(gradients_of(weights, (inputs,))[0])
    torch.testing.assert_close(results[0], results[1], rtol=1e-10, atol=1e-13)


def test_the_adjoint_can_be_asked_twice():
    model = make("batch norm")
    inputs = samples(4)[0].requires_grad_()
    weights, _ = local_sgd(model, parameters_of(model), [(inputs, soft(4))] * 3, RECIPE, gradients="adjoint")
    value = flatten(weights).square().sum()
    first = torch.autograd.grad(value, inputs, retain_graph=True)[0]
    assert torch.equal(torch.autograd.grad(value, inputs)[0], first)


def test_only_what_asks_for_a_gradient_gets_one():
    model = make("conv")
    (inputs, labels), other = samples(4), samples(4, seed=9)[0].requires_grad_()
    weights, _ = local_sgd(
        model, parameters_of(model), [(inputs, labels), (other, labels)], RECIPE, gradients="adjoint"
    )
    flatten(weights).sum().backward()
    assert inputs.grad is None
    assert other.grad is not None


@pytest.mark.parametrize("way", WAYS)
def test_the_callers_weights_stay_out_of_the_graph(way):
    for name in ("frozen", "spare"):
        model = make(name)
        weights = parameters_of(model)
        inputs = samples(4)[0].requires_grad_()
        local_sgd(model, weights, [(inputs, soft(4))] * 2, RECIPE, **WAYS[way])
        assert not any(value.requires_grad for value in weights.values())
        assert not any(value.grad is not None for value in model.parameters())


def test_the_backward_pass_leaves_the_random_numbers_and_the_model_alone():
    model = make("dropout").eval()
    inputs = samples(4)[0].requires_grad_()
    weights, _ = local_sgd(model, parameters_of(model), [(inputs, soft(4))] * 5, RECIPE, gradients="adjoint")
    before = torch.get_rng_state()
    flatten(weights).sum().backward()
    assert torch.equal(before, torch.get_rng_state())
    assert not any(part.training for part in model.modules())


LONG_TRAINING = """
import resource, torch
import leakgauge
import leakgauge.core.params
torch.set_num_threads(1)
model = leakgauge.models.build("dlf_femnist", seed=0)
weights = leakgauge.core.params.parameters_of(model)
inputs = torch.rand(500, 1, 28, 28, requires_grad=True)
labels = torch.arange(500) % 62
batches = zip(inputs.split(1), labels.split(1))
recipe = leakgauge.LocalTraining(lr=0.004)
after, _ = leakgauge.local_sgd(model, weights, batches, recipe, gradients="adjoint")
sum(value.sum() for value in after.values()).backward()
assert inputs.grad.abs().sum(dim=(1, 2, 3)).min() > 0
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="ru_maxrss is counted in kibibytes on Linux only")
def test_the_adjoint_of_500_steps_of_a_real_network_fits_into_two_gibibytes():
    result = subprocess.run([sys.executable, "-c", LONG_TRAINING], capture_output=True, text=True, check=True)
    assert int(result.stdout) * 1024 < 2 * 2**30
