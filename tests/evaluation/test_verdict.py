"""Verdicts on the scores of clients."""

from dataclasses import replace

import pytest
import torch

from leakgauge.core.measure import Measure
from leakgauge.evaluation.verdict import Finding, Verdict, judge, judge_share, over_clients, together, worst_of

DATA, ATTRIBUTES, UNEXPLAINED, INCONCLUSIVE, NOTHING, UNSCORED = Verdict


def image(psnr, chance=12.0, errors=3.0, error_chance=3.0):
    return {
        "psnr": Measure("psnr", psnr, chance=chance),
        "label_errors": Measure("label_errors", errors, chance=error_chance, direction="lower"),
    }


@pytest.mark.parametrize(
    ("scores", "verdict"),
    [
        ([image(20), image(21), image(19)], DATA),
        ([image(8), image(9), image(40)], DATA),  # one client is rebuilt
        ([image(14), image(14.2), image(13.9)], DATA),  # a little, of all of them
        ([image(12.2), image(12.3), image(12.25)], NOTHING),
        ([image(10), image(14.5), image(11)], NOTHING),
        ([image(20)], DATA),
        ([image(9, errors=0), image(9, errors=0), image(9, errors=1)], ATTRIBUTES),
        ([image(9, errors=0), image(9, errors=6), image(9, errors=3)], NOTHING),
    ],
)
def test_the_verdict_is_about_the_worst_case(scores, verdict):
    assert judge(scores) is verdict


def test_granted_labels_are_no_leak():
    scores = [image(9, errors=0), image(9, errors=0)]
    assert judge(scores) is ATTRIBUTES
    assert judge(scores, labels_granted=True) is NOTHING


def test_tables_are_judged_by_their_features():
    assert judge([{"features": Measure("features", 0.9, chance=0.5)}] * 3) is DATA
    assert judge([{"features": Measure("features", 0.5, chance=0.5)}] * 3) is NOTHING


def test_figures_are_over_clients_with_the_worst_one():
    found = over_clients([image(10, errors=2), image(20, errors=4)])
    assert found["psnr"].value == 15
    assert found["psnr"].worst == 20
    assert found["label_errors"].worst == 2
    assert (found["psnr"].n, found["psnr"].of) == (2, "clients")
    assert found["psnr"].low < 15 < found["psnr"].high
    assert "ssim" not in found
    assert over_clients([]) == {}


def test_the_whole_is_its_worst_part():
    assert worst_of([NOTHING, ATTRIBUTES]) is ATTRIBUTES
    assert worst_of([NOTHING, DATA, UNSCORED]) is DATA
    assert worst_of([]) is UNSCORED


def test_nothing_scored_is_no_all_clear():
    assert judge([]) is UNSCORED
    assert [one.leaks for one in Verdict] == [True, True, None, None, False, None]
    assert [one.colour for one in Verdict] == ["red", "red", "yellow", "yellow", "green", "yellow"]


def finding(verdict, metric="psnr"):
    return Finding("idlg", "noise", {metric: Measure(metric, 9.0, chance=12.0)}, verdict)


def test_a_strong_attack_counts_over_weak_ones():
    assert together([finding(INCONCLUSIVE), finding(NOTHING)]) is NOTHING
    assert together([finding(INCONCLUSIVE), finding(ATTRIBUTES)]) is ATTRIBUTES
    assert together([finding(INCONCLUSIVE)]) is INCONCLUSIVE
    assert together([finding(INCONCLUSIVE), finding(NOTHING, "attribute_accuracy")]) is INCONCLUSIVE


def test_a_share_is_judged_over_all_records():
    clear = [torch.ones(200), torch.cat((torch.ones(180), torch.zeros(20)))]
    assert judge_share(clear, 0.5) is ATTRIBUTES
    lucky = [torch.ones(4), torch.tensor([1.0, 1.0, 1.0, 0.0])]
    assert judge_share(lucky, 0.5) is NOTHING


def some(psnr, worst, recovered, guessed=0.0):
    """Return the scores of a client with 16 samples, of which a share was recovered."""
    return {
        "psnr": Measure("psnr", psnr, chance=12.0, n=16, worst=worst),
        "recovered": Measure("recovered", recovered, chance=guessed, n=16),
    }


def test_one_sample_that_came_back_exactly_is_a_leak_whatever_the_mean():
    assert judge([some(12.5, 100.0, 1 / 16)]) is DATA
    assert judge([some(12.5, 100.0, 1 / 16, guessed=1 / 16)]) is NOTHING  # a blank sample, which a guess recovers too
    assert judge([some(12.5, 21.0, 1 / 16)]) is NOTHING  # near enough to be luck


@pytest.mark.parametrize(
    ("worst", "luck_of_one", "recovered", "verdict"),
    [
        (26.0, 18.0, 1 / 16, DATA),  # a person recognises the picture, although the mean hides it
        (26.0, 22.0, 1 / 16, NOTHING),  # a lucky guess of one of 16 pictures is nearly as good
        (19.5, 12.0, 0.0, NOTHING),  # below the threshold of recovered pictures
        (26.0, None, 1 / 16, NOTHING),
    ],
)
def test_one_sample_far_above_every_guess_is_a_leak(worst, luck_of_one, recovered, verdict):
    score = some(12.4, worst, recovered)
    score["psnr"] = replace(score["psnr"], luck_of_one=luck_of_one)
    assert judge([score]) is verdict


def test_one_row_far_above_every_guess_is_a_leak():
    half = {"features": Measure("features", 0.5, chance=0.5, n=16, worst=0.95, luck_of_one=0.65)}
    assert judge([half]) is DATA
    assert judge([{"features": replace(half["features"], luck_of_one=0.8)}]) is NOTHING
    assert judge([{"features": replace(half["features"], worst=0.85, luck_of_one=0.5)}]) is NOTHING


def rows(features, chance, exact, n=8, luck=None):
    """Return the scores of a table client, of whose rows a share came back exactly."""
    return {
        "features": Measure("features", features, chance=chance, n=n),
        "rows": Measure("rows", exact, chance=0.0, n=n, luck=luck),
    }


def test_features_are_judged_by_what_a_guess_leaves_open():
    assert judge([rows(1.0, 0.852, 0.0)] * 2) is DATA  # a guess had most of them, and the attack had the rest
    assert judge([rows(0.855, 0.852, 0.0)] * 4) is NOTHING


def test_one_exact_row_is_a_leak_whatever_the_mean():
    assert judge([rows(0.5, 0.55, 1 / 8)]) is DATA
    assert judge([rows(0.5, 0.55, 0.0)]) is NOTHING
    assert judge([rows(0.5, 0.55, 1 / 8, luck=1 / 8)]) is NOTHING  # equal rows are common here


def lucky(psnr, luck, chance=12.0):
    return {"psnr": Measure("psnr", psnr, chance=chance, luck=luck)}


def test_few_clients_must_be_beyond_luck():
    assert judge([lucky(13.0, 13.5)]) is NOTHING
    assert judge([lucky(13.0, 12.5)]) is DATA
    assert judge([lucky(13.0, 13.5), lucky(13.1, 13.5)]) is NOTHING
    assert judge([lucky(16.0, 17.0)]) is NOTHING
    assert judge([lucky(13.0, 13.5), lucky(13.1, 13.5), lucky(13.05, 13.5)]) is DATA  # three lucky clients are no luck
