"""The weights and statistics in a message, matched with those of the model.

Apps name weights in several ways. Wrappers such as ``DataParallel``, Opacus and ``torch.compile`` put a prefix before
every name, ``peft`` leaves out the name of an adapter, and older interfaces send lists without names.

A message may hold a part of the weights. The rest is then known if nobody trains it: the weights that the recorder's
model has frozen keep the values of that model.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from leakgauge.core.errors import InvalidInput, printable, shown
from leakgauge.core.params import Params

Arrays = Mapping[str, NDArray[Any]]

#: One or several prefixes that wrappers put before the names of all weights.
_PREFIXES = re.compile(r"^(?:_?module\.|_orig_mod\.)+")
#: The parts of names that ``peft`` leaves out of a message.
_ADAPTER = re.compile(r"\.(?:modules_to_save\.)?default\.")
#: The libraries whose modules may be wrappers.
_WRAPPERS = ("torch", "opacus")
#: The number of names in an error message.
_NAMED = 3


def split_state(
    model: nn.Module, source: str, arrays: Arrays, rest: Mapping[str, Tensor] | None = None
) -> tuple[Params, Params | None]:
    """Split arrays into weights and batch-norm statistics, and convert them to the number types of the model.

    Frozen weights that the message leaves out are taken from ``rest``. The same holds for the statistics of layers
    whose weights are all taken from there. If other statistics are missing, ``None`` is returned instead of the
    statistics.

    Args:
        model: The architecture. Its frozen weights may be missing in the message.
        source: The origin of the arrays, for error messages.
        arrays: The arrays of a message.
        rest: The weights that the message may leave out. By default, those of the model, with their statistics.
    """
    state, arrays = model.state_dict(), named_as_in(model, source, arrays)
    expected, statistics = dict(model.named_parameters()), dict(model.named_buffers())
    for name in arrays:
        if name not in state:
            raise InvalidInput(f"{source} hold {shown(name)}, which the model does not have. Is this the right model?")
    absent = [name for name in expected if name not in arrays]
    _check_absent(source, [name for name in absent if expected[name].requires_grad])
    values = expected if rest is None else rest
    weights = {
        name: _tensor(source, name, arrays[name], like) if name in arrays else values[name].detach()
        for name, like in expected.items()
    }
    known = _statistics_of_rest(model, set(absent)) if rest is None else set()
    if any(name in state and name not in arrays and name not in known for name in statistics):
        return weights, None
    return weights, {
        name: _tensor(source, name, arrays[name], like) if name in arrays else like.detach().clone()
        for name, like in statistics.items()
    }


def _check_absent(source: str, trained: list[str]) -> None:
    """Raise an error if weights that are trained are missing."""
    if not trained:
        return
    names = ", ".join(repr(name) for name in trained[:_NAMED]) + (", ..." if len(trained) > _NAMED else "")
    raise InvalidInput(
        f"{source} lack {names}. An observation needs all weights that are trained, and those that a client trains "
        "and keeps to itself, as in FedBN, are unknown to the server, so nobody can repeat the training. If they are "
        "not trained, set requires_grad=False for them in the recorder's model"
    )


def _statistics_of_rest(model: nn.Module, absent: Collection[str]) -> set[str]:
    """Return the statistics of the layers whose own weights are all missing in the message, because they are frozen."""
    found = set()
    for path, module in model.named_modules():
        prefix = f"{path}." if path else ""
        own = [f"{prefix}{name}" for name, _ in module.named_parameters(recurse=False)]
        if own and all(name in absent for name in own):
            found |= {f"{prefix}{name}" for name, _ in module.named_buffers(recurse=False)}
    return found


def check_rest(source: str, arrays: Arrays, sent: Params, given: Arrays, model: nn.Module) -> None:
    """Raise an error if a client returned a weight that it was not sent, and that differs from the model's.

    Args:
        source: The origin of ``arrays``, for error messages.
        arrays: The arrays that the client returned.
        sent: The weights that the client got, completed by those of the model.
        given: The arrays that the client got.
        model: The architecture.
    """
    known = named_as_in(model, "the weights sent", given)
    for name, array in named_as_in(model, source, arrays).items():
        if name in sent and name not in known and not torch.equal(_tensor(source, name, array, sent[name]), sent[name]):
            raise InvalidInput(
                f"{source} hold another {name!r} than the recorder's model, and the client was not sent this weight. "
                "Load the weights that the clients start from into the recorder's model"
            )


def named_as_in(model: nn.Module, source: str, arrays: Arrays) -> Arrays:
    """Return arrays with the names that they have in the model, as far as the names can be matched.

    Arrays without names, which have indices instead, are in the order of the model's state dict, of its parameters, or
    of its trainable parameters.

    Args:
        model: The architecture.
        source: The origin of the arrays, for error messages.
        arrays: The arrays of a message.
    """
    state = model.state_dict()
    if all(name in state for name in arrays):
        return arrays
    if list(arrays) == [str(index) for index in range(len(arrays))]:
        return _named_by_place(model, source, arrays)
    mine, theirs = ({_plain(name): name for name in names} for names in (state, arrays))
    if len(mine) == len(state) and len(theirs) == len(arrays) and theirs.keys() <= mine.keys():
        return {mine[short]: arrays[name] for short, name in theirs.items()}
    return arrays


def unwrapped(model: nn.Module) -> nn.Module:
    """Return the user's own model inside the wrappers of PyTorch and Opacus, under whose names it can be loaded again.

    A module of the user is never taken for a wrapper, because it may compute something of its own.

    Args:
        model: The model, with or without wrappers.
    """
    while type(model).__module__.partition(".")[0] in _WRAPPERS:
        inner = [child for name, child in model.named_children() if name in ("module", "_module", "_orig_mod")]
        if len(inner) != 1 or len(list(model.children())) != 1:
            break
        [model] = inner
    return model


def _plain(name: str) -> str:
    """Return the name of a weight without the parts that wrappers and adapters add."""
    return _ADAPTER.sub(".", _PREFIXES.sub("", name))


def _named_by_place(model: nn.Module, source: str, arrays: Arrays) -> Arrays:
    """Return arrays without names under the names of the model's weights."""
    parameters = dict(model.named_parameters())
    state = model.state_dict()
    orders = [list(state), list(parameters), [name for name, value in parameters.items() if value.requires_grad]]
    fitting = [names for names in orders if len(names) == len(arrays)]
    if not fitting:
        raise InvalidInput(
            f"{source} hold {len(arrays)} arrays without names, but the model has {len(parameters)} parameters, and "
            f"{len(state)} entries in its state dict. Is this the right model?"
        )
    for names in fitting:
        if all(tuple(array.shape) == tuple(state[n].shape) for n, array in zip(names, arrays.values(), strict=True)):
            return dict(zip(names, arrays.values(), strict=True))
    return dict(zip(fitting[0], arrays.values(), strict=True))  # the caller names the wrong shape


