"""States of many forms, and parts of a state, fit the model or are refused in words."""

import pytest
import torch
from torch import nn

import leakgauge as lg
from leakgauge import DataSpec, fedavg, fedsgd, load
from tests.federation.networks import NETWORKS, client, mlp, same
from tests.federation.recording.loops import AVG, DATA, recorder, states

__all__ = ["recorder"]  # a fixture


FORMS = {
    "arrays": lambda state: {name: value.numpy() for name, value in state.items()},
    "doubles": lambda state: {name: value.double() for name, value in state.items()},
    "list": lambda state: list(state.values()),
    "arrays in a list": lambda state: [value.numpy() for value in state.values()],
    "DataParallel": lambda state: {f"module.{name}": value for name, value in state.items()},
    "Opacus": lambda state: {f"_module.{name}": value for name, value in state.items()},
    "compiled": lambda state: {f"_orig_mod.{name}": value for name, value in state.items()},
    "all three": lambda state: {f"module._orig_mod._module.{name}": value for name, value in state.items()},
}


@pytest.mark.parametrize("form", FORMS)
def test_weights_come_in_many_forms(recorder, form):
    observation, _ = fedavg(recorder.captures.model, client(6), **AVG)
    path = recorder.keep("a", 1, *map(FORMS[form], states(observation)))
    assert same(load(path, mlp()).returned, observation.returned)


def test_a_list_may_hold_parameters_only(tmp_path):
    model = NETWORKS["batch norm"]()
    observation, _ = fedavg(model, client(6), **AVG)
    recorder = lg.record(tmp_path, model=model, data=DATA)
    path = recorder.keep("a", 1, list(observation.sent.values()), list(observation.returned.values()))
    found = load(path, model)
    assert same(found.returned, observation.returned)
    assert found.buffers is None


def test_the_model_may_be_wrapped_and_the_message_not(tmp_path):
    model = mlp()
    observation, _ = fedavg(model, client(6), **AVG)
    for number, wrapped in enumerate((nn.DataParallel(model), torch.compile(nn.DataParallel(model), backend="eager"))):
        path = lg.record(tmp_path, model=wrapped, data=DATA).keep("a", number, *states(observation))
        assert same(load(path, model).returned, observation.returned)  # under the names of the app's own model


def test_a_module_of_the_user_is_no_wrapper(tmp_path):
    class Normalised(nn.Module):
        def __init__(self):
            super().__init__()
            self.module = nn.Linear(2, 2)

    model = Normalised()
    assert isinstance(lg.record(tmp_path, model=model, data=DataSpec((2,), 2, (0,), (1,))).captures.model, Normalised)
    nested = nn.Sequential()
    nested.module = nn.Linear(2, 2)
    state = {"weight": nested.module.weight, "bias": nested.module.bias}
    path = lg.record(tmp_path, model=nested, data=DataSpec((2,), 2, (0,), (1,))).keep("a", 1, state, state)
    assert path is not None


def test_a_layer_that_is_really_called_module_keeps_its_name(tmp_path):
    model = nn.ModuleDict({"module": nn.Linear(2, 2), "head": nn.Linear(2, 2)})
    state = model.state_dict()
    path = lg.record(tmp_path, model=model, data=DataSpec((2,), 2, (0,), (1,))).keep("a", 1, state, state)
    assert same(load(path, model).sent, dict(model.named_parameters()))


def test_numbers_of_16_bits(tmp_path):
    model = mlp().to(torch.bfloat16)
    state = model.state_dict()
    path = lg.record(tmp_path, model=model, data=DATA).keep("a", 1, state, state)
    assert same(load(path, model).sent, dict(model.named_parameters()))


def head_only():
    torch.manual_seed(1)
    model = nn.Sequential(
        nn.Flatten(), nn.Linear(16, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3)
    )  # a body that nobody trains
    for layer in model[:4]:
        layer.requires_grad_(False)
    return model.eval()


