"""A function that imports all modules of a package. Registries use it to collect the objects of these modules."""

from __future__ import annotations

import pkgutil
from collections.abc import Iterator
from importlib import import_module
from types import ModuleType


def modules_of(package: str, *, without: str) -> Iterator[ModuleType]:
    """Import and yield the modules of a package, sorted by name.

    Args:
        package: The full name of the package. Its subpackages are left out.
        without: The full name of one module that is left out. A registry passes its own name here.
    """
    for module in pkgutil.iter_modules(import_module(package).__path__, f"{package}."):
        if module.name != without and not module.ispkg:
            yield import_module(module.name)
