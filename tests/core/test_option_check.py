from collections.abc import Mapping, Sequence
from typing import Literal

import pytest

from leakgauge.core.errors import InvalidInput, UnknownName
from leakgauge.core.option_check import check_options


def factory(
    *,
    steps: int = 3,
    lr: float | None = None,
    signed: bool = False,
    name: Literal["sgd", "adam"] = "sgd",
    sizes: Sequence[int] = (),
    betas: tuple[float, float] = (0.9, 0.99),
    weights: Mapping[str, float] | None = None,
    anything=None,
    **more: object,
) -> None:
    pass


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"steps": -(2**62), "lr": 1, "signed": True, "name": "adam"},
        {"lr": None, "sizes": [1, 2], "betas": [0, 1.0], "weights": {"a": 1}},
        {"sizes": (), "anything": object()},
    ],
)
def test_values_that_fit_are_accepted(options):
    check_options("made", factory, options)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"steps": True}, "steps of made must be a whole number, not True"),
        ({"steps": 2.0}, "a whole number, not 2.0"),
        ({"steps": 2**63}, "a whole number"),
        ({"lr": float("nan")}, "lr of made must be a finite number or left out, not nan"),
        ({"lr": 10**400}, "a finite number"),
        ({"lr": "0.1"}, "not '0.1'"),
        ({"signed": "no"}, "signed of made must be true or false"),
        ({"name": 3}, "must be 'sgd' or 'adam', not 3"),
        ({"sizes": "12"}, "a list whose values are each a whole number"),
        ({"sizes": [1, [2]]}, "a list whose values"),
        ({"betas": [0.9]}, "a list of 2 values, each a finite number"),
        ({"weights": {"a": "b"}}, "a table whose values are each a finite number"),
    ],
    ids=str,
)
def test_values_that_do_not_fit_are_named(options, words):
    with pytest.raises(InvalidInput, match=words):
        check_options("made", factory, options)


def test_unknown_and_missing_options_are_named():
    def needs(size: int) -> None:
        pass

    with pytest.raises(UnknownName, match="no option of made 'stepz'; did you mean 'steps'"):
        check_options("made", factory, {"stepz": 1})
    with pytest.raises(UnknownName, match="no name of made called 'adma'; did you mean 'adam'"):
        check_options("made", factory, {"name": "adma"})
    with pytest.raises(InvalidInput, match="made needs the option size"):
        check_options("made", needs, {})
