"""Digests of source code, so that a cache returns a result only if the code has not changed."""

from __future__ import annotations

import ast
import collections
import contextlib
import functools
import hashlib
import importlib.machinery
import inspect
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
#: The types of values that hold no code.
_PLAIN = (bool, int, float, complex, str, bytes, types.NoneType)


@functools.cache
def code_digest() -> str:
    """Return the digest of Leakgauge's own source files and templates, computed once for each process."""
    digest = hashlib.sha256()
    for path in sorted(path for path in _PACKAGE.rglob("*") if path.suffix in _CODE and path.is_file()):
        digest.update(f"{path.relative_to(_PACKAGE).as_posix()}\0{_file_digest(path)}\0".encode())
    return digest.hexdigest()


def source_digest(*objects: Any) -> str:
    """Return the digest of the user's source code behind some objects.

    The digest covers the source files of the modules that define the given objects, the classes of the given objects,
    or any object inside a given object. All modules that these modules import, directly or indirectly, are covered too.
    The standard library, installed packages and Leakgauge are left out. If an object has no source file, as in a
    notebook, the digest covers the source of this object and of everything that this object uses. The function never
    raises an error. Code that cannot be read is left out.

    Args:
        objects: Models, datasets, factories, functions or classes. The submodules of an ``nn.Module`` and the
            attributes of an instance are covered too.
    """
    collected = _Sources()
    for item in objects:
        collected.add(item)
    digest = hashlib.sha256()
    for entry in sorted(collected.entries):
        digest.update(f"{entry}\0".encode())
    return digest.hexdigest()


class _Sources:
    """A collection of the source files and texts behind objects. Each of its ``entries`` is a name with a digest."""

    def __init__(self) -> None:
        self.entries: set[str] = set()
        self._objects: dict[int, Any] = {}  # by id, and kept alive so that no id is used twice
        self._modules: set[str] = set()

    def add(self, item: Any) -> None:
        """Add the code behind an object and behind all objects that it holds."""
        waiting = collections.deque([item])
        while waiting and len(self._objects) < _MOST_OBJECTS:
            item = waiting.popleft()
            if id(item) in self._objects:
                continue
            self._objects[id(item)] = item
            with contextlib.suppress(Exception):
                waiting.extend(value for value in self._visit(item) if not isinstance(value, _PLAIN))

    def _visit(self, item: Any) -> Iterator[Any]:
        """Add the code of one object, and yield the objects on which this object depends."""
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
        """Yield the global objects that a function uses, and add the plain values among them to the entries."""
        for name in sorted(_names_in(function.__code__)):
            if name in function.__globals__:
                value = function.__globals__[name]
                if isinstance(value, _PLAIN):
                    self.entries.add(f"{function.__module__}.{name}={value!r}")
                yield value

    def _text(self, item: Any, fallback: Callable[[], str]) -> None:
        """Add the source text of an object whose module has no file.

        If the object has no source text, add its compiled code.
        """
        try:
            text = inspect.getsource(item)
        except Exception:
            text = fallback()
        self.entries.add(f"{item.__module__}.{item.__qualname__}:{hashlib.sha256(text.encode()).hexdigest()}")

    def _module(self, name: str | None) -> bool:
        """Add a module and its imports. Return ``False`` if the objects of the module must be added one by one."""
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
                continue
            with contextlib.suppress(Exception):
                content = path.read_bytes()
                self.entries.add(f"{name}:{hashlib.sha256(content).hexdigest()}")
                waiting.extend(_imports(name, path, content))
        return True


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
    """Return the names of the packages around a module, from the outermost inwards, and then the module's own name."""
    parts = name.split(".")
    return [".".join(parts[:end]) for end in range(1, len(parts) + 1)]


def _files_of(names: Iterable[str], folder: Path) -> Iterator[tuple[str, Path]]:
    """Yield the name and the file of each module that has a file."""
    for name in names:
        path = _file_of(name, folder)
        if path is not None:
            yield name, path


def _root_of(module: str, path: Path) -> Path:
    """Return the folder from which a module is imported by its full name."""
    depth = module.count(".") + (path.name == "__init__.py")
    return path.parents[min(depth, len(path.parents) - 1)]


def _file_of(name: str, folder: Path | None = None) -> Path | None:
    """Return the file of a module without importing the module, or ``None`` if no file is found.

    ``folder`` is searched before the usual places.
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
    """Return the global names and attributes in a code object and in the code objects inside it."""
    inner = [_names_in(value) for value in code.co_consts if isinstance(value, types.CodeType)]
    return set(code.co_names).union(*inner)


def _code_text(code: types.CodeType) -> str:
    """Return a code object as text that is the same in every process."""

    def text(value: Any) -> str:
        if isinstance(value, types.CodeType):
            return _code_text(value)
        return repr(sorted(map(repr, value))) if isinstance(value, frozenset) else repr(value)

    return repr(
        [code.co_name, code.co_code, code.co_names, code.co_varnames, [text(value) for value in code.co_consts]]
    )


def _member_text(member: Any) -> str:
    """Return a member of a class as text. If the member is neither a function nor a plain value, the text is empty."""
    if isinstance(member, types.FunctionType):
        return _code_text(member.__code__)
    return repr(member) if isinstance(member, _PLAIN) else ""


def _file_digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
