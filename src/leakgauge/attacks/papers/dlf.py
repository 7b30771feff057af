"""Data Leakage in Federated Averaging (Dimitrov, Balunović, Konstantinov, Vechev, TMLR 2022)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, get_args

from leakgauge.attacks.inversion.attack import Inversion
from leakgauge.attacks.inversion.labels import LastLayer
from leakgauge.attacks.inversion.objectives import L2, Cosine, Logarithmic
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
from leakgauge.attacks.inversion.settings import Effort, Matching, Space, WarmStart
from leakgauge.attacks.inversion.solve import Descent
from leakgauge.attacks.inversion.stopping import MaxSteps
from leakgauge.attacks.inversion.update_models import FullSimulation, OneBatch, Surrogate, UpdateModel
from leakgauge.attacks.spec import AttackSpec, Cost, local_training
from leakgauge.core.errors import UnknownName

Method = Literal["prior", "no-prior", "shared", "fedsgd-epoch", "fedsgd"]


@dataclass(frozen=True)
class Preset:
    """The settings of :func:`dlf_paper` and :func:`dlf` for one dataset.

    The settings of :func:`dlf_paper` are those of the authors (their code and appendix A).

    Args:
        lr: The learning rate of :func:`dlf_paper`.
        decay: The decay of the learning rate of :func:`dlf_paper`.
        match_weight: The weight of the distance between the updates in :func:`dlf_paper`, which changes from step to
            step.
        variation: The weight of the prior on differences of neighbouring pixels, in both attacks.
        pixel_range: The weight of the prior that keeps pixels in their range, in both attacks.
        summary: The summary of an epoch's samples in the order-invariant prior, such as the mean.
        invariance: The weight of the order-invariant prior.
        fast_lr: The learning rate of :func:`dlf`.
        relative_weight: The weight of the relative distance between the updates in :func:`dlf`.
        agreement: The weight of the prior :class:`EpochAgreement` in :func:`dlf`.
        noise: The standard deviation of the noise that :func:`dlf` adds to its starting point, the result of another
            inversion.
    """

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

#: The settings of :func:`dlf`, in units of a quarter of the pixels' range.
MATCH, VARIATION, RANGE, AGREEMENT, NOISE, RATE = 20.0, 0.002, 4.0, 0.1, 0.2, 0.15

_UPDATE_MODELS: dict[str, UpdateModel] = {
    "prior": FullSimulation(per_epoch=True),
    "no-prior": FullSimulation(per_epoch=True),
    "shared": FullSimulation(),
    "fedsgd-epoch": FullSimulation(one_batch=True),
    "fedsgd": OneBatch(),
}


def dlf_paper(  # noqa: PLR0913
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
    r"""Return DLF as published, which optimises separate samples for each local epoch (algorithm 2).

    .. math:: \tilde x = \arg\min \; w_t\,\mathcal L_{sim}(\nabla\bar\theta, \nabla\tilde\theta(\tilde x))
              + \lambda_{inv}\mathcal L_{inv}(\tilde x) + \lambda_{tv}\mathrm{TV} + \lambda_{clip}\mathrm{Clip}

    The first term is the distance between the observed and the simulated update. The second term, the order-invariant
    prior, is the distance between summaries of the epochs, such as the means of their samples. The last two terms are
    total variation and a penalty for pixels outside their range. The weight :math:`w_t` changes from step to step.
    Finally, the samples of the epochs are matched and averaged. The attack uses the label counts that it is given. If
    no counts are given, it estimates the counts by interpolation (section 4.5). The labels are divided into batches at
    random.

    Args:
        preset: The authors' weights for one of their datasets. ``"femnist"`` is for grey handwriting, and
            ``"cifar100"`` is for colour pictures.
        method: A column of the authors' tables. ``"prior"`` is their attack. ``"no-prior"`` is their attack without the
            order-invariant prior. ``"shared"`` uses the same dummy samples in every epoch (Geiping et al.).
            ``"fedsgd-epoch"`` simulates one batch of all samples in each epoch. ``"fedsgd"`` treats the whole update as
            one gradient.
        loss: The matching loss. The text of the paper uses ``"cosine"``. The authors' code uses ``"l2"``, the squared
            distance with weighted layers.
        summary: The summary of an epoch in the order-invariant prior (section 5.4). By default, the value of the
            preset.
        distance: The distance between the summaries of epochs (section 5.4).
        invariance: The weight of the order-invariant prior. By default, the value of the preset.
        lr: The learning rate of Adam. By default, the value of the preset.
        steps: The number of steps.
        restarts: The number of independent starting points.
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
        matching=Matching(
            L2(decay=math.exp(-1)) if loss == "l2" else Cosine(),
            _UPDATE_MODELS[method],
            chosen.match_weight,
            per_batch=True,
        ),
        labels=LastLayer(at="interpolated", dummies=3000, shuffle=True),
        priors=(*priors, invariant) if method == "prior" else priors,
        space=Space(box=False, rescale=True),
        descent=Descent(Adam(lr=chosen.lr if lr is None else lr), chosen.decay, MaxSteps(steps), keep_last=True),
        effort=Effort(restarts),
    )


