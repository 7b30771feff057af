"""Functions that import and call a factory, which is a function that builds a model.

Each mistake, such as a wrong name or a missing option, has its own error message.
"""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from torch import nn

from leakgauge.core.errors import InvalidInput, LeakgaugeError, UnknownName, printable, shown
from leakgauge.core.limits import LONGEST_NAME, SEED
from leakgauge.models.options import seeded

Factory = Callable[..., nn.Module]


@contextmanager
def current_directory_importable() -> Iterator[None]:
    """Let imports inside the ``with`` block also find modules in the current directory.

    Python itself does not search the current directory when it runs an installed command.
    """
    here = str(Path.cwd())
    added = here not in sys.path
    if added:
        sys.path.insert(0, here)
        importlib.invalidate_caches()
    try:
        yield
    finally:
        if added and here in sys.path:
            sys.path.remove(here)


@contextmanager
def explained(action: str) -> Iterator[None]:
    """Convert any error of a user's code in the ``with`` block to an error of one sentence.

    Args:
        action: The words for what raised the error, such as "importing 'mymodule'".
    """
    try:
        yield
    except LeakgaugeError:
        raise
    except Exception as error:
        raise InvalidInput(f"{action} raised {in_words(error)}") from error


def in_words(error: BaseException) -> str:
    """Return the type and the first line of an error of a user's code, without control characters."""
    first = printable((str(error).strip().splitlines() or [""])[0])
    return f"{type(error).__name__}: {first}" if first else type(error).__name__


def find_factory(name: str, kind: str = "model") -> Factory:
    """Import a user's own function, which has a name of the form ``"module:factory"``.

    Args:
        name: The name.
        kind: The words for what the function builds, for error messages.
    """
    module_name, _, attribute = name.partition(":")
    if len(name) > LONGEST_NAME or not all(part.isidentifier() for part in [*module_name.split("."), attribute]):
        raise InvalidInput(f"the name of your own {kind} must be 'module:factory', not {shown(name)}")
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is not None and f"{module_name}.".startswith(f"{error.name}."):
            raise InvalidInput(
                f"there is no module {module_name!r} for the {kind} {name!r}. "
                f"Install it, or put it into the current directory, {Path.cwd()}."
            ) from error
        raise InvalidInput(f"the module {module_name!r} imports {error.name!r}, which is not installed") from error
    except Exception as error:
        raise InvalidInput(f"importing {module_name!r} raised {in_words(error)}") from error
    if not hasattr(module, attribute):
        public = [key for key, value in vars(module).items() if callable(value) and not key.startswith("_")]
        raise UnknownName(f"factory in module {module_name!r} called", attribute, public)
    factory = getattr(module, attribute)
    if isinstance(factory, nn.Module) or not callable(factory):
        raise InvalidInput(
            f"{name!r} is a {type(factory).__name__}, not a factory. Name a function that returns the model."
        )
    return factory  # type: ignore[no-any-return]


def call_factory(name: str, factory: Factory, options: Mapping[str, object]) -> nn.Module:
    """Check the options, call the function that builds a model with these options, and return the model.

    Args:
        name: The name of the model, for error messages.
        factory: The function that builds the model.
        options: The keyword arguments of the function. If the function has no argument ``seed``, the option ``seed``
            seeds torch's global random generator during the call.
    """
    arguments = {key: _tuples(value) for key, value in options.items()}
    seed = None if _takes(factory, "seed") else arguments.pop("seed", None)
    if seed is not None:
        seed = int(SEED.checked("seed", seed))
    _check_options(name, factory, arguments)
    with explained(f"the factory {name!r}"), seeded(seed):
        model = factory(**arguments)
    if not isinstance(model, nn.Module):
        raise InvalidInput(f"the factory {name!r} returned a {type(model).__name__}, not a torch.nn.Module")
    return model


def signature_of(factory: Factory) -> Mapping[str, inspect.Parameter] | None:
    """Return the parameters of a function that builds a model, or ``None`` if Python cannot determine them."""
    try:
        return inspect.signature(factory).parameters
    except (TypeError, ValueError):  # some callables written in C have no signature
        return None


def _named(parameters: Mapping[str, inspect.Parameter]) -> dict[str, inspect.Parameter]:
    """Return the parameters that can be passed as keyword arguments."""
    named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return {key: value for key, value in parameters.items() if value.kind in named}


def _takes(factory: Factory, option: str) -> bool:
    parameters = signature_of(factory)
    return parameters is not None and option in _named(parameters)


def _check_options(name: str, factory: Factory, options: Mapping[str, object]) -> None:
    parameters = signature_of(factory)
    if parameters is None:
        return
    named = _named(parameters)
    accepts_any = any(value.kind is inspect.Parameter.VAR_KEYWORD for value in parameters.values())
    for option in options:
        if option not in named and not accepts_any:
            raise UnknownName(f"option of model {name!r} called", option, named)
    missing = [key for key, value in named.items() if value.default is value.empty and key not in options]
    if missing:
        raise InvalidInput(f"the model {name!r} needs the option{'s' * (len(missing) > 1)} {', '.join(missing)}")


def _tuples(value: object) -> object:
    """Convert a list to a tuple. Lists inside lists and dictionaries become tuples too."""
    if isinstance(value, list):
        return tuple(_tuples(item) for item in value)
    if isinstance(value, dict):
        return {key: _tuples(item) for key, item in value.items()}
    return value
