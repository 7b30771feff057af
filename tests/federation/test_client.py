"""fedsgd() and fedavg(): what the server sees, what it does not see, and errors for what does not fit."""

import copy
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from leakgauge import fedavg, fedsgd
from leakgauge.core.errors import InvalidInput, UnknownName
from leakgauge.core.params import buffers_of, flatten, parameters_of
from leakgauge.federation.training import LOSSES
from tests.federation.networks import (
    CLASSES,
    Spare,
    Tied,
    batch_norm,
    client,
    conv,
    dropout,
    linear,
    make,
    same,
    table,
)

AVG: dict[str, Any] = {"lr": 0.1, "epochs": 2, "batch_size": 3}


def normalised(data):
    return (data.inputs - 0.4) / 0.3


@pytest.mark.parametrize("mode", ["train", "eval"])
@pytest.mark.parametrize("make_model", [conv, batch_norm, Tied, Spare])
def test_fedsgd_sends_the_gradient_of_plain_autograd(make_model, mode):
    model, data = make_model(), client(5)
    observation, truth = fedsgd(model, data, mode=mode)
    plain = copy.deepcopy(model)
    plain.train(mode == "train")
    F.cross_entropy(plain(normalised(data)), data.targets).backward()
    assert observation.kind == "gradient"
    assert observation.returned is None
    assert observation.gradient is not None
    for name, value in plain.named_parameters():
        expected = torch.zeros_like(value) if value.grad is None else value.grad
        torch.testing.assert_close(observation.gradient[name], expected, rtol=1e-5, atol=1e-7)
    for name, value in plain.named_buffers():
        assert observation.returned_buffers is not None
        torch.testing.assert_close(observation.returned_buffers[name], value)
    assert [rows.tolist() for rows in truth.order] == [[0, 1, 2, 3, 4]]
    assert torch.equal(truth.inputs, data.inputs)


def test_fedavg_sends_the_weights_after_training_in_the_order_of_the_truth():
    model, data = conv(), client(7)
    observation, truth = fedavg(model, data, **AVG, momentum=0.5)
    plain = copy.deepcopy(model)
    optimiser = torch.optim.SGD(plain.parameters(), lr=0.1, momentum=0.5)
    for rows in truth.order:
        optimiser.zero_grad()
        F.cross_entropy(plain(normalised(data)[rows]), data.targets[rows]).backward()
        optimiser.step()
    assert observation.kind == "weights"
    assert observation.returned is not None
    torch.testing.assert_close(flatten(observation.returned), flatten(parameters_of(plain)), rtol=1e-5, atol=1e-6)
    assert same(observation.sent, parameters_of(model))
    training = observation.training
    assert (training.lr, training.epochs, training.batch_size, training.samples) == (0.1, 2, 3, 7)
    assert [len(rows) for rows in truth.order] == [3, 3, 1] * 2


def test_the_seed_decides_the_order_and_the_dropout():
    model, data = dropout(), client(6)
    first, again, other = (fedavg(model, data, **AVG, seed=seed)[0].returned for seed in (1, 1, 2))
    assert same(first, again)
    assert not same(first, other)


@pytest.mark.parametrize("run", [fedsgd, partial(fedavg, **AVG)], ids=["fedsgd", "fedavg"])
def test_model_and_random_numbers_of_the_caller_are_left_alone(run):
    class Careless(nn.Module):
        """A network that draws random numbers and counts its calls in any mode."""

        def __init__(self):
            super().__init__()
            self.body = batch_norm()
            self.calls: torch.Tensor
            self.register_buffer("calls", torch.zeros(()))

        def forward(self, inputs):
            self.calls.add_(1)
            return self.body(F.dropout(inputs, 0.1))

    model = Careless().eval()
    model.body[1].train()
    state, flags = copy.deepcopy(model.state_dict()), [part.training for part in model.modules()]
    before = torch.get_rng_state()
    run(model, client(6))
    assert torch.equal(before, torch.get_rng_state())
    assert [part.training for part in model.modules()] == flags
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())
    assert all(value.grad is None for value in model.parameters())


def test_training_the_model_later_does_not_change_the_observation():
    model, data = batch_norm(), client(6)
    observations = [
        fedsgd(model, data, granted=["labels"])[0],
        fedavg(model, data, **AVG, granted=["labels"])[0],
    ]
    kept = copy.deepcopy(observations)
    optimiser = torch.optim.SGD(model.parameters(), lr=1.0)
    F.cross_entropy(model(data.inputs), data.targets).backward()
    optimiser.step()
    data.targets.fill_(0)
    for observation, before in zip(observations, kept, strict=True):
        for tree in ("sent", "gradient", "returned", "buffers", "returned_buffers"):
            now, then = getattr(observation, tree), getattr(before, tree)
            assert (now is None) == (then is None)
            if now is not None:
                assert same(now, then)
        assert same(observation.model.state_dict(), before.model.state_dict())
        assert same(observation.labels, before.labels)


