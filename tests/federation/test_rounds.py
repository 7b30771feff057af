"""run_federation(): averaging, selection, recording, training together, interruption, errors."""

import copy
from typing import Any

import pytest
import torch
from torch import nn

from leakgauge import DataSpec, data, fedavg, models, run_federation
from leakgauge.core.errors import InvalidInput
from leakgauge.core.params import buffers_of, flatten, parameters_of
from leakgauge.core.seeding import derive
from leakgauge.federation.rounds import evaluate
from tests.federation.networks import NETWORKS, Tied, batch_norm, client, conv, dropout, make, mlp, same, table

RECIPE: dict[str, Any] = {"lr": 0.1, "epochs": 2, "batch_size": 4}


def clients(*sizes):
    return [client(size, seed=number) for number, size in enumerate(sizes)]


def distance(first, second):
    return float((flatten(first) - flatten(second)).abs().max())


@pytest.mark.parametrize("make_model", [conv, batch_norm, dropout])
def test_one_round_with_one_client_is_fedavg(make_model):
    model, [only] = make_model(), clients(8)
    federation = run_federation(model, [only], rounds=1, **RECIPE, momentum=0.5, watch=[0])
    expected, _ = fedavg(model, only, **RECIPE, momentum=0.5, seed=derive(0, "client", 0, "round", 0))
    assert same(federation.weights, expected.returned)
    [seen] = federation.observations[0]
    assert same(seen.returned, expected.returned)
    assert seen.training == expected.training
    if expected.returned_buffers is not None:
        assert same(federation.buffers, expected.returned_buffers)


@pytest.mark.parametrize(("weighting", "shares"), [("samples", [3, 5, 12]), ("uniform", [1, 1, 1])])
def test_the_server_averages_by_hand(weighting, shares):
    model, everyone = batch_norm(), clients(3, 5, 12)
    federation = run_federation(model, everyone, rounds=1, lr=0.1, weighting=weighting, watch=[0, 1, 2])
    returned: list[Any] = [federation.observations[index][0].returned for index in range(3)]
    for name, value in federation.weights.items():
        mean = sum(share * tree[name] for share, tree in zip(shares, returned, strict=True)) / sum(shares)
        torch.testing.assert_close(value, mean)
    statistics: list[Any] = [federation.observations[index][0].returned_buffers for index in range(3)]
    mean = sum(s * tree["1.running_var"] for s, tree in zip(shares, statistics, strict=True)) / sum(shares)
    torch.testing.assert_close(federation.buffers["1.running_var"], mean)


def test_selection_is_of_the_right_size_and_the_same_for_the_same_seed():
    def chosen(seed):
        federation = run_federation(
            mlp_once, everyone, rounds=12, lr=0.1, clients_per_round=2, watch=range(5), seed=seed
        )
        return [[i for i in range(5) if any(o.round == r for o in federation.observations[i])] for r in range(12)]

    everyone, mlp_once = clients(4, 4, 4, 4, 4), make("conv", torch.float32)
    first = chosen(1)
    assert all(len(selected) == 2 for selected in first)
    assert len({tuple(selected) for selected in first}) > 1
    assert chosen(1) == first
    assert chosen(2) != first


def test_watched_messages_are_those_of_their_round():
    model, everyone = batch_norm(), clients(6, 8)
    federation = run_federation(
        model, everyone, rounds=5, **RECIPE, watch=[1], every=2, granted=iter(["labels"]), hidden=["epochs"]
    )
    assert list(federation.observations) == list(federation.truths) == [1]
    seen = federation.observations[1]
    assert [observation.round for observation in seen] == [0, 2, 4]
    for observation in seen:
        before = run_federation(model, everyone, rounds=observation.round, **RECIPE) if observation.round else None
        sent = before.weights if before else parameters_of(model)
        buffers = before.buffers if before else buffers_of(model)
        assert same(observation.sent, sent)
        assert same(observation.buffers, buffers)
        server = copy.deepcopy(model)
        server.load_state_dict({**sent, **buffers})
        again, _ = fedavg(server, everyone[1], **RECIPE, seed=derive(0, "client", 1, "round", observation.round))
        assert same(observation.returned, again.returned)
        assert same(observation.returned_buffers, again.returned_buffers)
        assert observation.client == "client-1"
        assert observation.training.epochs is None
        assert same(observation.labels, everyone[1].targets)
    assert torch.equal(federation.truths[1].inputs, everyone[1].inputs)


