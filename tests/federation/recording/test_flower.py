"""The Flower recorder with real strategies, mods and messages. Real runs are marked ``flower``."""

import errno
import os
import random
import runpy
import subprocess
import sys
from dataclasses import replace

import pytest
import torch

import leakgauge as lg
from leakgauge.attacks import local_model
from leakgauge.core.errors import InvalidInput
from leakgauge.core.kept_samples import kept_files, load_kept
from leakgauge.core.observation import DataSpec
from leakgauge.evaluation.recipe_check import check_recipe
from leakgauge.federation.recording.recorder import UNKNOWN
from tests.federation.networks import NETWORKS, client, mlp, same
from tests.federation.recording import flower_runs
from tests.shared import LazyModule

clientapp = LazyModule("flwr.clientapp")
common = LazyModule("flwr.common")
flower = LazyModule("flwr.app")
older = LazyModule("flwr.server.strategy")
strategies = LazyModule("flwr.serverapp.strategy")
recording = LazyModule("leakgauge.federation.recording.flower")

DATA = DataSpec((1, 4, 4), 3, mean=(0,), std=(1,))
RUN = 11


@pytest.fixture(autouse=True)
def identity(monkeypatch):
    """Set the run and node of this process, which messages read, as Flower's own processes do."""
    from flwr.supercore.task_identity import TaskIdentity

    monkeypatch.setattr(TaskIdentity, "_run_id", RUN)
    monkeypatch.setattr(TaskIdentity, "_task_id", 1)
    monkeypatch.setattr(TaskIdentity, "_node_id", 1)


def network():
    torch.manual_seed(0)
    return mlp()


def trained(model, state, node):
    """Return what a client returns: two steps of SGD from these weights on its own data."""
    model.load_state_dict(state)
    data = client(4, seed=node)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
    for rows in (slice(0, 2), slice(2, 4)):
        optimiser.zero_grad()
        torch.nn.functional.cross_entropy(model(data.inputs[rows]), data.targets[rows]).backward()
        optimiser.step()
    return model.state_dict()


def client_app(make=network, mods=(), fails=()):
    app = clientapp.ClientApp()

    @app.train(mods=list(mods))
    def train(message, context):
        if context.node_id in fails:
            return flower.Message(flower.Error(code=0, reason="broken"), reply_to=message)
        state = trained(make(), message.content["arrays"].to_torch_state_dict(), context.node_id)
        metrics = {"num-examples": 4, "partition-id": context.node_id - 100}
        content = {"arrays": flower.ArrayRecord(state), "metrics": flower.MetricRecord(metrics)}
        return flower.Message(content=flower.RecordDict(content), reply_to=message)

    return app


class Grid:
    """A grid whose nodes are in this process."""

    def __init__(self, app, nodes=3):
        self.app, self.nodes = app, range(100, 100 + nodes)
        self.states = {node: flower.RecordDict() for node in self.nodes}

    def get_node_ids(self):
        return list(self.nodes)

    def send_and_receive(self, messages, *, timeout=None):
        answers = []
        for message in messages:
            node = message.metadata.dst_node_id
            config = {"batch-size": 2, "local-epochs": 1}
            context = flower.Context(RUN, node, {"partition-id": node - 100}, self.states[node], config)
            answers.append(self.app(message, context))
        return answers


def run(strategy, app, rounds=2, make=network):
    """Train with a strategy, and return the global weights."""
    random.seed(0)  # Flower draws the order of the clients, and with it that of the sum
    result = strategy.start(
        grid=Grid(app),
        initial_arrays=flower.ArrayRecord(make().state_dict()),
        num_rounds=rounds,
        train_config=flower.ConfigRecord({"lr": 0.1}),
    )
    return result.arrays.to_torch_state_dict()


def average(**options):
    return strategies.FedAvg(fraction_evaluate=0.0, **options)


STRATEGIES = {
    "FedAvg": average,
    "FedAdam": lambda: strategies.FedAdam(fraction_evaluate=0.0),
    "FedMedian": lambda: strategies.FedMedian(fraction_evaluate=0.0),
    "Krum": lambda: strategies.Krum(fraction_evaluate=0.0),
    "clipped": lambda: strategies.DifferentialPrivacyServerSideFixedClipping(average(), 0.0, 0.001, 3),
}


