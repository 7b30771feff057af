"""The attacker's model of the client against the client: the true samples in the true order match exactly."""

import pytest
import torch
from torch import nn

from leakgauge import data, models
from leakgauge.attacks.inversion.objectives import L2
from leakgauge.attacks.inversion.update_models import (
    ClientModel,
    EpochInterpolation,
    FullSimulation,
    OneBatch,
    Surrogate,
)
from leakgauge.attacks.papers.epafl import epafl
from leakgauge.core.errors import InvalidInput, MissingKnowledge
from leakgauge.core.observation import LocalTraining, Observation
from leakgauge.core.params import flatten, parameters_of
from leakgauge.evaluation import score
from leakgauge.federation.client import fedavg, fedsgd
from leakgauge.federation.model_check import prepared
from leakgauge.federation.training import local_sgd
from tests.shared import digits


def client(samples=5):
    return digits().share(range(samples))


def network(activation="sigmoid"):
    return models.lenet(shape=(1, 8, 8), classes=10, activation=activation, seed=0).double()


def trained_in_one_order(*, samples=5, batch_size=2, epochs=3, lr=0.1, **recipe):
    """What a client sends that takes its batches in the same order in every epoch, and its samples."""
    model, own = network(), client(samples)
    sent = parameters_of(model)
    training = LocalTraining(lr=lr, epochs=epochs, batch_size=batch_size, samples=samples, **recipe)
    inputs, targets = prepared(own, sent)
    batches = list(zip(inputs.split(batch_size), targets.split(batch_size), strict=True)) * epochs
    returned, _ = local_sgd(model, sent, batches, training)
    return Observation(model, own.spec, sent, training, returned=returned), inputs, targets


def distance(update_model, observation, inputs, targets, functional=False):
    predict = update_model.begin(observation, functional=functional)
    return L2()(predict(inputs, targets), observation.summed_gradient()).item()


@pytest.mark.parametrize("update_model", [OneBatch(), FullSimulation()], ids=repr)
@pytest.mark.parametrize("functional", [False, True])
def test_the_true_samples_explain_a_gradient_exactly(update_model, functional):
    observation, _ = fedsgd(network(), client())
    inputs, targets = prepared(client(), observation.sent)
    found = distance(update_model, observation, inputs, targets, functional)
    assert found <= (1e-20 if functional else 0)
    assert distance(update_model, observation, inputs.flip(-1), targets, functional) > 1e-3


@pytest.mark.parametrize(
    "recipe", [{}, {"batch_size": 5}, {"epochs": 1}, {"momentum": 0.9, "weight_decay": 0.01}], ids=str
)
def test_the_true_samples_in_the_true_order_explain_trained_weights(recipe):
    """Five samples in batches of two: the last batch is ragged."""
    observation, inputs, targets = trained_in_one_order(**recipe)
    assert distance(FullSimulation(gradients="graph"), observation, inputs, targets) == 0
    assert distance(FullSimulation(gradients="adjoint"), observation, inputs, targets) == 0
    assert distance(FullSimulation(), observation, inputs, targets, functional=True) < 1e-20
    assert distance(FullSimulation(), observation, inputs.flip(-1), targets) > 1e-3


def test_another_order_of_the_true_samples_does_not_explain_them():
    observation, inputs, targets = trained_in_one_order()
    assert distance(FullSimulation(), observation, inputs.flip(0), targets.flip(0)) > 1e-6


@pytest.mark.parametrize("recipe", [{}, {"momentum": 0.9, "weight_decay": 0.01}], ids=str)
def test_all_ways_to_differentiate_agree(recipe):
    observation, inputs, targets = trained_in_one_order(**recipe)

    def slope(update_model, functional=False):
        leaf = (inputs * 0.9).requires_grad_()
        predict = update_model.begin(observation, functional=functional)
        return torch.autograd.grad(L2()(predict(leaf, targets), observation.summed_gradient()), leaf)[0]

    graph = slope(FullSimulation(gradients="graph"))
    assert graph.abs().max() > 1e-6
    assert torch.allclose(slope(FullSimulation(gradients="adjoint")), graph, rtol=1e-9, atol=1e-14)
    assert torch.allclose(slope(FullSimulation(), functional=True), graph, rtol=1e-9, atol=1e-14)
    assert torch.allclose(slope(FullSimulation(graph_limit=1)), graph, rtol=1e-9, atol=1e-14)


