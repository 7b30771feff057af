"""Three verdicts, from the scores of each client."""

import pytest

from leakgauge.evaluation.verdict import judge, summarise, worst_of


def image(psnr, chance=12.0, errors=3.0, error_chance=3.0):
    return {"psnr": {"value": psnr, "chance": chance}, "label_errors": {"value": errors, "chance": error_chance}}


@pytest.mark.parametrize(
    ("scores", "verdict"),
    [
        ([image(20), image(21), image(19)], "recovers data"),
        ([image(8), image(9), image(40)], "recovers data"),  # one client is rebuilt
        ([image(14), image(14.2), image(13.9)], "recovers data"),  # a little, of all of them
        ([image(12.2), image(12.3), image(12.25)], "nothing above chance"),
        ([image(10), image(14.5), image(11)], "nothing above chance"),
        ([image(20)], "recovers data"),
        ([image(9, errors=0), image(9, errors=0), image(9, errors=1)], "recovers labels or attributes only"),
        ([image(9, errors=0), image(9, errors=6), image(9, errors=3)], "nothing above chance"),
    ],
)
def test_the_verdict_is_about_the_worst_case(scores, verdict):
    assert judge(scores) == verdict


def test_granted_labels_are_no_leak():
    scores = [image(9, errors=0), image(9, errors=0)]
    assert judge(scores) == "recovers labels or attributes only"
    assert judge(scores, labels_granted=True) == "nothing above chance"


def test_tables_are_judged_by_their_features():
    assert judge([{"features": {"value": 0.9, "chance": 0.5}}] * 3) == "recovers data"
    assert judge([{"features": {"value": 0.5, "chance": 0.5}}] * 3) == "nothing above chance"


def test_figures_are_over_clients_with_the_worst_one():
    found = summarise([image(10, errors=2), image(20, errors=4)])
    assert found["psnr"].mean == 15
    assert found["psnr"].worst == 20
    assert found["label_errors"].worst == 2
    assert found["psnr"].clients == 2
    assert found["psnr"].low < 15 < found["psnr"].high
    assert "ssim" not in found
    assert summarise([]) == {}


def test_the_whole_is_its_worst_part():
    assert (
        worst_of(["nothing above chance", "recovers labels or attributes only"]) == "recovers labels or attributes only"
    )
    assert worst_of([]) == "nothing above chance"