@pytest.mark.parametrize("name", STRATEGIES)
def test_any_strategy_trains_as_before_and_its_messages_are_those_of_the_clients(name, tmp_path):
    recorder = recording.Recorder(tmp_path, network(), DATA, config={"batch-size": 2, "local-epochs": 1})
    weights = run(recorder.strategy(STRATEGIES[name]()), client_app())
    assert same(weights, run(STRATEGIES[name](), client_app()))
    observations = lg.load_all(tmp_path, network())
    assert [(one.client, one.round) for one in observations] == [(f"client-{k}", n) for k in range(3) for n in (1, 2)]
    for one in observations:
        node = 100 + int(one.client[-1])
        assert same(one.returned, trained(network(), one.sent, node))
        assert one.training == replace(UNKNOWN, lr=0.1, epochs=1, batch_size=2, samples=4)
    assert same(lg.load_rounds(tmp_path, "client-0", network())[0].sent, network().state_dict())


def test_both_sides_see_the_same(tmp_path):
    both = {side: recording.Recorder(tmp_path / side, network(), DATA) for side in ("server", "client")}
    run(both["server"].strategy(average()), client_app(mods=[both["client"].mod]))
    server, own = (lg.load_all(tmp_path / side, network()) for side in ("server", "client"))
    for one, other in zip(server, own, strict=True):
        assert (one.client, one.round) == (other.client, other.round)
        assert same(one.sent, other.sent)
        assert same(one.returned, other.returned)
    assert own[0].training.batch_size == 2  # of the app's configuration, which a client is given
    assert server[0].training.batch_size is None


def test_the_place_among_the_mods_decides_what_is_seen(tmp_path):
    first, last = (recording.Recorder(tmp_path / name, network(), DATA) for name in ("first", "last"))
    from flwr.clientapp.mod import LocalDpMod

    noise = LocalDpMod(clipping_norm=1.0, sensitivity=1.0, epsilon=1.0, delta=1e-5)
    server = recording.Recorder(tmp_path / "server", network(), DATA)
    run(server.strategy(average()), client_app(mods=[first.mod, noise, last.mod]), rounds=1)
    outside, inside, seen = (lg.load_all(tmp_path / name, network()) for name in ("first", "last", "server"))
    for sent, honest, arrived in zip(outside, inside, seen, strict=True):
        assert same(sent.returned, arrived.returned)
        assert not same(sent.returned, honest.returned)
        assert same(honest.returned, trained(network(), honest.sent, 100 + int(honest.client[-1])))


@pytest.mark.parametrize("method", ["secant", "last_returned", "lmra"])
def test_a_clients_own_model_is_rebuilt_from_the_folder(tmp_path, method):
    recorder = recording.Recorder(tmp_path, network(), DATA, config={"batch-size": 2, "local-epochs": 1})
    run(recorder.strategy(average()), client_app(), rounds=6)
    rounds = lg.load_rounds(tmp_path, "client-1", network())
    options = {"steps": 5, "rounds": 1, "training": 5} if method == "lmra" else {}
    local = local_model.build(method, **options)(rounds)
    assert (local.client, local.rounds) == ("client-1", 6)
    assert local(client(4, seed=101).inputs).shape == (4, 3)
    if method == "last_returned":
        assert all(torch.allclose(value, rounds[-1].returned[name]) for name, value in local.weights.items())


def test_statistics_of_batches_are_part_of_the_messages(tmp_path):
    recorder = recording.Recorder(tmp_path, NETWORKS["batch norm"](), DATA)
    run(recorder.strategy(average()), client_app(NETWORKS["batch norm"]), make=NETWORKS["batch norm"])
    observations = lg.load_all(tmp_path, NETWORKS["batch norm"]())
    assert len(observations) == 6  # averaged counters, which arrive as fractions, do not stop the second round
    assert all(one.buffers is not None and one.returned_buffers is not None for one in observations)


