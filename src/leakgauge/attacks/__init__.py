"""The attacks by name: one paper a file, each a composition of the parts in :mod:`leakgauge.attacks.inversion`."""

from __future__ import annotations

from typing import Any

from leakgauge.attacks.base import Attack, Factory, Reconstruction
from leakgauge.attacks.inversion.attack import Inversion, WarmStart
from leakgauge.attacks.inversion.joint import JointInversion, JointReconstruction
from leakgauge.attacks.papers.agic import agic, agic_epochs, dlg_simulation, invg_simulation
from leakgauge.attacks.papers.awa import awa, search_awa
from leakgauge.attacks.papers.dlf import dlf, dlf_paper, surrogate
from leakgauge.attacks.papers.dlg import dlg
from leakgauge.attacks.papers.epafl import epafl
from leakgauge.attacks.papers.idlg import idlg
from leakgauge.attacks.papers.inverting_gradients import inverting_gradients
from leakgauge.core.errors import InvalidInput, UnknownName

#: Every attack by the name that the command line and configuration files use.
ATTACKS: dict[str, Factory] = {
    "agic": agic,
    "awa": awa,
    "dlf": dlf,
    "dlf_paper": dlf_paper,
    "dlg": dlg,
    "dlg_simulation": dlg_simulation,
    "epafl": epafl,
    "idlg": idlg,
    "inverting_gradients": inverting_gradients,
    "invg_simulation": invg_simulation,
    "surrogate": surrogate,
}


def build(name: str, **options: Any) -> Attack:
    """Make an attack by name; options are the keyword arguments of its factory."""
    if name not in ATTACKS:
        raise UnknownName("attack", name, ATTACKS)
    valid = ATTACKS[name].__kwdefaults__ or {}
    for option in options:
        if option not in valid:
            raise UnknownName(f"option of {name}()", option, valid)
    try:
        return ATTACKS[name](**options)
    except TypeError as problem:
        raise InvalidInput(f"{name}() does not take these options: {problem}") from problem


__all__ = [
    "ATTACKS",
    "Attack",
    "Inversion",
    "JointInversion",
    "JointReconstruction",
    "Reconstruction",
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
    "search_awa",
    "surrogate",
]
