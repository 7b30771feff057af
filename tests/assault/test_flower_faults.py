"""Faults of Flower clients: each answer is a real message of Flower, and no fault keeps others from being recorded."""

import importlib
import io
import logging
import shutil
import zipfile
from functools import partial

import numpy as np
import pytest

import leakgauge as lg
from tests.federation.networks import same
from tests.federation.recording import flower_runs
from tests.federation.recording import test_flower as real
from tests.federation.recording.test_flower import DATA, RUN, client_app, flower, identity, network, recording, trained

assert identity  # a fixture of every test here

FIRST, HOSTILE = 100, 101
CLIENTS = 4


class Server:
    """A strategy that asks every client and aggregates nothing, so that only the recorder reads the answers."""

    def __init__(self):
        self.seen = 0

    def configure_train(self, server_round, arrays, config, grid):
        content = flower.RecordDict({"arrays": arrays, "config": config})
        return [flower.Message(content, node, "train") for node in grid.get_node_ids()]

    def aggregate_train(self, server_round, replies):
        self.seen += len(replies)


def payload(answer):
    [record] = answer.content.array_records.values()
    return record


def raw(answer, data, stype="numpy.ndarray", name="1.weight"):
    """Replace the bytes of one array."""
    record = payload(answer)
    record[name] = flower_array()("float32", record[name].shape, stype, data)


def flower_array():
    from flwr.app import Array

    return Array


def value(answer, array, name="1.weight"):
    payload(answer)[name] = flower_array()(array)


def metric(answer, name, content):
    [metrics] = answer.content.metric_records.values()
    metrics[name] = content


def header(shape, descr="'<f4'"):
    """Return the bytes of an npy file that promises an array and does not hold it."""
    text = f"{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}, }}".encode()
    text += b" " * (64 - (len(text) + 11) % 64) + b"\n"
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text + b"\0" * 16


def pickled():
    stream = io.BytesIO()
    np.save(stream, np.array([print, "x"], dtype=object), allow_pickle=True)
    return stream.getvalue()


def bomb():
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("1.weight.npy", header((2**22,)) + b"\0" * 2**24)
    return stream.getvalue()


def shaped(answer, change):
    value(answer, change(payload(answer)["1.weight"].numpy()))


def remove(answer):
    del payload(answer)["1.weight"]


def add(answer, name):
    payload(answer)[name] = flower_array()(np.zeros(3, dtype=np.float32))


def more_records(answer):
    answer.content["again"] = flower.ArrayRecord(network().state_dict())


def no_records(answer):
    for name in list(answer.content.array_records):
        del answer.content[name]


def from_elsewhere(answer):
    answer.metadata.__dict__["_src_node_id"] = 999


def own_config(answer):
    answer.content["config"] = flower.ConfigRecord({"lr": float("nan"), "batch-size": 2**62, "optimizer": "x" * 10**6})


def change_run(answer):
    answer.metadata.__dict__["_run_id"] = 77