def test_chosen_rounds_and_clients(tmp_path):
    chosen = recording.Recorder(tmp_path / "chosen", network(), DATA, every=2, clients=[0, 102])
    run(chosen.strategy(average()), client_app(), rounds=3)
    names = [path.name for path in sorted((tmp_path / "chosen").glob("run-*/*.safetensors"))]
    assert names == [f"client-{k}_round-00000{n}.safetensors" for k in (0, 2) for n in (1, 3)]
    some = recording.Recorder(tmp_path / "some", network(), DATA, clients=2)
    run(some.strategy(average()), client_app(), rounds=2)
    assert len({one.client for one in lg.load_all(tmp_path / "some", network())}) == 2
    with pytest.raises(InvalidInput, match="Choose by ids"):
        some.mod  # noqa: B018


def test_clients_that_fail_are_left_out(tmp_path):
    recorder = recording.Recorder(tmp_path / "server", network(), DATA)
    run(
        recorder.strategy(average()),
        client_app(fails=[101], mods=[recording.Recorder(tmp_path / "own", network(), DATA).mod]),
    )
    assert {one.client for one in lg.load_all(tmp_path / "server", network())} == {"client-0", "client-2"}
    assert len(lg.load_all(tmp_path / "own", network())) == 4


def rounds_of(recorder, spoil, rounds=1):
    """Ask four clients without aggregation, after ``spoil(round, answers)`` has changed their answers."""

    class Server:
        def configure_train(self, server_round, arrays, config, grid):
            content = flower.RecordDict({"arrays": arrays, "config": config})
            return [flower.Message(content, node, "train") for node in grid.get_node_ids()]

        def aggregate_train(self, server_round, replies):
            assert len(replies) == 4

    strategy, grid = recorder.strategy(Server()), Grid(client_app(), nodes=4)
    for number in range(1, rounds + 1):
        start = flower.ArrayRecord(network().state_dict())
        answers = grid.send_and_receive(strategy.configure_train(number, start, flower.ConfigRecord(), grid))
        spoil(number, answers)
        strategy.aggregate_train(number, answers)


def metrics_of(answer):
    return next(iter(answer.content.metric_records.values()))


def test_an_answer_that_cannot_be_read_is_the_only_one_that_is_lost(tmp_path, caplog):
    def spoil(number, answers):
        metrics_of(answers[0])["partition-id"] = float("nan")
        weights = next(iter(answers[1].content.array_records.values()))
        weights["1.weight"] = flower.Array("float32", (8, 16), "numpy.ndarray", b"garbage")
        weights = next(iter(answers[2].content.array_records.values()))
        weights["1.weight"] = flower.Array("float32", (8, 16), "unknown", b"")

    rounds_of(recording.Recorder(tmp_path, network(), DATA), spoil)
    assert {one.client for one in lg.load_all(tmp_path, network())} == {"node-100", "client-3"}
    logged = [record.message for record in caplog.records if record.name == "leakgauge"]
    assert len(logged) == 2
    for name, line in zip(("client-1", "client-2"), logged, strict=True):
        assert f"did not record the message of {name}: the array '1.weight' cannot be decoded" in line


def test_records_of_a_message_are_merged_and_prefixes_stripped(tmp_path, caplog):
    def spoil(number, answers):
        for answer, twice in zip(answers, (False, True, False, False), strict=True):
            [weights] = answer.content.array_records.values()
            parts = {f"_orig_mod.{name}": array for name, array in weights.items()}
            answer.content["arrays"] = flower.ArrayRecord({name: parts[name] for name in list(parts)[: 2 + twice]})
            answer.content["head"] = flower.ArrayRecord({name: parts[name] for name in list(parts)[2:]})

    rounds_of(recording.Recorder(tmp_path, network(), DATA), spoil)
    observations = lg.load_all(tmp_path, network())
    assert [one.client for one in observations] == ["client-0", "client-2", "client-3"]
    assert same(observations[0].returned, trained(network(), network().state_dict(), 100))
    assert "holds '_orig_mod.3.weight' in two of its ArrayRecords" in caplog.text


