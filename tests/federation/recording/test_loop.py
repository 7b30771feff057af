"""The recorder for any training loop: states of all kinds, parts of a state, and the client's optimiser."""

import numpy as np
import pytest
import torch
from torch import nn

import leakgauge as lg
from leakgauge import DataSpec, fedavg, fedsgd, load, load_all
from leakgauge.core.errors import InvalidInput, UnknownName
from leakgauge.data import Dataset
from leakgauge.federation.recording.optimiser_settings import optimiser_settings
from tests.federation.networks import NETWORKS, client, mlp, same

DATA = DataSpec((1, 4, 4), 3, mean=(0,), std=(1,))
AVG = {"lr": 0.1, "epochs": 2, "batch_size": 3}
RECIPE = {**AVG, "samples": 6}


@pytest.fixture
def recorder(tmp_path):
    torch.manual_seed(0)
    return lg.record(tmp_path, model=mlp(), data=DATA)


def states(observation):
    """The state dicts that a client got and returned, as the loop of an app has them."""
    before = {**observation.sent, **(observation.buffers or {})}
    return before, {**observation.returned, **(observation.returned_buffers or {})}


def training(net, optimizer, seed=0, steps=2):
    data = client(4, seed=seed)
    for _ in range(steps):
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(data.inputs), data.targets).backward()
        optimizer.step()


@pytest.mark.parametrize("name", NETWORKS)
def test_two_state_dicts_become_a_capture(tmp_path, name):
    model = NETWORKS[name]()
    observation, _ = fedavg(model, client(6), **AVG)
    path = lg.record(tmp_path, model=model, data=DATA).keep("hospital-3", 0, *states(observation), **RECIPE)
    assert path == tmp_path / "run-1" / "hospital-3_round-000000.safetensors"
    found = load(path, model)
    for tree in ("sent", "returned", "buffers", "returned_buffers"):
        assert same(getattr(found, tree) or {}, getattr(observation, tree) or {})
    assert (found.client, found.round) == ("hospital-3", 0)
    assert (found.training.lr, found.training.samples, found.training.momentum) == (0.1, 6, None)


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


def test_a_gradient(recorder):
    observation, _ = fedsgd(recorder.captures.model, client(3))
    path = recorder.keep(3, 1, observation.sent, gradient=observation.gradient, samples=3)
    found = load(path, mlp())
    assert (found.kind, found.client, found.training.samples) == ("gradient", "client-3", 3)
    assert same(found.gradient, observation.gradient)


def test_a_weight_that_is_not_used_has_no_gradient(tmp_path):
    model = NETWORKS["spare"]()
    nn.functional.cross_entropy(model(client(3).inputs), client(3).targets).backward()
    gradient = {name: value.grad for name, value in model.named_parameters()}
    assert None in gradient.values()
    path = lg.record(tmp_path, model=model, data=DATA).keep("a", 1, model.state_dict(), gradient=gradient)
    assert not any(load(path, model).gradient[name].any() for name, value in gradient.items() if value is None)


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


@pytest.mark.parametrize(
    ("make", "settings"),
    [
        (lambda p: torch.optim.SGD(p, lr=0.1), {"optimiser": "sgd", "momentum": 0.0, "weight_decay": 0.0}),
        (
            lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, nesterov=True, weight_decay=0.01),
            {"momentum": 0.9, "nesterov": True, "weight_decay": 0.01},
        ),
        (lambda p: torch.optim.Adam(p, 0.1, betas=(0.8, 0.9), eps=1e-4), {"optimiser": "adam", "betas": (0.8, 0.9)}),
        (lambda p: torch.optim.AdamW(p, lr=torch.tensor(0.25)), {"optimiser": "adamw", "lr": 0.25}),
        (lambda p: torch.optim.Adam([{"params": p[:1]}, {"params": p[1:]}], 0.1), {"optimiser": "adam", "lr": 0.1}),
    ],
)
def test_a_training_is_recorded_with_its_optimiser_and_can_be_repeated(recorder, make, settings):
    net = mlp()
    start = {name: value.clone() for name, value in net.state_dict().items()}
    optimizer = make(list(net.parameters()))
    recipe = {"epochs": 2, "batch_size": 4, "samples": 4}
    with recorder.client("hospital-3", round=4, model=net, optimizer=optimizer, **recipe):
        training(net, optimizer)
    [found] = load_all(recorder.captures.folder, mlp())
    assert {name: getattr(found.training, name) for name in settings} == settings
    assert (found.client, found.round) == ("hospital-3", 4)
    assert same(found.sent, start)
    assert same(found.returned, net.state_dict())
    net.load_state_dict(start)
    plain = Dataset(client(4).inputs, client(4).targets, DATA)
    repeated, _ = fedavg(net, plain, recipe=found.training)
    assert all(torch.allclose(repeated.returned[name], value, atol=1e-5) for name, value in found.returned.items())


