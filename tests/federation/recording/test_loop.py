"""The recorder for any training loop."""

import pytest
from torch import nn

import leakgauge as lg
from leakgauge import DataSpec, fedavg, fedsgd, load, load_all
from leakgauge.core.errors import InvalidInput, UnknownName
from tests.federation.networks import NETWORKS, client, mlp, same
from tests.federation.recording.loops import AVG, DATA, RECIPE, recorder, states

__all__ = ["recorder"]  # a fixture


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


def test_the_name_of_an_optimiser_that_is_not_known_is_refused(recorder, caplog):
    state = mlp().state_dict()
    assert recorder.keep("a", 1, state, state, optimizer="RMSprop") is None
    assert "rmsprop" in caplog.text
    assert load(recorder.keep("a", 1, state, state, optimizer="AdamW"), mlp()).training.optimiser == "adamw"


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


def test_the_normalisation_must_be_stated(tmp_path):
    with pytest.raises(InvalidInput, match="does not say how the app normalises"):
        lg.record(tmp_path, model=mlp(), data=DataSpec((1, 4, 4), 3))
