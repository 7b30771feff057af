"""The keeper in a client app of Flower: several clients in one process, and real simulated nodes."""

import pickle

import pytest
import torch

import leakgauge as lg
from leakgauge.core.kept_samples import kept_files, load_kept
from leakgauge.evaluation.recipe_check import check_recipe
from tests.federation.networks import client
from tests.federation.recording import flower_runs
from tests.federation.recording.test_flower import DATA, RUN, average, example, flower, identity, network, run
from tests.shared import LazyModule

clientapp = LazyModule("flwr.clientapp")
recording = LazyModule("leakgauge.federation.recording.flower")
keeping = LazyModule("leakgauge.federation.recording.flower_keeper")

__all__ = ["example", "identity"]  # fixtures


def app_with(keeper, reports=True):
    """A client app whose mod and loader are unpickled anew for each message, as in Flower's simulation."""
    stored = pickle.dumps(keeper)
    app = clientapp.ClientApp(mods=[lambda *words: pickle.loads(stored).mod(*words)])

    @app.train()
    def train(message, context):
        net = network()
        net.load_state_dict(message.content["arrays"].to_torch_state_dict())
        data = client(4, seed=context.node_id)
        optimiser = torch.optim.SGD(net.parameters(), lr=0.1)
        batches = [(data.inputs[rows], data.targets[rows]) for rows in torch.randperm(4).split(2)]
        for inputs, targets in pickle.loads(stored).watch(batches):
            optimiser.zero_grad()
            torch.nn.functional.cross_entropy(net(inputs), targets).backward()
            optimiser.step()
        metrics = {"num-examples": 4, **({"partition-id": context.node_id - 100} if reports else {})}
        content = {"arrays": flower.ArrayRecord(net.state_dict()), "metrics": flower.MetricRecord(metrics)}
        return flower.Message(content=flower.RecordDict(content), reply_to=message)

    return app


@pytest.mark.parametrize("reports", [False, True])
def test_each_clients_samples_explain_its_message(tmp_path, reports):
    recorder = recording.Recorder(tmp_path, network(), DATA, config={"batch-size": 2, "local-epochs": 1})
    run(recorder.strategy(average()), app_with(keeping.Keeper(tmp_path, DATA), reports))
    kept = {(one.round, name): one for file in kept_files(tmp_path) for one in [load_kept(file)] for name in one.names}
    assert {(number, f"client-{k}") for number in (1, 2) for k in range(3)} < kept.keys()
    observations = lg.load_all(tmp_path, network())
    assert len(observations) == 6
    for observation in observations:
        one = kept[observation.round, observation.client]  # also if the server knows the node only
        assert one.run == str(RUN)
        check = check_recipe(observation.knowing(optimiser="sgd", momentum=0.0), one.truth(DATA))
        assert check.residual < 1e-5
        assert check.limit == 0.01


def test_a_client_that_breaks_still_breaks_and_nothing_is_kept(tmp_path):
    keeper = keeping.Keeper(tmp_path, DATA)
    message = flower.Message(content=flower.RecordDict(), message_type="train", dst_node_id=100)
    context = flower.Context(RUN, 100, {}, flower.RecordDict(), {})
    with pytest.raises(ZeroDivisionError):
        keeper.mod(message, context, lambda *_: 1 / 0)
    assert list(kept_files(tmp_path)) == []


@pytest.mark.long
@pytest.mark.flower
def test_a_simulated_run_is_scored_without_the_clients_data(tmp_path, example, monkeypatch, command):
    with flower_runs.simulation(tmp_path) as federation:
        settings = {"num_server_rounds": 1, "samples_a_client": 8, "local_epochs": 3, "kept": "captures"}
        federation.run("--federation-config", "num-supernodes=3", **settings)
    monkeypatch.chdir(tmp_path)
    options = ("--model", "quickstart.task:Net", "--option", "steps=3")
    code, out, err = command("attack", "captures", *options)
    assert code == 0, err
    assert "psnr" in out
    assert (tmp_path / "reconstructions" / "captures.html").read_text().count("(relative distance 0, at most") == 3