def test_a_single_full_batch_epoch_is_a_single_step():
    observation, inputs, targets = trained_in_one_order(batch_size=5, epochs=1)
    assert distance(OneBatch(), observation, inputs, targets) < 1e-20


def test_one_local_step_is_simulated_as_its_gradient():
    """With the client's momentum, which has not begun, and weight decay, which has."""
    recipe = {"epochs": 1, "batch_size": 5, "momentum": 0.9, "weight_decay": 0.01}
    observation, inputs, targets = trained_in_one_order(**recipe)
    assert distance(FullSimulation(), observation, inputs, targets) < 1e-20
    assert distance(FullSimulation(), observation, inputs.flip(-1), targets) > 1e-3


def test_a_single_step_counts_the_local_steps():
    """With a tiny learning rate the summed gradient is nearly the number of steps times the first."""
    own = client(4)
    observation, _ = fedavg(network(), own, lr=1e-6, epochs=3, batch_size=4)
    inputs, targets = prepared(own, observation.sent)
    assert distance(OneBatch(), observation, inputs, targets) < 1e-6
    size = L2()(observation.summed_gradient(), {name: torch.tensor(0.0) for name in observation.sent})
    assert size > 1


def test_where_the_number_of_steps_is_unknown_a_single_step_gives_the_direction():
    own = client(4)
    observation, _ = fedavg(network(), own, lr=1e-6, epochs=3, batch_size=4, hidden=["epochs"])
    predict = OneBatch().begin(observation, functional=False)
    expected, _ = fedsgd(network(), own)
    assert expected.gradient is not None
    assert L2()(predict(*prepared(own, observation.sent)), expected.gradient).item() == 0


@pytest.mark.parametrize("hidden", ["lr", "epochs", "batch_size", "samples"])
def test_what_a_simulation_needs_and_does_not_have_is_named(hidden):
    observation, _ = fedavg(network(), client(), lr=0.1, epochs=2, batch_size=2, hidden=[hidden])
    with pytest.raises(MissingKnowledge, match=f"needs the client's {hidden}, .*knowing\\({hidden}="):
        FullSimulation().begin(observation, functional=False)


def test_hidden_momentum_and_weight_decay_are_taken_to_be_zero():
    observation, inputs, targets = trained_in_one_order()
    unsure = observation.knowing(momentum=None, weight_decay=None)
    assert distance(FullSimulation(), unsure, inputs, targets) == 0
    heavy, inputs, targets = trained_in_one_order(momentum=0.9)
    assert distance(FullSimulation(), heavy.knowing(momentum=None), inputs, targets) > 1e-6


@pytest.mark.parametrize("update_model", [OneBatch(), FullSimulation()], ids=repr)
def test_many_problems_in_one_vmap(update_model):
    observation, inputs, targets = trained_in_one_order()
    predict = update_model.begin(observation, functional=True)
    stacked = torch.stack([inputs, inputs * 0.5])
    found = torch.func.vmap(lambda each: predict(each, targets))(stacked)
    plain = update_model.begin(observation, functional=False)
    for row in range(2):
        assert L2()(plain(stacked[row], targets), {name: value[row] for name, value in found.items()}) < 1e-20


@pytest.mark.parametrize("update_model", [OneBatch(), FullSimulation()], ids=repr)
@pytest.mark.parametrize("kind", ["gradient", "weights"])
def test_frozen_layers_are_no_obstacle(update_model, kind):
    model, own = network(), client(2)
    for parameter in model.features[0].parameters():
        parameter.requires_grad_(False)
    if kind == "gradient":
        observation, _ = fedsgd(model, own)
    else:
        observation, _ = fedavg(model, own, lr=0.01)
    assert distance(update_model, observation, *prepared(own, observation.sent)) < 1e-20


