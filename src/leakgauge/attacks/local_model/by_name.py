"""The function that builds an attack by the attack's name. The attack rebuilds a client's local model."""

from __future__ import annotations

from typing import Any

from leakgauge.attacks import registry
from leakgauge.attacks.local_model.base import LocalModelAttack
from leakgauge.core.errors import UnknownName


def build(name: str, **options: Any) -> LocalModelAttack:
    """Build the attack with the given name, which rebuilds a client's local model.

    Args:
        name: The name of the attack. ``lmra`` is the recommended attack.
        options: The settings of the attack. They are the fields of the attack's class.
    """
    names = [spec.name for spec in registry.specs(recovers="model")]
    if name not in names:
        raise UnknownName("attack on a local model called", name, names)
    attack: LocalModelAttack = registry.build(name, **options)
    return attack
