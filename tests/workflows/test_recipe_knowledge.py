"""What the attacker does not know of a recipe stands in the verdict's line, and never supports an all-clear."""

from dataclasses import replace

import numpy as np
import pytest

import leakgauge as lg
from leakgauge.evaluation.verdict import Verdict
from leakgauge.workflows.recipe_knowledge import weakness
from tests.shared import digits
from tests.workflows.test_attack_captures import network

SPEC = replace(digits().spec, mean=(0.3,), std=(0.35,))


@pytest.fixture(scope="module")
def federation(tmp_path_factory):
    """Captures of a client with momentum, which the server does not know, and of one without."""
    root = tmp_path_factory.mktemp("federation")
    (root / "data").mkdir()
    for number, momentum in enumerate((0.9, 0.0)):
        client = replace(digits().share(range(8 * number, 8 * number + 8)), spec=SPEC)
        recipe = lg.LocalTraining(momentum=momentum)
        settings = {"lr": 0.1, "epochs": 4, "batch_size": 8, "recipe": recipe, "client": f"client-{number}"}
        observation, _ = lg.fedavg(network(), client, **settings, hidden=("momentum", "schedule"))
        lg.save_all([observation], root / "captures")
        np.savez(root / "data" / f"client-{number}.npz", x=client.inputs.numpy(), y=client.targets.numpy())
    return root


def attacked(federation, output, steps=2, **options):
    return lg.attack(
        federation / "captures", "inverting_gradients", output, options={"steps": steps}, model=network(),
        engine="in-process", **options,
    )  # fmt: skip


def test_without_the_samples_the_unknown_settings_are_named(federation, tmp_path):
    result = attacked(federation, tmp_path)
    assert "not checked: momentum, schedule." in " ".join(result.knowledge)
    assert "not checked: momentum, schedule." in (tmp_path / "captures.html").read_text()


def test_a_loss_that_stays_high_is_a_possible_mismatch(federation, tmp_path):
    few = attacked(federation, tmp_path / "few", client="client-1")
    assert "which is high" in " ".join(few.knowledge)
    enough = attacked(federation, tmp_path / "enough", client="client-1", steps=150)
    assert "which is high" not in " ".join(enough.knowledge)


def test_a_setting_that_was_not_known_is_no_all_clear(federation, tmp_path):
    result = attacked(federation, tmp_path, data=federation / "data" / "client-0.npz", client="client-0")
    assert result.attacked[0].capture.check.causes == ("momentum 0.9",)
    assert result.verdict in (Verdict.INCONCLUSIVE, Verdict.RECOVERS_ATTRIBUTES)
    assert "which the attack did not know" in result.findings[0].reason


def test_a_recipe_that_is_right_with_the_usual_values_is_no_weakness(federation, tmp_path):
    result = attacked(federation, tmp_path, data=federation / "data" / "client-1.npz", client="client-1")
    assert result.attacked[0].capture.unknown == ("momentum", "schedule")
    assert result.knowledge == []
    assert "did not know" not in result.findings[0].reason


def test_samples_that_change_in_each_epoch_are_no_all_clear(federation, tmp_path):
    result = attacked(federation, tmp_path, data=federation / "data" / "client-1.npz", client="client-1")
    capture = result.attacked[0].capture
    changed = replace(capture, truth=replace(capture.truth, trained=capture.truth))
    assert "other versions of its samples" in weakness([replace(result.attacked[0], capture=changed)])
    assert weakness(result.attacked) == ""