@pytest.mark.parametrize("update_model", [OneBatch(), FullSimulation()], ids=repr)
@pytest.mark.parametrize("mode", ["train", "eval"])
def test_the_model_and_its_statistics_are_left_alone(update_model, mode):
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.BatchNorm1d(8), nn.Linear(8, 10)).double()
    observation, _ = fedavg(model, client(4), lr=0.1, epochs=2, mode=mode)
    before = {name: value.clone() for name, value in {**model.state_dict(), **(observation.buffers or {})}.items()}
    predict = update_model.begin(observation, functional=False)
    first = predict(*prepared(client(4), observation.sent))
    again = predict(*prepared(client(4), observation.sent))
    assert all(torch.equal(first[name], again[name]) for name in first)
    after = {**observation.model.state_dict(), **(observation.buffers or {})}
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert observation.model.training


def trained(*, samples=5, batch_size=2, epochs=3, **recipe):
    """What a client sends that draws a new order in every epoch, and its samples, epoch after epoch as trained."""
    own = client(samples)
    observation, truth = fedavg(network(), own, lr=0.1, epochs=epochs, batch_size=batch_size, **recipe)
    inputs, targets = prepared(own, observation.sent)
    rows = torch.cat(truth.order)
    return observation, inputs[rows], targets[rows]


def close(found, expected):
    return all(torch.allclose(found[name], expected[name], rtol=1e-9, atol=1e-12) for name in expected)


RECIPES = [
    {},
    {"batch_size": 5},
    {"samples": 6, "batch_size": 3},
    {"epochs": 1},
    {"momentum": 0.9, "weight_decay": 0.01},
]


@pytest.mark.parametrize("recipe", RECIPES, ids=str)
@pytest.mark.parametrize("gradients", ["graph", "adjoint"])
def test_every_epoch_in_its_own_order_explains_trained_weights(recipe, gradients):
    observation, inputs, targets = trained(**recipe)
    model = FullSimulation(per_epoch=True, gradients=gradients)
    assert distance(model, observation, inputs, targets) < 1e-20
    assert distance(model, observation, inputs.flip(0), targets.flip(0)) > 1e-9 or recipe.get("batch_size") == 5
    assert distance(model, observation, inputs.flip(-1), targets) > 1e-3


def test_every_epoch_in_its_own_order_under_vmap():
    observation, inputs, targets = trained()
    assert distance(FullSimulation(per_epoch=True), observation, inputs, targets, functional=True) < 1e-20


def test_one_order_does_not_explain_what_was_trained_in_several():
    observation, inputs, targets = trained()
    assert distance(FullSimulation(), observation, inputs[:5], targets[:5]) > 1e-9


@pytest.mark.parametrize("functional", [False, True])
@pytest.mark.parametrize("recipe", RECIPES, ids=str)
def test_shared_variables_follow_the_labels_of_every_epoch(recipe, functional):
    """Where every label is another, they tell the order; the variables are in that of the first epoch."""
    observation, inputs, targets = trained(**recipe)
    count = recipe.get("samples", 5)
    assert len(targets[:count].unique()) == count
    assert distance(FullSimulation(), observation, inputs[:count], targets, functional) < 1e-20


@pytest.mark.parametrize("update_model", [OneBatch(), Surrogate(), FullSimulation(one_batch=True)], ids=repr)
def test_models_without_an_order_take_the_first_epochs_labels(update_model):
    observation, inputs, targets = trained()
    ready = update_model.begin(observation, functional=False)
    every, first = (ready(inputs[:5], labels, **ready.extra) for labels in (targets, targets[:5]))
    assert close(every, first)


@pytest.mark.parametrize("recipe", [{}, {"momentum": 0.9, "weight_decay": 0.01}], ids=str)
def test_equal_epochs_are_shared_variables(recipe):
    observation, inputs, targets = trained(**recipe)
    shared, own = FullSimulation(), FullSimulation(per_epoch=True)
    one = shared.begin(observation, functional=False)(inputs[:5], targets[:5])
    for labels in (targets[:5], targets[:5].repeat(3)):
        assert close(own.begin(observation, functional=False)(inputs[:5].repeat(3, 1, 1, 1), labels), one)


