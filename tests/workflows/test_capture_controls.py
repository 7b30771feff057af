"""An attack on captures that finds nothing is tried on easier messages of the same clients."""

import numpy as np
import pytest
import torch
from torch import nn

import leakgauge as lg
from leakgauge import attacks
from leakgauge.evaluation.verdict import Verdict
from leakgauge.federation.defences import build
from leakgauge.reports.captures import write_captures
from leakgauge.workflows.attack_captures import run_capture_attack
from leakgauge.workflows.capture_controls import easier_message
from leakgauge.workflows.captures import Captures, ClientData
from leakgauge.workflows.result import Running


def network():
    torch.manual_seed(1)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 24), nn.Sigmoid(), nn.Linear(24, 10))


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """Two clients with eight digits each, whose noise hides everything."""
    root = tmp_path_factory.mktemp("recorded")
    digits = lg.data.load("digits")
    (root / "data").mkdir()
    for number in range(2):
        data = digits.share(range(8 * number, 8 * number + 8))
        np.savez(root / "data" / f"client-{number}.npz", x=data.inputs.numpy(), y=data.targets.numpy())
        noise = build("gaussian_noise", sigma=1e3, on="update")
        message, _ = lg.fedsgd(network(), data, defences=[noise], client=f"client-{number}", granted=["labels"])
        lg.save(message, root / "captures" / f"{number}.safetensors")
    return root


def attacked(recorded, output, attack):
    captures = Captures.find(recorded / "captures", network())
    return run_capture_attack(captures, attack, output, ClientData(recorded / "data"), running=Running("in-process"))


def test_a_negative_verdict_stands_beside_its_controls(recorded, tmp_path):
    found = attacked(recorded, tmp_path, attacks.inverting_gradients(steps=150))
    assert [one.setup for one in found.controls] == ["one sample, label known", "2 samples, labels known"]
    assert all(one.verdict is Verdict.RECOVERS_DATA for one in found.controls)
    assert found.findings[0].reason
    page = write_captures(found, tmp_path).read_text()
    assert "Positive controls" in page


def test_a_capture_that_may_determine_the_samples_is_never_called_safe(recorded, tmp_path):
    """Whether the message holds noise is not known here, and every positive control succeeds."""
    found = attacked(recorded, tmp_path, attacks.inverting_gradients(steps=150))
    assert all(one.verdict is Verdict.RECOVERS_DATA for one in found.controls)
    assert found.verdict is Verdict.INCONCLUSIVE


def test_a_weak_attack_is_inconclusive(recorded, tmp_path):
    found = attacked(recorded, tmp_path, attacks.inverting_gradients(steps=1))
    assert not any(one.verdict is Verdict.RECOVERS_DATA for one in found.controls)
    assert found.verdict is Verdict.INCONCLUSIVE


def test_an_easier_message_has_the_same_weights_and_recipe_and_no_defence():
    digits = lg.data.load("digits").share(range(8))
    noise = build("gaussian_noise", sigma=1e3, on="update")
    recipe = {"lr": 0.1, "epochs": 2, "batch_size": 4, "momentum": 0.5}
    message, truth = lg.fedavg(network(), digits, defences=[noise], **recipe)
    easier, own = easier_message(message, truth, 2)
    assert len(own) == easier.training.samples == 2
    assert (easier.training.epochs, easier.training.momentum) == (2, 0.5)
    assert all(torch.equal(easier.sent[name], message.sent[name]) for name in message.sent)
    plain, _ = lg.fedavg(network(), digits.share(range(2)), **recipe)
    assert all(torch.allclose(easier.returned[name], plain.returned[name]) for name in plain.returned)
    assert easier_message(message.knowing(lr=None), truth, 2) is None
