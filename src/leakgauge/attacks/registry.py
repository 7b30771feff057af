"""The registry, which finds every attack by its name.

On first use, the registry imports each module of :mod:`leakgauge.attacks`. It collects the descriptions that the
modules declare as ``SPECS`` (or as ``SPEC`` for a single description). A new file in ``attacks/papers`` needs no other
registration.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Iterator, Mapping
from functools import cached_property
from importlib import import_module
from types import ModuleType
from typing import Any

from leakgauge.attacks.spec import AttackSpec, Reads, Recovers
from leakgauge.core.errors import InvalidInput, LeakgaugeError, UnknownName
from leakgauge.core.option_check import check_options

#: Folders that hold parts of attacks but no attacks.
PARTS = ("leakgauge.attacks.inversion",)


class Registry(Mapping[str, AttackSpec]):
    """A mapping from the name of each attack to its description, in alphabetical order.

    The descriptions are read on first use.
    """

    @cached_property
    def _specs(self) -> dict[str, AttackSpec]:
        specs: dict[str, AttackSpec] = {}
        for module in _modules("leakgauge.attacks"):
            for spec in _declared(module):
                if spec.name in specs:
                    raise InvalidInput(f"two attacks have the name {spec.name!r}; rename one (see {module.__name__})")
                specs[spec.name] = spec
        return dict(sorted(specs.items()))

    def __getitem__(self, name: str) -> AttackSpec:
        return self._specs[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._specs)

    def __len__(self) -> int:
        return len(self._specs)

    def __repr__(self) -> str:
        return f"Registry({list(self)})"


#: Every attack by the name that the command line and configuration files use.
ATTACKS: Mapping[str, AttackSpec] = Registry()


def specs(recovers: Recovers | None = None, reads: Reads | None = None) -> list[AttackSpec]:
    """Return the descriptions of attacks, cheapest first.

    Args:
        recovers: The private thing that the attacks recover, such as ``"samples"`` or ``"attribute"``. By default, all
            attacks are returned.
        reads: The messages that the attacks read, such as ``"update"`` for one message or ``"rounds"`` for many rounds.
            By default, all attacks are returned.
    """
    chosen = [spec for spec in ATTACKS.values() if recovers in (None, spec.recovers) and reads in (None, spec.reads)]
    return sorted(chosen, key=lambda spec: spec.order)


def build(name: str, **options: Any) -> Any:
    """Build the attack with the given name.

    Args:
        name: The name of the attack, one of :data:`ATTACKS`.
        options: The keyword arguments of the attack's factory.
    """
    if name not in ATTACKS:
        raise UnknownName("attack", name, ATTACKS)
    check_options(f"{name}()", ATTACKS[name].factory, options)
    return ATTACKS[name].factory(**options)


def _modules(package: str) -> Iterator[ModuleType]:
    """Import and yield every module below a package, except packages that hold only building blocks of attacks."""
    for module in pkgutil.iter_modules(import_module(package).__path__, f"{package}."):
        if module.name in PARTS:
            continue
        yield _imported(module.name)
        if module.ispkg:
            yield from _modules(module.name)


def _imported(name: str) -> ModuleType:
    """Import a module. If the import fails, raise an error that names the module."""
    try:
        return import_module(name)
    except ImportError as problem:
        raise LeakgaugeError(f"{name} cannot be imported: {problem}") from problem


def _declared(module: ModuleType) -> tuple[AttackSpec, ...]:
    single = getattr(module, "SPEC", None)
    return (*getattr(module, "SPECS", ()), *(() if single is None else (single,)))