def _tensor(source: str, name: str, values: NDArray[Any], like: Tensor) -> Tensor:
    """Convert an array to a tensor of the model's number type.

    Args:
        source: The words for the message that holds the array.
        name: The name of the weight or the statistic.
        values: The array. An array of another shape is refused before it is copied.
        like: The weight or the statistic of the model.
    """
    if tuple(values.shape) != tuple(like.shape):
        raise InvalidInput(
            f"{source}: {name!r} has shape {shown(tuple(values.shape))}, but the model's is {tuple(like.shape)}. Is "
            "this the right model?"
        )
    if values.dtype.kind not in "fiub":
        raise InvalidInput(
            f"{source}: {name!r} holds values of type {printable(str(values.dtype))}, and weights are real numbers"
        )
    tensor = torch.from_numpy(np.array(values, dtype=values.dtype.newbyteorder("=")))
    if tensor.is_floating_point() and not like.is_floating_point():
        tensor = tensor.round()  # averaging turns counters into fractions
    return tensor.to(like.dtype)


def arrays_in(state: object) -> Arrays:
    """Return the weights of a state dict or of a list as arrays that nothing changes later.

    Args:
        state: A state dict, a dictionary of arrays, or a list of arrays.
    """
    return {name: array_in(value) for name, value in items_in(state)}


def items_in(state: object) -> Iterable[tuple[str, Any]]:
    """Return the names and the values of a state. Values without names are numbered.

    Args:
        state: A state dict, a dictionary of arrays, or a list of arrays.
    """
    if isinstance(state, Mapping):
        return [(str(name), value) for name, value in state.items()]
    if isinstance(state, (str, bytes, Tensor, np.ndarray)) or not isinstance(state, Iterable):
        raise InvalidInput(f"weights must be a state dict or a list of arrays, not a {type(state).__name__}")
    return [(str(index), value) for index, value in enumerate(state)]


def array_in(value: Any) -> np.ndarray[Any, Any]:
    """Return a copy of a tensor or an array in the main memory.

    Args:
        value: A tensor, or anything that NumPy takes for an array.
    """
    if not isinstance(value, Tensor):
        return np.array(value)
    value = value.detach().cpu()
    if value.dtype in (torch.bfloat16,) or (value.is_floating_point() and value.element_size() < 2):
        value = value.float()  # NumPy has no such type
    copied: np.ndarray[Any, Any] = value.clone().numpy()
    return copied