#: What each fault does, the name under which the client is still recorded, if it is, and a word of the log, if any.
FAULTS = {
    "id is NaN": (partial(metric, name="partition-id", content=float("nan")), "node-101", None),
    "id is infinite": (partial(metric, name="partition-id", content=float("inf")), "node-101", None),
    "id is negative": (partial(metric, name="partition-id", content=-1), "node-101", None),
    "id is a fraction": (partial(metric, name="partition-id", content=0.5), "node-101", None),
    "id is a list": (partial(metric, name="partition-id", content=[0, 1]), "node-101", None),
    "id is huge": (partial(metric, name="partition-id", content=1e300), "node-101", None),
    "id of another client": (partial(metric, name="partition-id", content=0), "node-101", "client node-101 and not"),
    "another run": (change_run, "client-1", None),
    "sent to nobody": (from_elsewhere, None, "node-999: nothing was sent"),
    "garbage bytes": (partial(raw, data=b"\x00garbage" * 9), None, "'1.weight' cannot be decoded"),
    "no bytes": (partial(raw, data=b""), None, "cannot be decoded"),
    "unknown type of serialisation": (partial(raw, data=b"", stype="pickle"), None, "cannot be decoded"),
    "header of 1 TiB": (partial(raw, data=header((2**38,))), None, "cannot be decoded"),
    "header of negative size": (partial(raw, data=header((-1, 4))), None, "client-1"),
    "header of empty items": (partial(raw, data=header((2**40,), "'V0'")), None, "client-1"),
    "structured type": (partial(raw, data=header((1,), "[('a', '<f4')]")), None, "client-1"),
    "pickled object": (partial(raw, data=pickled()), None, "cannot be decoded"),
    "zip bomb": (partial(raw, data=bomb()), None, "not an array of numpy"),
    "wrong shape": (partial(shaped, change=lambda one: one[:1]), None, "has shape"),
    "NaN weights": (partial(shaped, change=lambda one: one * np.nan), None, "NaN or Inf"),
    "overflowing weights": (partial(shaped, change=lambda one: one.astype(np.float64) + 1e300), None, "NaN or Inf"),
    "complex weights": (partial(shaped, change=lambda one: one + 1j), None, "type complex64"),
    "weights as texts": (partial(shaped, change=lambda one: one.astype(str)), None, "client-1"),
    "an array is missing": (remove, None, "lack '1.weight'"),
    "an array too many": (partial(add, name="more"), None, "hold 'more'"),
    "a name that never ends": (partial(add, name="x" * 10**6), None, "client-1"),
    "a name that steers a terminal": (partial(add, name="\x1b[2J\x1b]0;x\x07"), None, "client-1"),
    "two sets of weights": (more_records, None, "in two of its ArrayRecords"),
    "no weights": (no_records, None, "holds no weights"),
    "absurd number of samples": (partial(metric, name="num-examples", content=2**62), "client-1", "without samples"),
    "absurd settings": (own_config, "client-1", "without lr"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_of_one_client_leaves_the_others_recorded(fault, tmp_path, caplog):
    spoil, name, words = FAULTS[fault]
    server, grid = Server(), real.Grid(client_app(), nodes=CLIENTS)
    recorder = recording.Recorder(tmp_path, network(), DATA, config={"batch-size": 2, "local-epochs": 1})
    strategy = recorder.strategy(server)
    start = flower.ArrayRecord(network().state_dict())
    answers = grid.send_and_receive(strategy.configure_train(1, start, flower.ConfigRecord({"lr": 0.1}), grid))
    spoil(answers[HOSTILE - FIRST])
    with caplog.at_level(logging.WARNING, "leakgauge"):
        strategy.aggregate_train(1, answers)
    assert strategy.seen == CLIENTS  # the training goes on with all answers
    kept = {one.client: one for one in lg.load_all(tmp_path, network())}
    others = {f"client-{number}" for number in (0, 2, 3)}
    honest = others - {"client-0"} if fault == "id of another client" else others
    assert kept.keys() - {"node-100"} == honest | ({name} if name else set())
    for node in (100, 102, 103):
        client = f"client-{node - 100}" if f"client-{node - 100}" in kept else f"node-{node}"
        assert same(kept[client].returned, trained(network(), network().state_dict(), node))
    assert [path.name for path in tmp_path.iterdir()] == [f"run-{RUN}"]
    logged = [record.getMessage() for record in caplog.records if record.name == "leakgauge"]
    assert all(len(line) < 1200 and line.isprintable() for line in logged)
    if words is None:
        assert logged == []
    else:
        assert any(words in line for line in logged), logged
        assert all("client-1" in line or "node-" in line for line in logged)


def test_what_is_no_message_leaves_the_others_recorded(tmp_path, caplog):
    strategy = recording.Recorder(tmp_path, network(), DATA).strategy(Server())
    grid = real.Grid(client_app(), nodes=CLIENTS)
    messages = strategy.configure_train(1, flower.ArrayRecord(network().state_dict()), flower.ConfigRecord(), grid)
    answers = grid.send_and_receive(messages)
    strategy.aggregate_train(1, [None, *answers, 5])
    assert len(lg.load_all(tmp_path, network())) == CLIENTS
    assert "did not record the message of a client" in caplog.text


@pytest.mark.parametrize("parameters", [b"garbage", header((2**38,)), pickled(), b""])
def test_faults_of_the_older_api(tmp_path, monkeypatch, caplog, parameters):
    instructions, answers, _ = real.results((5, 6, 7), masked=False)
    answers[1][1].parameters.tensors[0] = parameters
    answers[2][1].metrics["partition-id"] = float("nan")
    monkeypatch.setattr(real.older.FedAvg, "configure_fit", lambda *_: instructions)
    monkeypatch.setattr(real.older.FedAvg, "aggregate_fit", lambda *_: (None, {}))
    strategy = recording.Recorder(tmp_path, network(), DATA).strategy(real.older.FedAvg())
    strategy.configure_fit(1, None, None)
    strategy.aggregate_fit(1, answers, [])
    assert {one.client for one in lg.load_all(tmp_path, network())} == {"node-5", "node-7"}
    assert "node-6" in caplog.text


SPOIL = """    claims = {1: 0, 2: float("nan")}  # client 1 claims to be client 0
    if context.node_config["partition-id"] in claims:
        content["metrics"]["partition-id"] = claims[context.node_config["partition-id"]]
    return FlowerMessage(content=content, reply_to=message)
"""


@pytest.mark.long
@pytest.mark.flower
def test_faults_in_a_real_simulation(tmp_path, monkeypatch, record_property):
    app = tmp_path / "app"
    shutil.copytree(flower_runs.APP, app, ignore=shutil.ignore_patterns("__pycache__"))
    client = app / "quickstart" / "client_app.py"
    line = "    return FlowerMessage(content=content, reply_to=message)\n"
    text = client.read_text(encoding="utf-8")
    assert line in text
    client.write_text(text.replace(line, SPOIL), encoding="utf-8")
    monkeypatch.setattr(flower_runs, "APP", app)
    with flower_runs.simulation(tmp_path) as federation:
        logged = federation.run("--federation-config", "num-supernodes=4", num_server_rounds=1, samples_a_client=4)
    monkeypatch.syspath_prepend(str(app))
    net = importlib.import_module("quickstart.task").Net
    kept = [one.client for one in lg.load_all(tmp_path / "captures", net())]
    assert len(kept) == 4
    assert [name for name in kept if not name.startswith("node-")] == ["client-3"]
    assert "because another node has or claims the same partition-id 0" in logged
    record_property("assault", "Flower: 3 of 4 clients of a real simulation with wrong ids, all 4 recorded")