@pytest.mark.parametrize("together", [True, False])
def test_the_labels_of_every_batch_are_those_of_the_round(together):
    model, everyone = conv(), clients(6, 6)
    federation = run_federation(
        model, everyone, rounds=2, **RECIPE, watch=[1], granted=["label_batches"], together=together
    )
    found = [observation.label_batches for observation in federation.observations[1]]
    for number, batches in enumerate(found):
        alone, _ = fedavg(
            model, everyone[1], **RECIPE, granted=["label_batches"], seed=derive(0, "client", 1, "round", number)
        )
        assert same(batches, alone.label_batches)
    assert not same(*found)


@pytest.mark.parametrize("name", [name for name in NETWORKS if "dropout" not in name and name != "spare"])
def test_together_gives_the_numbers_of_one_by_one(name):
    model, everyone = make(name), clients(10, 7, 10, 5, 7, 10)
    runs = [
        run_federation(
            model, everyone, rounds=3, lr=0.1, epochs=2, batch_size=4 if name != "batch norm" else 5, momentum=0.7,
            weight_decay=0.01, together=together, watch=[0, 1, 3], clients_per_round=5,
            test=client(20, seed=99), test_every=1,
        )
        for together in (True, False)
    ]  # fmt: skip
    assert distance(runs[0].weights, runs[1].weights) < 1e-10
    if runs[0].buffers:
        assert distance(runs[0].buffers, runs[1].buffers) < 1e-10
    assert runs[0].history == runs[1].history
    for index in (0, 1, 3):
        for first, second in zip(runs[0].observations[index], runs[1].observations[index], strict=True):
            assert distance(first.returned, second.returned) < 1e-10
            assert first.round == second.round


def test_together_in_single_precision():
    model, everyone = make("batch norm", torch.float32), clients(8, 8, 8)
    runs = [run_federation(model, everyone, rounds=4, **RECIPE, together=together) for together in (True, False)]
    assert distance(runs[0].weights, runs[1].weights) < 1e-4


def test_clients_that_train_together_draw_their_own_dropout():
    same = client(8)
    federation = run_federation(dropout(), [same, same], rounds=1, lr=0.5, together=True, watch=[0, 1])
    first, second = (federation.observations[index][0].returned for index in (0, 1))
    assert distance(first, second) > 1e-3


class Branching(nn.Module):
    """A network that branches on a value, which cannot be vectorised."""

    def __init__(self):
        super().__init__()
        self.body = mlp()

    def forward(self, inputs):
        return self.body(inputs * 2 if float(inputs.mean()) > 0 else inputs)


def test_a_model_that_cannot_be_vectorised_is_trained_one_by_one():
    model, everyone = Branching(), clients(4, 4)
    runs = [run_federation(model, everyone, rounds=2, lr=0.1, together=together) for together in (None, False)]
    assert distance(runs[0].weights, runs[1].weights) == 0
    with pytest.raises(InvalidInput, match=r"cannot train together .*Use together=False"):
        run_federation(model, everyone, rounds=2, lr=0.1, together=True)


@pytest.mark.parametrize("together", [True, False])
def test_private_statistics_stay_with_their_client(together):
    model, everyone = make("batch norm"), clients(6, 6)
    federation = run_federation(
        model, everyone, rounds=3, lr=0.1, share_statistics=False, watch=[0, 1], together=together
    )
    assert distance(federation.buffers, buffers_of(model)) == 0
    fresh = buffers_of(make("batch norm"))
    for observation in federation.observations[0]:
        assert (observation.buffers, observation.returned_buffers) == (None, None)
        assert distance(buffers_of(observation.model), fresh) == 0


