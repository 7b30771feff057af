"""Hashes of source code (digests) for cache keys, so that cached results are not used after a change of the code."""

from __future__ import annotations

import ast
import collections
import contextlib
import functools
import hashlib
import importlib.machinery
import importlib.metadata
import inspect
import platform
import sys
import sysconfig
import types
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

_PACKAGE = Path(__file__).resolve().parents[1]
#: The suffixes of the package's files that are code or templates.
_CODE = (".py", ".html", ".css", ".js", ".jinja", ".j2")
#: The largest number of objects that are visited. The code of further objects is found through imports only.
_MOST_OBJECTS = 100_000
#: The libraries that compute Leakgauge's results.
_LIBRARIES = ("torch", "numpy", "scipy")
#: The types of values that hold no code.
_PLAIN = (bool, int, float, complex, str, bytes, types.NoneType)


@functools.cache
def code_digest() -> str:
    """Return a hash of all source files and templates of Leakgauge, and of the versions of the libraries that compute.

    Each process computes the hash only once.
    """
    digest = hashlib.sha256(platform.python_version().encode())
    for name in _LIBRARIES:
        digest.update(f"{name} {_version(name)}\0".encode())
    for path in sorted(path for path in _PACKAGE.rglob("*") if path.suffix in _CODE and path.is_file()):
        digest.update(f"{path.relative_to(_PACKAGE).as_posix()}\0{_file_digest(path)}\0".encode())
    return digest.hexdigest()


def source_digest(*objects: Any) -> str:
    """Return a hash of the user's own source code on which the given objects depend.

    The hash covers the source file of each given object, of its class, and of every object that it holds. It also
    covers all modules that these files import, directly or indirectly. Installed packages count by their version. The
    standard library, Leakgauge and its libraries are left out (:func:`code_digest`).

    An object from a notebook has no source file. For such an object, the hash covers its own source text and that of
    everything that it uses. The function never raises an error. Code that cannot be read is left out.

    Args:
        objects: Models, datasets, functions or classes. The submodules of an ``nn.Module`` and the attributes of an
            instance are covered too.
    """
    collected = _Sources()
    for item in objects:
        collected.add(item)
    digest = hashlib.sha256()
    for entry in sorted(collected.entries):
        digest.update(f"{entry}\0".encode())
    return digest.hexdigest()


class _Sources:
    """A collection of the source code on which objects depend.

    The set ``entries`` holds one text for each module, class or function, with its name and a hash of its code. It also
    holds one text for each global constant, with its name and its value.
    """

    def __init__(self) -> None:
        self.entries: set[str] = set()
        self._objects: dict[int, Any] = {}  # by id, and kept alive so that no id is used twice
        self._modules: set[str] = set()

    def add(self, item: Any) -> None:
        """Add the code on which an object depends, including the code of all objects that it holds."""
        waiting = collections.deque([item])
        while waiting and len(self._objects) < _MOST_OBJECTS:
            item = waiting.popleft()
            if id(item) in self._objects:
                continue
            self._objects[id(item)] = item
            with contextlib.suppress(Exception):
                waiting.extend(value for value in self._visit(item) if not isinstance(value, _PLAIN))

    def _visit(self, item: Any) -> Iterator[Any]:
        """Add the code of one object, and yield the other objects on which it depends."""
        if isinstance(item, types.ModuleType):
            self._module(item.__name__)
        elif isinstance(item, functools.partial):
            yield from (item.func, item.args, item.keywords)
        elif isinstance(item, types.MethodType):
            yield from (item.__func__, item.__self__)
        elif isinstance(item, dict):
            yield from item.values()
        elif isinstance(item, list | tuple | set | frozenset):
            yield from item
        elif isinstance(item, types.FunctionType):
            yield from self._function(item)
        elif isinstance(item, type):
            yield from self._class(item)
        else:
            yield type(item)
            yield from getattr(item, "__dict__", {}).values()  # these include the submodules of an nn.Module

    def _function(self, function: types.FunctionType) -> Iterator[Any]:
        yield from (inspect.unwrap(function), function.__defaults__, function.__kwdefaults__)
        for cell in function.__closure__ or ():
            with contextlib.suppress(ValueError):  # a cell that is still empty
                yield cell.cell_contents
        if not self._module(function.__module__):
            self._text(function, lambda: _code_text(function.__code__))
            yield from self._globals_of(function)

    def _class(self, kind: type) -> Iterator[Any]:
        yield from kind.__bases__
        if self._module(kind.__module__):
            return
        members = [getattr(member, "__func__", getattr(member, "fget", member)) for member in vars(kind).values()]
        self._text(kind, lambda: "\n".join(map(_member_text, members)))
        yield from members

    def _globals_of(self, function: types.FunctionType) -> Iterator[Any]:
        """Yield the values of the global names that a function uses.

        Plain values, such as numbers and texts, are also added to ``entries``.
        """
        for name in sorted(_names_in(function.__code__)):
            if name in function.__globals__:
                value = function.__globals__[name]
                if isinstance(value, _PLAIN):
                    self.entries.add(f"{function.__module__}.{name}={value!r}")
                yield value

    def _text(self, item: Any, fallback: Callable[[], str]) -> None:
        """Add the source text of a function or class that has no source file.

        If Python cannot return the source text, add the text that ``fallback`` returns, which describes the compiled
        code.
        """
        try:
            text = inspect.getsource(item)
        except Exception:
            text = fallback()
        self.entries.add(f"{item.__module__}.{item.__qualname__}:{hashlib.sha256(text.encode()).hexdigest()}")

    def _module(self, name: str | None) -> bool:
        """Add the source files of a module and of all modules that it imports.

        Return ``False`` if the module has no file, as in a notebook, or is the main script. The caller must then add
        the functions and classes of the module one by one.
        """
        if name is None or name in ("__main__", "__mp_main__"):
            return False
        if name in self._modules:
            return True
        path = _file_of(name)
        if path is None:
            return _is_foreign_name(name)
        waiting = [(name, path), *_files_of(_with_packages(name), _root_of(name, path))]
        while waiting:
            name, path = waiting.pop()
            if name in self._modules:
                continue
            self._modules.add(name)
            if _is_foreign(path):
                self._package(name, path)
                continue
            with contextlib.suppress(Exception):
                content = path.read_bytes()
                self.entries.add(f"{name}:{hashlib.sha256(content).hexdigest()}")
                waiting.extend(_imports(name, path, content))
        return True

    def _package(self, name: str, path: Path) -> None:
        """Add the version of an installed package. Without a version, add the file of the module."""
        top = name.partition(".")[0]
        if top in (*_LIBRARIES, _PACKAGE.name) or top in sys.stdlib_module_names:
            return
        with contextlib.suppress(OSError):
            self.entries.add(f"{top} {_version(top) or _file_digest(path)}")


