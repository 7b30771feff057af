"""One finding has the same words, colour and exit code in every command and on every page."""

import json

import numpy as np
import pytest

import leakgauge as lg
from leakgauge.evaluation.verdict import Verdict
from leakgauge.workflows.scenario_document import read_scenario
from tests.attacks.local_model.cases import network, table_clients

TOML = """
[model]
name = "lenet"
[data]
name = "digits"
[training]
sends = "gradient"
samples = 1
lr = 0.1
[audit]
attacks = [{ name = "inverting_gradients", steps = 2 }]
clients = 3
"""
FRONTIER = (
    TOML[: TOML.index("[audit]")]
    + """
[frontier]
attack = "inverting_gradients"
options = { steps = 2 }
clients = 3
federation = 2
federation_samples = 20
rounds = 1
test = 50
[[defence]]
"""
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A set-up whose labels leak and whose samples do not, as an audit, a frontier, captures, and rounds of a table."""
    root = tmp_path_factory.mktemp("verdicts")
    (root / "audit.toml").write_text(TOML)
    (root / "frontier.toml").write_text(FRONTIER)
    scenario = read_scenario({"model": {"name": "lenet"}, "data": {"name": "digits"},
                              "training": {"sends": "gradient", "samples": 1}}, "here")  # fmt: skip
    save(root / "labels", [scenario.observe(index) for index in range(3)])
    for index in range(3, 60):  # other people's samples, from which a guess is made
        other = scenario.share(index)
        write_data(root / "labels", f"other-{index}", other.inputs, other.targets)
    clients = [one.share(range(len(one)), f"client-{place}") for place, one in enumerate(table_clients(rows=20))]
    rounds = lg.run_federation(network(), clients, rounds=6, lr=0.05, watch=range(len(clients))).observations
    for place, observations in rounds.items():
        lg.save_all(observations, root / "table" / "captures")
        write_data(root / "table", f"client-{place}", clients[place].inputs, clients[place].targets)
    return root


def save(root, messages):
    for number, (observation, truth) in enumerate(messages):
        lg.save(observation.knowing(client=f"client-{number}"), root / "captures" / f"{number}.safetensors")
        write_data(root, f"client-{number}", truth.inputs, truth.targets)


def write_data(root, name, inputs, targets):
    (root / "data").mkdir(parents=True, exist_ok=True)
    np.savez(root / "data" / f"{name}.npz", x=inputs.numpy(), y=targets.numpy())


COMMANDS = {
    "audit": ["audit", "audit.toml"],
    "frontier": ["frontier", "frontier.toml"],
    "attack": ["attack", "labels/captures", "--data", "labels/data", "--option", "steps=2"],
    "infer": ["infer", "table/captures", "--data", "table/data", "--sensitive", "secret", "--method", "last_returned"],
}
PAGES = {name: f"{name}/{page}.html" for name, page in
         {"audit": "audit", "frontier": "frontier", "attack": "captures", "infer": "inferred"}.items()}  # fmt: skip


@pytest.mark.parametrize("name", COMMANDS)
def test_one_finding_is_shown_alike_by_every_command(folder, name, monkeypatch, command):
    verdict = Verdict.RECOVERS_ATTRIBUTES
    monkeypatch.chdir(folder)

    def run(*more):
        code, out, _ = command(*COMMANDS[name], "--output", name, "--jobs", "1", *more)
        return code, out

    code, out = run()
    assert code == 0
    assert f"verdict: {verdict}" in out
    page = (folder / PAGES[name]).read_text()
    assert f'class="verdict {verdict.colour}"><strong>{verdict}</strong>' in page
    code, out = run("--fail-if", "leaks", "--junit", "junit.xml")
    assert code == 1
    assert "limit broken: " in out
    assert "<failure" in (folder / "junit.xml").read_text()
    code, out = run("--json")
    assert code == 0
    document = json.loads(out)
    assert (document["verdict"], document["leaks"], document["sentence"]) == (str(verdict), True, verdict.sentence)
    code, out = run("--quiet")
    assert (code, out) == (0, "")