@pytest.mark.parametrize(
    ("update_model", "copies", "batches"),
    [
        (OneBatch(), 1, 3),
        (Surrogate(), 1, 3),
        (FullSimulation(), 1, 3),
        (FullSimulation(one_batch=True), 1, 3),
        (FullSimulation(per_epoch=True), 3, 9),
    ],
    ids=repr,
)
def test_a_model_says_how_many_copies_and_batches_it_takes(update_model, copies, batches):
    ready = update_model.begin(trained()[0], functional=False)
    assert isinstance(ready, ClientModel)
    assert (ready.copies, ready.batches) == (copies, batches)


@pytest.mark.parametrize("per_epoch", [False, True])
def test_one_batch_an_epoch_is_one_long_step_on_all_samples(per_epoch):
    """Five samples in batches of two make three steps of 0.1: an epoch is one step of 0.3."""
    observation, inputs, targets = trained()
    epochs = list(inputs.split(5)) if per_epoch else [inputs[:5]] * 3
    labels = list(targets.split(5)) if per_epoch else [targets[:5]] * 3
    model, weights = network(), {name: value.clone() for name, value in observation.sent.items()}
    for samples, wanted in zip(epochs, labels, strict=True):
        model.load_state_dict(weights)
        model.zero_grad()
        nn.functional.cross_entropy(model(samples), wanted).backward()
        weights = {name: weights[name] - 0.3 * value.grad for name, value in model.named_parameters()}
    expected = {name: (observation.sent[name] - weights[name]) / 0.1 for name in weights}
    predict = FullSimulation(one_batch=True, per_epoch=per_epoch).begin(observation, functional=False)
    given = (inputs, targets) if per_epoch else (inputs[:5], targets[:5])
    assert close(predict(*given), expected)
    assert not close(OneBatch().begin(observation, functional=False)(inputs[:5], targets[:5]), expected)


def surrogate_at(position, observation, inputs, targets):
    ready = Surrogate(position).begin(observation, functional=False)
    return ready(inputs, targets, **ready.extra)


def test_a_surrogate_at_the_server_is_a_single_step():
    observation, inputs, targets = trained()
    expected = OneBatch().begin(observation, functional=False)(inputs[:5], targets[:5])
    assert close(surrogate_at(1.0, observation, inputs[:5], targets[:5]), expected)
    assert not close(surrogate_at(0.5, observation, inputs[:5], targets[:5]), expected)


def test_a_surrogate_at_the_client_is_the_gradient_at_the_returned_weights():
    observation, _, _ = trained()
    assert observation.returned is not None
    model = network()
    model.load_state_dict(observation.returned)
    there, _ = fedsgd(model, client())
    assert there.gradient is not None
    found = surrogate_at(0.0, observation, *prepared(client(), observation.sent))
    assert close(found, {name: 9 * value for name, value in there.gradient.items()})


def test_the_place_of_a_surrogate_has_a_gradient():
    observation, inputs, targets = trained()
    ready = Surrogate(0.4).begin(observation, functional=False)

    def loss(place):
        return L2()(ready(inputs[:5], targets[:5], position=place), observation.summed_gradient())

    place = ready.extra["position"].requires_grad_()
    assert (place.item(), place.dtype) == (0.4, torch.double)
    (slope,) = torch.autograd.grad(loss(place), place)
    numeric = (loss(torch.tensor(0.4 + 1e-5).double()) - loss(torch.tensor(0.4 - 1e-5).double())) / 2e-5
    assert slope.item() == pytest.approx(numeric.item(), rel=1e-2)
    assert abs(slope.item()) > 1e-9


def test_a_surrogate_does_not_leave_the_line_between_the_weights():
    observation, inputs, targets = trained()
    ready = Surrogate().begin(observation, functional=False)
    beyond = ready(inputs[:5], targets[:5], position=torch.tensor(1.7).double())
    assert close(beyond, surrogate_at(1.0, observation, inputs[:5], targets[:5]))