def odd(p):
    return torch.optim.SGD([{"params": p[:1]}, {"params": p[1:], "lr": 0.5}], 0.1)


def used(p):
    optimizer = torch.optim.SGD(p, 0.1, momentum=0.9)
    sum(value.sum() for value in p).backward()
    optimizer.step()
    return optimizer


class Own(torch.optim.SGD):
    """An optimiser that may take any steps."""


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda p: torch.optim.RMSprop(p), "its optimiser is RMSprop, and attacks can simulate only"),
        (lambda p: Own(p, 0.1), "its optimiser is Own"),
        (lambda p: torch.optim.Adam(p, amsgrad=True), "Adam with amsgrad"),
        (lambda p: torch.optim.SGD(p, 0.1, maximize=True), "SGD with maximize"),
        (odd, r"different values of lr (0.1 and 0.5)"),
        (used, "holds averages of gradients of earlier rounds"),
    ],
)
def test_an_optimiser_that_cannot_be_repeated_is_refused_by_name(recorder, make, words, caplog):
    net = mlp()
    optimizer = make(list(net.parameters()))
    with recorder.client("hospital-3", round=1, model=net, optimizer=optimizer):
        training(net, optimizer)
    assert words in caplog.text
    assert not list(recorder.captures.folder.iterdir())


def test_the_name_of_an_optimiser_that_is_not_known_is_refused(recorder, caplog):
    state = mlp().state_dict()
    assert recorder.keep("a", 1, state, state, optimizer="RMSprop") is None
    assert "rmsprop" in caplog.text
    assert load(recorder.keep("a", 1, state, state, optimizer="AdamW"), mlp()).training.optimiser == "adamw"


def test_a_rate_that_changes_in_the_round_is_an_unknown_schedule(recorder):
    net = mlp()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    with recorder.client("a", round=1, model=net, optimizer=optimizer):
        training(net, optimizer)
        optimizer.param_groups[0]["lr"] = 0.01
    [found] = load_all(recorder.captures.folder, mlp())
    assert (found.training.lr, found.training.schedule) == (0.1, None)


def test_the_mode_of_the_model_is_read(recorder):
    for number, mode in enumerate(("train", "eval")):
        net = mlp().train(mode == "train")
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        with recorder.client("a", round=number, model=net, optimizer=optimizer):
            training(net, optimizer)
            net.train(mode != "train")
            with torch.no_grad():
                net(client(2).inputs)  # a validation
    found = load_all(recorder.captures.folder, mlp())
    assert [one.training.mode for one in found] == ["train", "eval"]
    assert not net._forward_pre_hooks


@pytest.mark.parametrize(
    ("recipe", "words"),
    [
        ({"epochs": 1, "batch_size": 2, "samples": 4}, ""),
        ({"local_steps": 2, "batch_size": 4, "samples": 4}, ""),
        ({"epochs": 1}, ""),
        ({"epochs": 1, "batch_size": 4, "samples": 4}, "its optimiser took 2 steps, and its recipe has 1"),
        ({"epochs": 5, "batch_size": 1, "samples": 4}, "its optimiser took 2 steps, and its recipe has 20"),
        ({"mode": "eval"}, "its model was not in eval mode"),
    ],
)
def test_a_recipe_that_the_training_contradicts_is_refused(recorder, recipe, words, caplog):
    net = mlp()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    with recorder.client("a", round=1, model=net, optimizer=optimizer, **recipe):
        training(net, optimizer)
    assert words in caplog.text
    assert len(list(recorder.captures.folder.glob("run-*/*.safetensors"))) == (not words)
    assert not optimizer._optimizer_step_post_hooks


