"""The attacks on a local model by name."""

from __future__ import annotations

from typing import Any

from leakgauge.attacks import registry
from leakgauge.attacks.local_model.base import LocalModelAttack
from leakgauge.core.errors import UnknownName


def build(name: str, **options: Any) -> LocalModelAttack:
    """Return an attack on a local model by name.

    Args:
        name: The name of the attack. ``lmra`` is the recommended attack.
        options: The settings of the attack. They are the fields of the attack's class.
    """
    names = [spec.name for spec in registry.specs(recovers="model")]
    if name not in names:
        raise UnknownName("attack on a local model called", name, names)
    attack: LocalModelAttack = registry.build(name, **options)
    return attack
