"""A malicious server in a Flower run, with real strategies and messages."""

import re
from itertools import pairwise

import pytest
import torch

import leakgauge as lg
from leakgauge.attacks.local_model import ActiveAdam, Isolation
from leakgauge.core.errors import InvalidInput
from leakgauge.core.params import flatten
from tests.federation.networks import same
from tests.federation.recording import test_flower
from tests.federation.recording.test_flower import DATA, average, client_app, network, run, strategies, trained
from tests.shared import LazyModule

identity = test_flower.identity
malicious = LazyModule("leakgauge.federation.recording.malicious_flower")
recording = LazyModule("leakgauge.federation.recording.flower")


def turned(folder, rule, rounds=6, client=1, after=2, app=None, **options):
    """Run a federation whose server turns one client, and return the server, the weights and the captures."""
    recorder = recording.Recorder(folder, network(), DATA, config={"batch-size": 2, "local-epochs": 1}, **options)
    server = malicious.MaliciousServer(recorder, rule, client=client, after=after)
    weights = run(server.strategy(average(min_available_nodes=3)), app or client_app(), rounds=rounds)
    return server, weights, lg.load_all(folder, network())


@pytest.mark.parametrize("client", [1, 101])
def test_the_chosen_client_trains_alone_and_its_captures_name_the_rule(tmp_path, client):
    server, _, observations = turned(tmp_path, Isolation(), client=client)
    of_client = [one for one in observations if one.client == "client-1"]
    assert [(one.round, one.steered) for one in of_client] == [(1, ""), (2, "")] + [
        (number, "isolation") for number in (3, 4, 5, 6)
    ]
    for before, after in pairwise(of_client[2:]):
        torch.testing.assert_close(flatten(after.sent), flatten(before.returned))
        assert same(after.returned, trained(network(), after.sent, 101))
    assert len(server.observations) == 4
    local = Isolation()(of_client, progress=False)
    torch.testing.assert_close(flatten(local.weights), flatten(of_client[-1].returned))


def test_the_other_clients_go_on_without_the_steered_one(tmp_path):
    _, weights, observations = turned(tmp_path, ActiveAdam())
    others = [one for one in observations if one.client != "client-1"]
    assert {one.client for one in others} == {"client-0", "client-2"}
    assert all(not one.steered for one in others)
    for number in (4, 5, 6):
        first, second = [one for one in others if one.round == number]
        assert same(first.sent, second.sent)
        means = [one.returned for one in others if one.round == number - 1]
        expected = (flatten(means[0]) + flatten(means[1])) / 2
        torch.testing.assert_close(flatten(first.sent), expected)
    last = [one.returned for one in others if one.round == 6]
    torch.testing.assert_close(
        torch.cat([weights[name].reshape(-1) for name in last[0]]), (flatten(last[0]) + flatten(last[1])) / 2
    )


def test_the_active_server_sends_the_steps_of_adam_and_lowers_the_clients_loss(tmp_path):
    server, _, observations = turned(tmp_path, ActiveAdam(lr=0.05), rounds=30)
    steered = [one for one in observations if one.steered]
    assert [one.round for one in steered] == list(range(3, 31))
    weights = steered[0].sent
    for number, one in enumerate(steered):
        torch.testing.assert_close(flatten(one.sent), flatten(weights))
        weights = ActiveAdam(lr=0.05).next_weights(steered[: number + 1], weights)
    data = test_flower.client(4, seed=101)

    def loss(sent):
        outputs = torch.func.functional_call(network(), sent, (data.inputs,))
        return float(torch.nn.functional.cross_entropy(outputs, data.targets))

    assert loss(ActiveAdam(lr=0.05)(steered, progress=False).weights) < 0.5 * loss(steered[0].sent)
    assert len(server.observations) == len(steered)


def test_steered_rounds_are_recorded_whatever_the_recorder_selects(tmp_path):
    _, _, observations = turned(tmp_path, Isolation(), clients=[0], every=5)
    assert [(one.client, one.round) for one in observations if one.steered] == [
        ("client-1", number) for number in (3, 4, 5, 6)
    ]
    assert [one.round for one in observations if one.client == "client-0"] == [1, 6]


def test_the_server_is_called_malicious_in_the_log(tmp_path, caplog):
    turned(tmp_path, Isolation(), rounds=1)
    assert "malicious to client 1 after round 2" in caplog.text


def test_a_client_that_nobody_identifies_is_not_steered(tmp_path):
    _, _, observations = turned(tmp_path, Isolation(), client=7, rounds=3)
    assert all(not one.steered for one in observations)


def test_a_rule_that_fails_leaves_the_run_honest(tmp_path, caplog):
    class Broken(Isolation):
        def next_weights(self, observations, current):
            raise RuntimeError("a bug")

    _, weights, observations = turned(tmp_path / "broken", Broken())
    assert "did not steer client 1" in caplog.text
    assert all(not one.steered for one in observations)
    assert same(weights, run(average(min_available_nodes=3), client_app(), rounds=6))


def test_what_is_refused(tmp_path):
    recorder = recording.Recorder(tmp_path, network(), DATA)
    with pytest.raises(InvalidInput, match="must be a Recorder of Flower"):
        malicious.MaliciousServer("captures", Isolation(), client=0)
    with pytest.raises(InvalidInput, match="partition-id or the node id of one client"):
        malicious.MaliciousServer(recorder, Isolation(), client=[0])
    with pytest.raises(InvalidInput, match="a number of honest rounds"):
        malicious.MaliciousServer(recorder, Isolation(), client=0, after=-1)
    server = malicious.MaliciousServer(recorder, Isolation(), client=0)
    with pytest.raises(InvalidInput, match="needs an object, not its class"):
        server.strategy(strategies.FedAvg)
    with pytest.raises(InvalidInput, match="message API"):
        server.strategy(test_flower.older.FedAvg())


def test_the_documented_lines_run(tmp_path, monkeypatch):
    from pathlib import Path

    monkeypatch.chdir(tmp_path)
    page = (Path(__file__).parents[3] / "docs" / "flower.md").read_text()
    [code] = [block for block in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if "MaliciousServer" in block]
    names = {"Net": network, "FedAvg": average}
    statistics = "(0.5, 0.5, 0.5)"
    exec(code.replace("(3, 32, 32), classes=10", "(1, 4, 4), classes=3").replace(statistics, "(0.5,)"), names)
    run(names["strategy"], client_app(), rounds=names["server"].after + 2)
    steered = [one for one in lg.load_all("captures", network()) if one.steered]
    assert [(one.client, one.steered) for one in steered] == [("client-0", "active_adam")] * 2