def test_a_training_in_both_modes_is_refused(recorder, caplog):
    net = mlp()
    with recorder.client("a", round=1, model=net):
        net(client(2).inputs)
        net.eval()(client(2).inputs)
    assert "both in train mode and in eval mode" in caplog.text


def test_what_the_optimiser_leaves_out_is_not_trained(recorder):
    net = nn.DataParallel(mlp())
    optimizer = torch.optim.SGD(net.module[3].parameters(), lr=0.1)
    with recorder.client("a", round=1, model=net, optimizer=optimizer):
        training(net.module, optimizer)
    [found] = load_all(recorder.captures.folder, mlp())
    trained = [name for name, value in found.model.named_parameters() if value.requires_grad]
    assert trained == ["3.weight", "3.bias"]


def test_training_that_fails_raises_its_error_and_records_nothing(recorder, caplog):
    with pytest.raises(ZeroDivisionError), recorder.client("a", round=1, model=mlp()):
        _ = 1 / 0
    assert not list(recorder.captures.folder.iterdir())
    assert caplog.text == ""


def test_a_mistake_in_recording_does_not_stop_the_training(recorder, caplog):
    with recorder.client("a", round=1, model=NETWORKS["conv"](), optimizer="sgd"):
        pass
    with recorder.client("a", round=2, model=NETWORKS["conv"]()):
        pass
    assert "a in round 1" in caplog.text
    assert "Is this the right model?" in caplog.text


def test_a_misspelt_setting_is_an_error(recorder):
    with pytest.raises(UnknownName, match="learing_rate"):
        recorder.keep("a", 1, {}, {}, learing_rate=0.1)
    with pytest.raises(UnknownName, match="epoch"), recorder.client("a", round=1, model=mlp(), epoch=1):
        raise AssertionError("not reached")


def test_other_names_of_settings_and_invalid_ones(recorder, caplog):
    state = mlp().state_dict()
    path = recorder.keep(
        "a", 1, state, state, learning_rate=0.2, local_epochs=3, weight_decay=-1.0, lr_schedule="cosine"
    )
    found = load(path, mlp()).training
    assert (found.lr, found.epochs, found.weight_decay, found.schedule) == (0.2, 3, None, "cosine")
    assert "records a without weight_decay" in caplog.text


def test_rounds_from_0_or_1_and_chosen_clients(tmp_path):
    state = mlp().state_dict()
    for first in (0, 1, 40):
        recorder = lg.record(tmp_path, model=mlp(), data=DATA, every=3, clients=["a", "c"], run=f"from {first}")
        kept = [recorder.keep(who, number, state, state) for number in range(first, first + 5) for who in "abc"]
        assert [one.name[0] + str(int(one.stem[-6:]) - first) for one in kept if one] == ["a0", "c0", "a3", "c3"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run-from-0", "run-from-1", "run-from-40"]


def test_two_runs_stay_apart(tmp_path):
    state = mlp().state_dict()
    one, other = (lg.record(tmp_path, model=mlp(), data=DATA) for _ in range(2))
    paths = [recorder.keep("a", 1, state, state) for recorder in (one, other, one)]
    assert [path.parent.name for path in paths] == ["run-1", "run-2", "run-1"]


def test_what_the_app_changes_later_does_not_matter(recorder):
    net = mlp()
    with recorder.client("a", round=1, model=net):
        start = {name: value.clone() for name, value in net.state_dict().items()}
        for value in net.parameters():
            value.data.zero_()
    [found] = load_all(recorder.captures.folder, mlp())
    assert same(found.sent, start)
    assert not any(value.any() for value in found.returned.values())


def test_settings_of_an_optimiser_are_plain_values():
    found = optimiser_settings(torch.optim.Adam([torch.zeros(1, requires_grad=True)], lr=np.float64(0.5)))
    assert found == {
        "optimiser": "adam", "momentum": 0.0, "nesterov": False, "dampening": 0.0, "lr": 0.5, "weight_decay": 0,
        "betas": (0.9, 0.999), "eps": 1e-8,
    }  # fmt: skip


def test_the_normalisation_must_be_stated(tmp_path):
    with pytest.raises(InvalidInput, match="does not say how the app normalises"):
        lg.record(tmp_path, model=mlp(), data=DataSpec((1, 4, 4), 3))
