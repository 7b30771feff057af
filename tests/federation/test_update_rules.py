"""Every optimiser, schedule and further setting of a recipe trains as torch does, and can be differentiated."""

import copy

import pytest
import torch
import torch.nn.functional as F

from leakgauge.core.local_training import LocalTraining
from leakgauge.core.params import parameters_of
from leakgauge.federation.training import Trainer, local_sgd
from leakgauge.federation.update_rules import UpdateRule
from tests.federation.networks import make, samples

LR, SAMPLES, SIZE, EPOCHS = 0.05, 11, 4, 2
KNOWN = {"lr": LR, "samples": SAMPLES, "batch_size": SIZE, "epochs": EPOCHS}
OPTIMISERS = {
    "nesterov": ({"momentum": 0.9, "nesterov": True, "weight_decay": 0.1}, torch.optim.SGD),
    "dampening": ({"momentum": 0.8, "dampening": 0.3, "weight_decay": 0.1}, torch.optim.SGD),
    "adam": ({"optimiser": "adam"}, torch.optim.Adam),
    "adam with decay": (
        {"optimiser": "adam", "betas": (0.8, 0.95), "eps": 1e-4, "weight_decay": 0.1}, torch.optim.Adam,
    ),
    "adamw": ({"optimiser": "adamw", "betas": (0.7, 0.9), "weight_decay": 0.2}, torch.optim.AdamW),
}  # fmt: skip
#: The further settings of recipes, each beside plain SGD and beside Adam.
FURTHER = {
    "clipped": {"clip_norm": 0.3},
    "proximal": {"proximal": 0.5},
    "accumulated": {"accumulation": 2},
    "scheduled": {"schedule": "cosine(final=0.1)"},
    "smoothed": {"label_smoothing": 0.2},
    "all": {
        "clip_norm": 0.3, "proximal": 0.5, "accumulation": 2, "schedule": "step(every=2, factor=0.5)",
        "label_smoothing": 0.2, "optimiser": "adamw", "weight_decay": 0.1,
    },
}  # fmt: skip


def batches():
    inputs, targets = samples(SAMPLES)
    return list(zip(inputs.split(SIZE), targets.split(SIZE), strict=True)) * EPOCHS


def torch_optimiser(recipe, parameters):
    if recipe.optimiser == "sgd":
        return torch.optim.SGD(
            parameters, recipe.lr, recipe.momentum, recipe.dampening, recipe.weight_decay, recipe.nesterov
        )
    kind = torch.optim.AdamW if recipe.optimiser == "adamw" else torch.optim.Adam
    return kind(parameters, recipe.lr, recipe.betas, recipe.eps, recipe.weight_decay)


def by_torch(model, recipe):
    """Train with torch's own optimiser and a loop written by hand."""
    model = copy.deepcopy(model).train()
    sent = [value.detach().clone() for value in model.parameters()]
    optimiser = torch_optimiser(recipe, model.parameters())
    groups, step = [], 0
    for epoch in range(EPOCHS):
        of_epoch = batches()[epoch * 3 : (epoch + 1) * 3]
        groups += [of_epoch[first : first + recipe.accumulation] for first in range(0, 3, recipe.accumulation)]
    for step, group in enumerate(groups):
        for setting in optimiser.param_groups:
            setting["lr"] = recipe.lr * recipe.factor(step)
        optimiser.zero_grad()
        for inputs, targets in group:
            loss = F.cross_entropy(model(inputs), targets, label_smoothing=recipe.label_smoothing)
            term = sum((value - old).square().sum() for value, old in zip(model.parameters(), sent, strict=True))
            ((loss + recipe.proximal / 2 * term) / len(group)).backward()
        if recipe.clip_norm:
            torch.nn.utils.clip_grad_norm_(model.parameters(), recipe.clip_norm)
        optimiser.step()
    return parameters_of(model)


def assert_close(found, expected, tolerance=1e-10):
    for name, value in expected.items():
        torch.testing.assert_close(found[name].detach(), value, rtol=tolerance, atol=tolerance, msg=name)


@pytest.mark.parametrize("name", OPTIMISERS)
def test_every_optimiser_trains_as_that_of_torch(name):
    settings, kind = OPTIMISERS[name]
    model, recipe = make("conv"), LocalTraining(**KNOWN, **settings)
    assert type(torch_optimiser(recipe, model.parameters())) is kind
    for gradients in ("none", "graph", "adjoint"):
        found, _ = local_sgd(model, parameters_of(model), batches(), recipe, gradients=gradients)
        assert_close(found, by_torch(model, recipe))


