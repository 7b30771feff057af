"""local_sgd() gives the numbers of torch.optim for every kind of network, and does not change the model."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from leakgauge.core.errors import InvalidInput, MissingKnowledge, UnknownName
from leakgauge.core.observation import LocalTraining
from leakgauge.core.params import buffers_of, parameters_of
from leakgauge.federation.model_check import prepared
from leakgauge.federation.training import LOSSES, Trainer, draw_order, in_mode, local_sgd
from tests.federation.networks import NETWORKS, client, make, same, samples

RECIPES = [
    {},
    {"momentum": 0.9},
    {"weight_decay": 0.1},
    {"momentum": 0.5, "weight_decay": 0.05},
]
TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-6}


def batches_of(count, sizes, dtype=torch.float64):
    inputs, targets = samples(count, dtype=dtype)
    return list(zip(inputs.split(sizes), targets.split(sizes), strict=True))


def by_optimiser(model, batches, recipe, loss=F.cross_entropy):
    """Yield the weights and buffers after every step of torch.optim."""
    model = copy.deepcopy(model)
    model.train(recipe.mode == "train")
    optimiser = torch.optim.SGD(
        model.parameters(), lr=recipe.lr, momentum=recipe.momentum, weight_decay=recipe.weight_decay
    )
    with sdpa_kernel(SDPBackend.MATH):
        for inputs, targets in batches:
            optimiser.zero_grad()
            loss(model(inputs), targets).backward()
            optimiser.step()
            yield parameters_of(model), buffers_of(model)


def assert_same(found, expected, tolerance):
    assert list(found) == list(expected)
    for name, value in expected.items():
        torch.testing.assert_close(found[name].detach(), value, rtol=tolerance, atol=tolerance, msg=name)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["float64", "float32"])
@pytest.mark.parametrize("extra", RECIPES, ids=lambda extra: " and ".join(extra) or "plain")
@pytest.mark.parametrize("name", NETWORKS)
def test_every_step_is_that_of_torch_optim(name, extra, dtype):
    model, recipe = make(name, dtype), LocalTraining(lr=0.1, **extra)
    batches = batches_of(11, 4, dtype) * 2  # the last batch is ragged
    weights, buffers = parameters_of(model), buffers_of(model)
    torch.manual_seed(5)
    expected = list(by_optimiser(model, batches, recipe))
    for steps in (1, len(batches)):
        for gradients in ("none", "graph", "adjoint"):
            torch.manual_seed(5)
            found = local_sgd(model, weights, batches[:steps], recipe, gradients=gradients)
            assert_same(found[0], expected[steps - 1][0], TOLERANCE[dtype])
            assert_same(found[1], expected[steps - 1][1], TOLERANCE[dtype])
    assert_same(weights, parameters_of(model), 0)
    assert_same(buffers, buffers_of(model), 0)


@pytest.mark.parametrize("name", ["batch norm", "dropout", "attention with dropout"])
def test_eval_mode_trains_with_stored_statistics_and_without_dropout(name):
    model, recipe = make(name), LocalTraining(lr=0.1, mode="eval")
    batches = batches_of(6, 3)
    *_, expected = by_optimiser(model, batches, recipe)
    found = local_sgd(model, parameters_of(model), batches, recipe)
    assert_same(found[0], expected[0], 1e-12)
    assert_same(found[1], buffers_of(model), 0)


def test_frozen_and_unused_parameters_stay_put():
    for name, still in (("frozen", ["1.weight"]), ("spare", ["spare.weight", "spare.bias"])):
        model = make(name)
        weights = parameters_of(model)
        after, _ = local_sgd(model, weights, batches_of(4, 2), LocalTraining(lr=0.1, momentum=0.9, weight_decay=0.1))
        assert [key for key in weights if torch.equal(weights[key], after[key])] == still


def test_given_buffers_are_used_and_left_alone():
    model, recipe = make("batch norm"), LocalTraining(lr=0.1, mode="eval")
    buffers = {name: value + 1 for name, value in buffers_of(model).items()}
    kept = copy.deepcopy(buffers)
    other = copy.deepcopy(model)
    other.load_state_dict({**other.state_dict(), **buffers})
    batches = batches_of(4, 4)
    found, after = local_sgd(model, parameters_of(model), batches, recipe, buffers=buffers)
    assert_same(found, local_sgd(other, parameters_of(other), batches, recipe)[0], 0)
    assert_same(after, kept, 0)
    local_sgd(model, parameters_of(model), batches, LocalTraining(lr=0.1), buffers=buffers)
    assert_same(buffers, kept, 0)


def test_no_batch_is_no_training():
    model = make("frozen")
    weights = parameters_of(model)
    for gradients in ("none", "graph", "adjoint"):
        found, _ = local_sgd(model, weights, [], LocalTraining(lr=0.1), gradients=gradients)
        assert_same(found, weights, 0)
        assert not any(value.requires_grad for value in weights.values())


def test_regression_with_mean_squared_error():
    model = nn.Sequential(nn.Flatten(), nn.Linear(16, 1)).double()
    inputs, _ = samples(6)
    batches = [(inputs[:4], torch.rand(4).double()), (inputs[4:], torch.rand(2).double())]
    *_, (expected, _) = by_optimiser(model, batches, LocalTraining(lr=0.1), lambda o, t: F.mse_loss(o.flatten(), t))
    found, _ = local_sgd(model, parameters_of(model), batches, LocalTraining(lr=0.1, loss="mse"))
    assert_same(found, expected, 1e-12)


def test_two_classes_with_one_logit():
    model = nn.Sequential(nn.Flatten(), nn.Linear(16, 1)).double()
    inputs, targets = samples(6)
    batches = [(inputs, targets % 2)]

    def loss(outputs, targets):
        chance = torch.sigmoid(outputs.flatten())
        return -torch.where(targets == 1, chance, 1 - chance).log().mean()

    *_, (expected, _) = by_optimiser(model, batches, LocalTraining(lr=0.1), loss)
    found, _ = local_sgd(model, parameters_of(model), batches, LocalTraining(lr=0.1, loss="binary_cross_entropy"))
    assert_same(found, expected, 1e-12)


def test_a_loss_of_the_users_own(monkeypatch):
    def margin(outputs, targets):
        return F.multi_margin_loss(outputs, targets)

    monkeypatch.setitem(LOSSES, "margin", margin)
    model, batches = make("conv"), batches_of(4, 2)
    *_, (expected, _) = by_optimiser(model, batches, LocalTraining(lr=0.1), margin)
    found, _ = local_sgd(model, parameters_of(model), batches, LocalTraining(lr=0.1, loss="margin"))
    assert_same(found, expected, 1e-12)


class Failing(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.calls = make("batch norm"), 0

    def forward(self, inputs):
        self.calls += 1
        outputs = self.body(inputs)
        if self.calls == 2:
            raise RuntimeError("no more")
        return outputs


@pytest.mark.parametrize("gradients", ["none", "graph", "adjoint"])
def test_the_model_is_left_as_it_was_even_if_it_raises(gradients):
    model = Failing()
    model.eval()
    model.body[1].train()
    flags = [part.training for part in model.modules()]
    state = copy.deepcopy(model.state_dict())
    parameters = dict(model.named_parameters())
    with pytest.raises(RuntimeError, match="no more"):
        local_sgd(model, parameters_of(model), batches_of(6, 2), LocalTraining(lr=0.1), gradients=gradients)
    assert [part.training for part in model.modules()] == flags
    assert_same(model.state_dict(), state, 0)
    assert all(value is parameters[name] and value.grad is None for name, value in model.named_parameters())


def test_in_mode_restores_every_part():
    model = make("batch norm")
    model[1].eval()
    with in_mode(model, "eval"):
        assert not any(part.training for part in model.modules())
    assert [name for name, part in model.named_modules() if not part.training] == ["1"]


def test_every_epoch_visits_every_row_once_in_a_new_order():
    order = draw_order(7, 3, 4, torch.Generator().manual_seed(0))
    assert [len(rows) for rows in order] == [3, 3, 1] * 4
    epochs = [torch.cat(order[start : start + 3]).tolist() for start in range(0, 12, 3)]
    assert all(sorted(epoch) == list(range(7)) for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) == 4


@pytest.mark.parametrize("functional", [False, True])
@pytest.mark.parametrize("name", ["frozen", "spare", "tied"])
def test_a_gradient_names_every_weight(name, functional):
    model = make(name)
    trainer = Trainer(model, LocalTraining(), functional=functional)
    gradient, _ = trainer.gradient(trainer.start(parameters_of(model), None), samples(4), graph=False)
    F.cross_entropy(model(samples(4)[0]), samples(4)[1]).backward()
    expected = {
        name: torch.zeros_like(value) if value.grad is None else value.grad for name, value in model.named_parameters()
    }
    assert_same(gradient, expected, 1e-12)


def test_the_result_of_plain_training_holds_no_graph():
    model = make("conv")
    inputs, targets = samples(4)
    found, _ = local_sgd(model, parameters_of(model), [(inputs.requires_grad_(), targets)], LocalTraining(lr=0.1))
    assert not any(value.requires_grad for value in found.values())


def test_true_batches_in_true_order_give_a_matching_loss_of_zero():
    from leakgauge import fedavg

    data, model = client(7), make("batch norm", torch.float32)
    observation, truth = fedavg(
        model, data, lr=0.1, epochs=3, batch_size=2, momentum=0.5, weight_decay=0.1, mode="eval"
    )
    inputs, targets = prepared(data, observation.sent)
    batches = [(inputs[rows], targets[rows]) for rows in truth.order]
    for gradients in ("none", "graph", "adjoint"):
        found, _ = local_sgd(
            observation.model, observation.sent, batches, observation.training,
            buffers=observation.model_buffers(), gradients=gradients,
        )  # fmt: skip
        assert same(found, observation.returned)


@pytest.mark.parametrize(
    ("recipe", "options", "kind", "words"),
    [
        (LocalTraining(lr=0.1, loss="cross_entropi"), {}, UnknownName, "did you mean 'cross_entropy'"),
        (LocalTraining(), {}, MissingKnowledge, r"client's lr.*knowing\(lr"),
        (LocalTraining(lr=0.1), {"gradients": "some"}, InvalidInput, "'none', 'graph' or 'adjoint', not 'some'"),
    ],
)
def test_errors(recipe, options, kind, words):
    model = make("conv")
    with pytest.raises(kind, match=words):
        local_sgd(model, parameters_of(model), batches_of(2, 2), recipe, **options)


def test_a_model_that_is_all_frozen_cannot_train():
    with pytest.raises(InvalidInput, match="nothing to train"):
        Trainer(make("conv").requires_grad_(False), LocalTraining())
