"""A message that may determine the samples never supports the verdict that nothing came back."""

import pytest
import torch
from torch import nn

from leakgauge.core.measure import Measure
from leakgauge.evaluation.support import MAY_DETERMINE, MAY_DETERMINE_CAPTURE
from leakgauge.evaluation.verdict import Verdict
from leakgauge.federation.client import fedsgd
from leakgauge.federation.defences import build
from leakgauge.workflows.determined import capture_determines, message_determines
from leakgauge.workflows.frontier import Leak, Point, _findings
from leakgauge.workflows.frontier_plan import read_frontier
from tests.attacks.analytic.cases import client, dense
from tests.attacks.analytic.texts import TEXTS, reader
from tests.known_answers.populations import rare_words


def test_numbers_are_counted_and_words_are_named():
    message, truth = client(dense(24), 2)
    assert message_determines(message, len(truth)) == MAY_DETERMINE
    assert message_determines(message, 1000) == ""
    words, _ = fedsgd(linear(), rare_words().share(range(8)))
    assert "names the words" in message_determines(words, 8)
    texts, _ = fedsgd(reader(), TEXTS.share(range(2)))
    assert "tokens or categories" in message_determines(texts, 10**6)


def linear():
    torch.manual_seed(0)
    return nn.Linear(200, 3)


@pytest.mark.parametrize(
    ("defence", "reason"),
    [
        (None, MAY_DETERMINE_CAPTURE),
        ({"name": "clipping", "norm": 1.0}, MAY_DETERMINE_CAPTURE),
        ({"name": "gaussian_noise", "sigma": 0.1}, ""),
        ({"name": "dpsgd", "epsilon": 1.0, "clip": 1.0}, ""),
    ],
    ids=str,
)
def test_only_noise_that_is_known_clears_a_capture(defence, reason):
    options = dict(defence or {})
    chain = [build(options.pop("name"), **options)] if defence else []
    message, truth = client(dense(24), 2, defences=chain, knows_defence=True)
    assert capture_determines(message, len(truth)) == reason
    hidden, _ = client(dense(24), 2, defences=chain)
    assert capture_determines(hidden, len(truth)) == MAY_DETERMINE_CAPTURE


@pytest.mark.parametrize(
    ("chain", "verdict"),
    [
        ([{"name": "clipping", "norm": 1.0}], Verdict.INCONCLUSIVE),
        ([{"name": "gaussian_noise", "sigma": 1.0}], Verdict.NOTHING_ABOVE_CHANCE),
    ],
    ids=["clipped", "noise"],
)
def test_a_frontier_calls_a_defence_without_noise_inconclusive_where_the_attack_fails(chain, verdict):
    plan = read_frontier(
        {
            "model": {"name": "lenet"}, "data": {"name": "digits"}, "training": {"samples": 2, "sends": "gradient"},
            "frontier": {"rounds": 1, "federation": 2, "test": 10, "clients": 1},
            "defence": [{"title": "none", "chain": []}, {"title": "defended", "chain": chain}],
        },
        "here",
    )  # fmt: skip

    def point(title, psnr, verdict):
        return Point(title, "", 0.9, None, {"psnr": Measure("psnr", psnr, chance=12.0)}, False, verdict, 1.0)

    points = [point("none", 40.0, Verdict.RECOVERS_DATA), point("defended", 12.0, Verdict.NOTHING_ABOVE_CHANCE)]
    leaks = [Leak(one.leakage, one.knows_defence, one.verdict) for one in points]
    found = {one.setup: one for one in _findings(plan, plan.attack.name, points, leaks)}
    assert found["none"].verdict is Verdict.RECOVERS_DATA
    assert found["defended"].verdict is verdict
    assert (found["defended"].reason == MAY_DETERMINE) == (verdict is Verdict.INCONCLUSIVE)
