"""The checks of numeric arguments: accepted and refused values."""

import math

import numpy as np
import pytest

from leakgauge.core.checks import finite, not_negative, positive, whole_number
from leakgauge.core.errors import InvalidInput


def test_values_that_fit_are_returned():
    assert whole_number("steps", 3) == 3
    assert type(whole_number("steps", np.int64(3))) is int
    assert whole_number("retries", 0, at_least=0) == 0
    assert positive("share", 1, up_to=1) == 1
    assert not_negative("weight", 0) == 0
    assert finite("low", -1.5) == -1.5


@pytest.mark.parametrize("value", [0, -1, 1.0, True, "1", None])
def test_what_is_no_whole_number(value):
    with pytest.raises(InvalidInput, match=f"^steps must be a whole number of at least 1, not {value!r}$"):
        whole_number("steps", value)


@pytest.mark.parametrize("value", [math.nan, math.inf, 10**400, True, "1", None])
def test_what_is_no_finite_number(value):
    for check, words in (
        (finite, "a finite number"),
        (positive, "a number above 0"),
        (not_negative, "a number of at least 0"),
    ):
        with pytest.raises(InvalidInput, match=f"^lr must be {words}, not {value!r}$"):
            check("lr", value)


def test_limits_and_hints_are_in_the_message():
    with pytest.raises(InvalidInput, match=r"^keep must be a number above 0 and up to 1, not 0 \(0 sends nothing\)$"):
        positive("keep", 0, up_to=1, hint="0 sends nothing")
    with pytest.raises(InvalidInput, match=r"^p must be a number of at least 0 and below 1, not 1$"):
        not_negative("p", 1, below=1)