@pytest.mark.parametrize("share", [True, False])
def test_private_statistics_count_only_the_clients_own_rounds(share):
    counts = []

    class Watching(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = make("batch norm", torch.float32)

        def forward(self, inputs):
            if self.training:
                counts.append(int(self.body[1].num_batches_tracked))
            return self.body(inputs)

    federation = run_federation(
        Watching(), clients(6, 6), rounds=6, lr=0.1, share_statistics=share, clients_per_round=1, watch=[0, 1]
    )
    rounds = {index: [seen.round for seen in federation.observations[index]] for index in (0, 1)}
    assert all(rounds.values())
    own = {number: place for index in (0, 1) for place, number in enumerate(rounds[index])}
    assert counts == (list(range(6)) if share else [own[number] for number in range(6)])


def test_ctrl_c_returns_what_was_reached():
    def stop(done, rounds):
        if done == 3:
            raise KeyboardInterrupt

    model, everyone = conv(), clients(4, 4)
    options: dict[str, Any] = {"lr": 0.1, "watch": [0], "test": client(9, seed=5), "test_every": 2}
    stopped = run_federation(model, everyone, rounds=50, progress=stop, **options)
    assert (stopped.interrupted, stopped.rounds) == (True, 3)
    assert len(stopped.observations[0]) == 3
    finished = run_federation(model, everyone, rounds=3, **options)
    assert (finished.interrupted, finished.rounds) == (False, 3)
    assert distance(stopped.weights, finished.weights) == 0
    assert stopped.history == finished.history[:1]


def test_progress_is_called_every_round():
    calls = []
    run_federation(conv(), clients(4), rounds=3, lr=0.1, progress=lambda *numbers: calls.append(numbers))
    assert calls == [(1, 3), (2, 3), (3, 3)]


def test_history_holds_the_score_of_each_tested_round():
    model, everyone, test = batch_norm(), clients(6, 6), client(30, seed=7)
    federation = run_federation(model, everyone, rounds=5, lr=0.1, test=test, test_every=2)
    assert [done for done, _ in federation.history] == [2, 4, 5]
    trained = federation.load_into(copy.deepcopy(model)).eval()
    correct = trained((test.inputs - 0.4) / 0.3).argmax(1) == test.targets
    assert federation.history[-1][1] == pytest.approx(correct.float().mean().item())


def test_a_regression_is_scored_by_its_mean_squared_error():
    model, test = nn.Linear(6, 1), table(50, seed=3)
    expected = (model(test.inputs).flatten() - test.targets).square().mean().item()
    assert evaluate(model, test, parameters_of(model), {}, batch=7) == pytest.approx(expected, rel=1e-5)


def test_one_logit_is_scored_by_its_sign():
    pairs = data.Dataset(torch.randn(30, 2), torch.arange(30) % 2, DataSpec((2,), 2, bounded=False))
    model = nn.Linear(2, 1)
    expected = ((model(pairs.inputs).flatten() > 0).long() == pairs.targets).float().mean().item()
    assert evaluate(model, pairs, parameters_of(model), {}, batch=8) == pytest.approx(expected)


def test_accuracy_rises_on_real_digits():
    digits = data.load("digits")
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
    people = data.iid(digits, clients=5, seed=0)
    before = evaluate(model, digits, parameters_of(model), {})
    federation = run_federation(model, people, rounds=15, lr=0.2, epochs=2, batch_size=32, test=digits, test_every=5)
    scores = [score for _, score in federation.history]
    assert before < 0.3
    assert scores == sorted(scores)
    assert scores[-1] > 0.9


def test_load_into_fills_tied_weights_and_buffers_that_are_not_saved():
    class Scaled(Tied):
        def __init__(self):
            super().__init__()
            self.scale: torch.Tensor
            self.register_buffer("scale", torch.ones(()), persistent=False)

        def forward(self, inputs):
            self.scale.mul_(1.5)
            return super().forward(inputs)

    model = Scaled()
    federation = run_federation(model, clients(4, 4), rounds=2, lr=0.5)
    filled: Any = federation.load_into(Scaled())
    assert distance(parameters_of(filled), federation.weights) == 0
    assert float(filled.scale) == pytest.approx(1.5**2)
    assert filled.second.weight is filled.first.weight
    assert float(model.scale) == 1


def test_the_model_and_the_random_numbers_of_the_caller_are_left_alone():
    model = batch_norm().eval()
    state, before = copy.deepcopy(model.state_dict()), torch.get_rng_state()
    run_federation(model, clients(6, 6), rounds=2, **(RECIPE | {"batch_size": 3}), clients_per_round=1, test=client(4))
    assert torch.equal(before, torch.get_rng_state())
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())
    assert not model.training


@pytest.mark.parametrize("together", [True, False])
def test_divergence_is_an_error_with_a_remedy(together):
    with pytest.raises(InvalidInput, match=r"NaN or Inf in round \d+. Use a smaller lr than 1000000"):
        run_federation(nn.Linear(6, 1), [table(4), table(4, 1)], rounds=30, lr=1e6, together=together)


@pytest.mark.parametrize("together", [True, False])
def test_batch_norm_with_a_batch_of_one_is_refused(together):
    with pytest.raises(InvalidInput, match="batch norm in train mode"):
        run_federation(batch_norm(), clients(5, 5), rounds=1, lr=0.1, batch_size=4, together=together)


def test_private_statistics_are_scored_with_each_clients_own():
    digits = data.load("digits")
    everyone = data.iid(digits.share(range(400)), clients=4, seed=0)
    model = models.build("mlp", shape=(1, 8, 8), classes=10, hidden=[32], batch_norm=True, seed=0)
    options = {"rounds": 30, "lr": 0.2, "batch_size": 20, "test": digits.share(range(400, 700)), "test_every": 30}
    private = run_federation(model, everyone, share_statistics=False, **options)
    shared = run_federation(model, everyone, **options)
    assert private.history[-1][1] > shared.history[-1][1] - 0.1 > 0.6
