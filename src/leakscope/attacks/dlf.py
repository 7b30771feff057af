"""Data Leakage in Federated Averaging (Dimitrov, Balunović, Konstantinov, Vechev, TMLR 2022)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, get_args

from leakscope.attacks.inversion import Inversion, WarmStart
from leakscope.errors import UnknownName
from leakscope.inversion.labels import LastLayer
from leakscope.inversion.objectives import L2, Cosine
from leakscope.inversion.optimisers import Adam, Decay, Ramp
from leakscope.inversion.priors import (
    Distance,
    EpochOrderInvariant,
    PixelRange,
    Prior,
    SquaredVariation,
    Summary,
    TotalVariation,
)
from leakscope.inversion.stopping import MaxSteps
from leakscope.inversion.update_models import FullSimulation, SingleStep, Surrogate, UpdateModel

Method = Literal["prior", "no-prior", "shared", "fedsgd-epoch", "fedsgd"]


@dataclass(frozen=True)
class Preset:
    """The settings that the authors chose for one dataset (their code; appendix A)."""

    lr: float
    decay: Decay
    match_weight: Ramp
    variation: float
    pixel_range: float
    summary: Summary
    invariance: float


PRESETS: dict[str, Preset] = {
    "femnist": Preset(0.4, Decay(0.995, 10), Ramp(1, 2), 0.001, 2, "mean", 1000),
    "cifar100": Preset(0.1, Decay(0.997, 20), Ramp(4, 2), 0.0002, 10, "conv+max", 6.075),
}

_UPDATE_MODELS: dict[str, UpdateModel] = {
    "prior": FullSimulation(per_epoch=True),
    "no-prior": FullSimulation(per_epoch=True),
    "shared": FullSimulation(),
    "fedsgd-epoch": FullSimulation(one_batch=True),
    "fedsgd": SingleStep(),
}


def dlf_paper(
    *,
    preset: str = "femnist",
    method: Method = "prior",
    loss: Literal["l2", "cosine"] = "l2",
    summary: Summary | None = None,
    distance: Distance = "l2",
    invariance: float | None = None,
    lr: float | None = None,
    steps: int = 400,
    restarts: int = 1,
) -> Inversion:
    r"""The attack as published (algorithm 2): simulate the client's epochs on variables of their own,

    .. math:: \tilde x = \arg\min \; w_t\,\mathcal L_{sim}(\nabla\bar\theta, \nabla\tilde\theta(\tilde x))
              + \lambda_{inv}\mathcal L_{inv}(\tilde x) + \lambda_{tv}\mathrm{TV} + \lambda_{clip}\mathrm{Clip},

    then match the epochs' reconstructions and average them. ``preset`` has the authors' weights for their two
    datasets: ``"femnist"`` for grey handwriting, ``"cifar100"`` for colour pictures. ``method`` is one of the
    columns of their tables: ``"prior"`` (theirs), ``"no-prior"``, ``"shared"`` (Geiping et al.: the same
    variables in every epoch), ``"fedsgd-epoch"`` (one batch an epoch), ``"fedsgd"`` (one gradient). The text
    has the cosine for :math:`\mathcal L_{sim}`, the code layer-weighted squared distances: ``loss`` has both.
    ``summary``, ``distance`` and ``invariance`` replace the order-invariant prior's (section 5.4). Label counts
    are the granted ones, or estimated by interpolation (section 4.5); their batches are drawn at random.
    """
    chosen = _preset(preset)
    if method not in get_args(Method):
        raise UnknownName("method of dlf_paper()", method, get_args(Method))
    if loss not in ("l2", "cosine"):
        raise UnknownName("loss of dlf_paper()", loss, ("l2", "cosine"))
    weight = chosen.invariance if invariance is None else invariance
    invariant = EpochOrderInvariant(weight, summary or chosen.summary, distance)
    priors: tuple[Prior, ...] = (SquaredVariation(chosen.variation), PixelRange(chosen.pixel_range))
    return Inversion(
        objective=L2(decay=math.exp(-1)) if loss == "l2" else Cosine(),
        update_model=_UPDATE_MODELS[method],
        labels=LastLayer(at="interpolated", dummies=3000, shuffle=True),
        priors=(*priors, invariant) if method == "prior" else priors,
        optimiser=Adam(lr=chosen.lr if lr is None else lr),
        schedule=chosen.decay,
        stop=MaxSteps(steps),
        match_weight=chosen.match_weight,
        per_batch=True,
        box=False,
        keep_last=True,
        rescale=True,
        restarts=restarts,
    )


def surrogate(*, tv: float = 0.003, lr: float = 0.2, steps: int = 100, restarts: int = 1) -> Inversion:
    """One gradient at a learned point between the two weights (SME, Zhu et al., ICML 2023), matched in direction.

    Many local epochs at the cost of one step each; the defaults are those that served best as a start for
    :func:`dlf` (the paper's own: 1,000 steps at lr 1 with a total variation of 0.01).
    """
    return Inversion(
        objective=Cosine(),
        update_model=Surrogate(),
        labels=LastLayer(at="interpolated", dummies=3000, shuffle=True),
        priors=(TotalVariation(tv),),
        optimiser=Adam(lr=lr, rates=(("position", 0.001),)),
        stop=MaxSteps(steps),
        rescale=True,
        restarts=restarts,
    )


def dlf(
    *,
    preset: str = "femnist",
    lr: float | None = None,
    steps: int = 80,
    warm_steps: int = 100,
    noise: float = 0.3,
    restarts: int = 1,
) -> Inversion:
    """:func:`dlf_paper` in a fraction of its time: a surrogate's reconstruction is where the simulation starts.

    ``warm_steps`` steps of :func:`surrogate` cost about as much as a few simulated ones, and leave ``steps``
    simulated ones to do what 400 do from noise.
    """
    chosen = _preset(preset)
    return Inversion(
        objective=L2(decay=math.exp(-1)),
        update_model=FullSimulation(per_epoch=True),
        labels=LastLayer(at="interpolated", dummies=3000, shuffle=True),
        priors=(
            SquaredVariation(chosen.variation),
            PixelRange(chosen.pixel_range),
            EpochOrderInvariant(chosen.invariance, chosen.summary),
        ),
        optimiser=Adam(lr=0.75 * chosen.lr if lr is None else lr, betas=(0.9, 0.99)),
        stop=MaxSteps(steps),
        start=WarmStart(surrogate(steps=warm_steps), noise),
        match_weight=Ramp(4, 4),
        per_batch=True,
        box=False,
        keep_last=True,
        rescale=True,
        restarts=restarts,
    )


def _preset(name: str) -> Preset:
    if name not in PRESETS:
        raise UnknownName("preset of DLF", name, PRESETS)
    return PRESETS[name]