def surrogate(*, tv: float = 0.003, lr: float = 0.2, steps: int = 100, restarts: int = 1) -> Inversion:
    """Return SME, which compares the update with a single gradient (Surrogate Model Extension, Zhu et al., ICML 2023).

    The gradient is computed at a point between the sent and the returned weights. This point is optimised together with
    the samples. Only the directions of update and gradient are compared.

    A step costs one gradient, whatever the number of the client's local epochs. The defaults are the settings that we
    found to give the best start for :func:`dlf`. The settings of the SME paper are 1,000 steps at a learning rate of 1
    with a weight of 0.01 for total variation.

    Args:
        tv: The weight of the total-variation prior.
        lr: The learning rate of Adam.
        steps: The number of steps.
        restarts: The number of independent starting points.
    """
    return Inversion(
        matching=Matching(Cosine(), Surrogate()),
        labels=LastLayer(at="interpolated", shuffle=True),
        priors=(TotalVariation(tv),),
        space=Space(rescale=True),
        descent=Descent(Adam(lr=lr, rates=(("position", 0.001),)), stop=MaxSteps(steps)),
        effort=Effort(restarts),
    )


def dlf(
    *,
    preset: str | None = None,
    lr: float | None = None,
    steps: int = 80,
    warm_steps: int = 100,
    label_steps: int = 40,
    restarts: int = 1,
) -> Inversion:
    r"""Return an improved DLF, which reconstructs samples better than :func:`dlf_paper` in a fraction of the time.

    The attack differs from the paper in six ways. First, the simulation starts from the reconstruction of
    :func:`surrogate`, which costs as much as a few steps of the attack with simulation. If the result has a higher loss
    than this start, the start is returned. Second, each epoch is simulated in its own random order, instead of one
    order for all epochs. Third, a prior pulls the copies of each sample in different epochs together
    (:class:`EpochAgreement`). The paper's prior compares only sums over all samples. Fourth, estimated label counts are
    corrected by a first reconstruction (:class:`RefinedLabels`).

    Fifth, all layers have the same weight. The authors' code gives layer :math:`l` the weight :math:`e^{-l}`. In deep
    networks, almost only the first layers are then matched. Sixth, no weight depends on a dataset. The loss is the
    logarithm of the relative distance of the updates (:class:`~leakgauge.attacks.inversion.objectives.Logarithmic`). As
    the distance gets smaller, the match of the updates gets more weight than the priors. Pixels are optimised in units
    of a quarter of their range.

    Args:
        preset: ``"femnist"`` or ``"cifar100"``. The attack then uses the fixed weights that earlier versions had for
            this dataset. By default, no weight depends on a dataset, as described above.
        lr: The learning rate of Adam. By default, the value of the preset, or 0.15.
        steps: The number of steps of the attack. Each of these steps simulates the local training.
        warm_steps: The number of steps of the surrogate at the start.
        label_steps: The number of steps of the reconstruction that corrects the label counts.
        restarts: The number of independent starting points.
    """
    warm = surrogate(steps=warm_steps)
    attack = Inversion(
        matching=Matching(
            Logarithmic(L2(relative=True)),
            FullSimulation(per_epoch=True, new_orders=True),
            Constant(MATCH),
        ),
        labels=RefinedLabels(surrogate(steps=label_steps)),
        priors=(SquaredVariation(VARIATION), PixelRange(RANGE), EpochAgreement(AGREEMENT)),
        space=Space(WarmStart(warm, NOISE), box=False, common_units=True),
        descent=Descent(Adam(lr=RATE if lr is None else lr, betas=(0.9, 0.99)), stop=MaxSteps(steps)),
        effort=Effort(restarts),
    )
    return attack if preset is None else _with_preset(attack, _preset(preset), warm, lr)


def _with_preset(attack: Inversion, chosen: Preset, warm: Inversion, lr: float | None) -> Inversion:
    """Return a version of the attack :func:`dlf` with the fixed weights of one dataset's preset."""
    return attack.with_settings(
        matching=Matching(
            L2(decay=math.exp(-1), relative=True), attack.matching.update_model, Constant(chosen.relative_weight)
        ),
        priors=(
            SquaredVariation(chosen.variation),
            PixelRange(chosen.pixel_range),
            EpochAgreement(chosen.agreement),
        ),
        space=Space(WarmStart(warm, chosen.noise), box=False, rescale=True),
        optimiser=Adam(lr=chosen.fast_lr if lr is None else lr, betas=(0.9, 0.99)),
        keep_last=True,
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