@pytest.mark.parametrize("optimiser", ["sgd", "adam"])
@pytest.mark.parametrize("name", FURTHER)
def test_every_further_setting_trains_as_a_loop_written_by_hand(name, optimiser):
    model, recipe = make("group norm"), LocalTraining(**{**KNOWN, "optimiser": optimiser, **FURTHER[name]})
    expected = by_torch(model, recipe)
    found, _ = local_sgd(model, parameters_of(model), batches(), recipe)
    assert_close(found, expected)
    plain, _ = local_sgd(model, parameters_of(model), batches(), LocalTraining(**KNOWN, optimiser=optimiser))
    assert any(not torch.allclose(plain[key], expected[key]) for key in expected)


@pytest.mark.parametrize("name", ["nesterov", "adam", "adamw", "all"])
def test_graph_and_adjoint_have_the_same_derivative_as_finite_differences(name):
    settings = FURTHER["all"] if name == "all" else OPTIMISERS[name][0]
    model, recipe = make("frozen"), LocalTraining(**KNOWN, **settings)
    inputs, targets = samples(SAMPLES)
    random = torch.Generator().manual_seed(3)
    direction = torch.randn(inputs.shape, generator=random, dtype=torch.float64)

    def moved(values, gradients="none", functional=False):
        parts = list(zip(values.split(SIZE), targets.split(SIZE), strict=True)) * EPOCHS
        weights, _ = local_sgd(model, parameters_of(model), parts, recipe, gradients=gradients, functional=functional)
        return sum(value.sin().sum() for value in weights.values())

    slopes = []
    for gradients, functional in (("graph", False), ("adjoint", False), ("graph", True)):
        leaf = inputs.clone().requires_grad_()
        (slope,) = torch.autograd.grad(moved(leaf, gradients, functional), leaf)
        slopes.append(slope)
    torch.testing.assert_close(slopes[0], slopes[1], rtol=1e-8, atol=1e-10)
    torch.testing.assert_close(slopes[0], slopes[2], rtol=1e-8, atol=1e-10)
    step = 1e-6
    numeric = (moved(inputs + step * direction) - moved(inputs - step * direction)) / (2 * step)
    torch.testing.assert_close((slopes[0] * direction).sum(), numeric, rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("gradients", ["graph", "adjoint"])
def test_adam_has_a_finite_derivative_where_a_gradient_is_zero(gradients):
    model, recipe = make("conv"), LocalTraining(**KNOWN, optimiser="adam")
    weights = parameters_of(model)
    weights["0.bias"] -= 100  # every ReLU is silent, and the kernel has no gradient
    parts = [(inputs.clone().requires_grad_(), targets) for inputs, targets in batches()]
    found, _ = local_sgd(model, weights, parts, recipe, gradients=gradients)
    assert torch.equal(found["0.weight"], weights["0.weight"])
    loss = sum(value.sum() for value in found.values())
    slopes = torch.autograd.grad(loss, [inputs for inputs, _ in parts], allow_unused=True, materialize_grads=True)
    assert all(torch.isfinite(slope).all() for slope in slopes)


def test_smoothing_changes_derivatives_and_no_values():
    gradient = {"w": torch.tensor([1e-3, -2e-3, 0.0], dtype=torch.float64, requires_grad=True)}
    exact, smooth = (UpdateRule("adam", smooth=value).repeated(gradient, gradient)["w"] for value in (0.0, 1.0))
    torch.testing.assert_close(exact, smooth)
    torch.testing.assert_close(exact.detach(), torch.tensor([1.0, -1, 0], dtype=torch.float64), rtol=1e-4, atol=0)
    slopes = [torch.autograd.grad(value.sum(), gradient["w"])[0] for value in (exact, smooth)]
    assert float(slopes[0][0]) < 0.1 < 100 < float(slopes[1][0])


@pytest.mark.parametrize("settings", [{}, {"optimiser": "adam"}, {"optimiser": "adamw", "weight_decay": 0.1}])
def test_a_repeated_step_is_exact_for_the_first_step(settings):
    model, recipe = make("conv"), LocalTraining(lr=LR, clip_norm=0.2, **settings)
    trainer = Trainer(model, recipe)
    state = trainer.start(parameters_of(model), None)
    batch = batches()[0]
    after = trainer.run(state, [batch]).weights
    with trainer.active():
        predicted = trainer.repeated_step(state, batch)
    assert_close(
        {name: (state.weights[name] - after[name]) / LR for name in after},
        {k: v.detach() for k, v in predicted.items()},
    )


def test_an_attacker_does_not_draw_masks_of_its_own():
    model = make("dropout")
    trainer = Trainer(model, LocalTraining(lr=LR), as_attacker=True)
    state = trainer.start(parameters_of(model), None)
    first, second = (trainer.run(state, batches()[:1]).weights for _ in range(2))
    assert_close(first, second, 0)
    expected, _ = local_sgd(model, parameters_of(model), batches()[:1], LocalTraining(lr=LR, mode="eval"))
    assert_close(first, expected, 0)