def test_an_id_stays_with_the_node_that_had_it_first(tmp_path, caplog):
    def spoil(number, answers):
        if number == 2:
            metrics_of(answers[3])["partition-id"] = 0  # client 0 has this id since round 1
            answers.reverse()

    rounds_of(recording.Recorder(tmp_path, network(), DATA), spoil, rounds=2)
    kept = {(one.client, one.round): one for one in lg.load_all(tmp_path, network())}
    names = {(f"client-{one}", number) for one in range(4) for number in (1, 2)}
    assert kept.keys() == names - {("client-3", 2)} | {("node-103", 2)}
    assert same(kept["client-0", 2].returned, trained(network(), network().state_dict(), 100))
    assert "names a client node-103 and not client-0" in caplog.text


def test_two_nodes_with_one_id_in_one_round_have_the_names_of_their_nodes(tmp_path):
    def spoil(number, answers):
        metrics_of(answers[3])["partition-id"] = 0

    rounds_of(recording.Recorder(tmp_path, network(), DATA), spoil)
    assert {one.client for one in lg.load_all(tmp_path, network())} == {"node-100", "client-1", "client-2", "node-103"}


FULL = OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize("problem", [FULL, MemoryError("no room"), RuntimeError("a bug")])
def test_nothing_that_goes_wrong_in_recording_harms_the_training(tmp_path, monkeypatch, problem, caplog):
    plain = run(average(), client_app())

    def fail(*_):
        raise problem

    monkeypatch.setattr(os, "fsync", fail)
    mods = [recording.Recorder(tmp_path / "own", network(), DATA).mod]
    weights = run(recording.Recorder(tmp_path, network(), DATA).strategy(average()), client_app(mods=mods))
    assert same(weights, plain)
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []
    words = [record.message for record in caplog.records if record.name == "leakgauge"]
    assert words
    assert str(problem.args[-1]) in words[0]


@pytest.mark.parametrize("broken", ["keep", "selects", "_keep_answer"])
def test_not_even_a_mistake_of_ours_harms_the_training(tmp_path, monkeypatch, broken):
    plain = run(average(), client_app())
    monkeypatch.setattr(recording.Recorder, broken, lambda *_, **__: 1 / 0)
    mods = [recording.Recorder(tmp_path, network(), DATA).mod]
    assert same(run(recording.Recorder(tmp_path, network(), DATA).strategy(average()), client_app(mods=mods)), plain)


def test_the_wrong_model_is_logged(tmp_path, caplog):
    run(recording.Recorder(tmp_path, NETWORKS["conv"](), DATA).strategy(average()), client_app())
    assert "Is this the right model?" in caplog.text
    assert not list(tmp_path.iterdir())


def test_a_strategy_with_a_loop_of_its_own_is_recorded(tmp_path):
    class Own(strategies.FedAvg):
        def start(self, grid, initial_arrays, **_):
            answers = grid.send_and_receive(iter(self.configure_train(1, initial_arrays, flower.ConfigRecord(), grid)))
            return self.aggregate_train(server_round=1, replies=iter(answers))

    recorder = recording.Recorder(tmp_path, network(), DATA)
    recorder.strategy(Own()).start(Grid(client_app()), flower.ArrayRecord(network().state_dict()))
    assert len(lg.load_all(tmp_path, network())) == 3


def test_what_is_no_strategy_is_refused(tmp_path):
    recorder = recording.Recorder(tmp_path, network(), DATA)
    with pytest.raises(InvalidInput, match=r"not its class: FedAvg\(\)"):
        recorder.strategy(strategies.FedAvg)
    with pytest.raises(InvalidInput, match="is not a strategy of Flower"):
        recorder.strategy("fedavg")