def test_a_head_is_recorded_with_its_frozen_body(tmp_path):
    model = head_only()
    observation, _ = fedavg(model, client(6), **AVG, mode="eval")
    recorder = lg.record(tmp_path, model=model, data=DATA)
    part = [{name: state[name] for name in ("4.weight", "4.bias")} for state in states(observation)]
    for number, form in enumerate((dict, lambda state: list(state.values()))):
        found = load(recorder.keep("a", number, *map(form, part), mode="eval"), head_only().requires_grad_(True))
        assert same(found.sent, observation.sent)
        assert same(found.returned, observation.returned)
        assert same(found.buffers, observation.buffers)  # of the frozen layer, as the model has them
        trained = [name for name, value in found.model.named_parameters() if value.requires_grad]
        assert trained == ["4.weight", "4.bias"]  # whatever the user's model says
    gradient, _ = fedsgd(model, client(3), mode="eval")
    part[1] = {name: gradient.gradient[name] for name in part[0]}
    assert same(load(recorder.keep("a", 2, part[0], gradient=part[1]), model).gradient, gradient.gradient)


def test_adapters_without_the_name_of_the_adapter(tmp_path):
    class Adapted(nn.Module):
        def __init__(self):
            super().__init__()
            self.base = nn.Linear(16, 3).requires_grad_(False)
            self.lora_A = nn.ModuleDict({"default": nn.Linear(16, 2, bias=False)})

    model = Adapted()
    state = {"base_model.lora_A.weight".removeprefix("base_model."): model.lora_A["default"].weight}
    found = load(lg.record(tmp_path, model=model, data=DATA).keep("a", 1, state, state), model)
    assert list(found.sent) == ["base.weight", "base.bias", "lora_A.default.weight"]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda one: {"4.weight": one["4.weight"]}, "lack '4.bias'"),
        (lambda one: {**one, "1.weight": one["1.weight"] + 1}, "another '1.weight' than the recorder's model"),
        (lambda one: [one["4.weight"]], "1 arrays without names, but the model has 6 parameters, and 9 entries"),
        (lambda one: one["4.weight"], "must be a state dict or a list of arrays, not a Tensor"),
        (lambda one: None, "needs either returned or gradient"),
    ],
)
def test_a_part_that_does_not_determine_the_training_is_refused(tmp_path, change, words, caplog):
    model = head_only()
    whole = {name: value.clone() for name, value in model.state_dict().items()}
    head = {name: whole[name] for name in ("4.weight", "4.bias")}
    assert lg.record(tmp_path, model=model, data=DATA).keep("a", 1, head, change(whole)) is None
    assert words in caplog.text


def test_a_body_that_the_client_trains_is_not_frozen(tmp_path, caplog):
    net = head_only().requires_grad_(True)
    with lg.record(tmp_path, model=head_only(), data=DATA).client("a", round=1, model=net):
        pass
    assert "it trains '1.weight', which has requires_grad=False in the recorder's model" in caplog.text


def test_a_frozen_weight_that_changed_is_logged(tmp_path, caplog):
    model = head_only()
    state = {name: value.clone() for name, value in model.state_dict().items()}
    recorder = lg.record(tmp_path, model=model, data=DATA)
    assert recorder.keep("a", 1, state, {**state, "4.bias": state["4.bias"] + 1}) is not None
    assert caplog.text == ""
    assert recorder.keep("a", 1, state, {**state, "1.bias": state["1.bias"] + 1}) is not None
    assert "it changed '1.bias', which has requires_grad=False" in caplog.text


def test_layers_that_stay_with_the_client_are_refused(tmp_path, caplog):
    model = NETWORKS["batch norm"]()
    norm = {id(value) for layer in model.modules() if isinstance(layer, nn.BatchNorm2d) for value in layer.parameters()}
    state = {name: value for name, value in model.named_parameters() if id(value) not in norm}
    assert lg.record(tmp_path, model=model, data=DATA).keep("a", 1, state, state) is None
    assert "keeps to itself, as in FedBN" in caplog.text
    assert "1.weight" in caplog.text
