"""Data Leakage in Federated Averaging (Dimitrov, Balunović, Konstantinov, Vechev, TMLR 2022)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, get_args

from leakgauge.attacks.inversion.attack import Inversion, WarmStart
from leakgauge.attacks.inversion.labels import LastLayer
from leakgauge.attacks.inversion.objectives import L2, Cosine
from leakgauge.attacks.inversion.optimisers import Adam, Constant, Decay, Ramp
from leakgauge.attacks.inversion.priors import (
    Distance,
    EpochAgreement,
    EpochOrderInvariant,
    PixelRange,
    Prior,
    SquaredVariation,
    Summary,
    TotalVariation,
)
from leakgauge.attacks.inversion.refined_labels import RefinedLabels
from leakgauge.attacks.inversion.stopping import MaxSteps
from leakgauge.attacks.inversion.update_models import FullSimulation, OneBatch, Surrogate, UpdateModel
from leakgauge.attacks.spec import AttackSpec, Cost, local_training
from leakgauge.core.errors import UnknownName

Method = Literal["prior", "no-prior", "shared", "fedsgd-epoch", "fedsgd"]


@dataclass(frozen=True)
class Preset:
    """The settings that the authors chose for one dataset (their code; appendix A), and below them :func:`dlf`'s."""

    lr: float
    decay: Decay
    match_weight: Ramp
    variation: float
    pixel_range: float
    summary: Summary
    invariance: float

    fast_lr: float
    relative_weight: float
    agreement: float
    noise: float


PRESETS: dict[str, Preset] = {
    "femnist": Preset(0.4, Decay(0.995, 10), Ramp(1, 2), 0.001, 2, "mean", 1000, 0.3, 200, 0.05, 0.3),
    "cifar100": Preset(0.1, Decay(0.997, 20), Ramp(4, 2), 0.0002, 10, "conv+max", 6.075, 0.1, 200, 0.02, 0.2),
}

_UPDATE_MODELS: dict[str, UpdateModel] = {
    "prior": FullSimulation(per_epoch=True),
    "no-prior": FullSimulation(per_epoch=True),
    "shared": FullSimulation(),
    "fedsgd-epoch": FullSimulation(one_batch=True),
    "fedsgd": OneBatch(),
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
    label_steps: int = 40,
    restarts: int = 1,
) -> Inversion:
    """DLF beyond the paper: better reconstructions, in a fraction of :func:`dlf_paper`'s time.

    It differs in four things. A surrogate's reconstruction, whose ``warm_steps`` cost as much as a few simulated
    ones, is where the simulation starts. Each epoch is simulated in a random order of its own, not all in the same
    one. The copies of a sample in different epochs are held together one by one (:class:`EpochAgreement`), where
    the paper's prior compares only sums over all of them. Label counts that are not granted are corrected by a
    first reconstruction of ``label_steps`` steps (:class:`RefinedLabels`).

    The matching loss is relative to the size of the update, so that the weights of the priors do not depend on the
    network; ``preset`` has them for grey handwriting (``"femnist"``) and for colour pictures (``"cifar100"``).
    """
    chosen = _preset(preset)
    return Inversion(
        objective=L2(decay=math.exp(-1), relative=True),
        update_model=FullSimulation(per_epoch=True, new_orders=True),
        labels=RefinedLabels(surrogate(steps=label_steps)),
        priors=(
            SquaredVariation(chosen.variation),
            PixelRange(chosen.pixel_range),
            EpochAgreement(chosen.agreement),
        ),
        optimiser=Adam(lr=chosen.fast_lr if lr is None else lr, betas=(0.9, 0.99)),
        stop=MaxSteps(steps),
        start=WarmStart(surrogate(steps=warm_steps), chosen.noise),
        match_weight=Constant(chosen.relative_weight),
        box=False,
        keep_last=True,
        rescale=True,
        restarts=restarts,
    )


def _preset(name: str) -> Preset:
    if name not in PRESETS:
        raise UnknownName("preset of DLF", name, PRESETS)
    return PRESETS[name]


SPECS = (
    AttackSpec(
        name="surrogate",
        factory=surrogate,
        summary="SME (Zhu et al. 2023): one gradient at a learned point between the two weights.",
        fits=local_training("one gradient between the two weights: quick, and rough"),
        cost=Cost.SECONDS,
        rank=3,
        audit={"steps": 300},
    ),
    AttackSpec(
        name="dlf",
        factory=dlf,
        summary="DLF (Dimitrov et al. 2022) beyond the paper: simulated local training from a warm start.",
        fits=local_training("simulates the local training"),
        cost=Cost.MINUTES,
        rank=6,
        audit={},
    ),
    AttackSpec(
        name="dlf_paper",
        factory=dlf_paper,
        summary="DLF as published (Dimitrov et al. 2022): simulated local training with an order-invariant prior.",
        fits=local_training("simulates the local training, as published"),
        cost=Cost.MINUTES,
        rank=7,
    ),
)
