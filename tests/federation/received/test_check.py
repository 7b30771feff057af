"""A client's check flags every planted model, whatever its scale, order or small noise, and no honest one."""

import pytest
import torch
from torch import nn

import leakgauge as lg
from leakgauge import models
from leakgauge.attacks.malicious import DeadLayer, plant, with_added_block
from leakgauge.core.data_spec import DataSpec
from leakgauge.core.local_training import LocalTraining
from leakgauge.federation.received import ModelRefused, check_model
from tests.attacks.malicious.cases import digits, network, public

SPEC = DataSpec((1, 8, 8), 10)


def traps(kind="thresholds", samples=16, steps=None, **options):
    training = LocalTraining(samples=samples)
    if steps:
        training = LocalTraining(samples=samples, lr=0.01, epochs=steps, batch_size=4)
    model = network(dense=60, **options)
    return plant(model, SPEC, training, kind=kind, public=public()).load_into(model)


def block(kind="thresholds"):
    model = with_added_block(models.build("lenet", shape=(1, 8, 8), classes=10, seed=0), (1, 8, 8), units=64)
    return plant(model, SPEC, LocalTraining(samples=16), kind=kind, public=public()).load_into(model)


def dead():
    model = network()
    weights = DeadLayer(network(), SPEC).next_weights([], dict(model.named_parameters()))
    with torch.no_grad():
        for name, value in model.named_parameters():
            value.copy_(weights[name])
    return model


def half_planted():
    """Return an honest network of which half of the rows of a dense layer are traps."""
    model, planted = network(dense=60), traps()
    with torch.no_grad():
        model.dense.weight[:30], model.dense.bias[:30] = planted.dense.weight[:30], planted.dense.bias[:30]
    return model


PLANTED = {
    "thresholds": traps,
    "a crowd": lambda: traps(samples=200),
    "several batches": lambda: traps(steps=3),
    "half-negative": lambda: traps("half_negative"),
    "an agreed block": block,
    "a half-negative block": lambda: block("half_negative"),
    "a dead layer": dead,
    "half of the rows": half_planted,
}


@pytest.mark.parametrize("name", PLANTED)
def test_planted_models_are_refused(name):
    result = check_model(PLANTED[name](), SPEC, samples=digits(64).inputs)
    assert result.refused
    with pytest.raises(ModelRefused, match="does not train on it"):
        result.require()


@pytest.mark.parametrize("name", ["thresholds", "several batches", "half-negative", "an agreed block"])
def test_scales_order_and_noise_hide_nothing(name):
    model = PLANTED[name]()
    block = hasattr(model, "rows")
    first, second = (model.rows, model.back) if block else (model.dense, model.head)
    draw = torch.Generator().manual_seed(0)
    with torch.no_grad():
        order = torch.randperm(len(first.weight), generator=draw)
        size = 0.2 + 3 * torch.rand(len(order), 1, generator=draw)
        first.weight.copy_(size * first.weight[order])
        first.bias.copy_(size[:, 0] * first.bias[order])
        second.weight.copy_(second.weight[:, order] / size[:, 0])
        for value in model.parameters():
            value.add_(0.01 * value.square().mean().sqrt() * torch.randn(value.shape, generator=draw))
    assert check_model(model, SPEC).refused


def batch_norm():
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(128, 32),
        nn.ReLU(), nn.Linear(32, 10),
    )  # fmt: skip


HONEST = {
    "cnn": network,
    "lenet": lambda: models.build("lenet", shape=(1, 8, 8), classes=10),
    "mlp": lambda: models.build("mlp", shape=(1, 8, 8), classes=10, hidden=(48, 24)),
    "vit": lambda: models.build("vit", shape=(1, 8, 8), patch=2, width=24),
    "resnet": lambda: models.build("resnet20_4", shape=(1, 8, 8), classes=10),
    "batch norm": batch_norm,
}


@pytest.mark.parametrize("name", HONEST)
@pytest.mark.parametrize("steps", [0, 40])
def test_honest_models_are_not_refused(name, steps):
    torch.manual_seed(0)
    model, data = HONEST[name](), digits(400)
    optimiser = torch.optim.SGD(model.parameters(), 0.05)
    for rows in torch.randint(len(data), (steps, 16)):
        optimiser.zero_grad()
        nn.functional.cross_entropy(model(data.inputs[rows].float()), data.targets[rows]).backward()
        optimiser.step()
    result = check_model(model, SPEC)
    assert not result.refused, str(result)
    assert "no known manipulation found" in str(result)
    assert "safe" not in str(result)


def test_the_agreed_architecture_and_type_are_compared():
    model = network()
    state = model.state_dict()
    other = with_added_block(model, (1, 8, 8), units=16)
    assert "additional tensors" in str(check_model(model, SPEC, weights=other.state_dict()))
    assert "lacks" in str(check_model(model, SPEC, weights={k: v for k, v in state.items() if k != "head.bias"}))
    assert "shape" in str(check_model(model, SPEC, weights={**state, "head.bias": torch.zeros(3)}))
    half = {name: value.half() for name, value in state.items()}
    assert {one.name for one in check_model(model, SPEC, weights=half).signs} == {"dtype"}
    broken = {**state, "head.bias": torch.full((10,), torch.nan)}
    assert {one.name for one in check_model(model, SPEC, weights=broken).signs} == {"finite"}


def test_equal_weights_have_one_digest_and_others_another():
    one, other = check_model(network()), check_model(network(), SPEC)
    assert one.digest == other.digest
    assert any("not watched" in hint for hint in one.hints)
    model = network()
    with torch.no_grad():
        model.head.bias[0] += 1e-6
    assert check_model(model).digest != one.digest


def test_the_model_is_not_changed_and_its_own_samples_may_be_used():
    model, data = network(), digits(32)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    result = lg.check_model(model, data.spec, samples=data.inputs, targets=data.targets)
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert result.figures["d_snr"] > 0
    assert model.training


def test_a_model_that_does_not_run_on_random_samples_is_checked_by_its_weights():
    class OfWords(nn.Module):
        def __init__(self):
            super().__init__()
            self.table, self.head = nn.Embedding(20, 8), nn.Linear(8, 3)

        def forward(self, inputs):
            return self.head(self.table(inputs.long()).mean(1))

    result = check_model(OfWords(), DataSpec((6,), 3, bounded=False))
    assert not result.refused
    assert any("own" in hint for hint in result.hints)