def _imports(module: str, path: Path, content: bytes) -> Iterator[tuple[str, Path]]:
    """Yield the names and files of the modules that a source file imports, at its top or inside functions."""
    if path.suffix != ".py":
        return
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    root = _root_of(module, path)
    for node in ast.walk(ast.parse(content)):
        for name in _imported_names(node, package):
            yield from _files_of(_with_packages(name), root)


def _imported_names(node: ast.AST, package: str) -> Iterator[str]:
    """Yield the full names of the modules that an import statement may load."""
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        parents = package.split(".")
        above = parents[: len(parents) - node.level + 1] if node.level else []
        base = [*above, *([node.module] if node.module else [])]
        yield from (".".join([*base, alias.name]) for alias in node.names)


def _with_packages(name: str) -> list[str]:
    """Return the name of a module, preceded by the names of the packages that contain it.

    For ``a.b.c``, the result is ``a``, ``a.b`` and ``a.b.c``.
    """
    parts = name.split(".")
    return [".".join(parts[:end]) for end in range(1, len(parts) + 1)]


def _files_of(names: Iterable[str], folder: Path) -> Iterator[tuple[str, Path]]:
    """Yield the name and the path of each module that has a file. ``folder`` is searched before ``sys.path``."""
    for name in names:
        path = _file_of(name, folder)
        if path is not None:
            yield name, path


def _root_of(module: str, path: Path) -> Path:
    """Return the folder that must be in ``sys.path`` so that a module can be imported by its full name."""
    depth = module.count(".") + (path.name == "__init__.py")
    return path.parents[min(depth, len(path.parents) - 1)]


def _file_of(name: str, folder: Path | None = None) -> Path | None:
    """Return the path of a module's file without importing the module, or ``None`` if there is no file.

    ``folder`` is searched before ``sys.path``.
    """
    with contextlib.suppress(Exception):
        if name in sys.modules:
            file = getattr(sys.modules[name], "__file__", None)
            return Path(file).resolve() if file else None
        places: Iterable[str] = [*([str(folder)] if folder else []), *sys.path]
        for package in _with_packages(name):
            spec = importlib.machinery.PathFinder.find_spec(package, list(places))
            if spec is None:
                return None
            places = spec.submodule_search_locations or ()
            origin = spec.origin
        return Path(origin).resolve() if origin else None
    return None


def _is_foreign(path: Path) -> bool:
    """Return whether a file belongs to the standard library, to an installed package or to Leakgauge."""
    if {"site-packages", "dist-packages"} & set(path.parts) or path.is_relative_to(_PACKAGE):
        return True
    return any(path.is_relative_to(folder) for folder in _library_folders())


@functools.cache
def _library_folders() -> tuple[Path, ...]:
    return tuple({Path(sysconfig.get_path(name)).resolve() for name in ("stdlib", "platstdlib", "purelib", "platlib")})


def _is_foreign_name(module: str) -> bool:
    """Return whether a module without a file is built into Python or belongs to an installed package."""
    top = module.partition(".")[0]
    if top in sys.stdlib_module_names:
        return True
    file = getattr(sys.modules.get(top), "__file__", None)
    return file is not None and _is_foreign(Path(file).resolve())


def _names_in(code: types.CodeType) -> set[str]:
    """Return the names of globals and attributes that a code object uses, including those in nested functions."""
    inner = [_names_in(value) for value in code.co_consts if isinstance(value, types.CodeType)]
    return set(code.co_names).union(*inner)


def _code_text(code: types.CodeType) -> str:
    """Return a text that describes compiled code. The text is the same in every process."""

    def text(value: Any) -> str:
        if isinstance(value, types.CodeType):
            return _code_text(value)
        return repr(sorted(map(repr, value))) if isinstance(value, frozenset) else repr(value)

    return repr(
        [code.co_name, code.co_code, code.co_names, code.co_varnames, [text(value) for value in code.co_consts]]
    )


def _member_text(member: Any) -> str:
    """Return a text for a function or a plain value of a class. For other members, return an empty text."""
    if isinstance(member, types.FunctionType):
        return _code_text(member.__code__)
    return repr(member) if isinstance(member, _PLAIN) else ""


@functools.cache
def _version(package: str) -> str:
    """Return the version of an installed package, or an empty text if there is none of this name."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""


def _file_digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
