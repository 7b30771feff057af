"""Approximate and Weighted Attack (AWA; Song, Wang, Zuazua 2023)."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from leakgauge.attacks.base import Reconstruction
from leakgauge.attacks.inversion.attack import Inversion
from leakgauge.attacks.inversion.free_targets import values_of
from leakgauge.attacks.inversion.labels import LastLayer
from leakgauge.attacks.inversion.layer_weights import ByKind
from leakgauge.attacks.inversion.mixed_precision import in_precision
from leakgauge.attacks.inversion.objectives import L2, Distance, LayerWeighted
from leakgauge.attacks.inversion.optimisers import Adam, Constant, Drops
from leakgauge.attacks.inversion.search import Check, Range, Search, search
from leakgauge.attacks.inversion.settings import Effort, Matching, Space
from leakgauge.attacks.inversion.solve import Descent
from leakgauge.attacks.inversion.stopping import MaxSteps
from leakgauge.attacks.inversion.unknown_recipe import complete_recipe
from leakgauge.attacks.inversion.update_models import EpochInterpolation
from leakgauge.attacks.spec import AttackSpec, Cost, simulated
from leakgauge.core.container import Location
from leakgauge.core.errors import InvalidInput, UnknownName
from leakgauge.core.observation import Observation
from leakgauge.core.params import Params
from leakgauge.core.progress import Report
from leakgauge.core.seeding import generator, seeded
from leakgauge.runtime import Watch

#: The numbers of Q (equation 31), and the ranges that the paper searches (table 2).
RANGES: dict[str, tuple[float, float]] = {
    "q_cv": (1.0, 1000.0),
    "q_bn": (1.0, 1000.0),
    "q_fc": (1.0, 1000.0),
    "q_en": (1.0, 1000.0),
    "p_mean": (0.0, 0.5),
    "p_var": (0.0, 0.5),
}

#: The results of the paper's search for its four cases (table 3).
TABLE3: dict[str, dict[str, float]] = {
    "case1": {"q_cv": 519.19, "q_bn": 802.55, "q_fc": 42.83, "q_en": 946.44, "p_mean": 0.24, "p_var": 0.07},
    "case2": {"q_cv": 236.31, "q_bn": 552.31, "q_fc": 54.28, "q_en": 837.80, "p_mean": 0.11, "p_var": 0.13},
    "case3": {"q_cv": 547.17, "q_bn": 222.48, "q_fc": 394.39, "q_en": 899.47, "p_mean": 0.31, "p_var": 0.01},
    "case4": {"q_cv": 655.98, "q_bn": 692.94, "q_fc": 283.42, "q_en": 665.28, "p_mean": 0.40, "p_var": 0.33},
}


def awa(  # noqa: PLR0913
    *,
    Q: Mapping[str, float] | str = "case4",
    epoch: int = 1,
    lr: float = 0.1,
    steps: int = 1000,
    box: bool = False,
    drops: bool = False,
    mixed: bool = False,
    restarts: int = 1,
    snapshot_every: int | None = None,
) -> Inversion:
    r"""Return AWA, which simulates one epoch from interpolated weights (algorithm 2, RecAttack).

    .. math:: \arg\min_x \; \sum_l q^{(l)} \lVert \Delta\hat\theta^{(l)} - \Delta\tilde\theta_e^{(l)} \rVert^2
              \qquad (23)

    Here :math:`q^{(l)}` is the weight of layer :math:`l` in the loss, :math:`\Delta\hat\theta` the simulated update and
    :math:`\Delta\tilde\theta_e` the share of epoch :math:`e` in the observed update.

    The simulated update is matched layer by layer. Adam starts from N(0, 1). The weights :math:`q^{(l)}` change from
    step to step, so the losses of different steps cannot be compared. The attack therefore returns the last iterate.
    The attack uses the labels that it is given. If no labels are given, it estimates the labels from the last layer.

    Args:
        Q: The hyper-parameters that set the weights :math:`q^{(l)}`, as a mapping with ``q_cv``, ``q_bn``, ``q_fc``,
            ``q_en``, ``p_mean`` and ``p_var`` (equation 31). A value that is left out changes no weight. ``"case1"`` to
            ``"case4"`` are the results of the authors' search for ResNet18 (table 3).
            :func:`leakgauge.attacks.search_awa` finds values for other models.
        epoch: The attacked epoch, counted from 1, if the client trained for several epochs of several batches.
            Otherwise all steps are simulated.
        lr: The learning rate of Adam.
        steps: The number of steps.
        box: Whether pixels are clipped to [0, 1] after each step.
        drops: Whether the learning rate drops as in AGIC. This is our addition. It gave worse results in 1,000 steps on
            ResNet18.
        mixed: Whether convolutions and matrix products are computed in bfloat16
            (:class:`~leakgauge.attacks.inversion.mixed_precision.MixedPrecision`).
        restarts: The number of independent starting points.
        snapshot_every: The number of steps between two recorded iterates. By default, no iterates are recorded.
    """
    return Inversion(
        matching=Matching(LayerWeighted(L2(), weights_of(Q)), in_precision(EpochInterpolation(epoch), mixed)),
        labels=LastLayer(),
        space=Space(box=box),
        descent=Descent(
            Adam(lr=lr),
            Drops() if drops else Constant(),
            MaxSteps(steps),
            keep_last=True,
            snapshot_every=snapshot_every,
        ),
        effort=Effort(restarts),
    )


def weights_of(Q: Mapping[str, float] | str) -> ByKind:
    """Return the object that computes the weight of each network layer in the loss of :func:`awa`.

    Args:
        Q: The hyper-parameters of equations 24 to 31, as in :func:`awa`.
    """
    if isinstance(Q, str):
        if Q not in TABLE3:
            raise UnknownName("Q", Q, TABLE3)
        Q = TABLE3[Q]
    if not isinstance(Q, Mapping):
        raise InvalidInput(f"Q must be a mapping with some of {', '.join(RANGES)}, or one of {', '.join(TABLE3)}")
    for name in Q:
        if name not in RANGES:
            raise UnknownName("number of Q", name, RANGES)
    return ByKind(
        convolution=Q.get("q_cv", 1.0),
        normalisation=Q.get("q_bn", 1.0),
        linear=Q.get("q_fc", 1.0),
        enhanced=Q.get("q_en"),
        share_mean=Q.get("p_mean", 0.0),
        share_var=Q.get("p_var", 0.0),
    )


def search_awa(  # noqa: PLR0913
    observation: Observation,
    *,
    epoch: int = 1,
    lr: float = 0.1,
    steps: int = 1000,
    mixed: bool = False,
    trials: int = 50,
    random: int = 12,
    seed: int = 0,
    jobs: int = 1,
    path: Location | None = None,
    cut: bool = True,
    log: bool = False,
    watch: Watch | None = None,
) -> Search:
    r"""Search for the hyper-parameters Q with which :func:`awa` matches an update best (algorithm 2, lines 3 to 15).

    .. math:: Q^* = \arg\min_Q f(Q), \qquad f(Q) = \lVert \Delta\hat\theta^* - \Delta\tilde\theta_e \rVert^2
              \qquad (33, 34)

    Here :math:`\Delta\hat\theta^*` is the update of the reconstruction, and :math:`\Delta\tilde\theta_e` is the share
    of epoch :math:`e` in the observed update. Both are scaled to the sum of the client's gradients over all local
    steps. The search is Bayesian optimisation over the ranges of table 2. Every trial starts from the same random
    samples. To attack with the result, use ``awa(Q=result.best.numbers)``.

    Args:
        observation: The client's message (gradient or weights), as the server sees it.
        epoch: The attacked epoch, counted from 1, as in :func:`awa`.
        lr: The learning rate of Adam.
        steps: The number of steps of each trial.
        mixed: Whether convolutions and matrix products are computed in bfloat16.
        trials: The number of trials.
        random: The number of trials that are drawn at random before the guided trials.
        seed: The seed of all random draws.
        jobs: The number of trials that run at a time.
        path: A folder for the cache of finished trials. An interrupted search continues from this cache.
        cut: Whether trials with clearly worse intermediate distances than earlier trials are ended early.
        log: Whether the search models the logarithm of the objective f(Q). The paper models f(Q) itself.
        watch: The object that receives the progress of the trials, as in
            :func:`leakgauge.attacks.inversion.search.search`.
    """
    observation = complete_recipe(observation, generator(seed, "recipe"))
    trial = RecAttack(observation, awa(Q={}, epoch=epoch, lr=lr, steps=steps, mixed=mixed), seed)
    return search(
        trial,
        {name: Range(*limits) for name, limits in RANGES.items()},
        trials=trials,
        random=random,
        seed=seed,
        jobs=jobs,
        path=path,
        about=f"{trial.attack!r} on {_digest(observation)}",
        cut=cut,
        log=log,
        watch=watch,
    )


@dataclass(frozen=True, eq=False)
class RecAttack:
    """AWA's attack (RecAttack, algorithm 2) as a function of its hyper-parameters Q, for the search over Q.

    Args:
        observation: The client's message, with all training settings known or estimated.
        attack: The attack. Each call replaces the weights of the layers in the attack's loss.
        seed: The seed of all random draws. All calls start from the same random samples.
    """

    observation: Observation
    attack: Inversion
    seed: int = 0

    def __call__(self, numbers: Mapping[str, float], check: Check, report: Report) -> float:
        """Run the attack with hyper-parameters Q, and return the final distance f(Q) of the updates (equation 33).

        Args:
            numbers: The hyper-parameters Q, as a dictionary from names to values.
            check: A function that gets f(Q) at each tenth of the steps and may stop the trial.
            report: A function ``report(step, total, loss)`` that shows progress.
        """
        return self.attempt(numbers, check, report)[1]

    def attempt(self, numbers: Mapping[str, float], check: Check, report: Report) -> tuple[Reconstruction, float]:
        """Run the attack with hyper-parameters Q. Return the reconstruction and the final distance f(Q) (equation 33).

        Args:
            numbers: The hyper-parameters Q, as a dictionary from names to values.
            check: A function that gets f(Q) at each tenth of the steps and may stop the trial.
            report: A function ``report(step, total, loss)`` that shows progress.
        """
        objective = _Recorded(LayerWeighted(L2(), weights_of(numbers)))
        attack = self.attack.with_settings(objective=objective)
        every = max(1, (attack.descent.steps or 1) // 10)

        def checked(step: int, total: int | None, loss: float) -> None:
            report(step, total, loss)
            if step % every == 0:
                check(step, objective.value)

        with seeded(self.seed, "attack"):
            targets = attack.targets(self.observation, generator(self.seed, "labels"))
            solution, copies = attack.optimise(self.observation, targets, self.seed, checked)
        if solution.outcome.kind == "interrupted":
            raise KeyboardInterrupt
        client = attack.client(self.observation, targets)
        extra = {name: solution.variables[name] for name in client.extra}
        update = client(solution.variables["inputs"], values_of(targets), **extra)
        unexplained = L2()(update, self.observation.summed_gradient()).item()
        return attack.reconstruction(self.observation, solution, copies, targets), unexplained


class _Recorded:
    """A weighted objective that also records the unweighted distance at the latest step."""

    scale_free = False

    def __init__(self, weighted: LayerWeighted) -> None:
        self.weighted, self.value = weighted, float("nan")

    def begin(self, model: nn.Module) -> Distance:
        distance = self.weighted.begin(model)

        def recorded(predicted: Params, observed: Params) -> Tensor:
            with torch.no_grad():
                self.value = float(L2()(predicted, observed))
            return distance(predicted, observed)

        return recorded


def _digest(observation: Observation) -> str:
    """Return a short hash of an observed update."""
    digest = hashlib.sha256()
    for name, value in observation.difference().items():
        digest.update(name.encode())
        digest.update(value.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()[:16]


SPECS = (
    AttackSpec(
        name="awa",
        factory=awa,
        summary="AWA (Song, Wang, Zuazua 2023): one epoch by interpolation, layers weighted by kind.",
        fits=simulated("one epoch by interpolation, layers weighted"),
        cost=Cost.MINUTES,
        rank=2,
    ),
)