def results(nodes, masked):
    """Return a round of the older API: instructions, results and their mean, which is the result of all if masked."""
    from flwr.server.compat.grid_client_proxy import GridClientProxy

    start = [value.numpy() for value in network().state_dict().values()]
    instructions = [
        (
            GridClientProxy(node, None, RUN),
            common.FitIns(common.ndarrays_to_parameters(start), {"lr": 0.1, "batch-size": 2}),
        )
        for node in nodes
    ]
    states = [[v.numpy() for v in trained(network(), network().state_dict(), node).values()] for node in nodes]
    mean = common.ndarrays_to_parameters([sum(values) / len(nodes) for values in zip(*states, strict=True)])
    answers = [
        (
            proxy,
            common.FitRes(
                common.Status(common.Code.OK, ""), mean if masked else common.ndarrays_to_parameters(state), 4, {}
            ),
        )
        for (proxy, _), state in zip(instructions, states, strict=True)
    ]
    return instructions, answers, mean


@pytest.mark.parametrize("masked", [False, True])
def test_older_strategies_and_sums(tmp_path, monkeypatch, masked):
    instructions, answers, mean = results((5, 6, 7), masked)
    monkeypatch.setattr(older.FedAvg, "configure_fit", lambda *_: instructions)
    strategy = recording.Recorder(tmp_path, network(), DATA, every=2).strategy(older.FedAvg())
    for number in (1, 2):
        strategy.configure_fit(number, None, None)
        parameters, _ = strategy.aggregate_fit(number, answers, [])
        assert len(parameters.tensors) == len(mean.tensors)
    observations = lg.load_all(tmp_path, network())
    if not masked:
        assert [(one.client, one.training.samples) for one in observations] == [(f"node-{k}", 4) for k in (5, 6, 7)]
        assert same(observations[0].returned, trained(network(), network().state_dict(), 5))
        return
    [one] = observations
    assert (one.client, one.round) == ("sum of 3 clients", 1)
    assert (one.training.samples, one.training.batch_size, one.training.lr) == (12, 6, 0.1)


def test_a_mod_records_an_older_client(tmp_path):
    from flwr.client import NumPyClient
    from flwr.compat.common.recorddict_compat import fitins_to_recorddict

    class OlderClient(NumPyClient):
        """A client of the older API, which SecAgg+ needs."""

        def fit(self, parameters, config):
            names = network().state_dict()
            state = dict(zip(names, map(torch.from_numpy, parameters), strict=True))
            return [value.numpy() for value in trained(network(), state, 100).values()], 4, {}

    recorder = recording.Recorder(tmp_path, network(), DATA)
    app = clientapp.ClientApp(client_fn=lambda context: OlderClient().to_client(), mods=[recorder.mod])
    start = common.ndarrays_to_parameters([value.numpy() for value in network().state_dict().values()])
    content = fitins_to_recorddict(common.FitIns(start, {"lr": 0.1}), keep_input=True)
    app(flower.Message(content, 100, "train", group_id="3"), flower.Context(RUN, 100, {}, flower.RecordDict(), {}))
    [one] = lg.load_all(tmp_path, network())
    assert (one.client, one.round, one.training.lr, one.training.samples) == ("node-100", 3, 0.1, 4)
    assert same(one.returned, trained(network(), network().state_dict(), 100))


def test_without_flower_the_extra_is_named():
    code = "import sys; sys.modules['flwr'] = None\nimport leakgauge.federation.recording.flower"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert 'pip install -c constraints.txt ".[flower]"' in done.stderr


@pytest.fixture(scope="module")
def example():
    sys.path.insert(0, str(flower_runs.APP))
    yield
    sys.path.remove(str(flower_runs.APP))


def own(tmp_path):
    """Return the settings of a run in which clients record too."""
    return {"samples_a_client": 8, "own_captures": tmp_path / "own"}


@pytest.fixture
def audited(tmp_path, example, monkeypatch, command):
    """Return a function that returns what ``leakgauge attack`` prints for captures, scored with the clients' data."""
    truth = tmp_path / "truth"

    def run(place, *words):
        monkeypatch.setattr(sys, "argv", ["client_data.py", str(truth), "3", "8"])
        runpy.run_path(str(flower_runs.APP / "client_data.py"))
        monkeypatch.chdir(tmp_path)
        options = ("--model", "quickstart.task:Net", "--option", "steps=3", "--data", truth)
        code, out, err = command("attack", place, *options, *words)
        assert code == 0, err
        return out

    return run


