"""Nothing is concluded from many rounds whose recipe does not explain the messages."""

from dataclasses import replace

import numpy as np
import pytest

import leakgauge as lg
from leakgauge.evaluation.verdict import Verdict
from tests.shared import digits
from tests.workflows.test_attack_captures import network


@pytest.fixture(scope="module")
def federation(tmp_path_factory):
    root = tmp_path_factory.mktemp("federation")
    (root / "data").mkdir()
    for number in (0, 1):
        client = replace(digits().share(range(8 * number, 8 * number + 8)), name=f"client-{number}")
        settings = {"lr": 0.1, "epochs": 2, "batch_size": 8, "client": f"client-{number}"}
        for round in (1, 2):
            observation, _ = lg.fedavg(network(), client, **settings, round=round)
            lg.save(observation, root / "right" / f"{number}-{round}.safetensors")
            spec = replace(observation.data, mean=(0.5,), std=(0.2,))
            lg.save(replace(observation, data=spec), root / "wrong" / f"{number}-{round}.safetensors")
        np.savez(root / "data" / f"client-{number}.npz", x=client.inputs.numpy(), y=client.targets.numpy())
    return root


def inferred(federation, captures, output):
    place, data = federation / captures, federation / "data"
    return lg.infer(place, "last_returned", output, model=network(), data=data, engine="in-process")


def test_right_recipes_are_one_line(federation, tmp_path):
    result = inferred(federation, "right", tmp_path)
    [line] = [note for note in result.notes if "recipe" in note]
    assert line.startswith("The recipe explains the message of 2 clients (relative distance of at most")
    assert all(one.verdict is not Verdict.UNEXPLAINED for one in result.findings)


def test_wrong_recipes_are_no_all_clear(federation, tmp_path):
    result = inferred(federation, "wrong", tmp_path)
    assert "inputs without normalisation" in " ".join(result.notes)
    assert all(one.verdict is Verdict.UNEXPLAINED or one.verdict.leaks for one in result.findings)
    assert result.findings
    assert "does not explain" in (tmp_path / "inferred.html").read_text()
