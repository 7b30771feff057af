"""The lines that the documents show for recording run as they stand, in an app that was not written for them."""

import re
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import nn

import leakgauge as lg
from tests.federation.recording.test_flower import clientapp, flower, identity, run, strategies

ROOT = Path(__file__).parents[3]
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)

__all__ = ["identity"]  # a fixture of every test here


def snippets():
    for page in ("README.md", "docs/flower.md"):
        for number, code in enumerate(BLOCK.findall((ROOT / page).read_text())):
            if "recording.flower" in code:
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