@pytest.mark.flower
def test_simulations_are_recorded_and_audited(tmp_path, audited):
    two = ("--federation-config", "num-supernodes=2")
    with flower_runs.simulation(tmp_path) as federation:
        federation.run(*two, num_server_rounds=2, **own(tmp_path), kept=tmp_path / "kept")
        federation.run(*two, num_server_rounds=1, samples_a_client=8, captures=tmp_path / "noisy", privacy="dp")
    from quickstart.task import Net, client_data, train  # type: ignore[import-not-found]

    for folder in ("captures", "own"):
        observations = lg.load_all(tmp_path / folder, Net())
        assert [(one.client, one.round) for one in observations] == [(f"client-{k}", n) for k in (0, 1) for n in (1, 2)]
        assert all(one.training.lr == 0.05 and one.training.steps == 2 for one in observations)
    kept = {(one.names[0], one.round): one for one in map(load_kept, kept_files(tmp_path / "kept"))}
    for one in observations:  # the order of the training is known, on nodes that are processes of their own
        assert check_recipe(one, kept[one.client, one.round].truth(one.data)).residual < 1e-6
    assert len(local_model.Messages.read(lg.load_rounds(tmp_path / "captures", "client-1", Net()))) == 2
    first = lg.load_rounds(tmp_path / "captures", "client-0", Net())[0]
    model = Net()
    model.load_state_dict(first.sent)
    torch.manual_seed(0)  # as the client does
    train(model, client_data(0, 8), lr=0.05, epochs=1, batch_size=4)
    assert all(torch.allclose(value, first.returned[name], atol=1e-6) for name, value in model.state_dict().items())
    printed = audited("captures", "--client", "client-0")
    assert "psnr" in printed
    assert "Attacked: 2 captures." in printed

    plain, noisy = (lg.load_rounds(tmp_path / folder, "client-0", Net())[0] for folder in ("captures", "noisy"))
    assert same(plain.sent, noisy.sent)
    noise = torch.cat([(noisy.returned[name] - value).flatten() for name, value in plain.returned.items()])
    assert noise.std() == pytest.approx(0.048, rel=0.05)  # what Flower's mod adds at the example's epsilon
    assert "psnr" in audited("noisy", "--client", "client-0")


@pytest.mark.long
@pytest.mark.flower
def test_under_secure_aggregation_the_sum_is_recorded_and_audited(tmp_path, audited):
    with flower_runs.simulation(tmp_path) as federation:
        settings = {"num_server_rounds": 1, "privacy": "secagg", **own(tmp_path)}
        logged = federation.run("--federation-config", "num-supernodes=3", **settings)
    assert "record the server's side" in logged  # the clients' answers are masked
    assert not (tmp_path / "own").exists()
    from quickstart.task import Net

    [one] = lg.load_all(tmp_path / "captures", Net())
    assert one.client == "sum of 3 clients"
    assert (one.training.samples, one.training.batch_size) == (24, 12)
    assert "sum of 3 clients" in audited("captures")


@pytest.mark.long
@pytest.mark.flower
def test_a_deployment_on_loopback_is_recorded_and_audited(tmp_path, audited):
    with flower_runs.deployment(tmp_path, nodes=2) as federation:
        federation.run(num_server_rounds=1, **own(tmp_path))
    from quickstart.task import Net

    server, clients = (lg.load_all(tmp_path / folder, Net()) for folder in ("captures", "own"))
    assert [one.client for one in server] == ["client-0", "client-1"]
    assert all(same(one.returned, other.returned) for one, other in zip(server, clients, strict=True))
    assert "psnr" in audited("captures", "--client", "client-1")


@pytest.mark.long
@pytest.mark.flower
def test_recording_takes_a_small_part_of_a_round_of_the_quickstart():
    measured = runpy.run_path(str(flower_runs.APP.parents[1] / "benchmarks" / "speed" / "flower.py"))["measure"](1)
    assert measured["messages_kept"] == 10
    assert measured["share"]["median"] < 0.05
