"""Values that a model looks up in an embedding are found, and other attacks refuse them in words."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from leakgauge import attacks
from leakgauge.attacks.analytic.lookups import lookups_of, used_rows
from leakgauge.attacks.registry import ATTACKS
from leakgauge.core.data_spec import DataSpec
from leakgauge.core.errors import InvalidInput
from leakgauge.core.local_training import LocalTraining
from leakgauge.data import Dataset
from leakgauge.federation.client import fedavg, fedsgd
from tests.attacks.analytic.cases import client, dense
from tests.attacks.analytic.texts import TEXTS, Concatenated, mixed_rows, reader


class Indexed(nn.Module):
    """A network that looks up rows without any embedding layer, one row below the value, from right to left."""

    def __init__(self):
        super().__init__()
        self.table, self.head = nn.Parameter(torch.randn(301, 8)), nn.Linear(8, 3)

    def forward(self, inputs):
        return self.head(self.table[inputs.flip(1).long() + 1].mean(1))


class Functional(nn.Module):
    """A network that uses the function and not the layer, with the words in the first place."""

    def __init__(self):
        super().__init__()
        self.table, self.head = nn.Parameter(torch.randn(300, 8)), nn.Linear(8, 3)

    def forward(self, inputs):
        return self.head(F.embedding(inputs.long().T, self.table).mean(0))


@pytest.mark.parametrize(
    ("model", "table", "zero", "any_order"),
    [
        (reader(), "table.weight", 0, True),
        (reader("gru"), "table.weight", 0, False),
        (Indexed(), "table", 1, True),
        (Functional(), "table", 0, True),
        (nn.Sequential(nn.Flatten(), nn.Identity(), reader()), "2.table.weight", 0, True),
    ],
)
def test_every_way_to_look_up_a_row_is_found(model, table, zero, any_order):
    observation, truth = fedsgd(model, TEXTS.share(range(2)))
    found = lookups_of(observation)
    assert [(slot.value, slot.table, slot.zero, slot.step) for slot in found.slots] == [
        (value, table, zero, 1) for value in range(10)
    ]
    assert found.any_order == any_order
    assert used_rows(observation, table).tolist() == (truth.inputs.unique().long() + zero).tolist()


def test_codes_of_their_own_tables_are_no_text():
    observation, _ = fedsgd(Concatenated(), mixed_rows(2))
    found = lookups_of(observation)
    assert [(slot.value, slot.table) for slot in found.slots] == [(0, "one.weight"), (1, "other.weight")]
    assert found.tokens == ()


def test_a_dense_network_looks_up_nothing():
    assert lookups_of(client(dense(8), 1)[0]).slots == ()
    assert lookups_of(client(dense(8), 1)[0]).obstacle == ""


@pytest.mark.parametrize("recipe", [{}, {"weight_decay": 0.01}, {"optimiser": "adamw", "weight_decay": 0.01}])
def test_rows_are_named_after_local_training_too(recipe):
    observation, truth = fedavg(reader(), TEXTS.share([3, 4]), lr=0.01, epochs=3, recipe=LocalTraining(**recipe))
    assert used_rows(observation, "table.weight").tolist() == truth.inputs.unique().long().tolist()


@pytest.mark.parametrize("name", ["prior_path", "inverting_gradients", "dlf", "gauss_newton", "dense_tail_features"])
def test_attacks_that_need_derivatives_refuse_looked_up_values(name):
    observation, _ = fedsgd(reader(), TEXTS.share([0]))
    fit = ATTACKS[name].fits(observation)
    assert not fit.applies
    assert "embedding" in fit.reason
    with pytest.raises(InvalidInput, match="Use embedding_read_off"):
        attacks.build(name)(observation, progress=False)


class OneHot(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(300, 3)

    def forward(self, inputs):
        return self.head(F.one_hot(inputs.long(), 300).to(self.head.weight.dtype).mean(1))


def test_outputs_without_a_derivative_are_an_obstacle_too():
    observation, _ = fedsgd(OneHot(), TEXTS.share([0]))
    assert "no derivative" in lookups_of(observation).obstacle
    assert not ATTACKS["prior_path"].fits(observation).applies


def test_a_model_that_does_not_round_token_ids_is_refused_with_what_to_do():
    model = nn.Sequential(nn.Embedding(300, 4), nn.Flatten(), nn.Linear(40, 3))
    with pytest.raises(InvalidInput, match=r"Begin forward with inputs = inputs.round\(\).long\(\)"):
        fedsgd(model, TEXTS.share([0]))
    with pytest.raises(InvalidInput, match=r"Convert token ids .* with inputs.float\(\)"):
        Dataset(torch.ones(2, 3, dtype=torch.long), torch.zeros(2, dtype=torch.long), DataSpec((3,), 2, bounded=False))
