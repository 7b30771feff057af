"""The attacks of this package, many of which combine the parts in :mod:`leakgauge.attacks.inversion`.

Every attack that has a description (:class:`AttackSpec`) can be imported from this package by its name.
"""

from __future__ import annotations

import pkgutil
from importlib import import_module
from typing import Any

from leakgauge.attacks.base import Attack, Reconstruction
from leakgauge.attacks.inversion.attack import Inversion
from leakgauge.attacks.inversion.joint import JointInversion, JointReconstruction
from leakgauge.attacks.inversion.settings import Effort, Matching, Space, WarmStart
from leakgauge.attacks.inversion.solve import Descent
from leakgauge.attacks.papers.agic import agic, agic_epochs, dlg_simulation, invg_simulation
from leakgauge.attacks.papers.awa import awa, search_awa
from leakgauge.attacks.papers.dlf import dlf, dlf_paper, surrogate
from leakgauge.attacks.papers.dlg import dlg
from leakgauge.attacks.papers.epafl import epafl
from leakgauge.attacks.papers.idlg import idlg
from leakgauge.attacks.papers.inverting_gradients import inverting_gradients
from leakgauge.attacks.papers.lbfgs_simulation import lbfgs_simulation
from leakgauge.attacks.registry import ATTACKS, build, specs
from leakgauge.attacks.spec import AttackSpec, Cost, Fit

__all__ = [
    "ATTACKS",
    "Attack",
    "AttackSpec",
    "Cost",
    "Descent",
    "Effort",
    "Fit",
    "Inversion",
    "JointInversion",
    "JointReconstruction",
    "Matching",
    "Reconstruction",
    "Space",
    "WarmStart",
    "agic",
    "agic_epochs",
    "awa",
    "build",
    "dlf",
    "dlf_paper",
    "dlg",
    "dlg_simulation",
    "epafl",
    "idlg",
    "inverting_gradients",
    "invg_simulation",
    "lbfgs_simulation",
    "search_awa",
    "specs",
    "surrogate",
]


def __getattr__(name: str) -> Any:
    """Return the module or the attack factory with this name."""
    if any(module.name == name for module in pkgutil.iter_modules(__path__)):
        return import_module(f"{__name__}.{name}")
    if not name.startswith("_") and name in ATTACKS:
        return ATTACKS[name].factory
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
