"""Hashes of values (digests) for cache keys, so that cached results are not used after a change of a value."""

from __future__ import annotations

import enum
import functools
import hashlib
import re
import types
from collections.abc import Iterator
from pathlib import PurePath
from typing import Any

_PLAIN = (bool, int, float, complex, str, bytes, types.NoneType)
#: A memory address in a text, which differs in every process.
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")
_CODE = (types.FunctionType, types.BuiltinFunctionType, types.MethodType, types.ModuleType, type)


def value_digest(*values: Any, parameters: bool = True) -> str:
    """Return a hash of everything that the given values hold, such as numbers, texts, tensors and attributes.

    Code is not covered (:func:`leakgauge.runtime.digests.source_digest`). The function never raises an error. A value
    that cannot be read counts by its type only.

    Args:
        values: The values. The submodules and attributes of an ``nn.Module`` are covered too.
        parameters: Whether the parameters of an ``nn.Module`` are covered.
    """
    digest = _Digest(parameters)
    for value in values:
        digest.add(value)
    return digest.hash.hexdigest()


class _Digest:
    """A hash that grows by one value after another. A value that was seen before counts by its place."""

    def __init__(self, parameters: bool) -> None:
        self.hash = hashlib.sha256()
        self.skipped = () if parameters else ("_parameters",)
        self.seen: dict[int, tuple[int, Any]] = {}  # by id, and kept alive so that no id is used twice

    def add(self, value: Any) -> None:
        """Add a value and everything that it holds."""
        waiting = [value]
        while waiting:
            item = waiting.pop()
            if isinstance(item, _PLAIN):
                self._text(f"{type(item).__name__} {item!r}")
                continue
            if id(item) in self.seen:
                self._text(f"seen {self.seen[id(item)][0]}")
                continue
            self.seen[id(item)] = len(self.seen), item
            try:
                waiting += reversed(list(self._parts(item)))
            except Exception:  # a hostile or broken object
                self._text("unreadable")

    def _text(self, text: str) -> None:
        self.hash.update(f"{len(text)} {text}\0".encode(errors="surrogatepass"))

    def _parts(self, item: Any) -> Iterator[Any]:
        """Add the type of a value, and its content if the content is plain. Yield the other values that it holds."""
        self._text(f"{type(item).__module__}.{type(item).__qualname__}")
        if isinstance(item, dict):
            for key, value in item.items():
                yield from (key, value)
        elif isinstance(item, list | tuple):
            self._text(str(len(item)))
            yield from item
        elif isinstance(item, set | frozenset):
            yield sorted(map(value_digest, item))
        elif isinstance(item, functools.partial):
            yield from (item.func, item.args, item.keywords)
        elif isinstance(item, enum.Enum | PurePath):
            self._text(str(item))
        elif isinstance(item, _CODE):
            yield from self._code(item)
        elif _is_array(item):
            self._array(item)
        else:
            yield from self._attributes(item)

    def _code(self, item: Any) -> Iterator[Any]:
        self._text(str(getattr(item, "__qualname__", item.__name__)))
        if isinstance(item, types.MethodType):
            yield item.__self__
        if isinstance(item, types.FunctionType):
            yield from (item.__defaults__, item.__kwdefaults__)
            yield from (cell.cell_contents for cell in item.__closure__ or ())

    def _array(self, item: Any) -> None:
        """Add the content of a tensor or of a NumPy array."""
        if hasattr(item, "detach"):
            self._text(f"{tuple(item.shape)} {item.dtype} {item.requires_grad}")
            item = item.detach().cpu().contiguous().reshape(-1).view(_bytes()).numpy()
        else:
            self._text(f"{item.shape} {item.dtype}")
        self.hash.update(item.tobytes())

    def _attributes(self, item: Any) -> Iterator[Any]:
        """Yield the names and values of the attributes of an object. Without attributes, add its text."""
        attributes = dict(getattr(item, "__dict__", {}))
        for kind in type(item).__mro__:
            slots = vars(kind).get("__slots__", ())
            for name in (slots,) if isinstance(slots, str) else slots:
                if hasattr(item, name):
                    attributes.setdefault(name, getattr(item, name))
        if type(item).__module__.startswith("torch") and hasattr(item, "get_state"):  # a random generator
            attributes["state"] = item.get_state()
        if not attributes:
            self._text(_ADDRESS.sub("", repr(item)))
        for name in sorted(attributes.keys() - set(self.skipped)):
            yield from (name, attributes[name])


def _is_array(item: Any) -> bool:
    return hasattr(item, "dtype") and hasattr(item, "shape") and (hasattr(item, "detach") or hasattr(item, "tobytes"))


def _bytes() -> Any:
    import torch  # not at the top, so that the command line starts quickly

    return torch.uint8