def test_the_observation_shows_what_is_granted_and_lacks_what_is_hidden():
    data = client(6)
    plain, _ = fedavg(conv(), data, **AVG)
    assert (plain.labels, plain.label_counts) == (None, None)
    granted, _ = fedavg(conv(), data, **AVG, granted=["labels", "label_counts"])
    assert same(granted.labels, data.targets)
    assert same(granted.label_counts, torch.bincount(data.targets, minlength=CLASSES))
    names = ("lr", "epochs", "batch_size", "samples", "momentum", "weight_decay")
    for name in names:
        hidden, _ = fedavg(conv(), data, **AVG, hidden=[name])
        assert [key for key in names if getattr(hidden.training, key) is None] == [name]
    assert fedsgd(conv(), data, granted="labels", hidden="samples")[0].training.samples is None


def test_the_labels_of_every_batch_are_in_the_order_trained_on():
    data = client(7)
    assert fedavg(conv(), data, **AVG)[0].label_batches is None
    observation, truth = fedavg(conv(), data, **AVG, granted=["label_batches"])
    assert observation.label_batches is not None
    assert observation.label_batches.shape == (2, 7)
    assert torch.equal(observation.label_batches.flatten(), data.targets[torch.cat(truth.order)])
    assert (observation.labels, observation.label_counts) == (None, None)
    single, _ = fedsgd(conv(), data, granted="label_batches")
    assert single.label_batches is not None
    assert torch.equal(single.label_batches, data.targets[None])


@pytest.mark.parametrize("name", ["epochs", "batch_size", "samples"])
def test_label_batches_do_not_go_with_a_hidden_recipe(name):
    with pytest.raises(
        InvalidInput, match=f"label_batches reveal the {name}. Remove label_batches from granted, or {name} from hidden"
    ):
        fedavg(conv(), client(6), **AVG, granted=["label_batches"], hidden=[name])


def test_a_regression_may_grant_its_targets_but_has_no_counts():
    data = table(5)
    observation, truth = fedsgd(linear(), data, granted=["labels"])
    assert observation.training.loss == "mse"
    assert same(observation.labels, data.targets)
    assert observation.data.classes is None
    assert torch.equal(truth.targets, data.targets)
    with pytest.raises(InvalidInput, match=r"label_counts cannot be granted.*regression"):
        fedsgd(linear(), data, granted=["label_counts"])
    with pytest.raises(InvalidInput, match=r"label_batches cannot be granted.*regression"):
        fedsgd(linear(), data, granted=["label_batches"])


@pytest.mark.parametrize("run", [fedsgd, partial(fedavg, **AVG)], ids=["fedsgd", "fedavg"])
def test_withheld_statistics_are_nowhere_in_the_observation(run):
    model = batch_norm()
    for _ in range(3):
        model(client(8, seed=3).inputs)  # statistics of the client's own
    secret = buffers_of(model)
    shared, _ = run(model, client(6))
    assert same(shared.buffers, secret)
    assert not same(shared.returned_buffers, secret)
    withheld, _ = run(model, client(6), share_statistics=False)
    assert (withheld.buffers, withheld.returned_buffers) == (None, None)
    fresh = buffers_of(batch_norm())
    assert all(torch.equal(value, fresh[name]) for name, value in withheld.model.named_buffers())
    assert all(torch.equal(value, fresh[name]) for name, value in withheld.model_buffers().items())
    assert all(torch.equal(value, secret[name]) for name, value in model.named_buffers())


def test_others_of_the_population_are_the_reference():
    everyone = client(10)
    _, truth = fedsgd(conv(), everyone.share([1, 2, 3]))
    assert truth.reference_inputs is not None
    assert len(truth.reference_inputs) == 7
    assert fedsgd(conv(), everyone)[1].reference_inputs is None


def test_client_and_round_have_names():
    assert fedsgd(conv(), client(3, name="Ada"))[0].client == "Ada"
    observation, _ = fedsgd(conv(), client(3), client="Bob", round=7)
    assert (observation.client, observation.round) == ("Bob", 7)


def test_double_precision_models_get_double_precision_data():
    observation, _ = fedavg(make("batch norm"), client(6), **AVG)
    assert observation.returned is not None
    assert {value.dtype for value in observation.returned.values()} == {torch.float64}


def test_training_that_diverges_says_what_helps():
    with pytest.raises(InvalidInput, match=r"returned\['1.weight'\] holds NaN or Inf.*diverged.*a smaller lr helps"):
        fedavg(linear(), table(4), lr=1e6, epochs=20)


def test_a_ragged_batch_of_one_is_too_small_for_batch_norm():
    with pytest.raises(InvalidInput, match="leaves no single last sample"):
        fedavg(batch_norm(), client(5), lr=0.1, batch_size=2)


def test_names_are_checked_before_any_work(monkeypatch):
    monkeypatch.setitem(LOSSES, "cross_entropy", lambda outputs, targets: pytest.fail("training began"))
    with pytest.raises(UnknownName):
        fedavg(conv(), client(3), lr=0.1, granted=["everything"])


def test_another_problem_inside_training_is_reported():
    class Picky(nn.Linear):
        def forward(self, inputs):
            if self.training:
                raise ValueError("not today")
            return super().forward(inputs.flatten(1))

    with pytest.raises(InvalidInput, match="the client's training failed: not today"):
        fedsgd(Picky(16, 3), client(3))
