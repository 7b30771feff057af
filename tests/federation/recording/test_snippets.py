"""The lines that the documents show for recording run as they stand, in an app that was not written for them."""

import re
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import nn

import leakgauge as lg
from leakgauge.core.kept_samples import kept_files, load_kept
from tests.federation.recording.test_flower import clientapp, flower, identity, run, strategies

ROOT = Path(__file__).parents[3]
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)

__all__ = ["identity"]  # a fixture of every test here


def snippets():
    for page in ("README.md", "docs/flower.md"):
        for number, code in enumerate(BLOCK.findall((ROOT / page).read_text())):
            if "recording.flower import" in code:
                yield pytest.param(code, id=f"{page} {number}")


def loops():
    """The lines for a loop of one's own, also those of the module."""
    for page in ("README.md", "docs/flower.md"):
        for number, code in enumerate(BLOCK.findall((ROOT / page).read_text())):
            if "lg.record" in code:
                yield pytest.param(code, 1, id=f"{page} {number}")
    yield pytest.param(code_of("loop").replace("(1, 28, 28)", "(3, 32, 32)"), 2, id="loop")


def code_of(name):
    text = (ROOT / f"src/leakgauge/federation/recording/{name}.py").read_text()
    return re.sub(r"^    ", "", re.search(r"^::\n\n((?:    .*\n|\n)+)", text, re.MULTILINE)[1], flags=re.MULTILINE)


def docstrings():
    for name in ("flower", "malicious_flower"):
        yield pytest.param(code_of(name), id=name)


def keepers():
    for number, code in enumerate(BLOCK.findall((ROOT / "docs/flower.md").read_text())):
        if "eeper(" in code and "nvflare" not in code:
            yield pytest.param(code, id=f"docs/flower.md {number}")
    for name in ("keeper", "flower_keeper"):
        yield pytest.param(code_of(name).replace("(1, 28, 28)", "(3, 32, 32)").replace("(0.1307,)", "(0,)"), id=name)


class Net(nn.Module):
    """The network of an app that knows nothing of Leakgauge."""

    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(3 * 32 * 32, 10)

    def forward(self, x):
        return self.fc(x.flatten(1))


def trains(message, context):
    net = Net()
    net.load_state_dict(message.content["arrays"].to_torch_state_dict())
    draw = torch.Generator().manual_seed(context.node_id)
    loss = nn.functional.cross_entropy(net(torch.rand(4, 3, 32, 32, generator=draw)), torch.arange(4))
    optimiser = torch.optim.SGD(net.parameters(), lr=0.01)
    loss.backward()
    optimiser.step()
    metrics = flower.MetricRecord({"num-examples": 4})
    content = {"arrays": flower.ArrayRecord(net.state_dict()), "metrics": metrics}
    return flower.Message(content=flower.RecordDict(content), reply_to=message)


@pytest.mark.parametrize("code", [*snippets(), *docstrings()])
def test_a_snippet_runs_and_records(code, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    app = {"Net": Net, "FedAvg": strategies.FedAvg, "ClientApp": clientapp.ClientApp}
    names = {**app, "context": SimpleNamespace(run_config={"lr": 0.01, "local-epochs": 1})}
    exec(code, names)
    client = names["app"] if "app" in names else clientapp.ClientApp()
    client.train()(trains)
    strategy = names.get("strategy") or strategies.FedAvg()
    strategy.fraction_evaluate = 0.0
    run(strategy, client, rounds=1, make=Net)
    assert len(lg.load_all("captures", Net())) >= 3


@pytest.mark.parametrize(("code", "captures"), list(loops()))
def test_a_loop_is_recorded(code, captures, tmp_path, monkeypatch):
    def train(net, optimizer):
        for rows in torch.arange(600).split(32):
            optimizer.zero_grad()
            nn.functional.cross_entropy(net(torch.rand(len(rows), 3, 32, 32)), rows % 10).backward()
            optimizer.step()

    monkeypatch.chdir(tmp_path)
    net = Net()
    app = {"Net": Net, "net": net, "train": train, "optimizer": torch.optim.SGD(net.parameters(), lr=0.01)}
    state = net.state_dict()
    exec(code, {**app, "sent": state, "returned": state, "sent_state": state, "returned_state": state})
    assert [(one.client, one.round) for one in lg.load_all("captures", Net())] == [("hospital-3", 4)] * captures


@pytest.mark.parametrize("code", list(keepers()))
def test_a_keeper_stores_what_an_app_trains_on(code, tmp_path, monkeypatch):
    """The loader is watched where a snippet shows it, which is before the training in Flower."""
    setup, _, watch = code.partition("\ntrainloader = ")

    def train(net, optimizer, batches):
        assert len(list(batches)) == 2

    def trains_on_a_loader(message, context):
        names["trainloader"] = loader
        exec(f"trainloader = {watch}", names)
        train(None, None, names["trainloader"])
        return trains(message, context)

    monkeypatch.chdir(tmp_path)
    loader = torch.utils.data.DataLoader([(torch.rand(3, 32, 32), 1) for _ in range(8)], batch_size=4)
    names = {"ClientApp": clientapp.ClientApp, "net": None, "optimizer": None, "train": train, "loader": loader}
    exec(setup, names)
    if watch:
        names["app"].train()(trains_on_a_loader)
        run(strategies.FedAvg(fraction_evaluate=0.0), names["app"], rounds=1, make=Net)
    kept = [load_kept(file) for file in kept_files(Path("captures"))]
    assert len(kept) == (3 if watch else 1)
    assert all(len(one.inputs) == 8 for one in kept)
