"""The status of figures: the rules on the papers' pages, case by case."""

from dataclasses import replace

import pytest

from leakgauge.core.measure import Measure
from leakgauge.reproduction.results import Line
from leakgauge.reproduction.rows import Method, Short
from leakgauge.reproduction.status import Figure, Status, latest_of, overall
from tests.reproduction.rows_for_tests import row_of

ROW = row_of({"model": {"name": "lenet"}, "data": {"name": "digits"}})
METHOD = Method("ours", "idlg", {"steps": 100}, {"psnr": 20.0, "mse": 0.01, "iterations": 5.0, "lpips": 0.1})


def line(value, low=None, high=None, *, metric="psnr", chance=10.0, clients=4, **more):
    direction = "lower" if metric in ("mse", "lpips", "iterations") else "higher"
    measure = Measure(metric, value, low, high, chance=chance, n=clients, of="clients", direction=direction)
    defaults = {"steps": 100, "seconds": 1.0, "date": "2026-01-01", "command": "leakgauge bench mine"}
    return Line("table1/row", "ours", measure, **(defaults | more))


def status(measured, row=ROW, method=METHOD):
    return Figure(row, method, measured.measure.name, measured).status


@pytest.mark.parametrize(
    ("measured", "expected"),
    [
        (line(19.0, 17.0, 21.0), Status.REPRODUCED),
        (line(25.0, 24.0, 26.0), Status.REPRODUCED),  # beyond the published value
        (line(25.0, 24.0, 26.0, clients=3), Status.PARTLY),  # too few clients
        (line(25.0, clients=1), Status.PARTLY),
        (line(14.0, 5.0, 23.0), Status.PARTLY),  # so wide that it includes chance
        (line(25.0, 24.0, 26.0, steps=50, command="leakgauge bench mine --steps 50"), Status.PARTLY),
        (line(25.0, 24.0, 26.0, command="leakgauge bench mine --steps 100"), Status.REPRODUCED),
        (line(15.5, 15.0, 16.0), Status.PARTLY),  # more than half of the way
        (line(14.5, 14.0, 15.0), Status.NOT),  # less than half of the way
        (line(16.0, 9.0, 19.0), Status.NOT),  # half of the way, but not above chance
        (line(19.0, 18.5, 19.5, chance=25.0), Status.PARTLY),  # the published value is below chance: within a tenth
        (line(17.0, 16.5, 17.5, chance=25.0), Status.NOT),
        (line(21.0, 20.5, 21.5, chance=25.0), Status.REPRODUCED),  # as bad as published
        (line(0.009, 0.008, 0.012, metric="mse", chance=0.1), Status.REPRODUCED),  # lower is better
        (line(0.05, 0.04, 0.06, metric="mse", chance=0.1), Status.PARTLY),
        (line(0.2, 0.15, 0.25, metric="mse", chance=0.1), Status.NOT),
        (line(0.105, 0.101, 0.109, metric="lpips", chance=None), Status.PARTLY),
        (line(4.0, 3.0, 5.0, metric="iterations", chance=None), Status.NONE),  # a cost
        (line(0.5, metric="ssim"), Status.NONE),  # nothing published
    ],
)
def test_the_rules(measured, expected):
    assert status(measured) is expected


def test_a_figure_without_a_measurement_is_not_run():
    assert Figure(ROW, METHOD, "psnr").status is Status.NOT_RUN
    assert Figure(ROW, METHOD, "ssim").status is Status.NONE


def test_a_short_setting_counts_only_where_a_row_has_one():
    measured = line(25.0, 24.0, 26.0, command="leakgauge bench mine --short")
    assert status(measured) is Status.REPRODUCED
    assert status(measured, replace(ROW, short=Short(steps=3))) is Status.PARTLY


def test_a_method_of_ours_may_be_compared_with_a_published_one():
    fast = Method("fast", compared_with="ours")
    row = replace(ROW, methods={"ours": METHOD, "fast": fast})
    assert Figure(row, fast, "psnr", line(21.0, 20.0, 22.0)).status is Status.REPRODUCED
    assert Figure(row, Method("other"), "psnr", line(21.0, 20.0, 22.0)).status is Status.NONE


def test_the_shown_measurement_has_most_clients_then_the_full_setting_then_most_steps_then_is_newest():
    short = {"command": "leakgauge bench mine --steps 200", "steps": 50}
    few, newer_short = line(1.0, clients=2, steps=900), line(2.0, date="2026-03-01", **short)
    older, newer, same_day = line(3.0), line(4.0, date="2026-02-01"), line(5.0, date="2026-02-01")
    more_steps = line(6.0, steps=101)

    def shown(*lines):
        return latest_of(ROW, METHOD, lines)["psnr"].measure.value

    assert shown(few, newer_short) == 2.0
    assert shown(older, newer_short) == 3.0
    assert shown(newer, older, few) == 4.0
    assert shown(newer, same_day, older) == 5.0
    assert shown(more_steps, newer) == 6.0


def test_the_status_of_a_table():
    assert overall([]) is overall([Status.NONE]) is Status.NONE
    assert overall([Status.REPRODUCED, Status.NONE]) is Status.REPRODUCED
    assert overall([Status.REPRODUCED, Status.NOT_RUN]) is Status.PARTLY
    assert overall([Status.NOT, Status.NOT_RUN]) is Status.NOT
    assert overall([Status.NOT_RUN]) is Status.NOT_RUN