def test_the_surrogate_of_a_gradient_is_a_single_step():
    observation, _ = fedsgd(network(), client())
    ready = Surrogate().begin(observation, functional=False)
    assert ready.extra == {}
    assert L2()(ready(*prepared(client(), observation.sent)), observation.summed_gradient()).item() == 0


@pytest.mark.parametrize("position", [-0.1, 1.1, float("nan")])
def test_a_surrogate_starts_between_the_weights(position):
    with pytest.raises(InvalidInput, match=r"position must lie in \[0, 1\]"):
        Surrogate(position)


@pytest.mark.parametrize("per_epoch", [True, False])
@pytest.mark.parametrize("functional", [False, True])
def test_new_orders_are_those_of_another_client_with_the_same_samples(per_epoch, functional):
    """The drawn orders are part of the seeded randomness: drawing them again tells what must have been trained."""
    observation, inputs, targets = trained_in_one_order()
    torch.manual_seed(5)
    client = FullSimulation(per_epoch=per_epoch, new_orders=True).begin(observation, functional=functional)
    torch.manual_seed(5)
    rows = [torch.randperm(5) for _ in range(3)]
    batches = [(inputs[part], targets[part]) for order in rows for part in order.split(2)]
    returned, _ = local_sgd(observation.model, observation.sent, batches, observation.training)
    copies = torch.cat([inputs] * client.copies)
    assert client.copies == (3 if per_epoch else 1)
    same = Observation(observation.model, observation.data, observation.sent, observation.training, returned=returned)
    assert L2()(client(copies, targets), same.summed_gradient()).item() < 1e-20
    assert L2()(client(copies, targets), observation.summed_gradient()).item() > 1e-6


def test_new_orders_give_way_to_known_ones():
    """Labels of every batch tell the order, where all labels differ."""
    rows = data.load("digits").targets.tolist()
    own = digits().share([rows.index(label) for label in range(5)])
    observation, truth = fedavg(network(), own, lr=0.1, epochs=3, batch_size=2, granted=("label_batches",))
    inputs, _ = prepared(own, observation.sent)
    labels = observation.label_batches.flatten().long()
    first = torch.cat(truth.order[:3])
    for per_epoch in (True, False):
        client = FullSimulation(per_epoch=per_epoch, new_orders=True).begin(observation, functional=False)
        predicted = client(torch.cat([inputs[first]] * client.copies), labels)
        assert L2()(predicted, observation.summed_gradient()).item() < 1e-20


@pytest.mark.parametrize(
    "recipe", [{}, {"momentum": 0.9}, {"weight_decay": 0.3}, {"momentum": 0.5, "weight_decay": 0.3}]
)
def test_one_batch_is_the_client_in_the_limit_of_small_steps(recipe):
    """Equation 4 of AGIC: the error falls with the learning rate (with momentum: for full batches)."""

    def error(lr):
        model, own = network(), client(6)
        observation, _ = fedavg(model, own, lr=lr, epochs=4, batch_size=6 if "momentum" in recipe else 2, **recipe)
        inputs, targets = prepared(own, observation.sent)
        return distance(OneBatch(), observation, inputs, targets)

    errors = [error(lr) for lr in (1e-3, 1e-4)]
    assert errors[1] < 0.02 * errors[0]


@pytest.mark.parametrize("functional", [False, True])
@pytest.mark.parametrize("recipe", [{"epochs": 1}, {"batch_size": 5}, {"epochs": 1, "batch_size": 5}], ids=str)
def test_interpolation_is_exact_where_orders_do_not_matter(recipe, functional):
    """AWA's scenarios 1 to 3: one epoch, or one batch an epoch."""
    observation, inputs, targets = trained_in_one_order(**recipe)
    assert distance(EpochInterpolation(), observation, inputs, targets, functional) < 1e-20


@pytest.mark.parametrize("epoch", [1, 2, 3])
def test_interpolation_simulates_one_epoch_from_the_line_between(epoch):
    """AWA, equations 19 to 21, by hand."""
    observation, inputs, targets = trained_in_one_order()
    start = {
        name: value + (epoch - 1) / 3 * (observation.returned[name] - value) for name, value in observation.sent.items()
    }
    batches = list(zip(inputs.split(2), targets.split(2), strict=True))
    after, _ = local_sgd(observation.model, start, batches, observation.training)
    found = EpochInterpolation(epoch).begin(observation, functional=False)(inputs, targets)
    for name, value in found.items():
        assert torch.allclose(value, (start[name] - after[name]) * 3 / 0.1, atol=1e-12)


def test_every_epoch_is_nearly_the_mean_one_for_small_steps():
    model, own = network(), client(6)
    observation, _ = fedavg(model, own, lr=1e-4, epochs=3, batch_size=2)
    inputs, targets = prepared(own, observation.sent)
    size = L2()({name: 0 * value for name, value in observation.sent.items()}, observation.summed_gradient()).item()
    for epoch in (1, 2, 3):
        assert distance(EpochInterpolation(epoch), observation, inputs, targets) < 1e-5 * size


def test_an_epoch_that_was_not_is_refused():
    observation, *_ = trained_in_one_order()
    with pytest.raises(InvalidInput, match="trained for 3"):
        EpochInterpolation(4).begin(observation, functional=False)
    with pytest.raises(InvalidInput, match="epoch"):
        EpochInterpolation(0)


def test_interpolation_of_a_gradient_is_the_gradient():
    observation, _ = fedsgd(network(), client())
    inputs, targets = prepared(client(), observation.sent)
    assert distance(EpochInterpolation(), observation, inputs, targets) == 0


REAL_RECIPES = {
    "nesterov": {"momentum": 0.9, "nesterov": True},
    "adam": {"optimiser": "adam"},
    "adamw": {"optimiser": "adamw", "weight_decay": 0.1},
    "schedule": {"schedule": "cosine"},
    "clipping": {"clip_norm": 0.05},
    "proximal": {"proximal": 1.0},
    "smoothing": {"label_smoothing": 0.2},
    "accumulation": {"accumulation": 2},
}


@pytest.mark.parametrize("steps", ["one", "several"])
@pytest.mark.parametrize("name", REAL_RECIPES)
def test_true_samples_explain_the_update_of_every_recipe(name, steps):
    settings = {"batch_size": 5, "epochs": 1} if steps == "one" else {}
    observation, inputs, targets = trained_in_one_order(**settings, **REAL_RECIPES[name])
    predict = FullSimulation().begin(observation, functional=False)
    observed = observation.summed_gradient()
    assert L2()(predict(inputs, targets), observed) < 1e-16 * sum(value.square().sum() for value in observed.values())


@pytest.mark.parametrize("name", ["adam", "adamw"])
def test_one_batch_is_nearly_right_for_small_steps_of_adam(name):
    settings = {"batch_size": 5, "epochs": 3, **REAL_RECIPES[name]}
    observation, inputs, targets = trained_in_one_order(lr=1e-6, **settings)
    for model in (OneBatch(), Surrogate()):
        client = model.begin(observation, functional=False)
        predicted = flatten(client(inputs, targets, **client.extra))
        assert torch.cosine_similarity(predicted, flatten(observation.difference()), dim=0) > 0.99


def test_an_epoch_of_a_schedule_is_simulated_with_its_own_learning_rates():
    observation, inputs, targets = trained_in_one_order(lr=1e-6, schedule="exponential(factor=0.7)")
    observed = flatten(observation.summed_gradient())
    for epoch in (1, 3):
        predict = EpochInterpolation(epoch).begin(observation, functional=False)
        assert torch.linalg.norm(flatten(predict(inputs, targets)) - observed) < 0.01 * torch.linalg.norm(observed)


def test_an_attack_through_the_simulation_of_adam_recovers_a_sample():
    """L-BFGS follows the smoothed derivatives. With exact ones it ends below chance, at 5 dB."""
    own = digits().share([611])
    model = models.lenet(shape=(1, 8, 8), classes=10, seed=611)
    observation, truth = fedavg(model, own, lr=0.001, epochs=2, recipe=LocalTraining(optimiser="adam"))
    attack = epafl(steps=60).with_settings(update_model=FullSimulation())
    found = score(attack(observation, progress=False), truth)["psnr"]
    assert found.value > 60 > 20 > found.chance
