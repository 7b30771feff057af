"""Approximate and Weighted Attack (AWA; Song, Wang, Zuazua 2023)."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from leakgauge.attacks.base import Reconstruction
from leakgauge.attacks.inversion.attack import Inversion
from leakgauge.attacks.inversion.labels import LastLayer
from leakgauge.attacks.inversion.layer_weights import ByKind
from leakgauge.attacks.inversion.objectives import L2, Distance, LayerWeighted
from leakgauge.attacks.inversion.optimisers import Adam, Constant, Drops
from leakgauge.attacks.inversion.search import Check, Range, Search, search
from leakgauge.attacks.inversion.stopping import MaxSteps
from leakgauge.attacks.inversion.unknown_recipe import complete_recipe
from leakgauge.attacks.inversion.update_models import EpochInterpolation, in_precision
from leakgauge.attacks.spec import AttackSpec, Cost, always
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

#: What the paper's search found for its four cases (table 3).
TABLE3: dict[str, dict[str, float]] = {
    "case1": {"q_cv": 519.19, "q_bn": 802.55, "q_fc": 42.83, "q_en": 946.44, "p_mean": 0.24, "p_var": 0.07},
    "case2": {"q_cv": 236.31, "q_bn": 552.31, "q_fc": 54.28, "q_en": 837.80, "p_mean": 0.11, "p_var": 0.13},
    "case3": {"q_cv": 547.17, "q_bn": 222.48, "q_fc": 394.39, "q_en": 899.47, "p_mean": 0.31, "p_var": 0.01},
    "case4": {"q_cv": 655.98, "q_bn": 692.94, "q_fc": 283.42, "q_en": 665.28, "p_mean": 0.40, "p_var": 0.33},
}


def awa(
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
    r"""One epoch of the client by interpolation, its update matched layer by layer (algorithm 2, RecAttack):

    .. math:: \arg\min_x \; \sum_l q^{(l)} \lVert \Delta\hat\theta^{(l)} - \Delta\tilde\theta_e^{(l)} \rVert^2
              \qquad (23)

    by Adam from N(0, 1). The last iterate is returned: losses of different steps, whose weights differ, do not compare.
    ``Q`` gives the weights: a mapping with ``q_cv``, ``q_bn``, ``q_fc``, ``q_en``, ``p_mean``
    and ``p_var`` (equation 31; what is left out weights nothing), or ``"case1"`` to ``"case4"``, which the authors'
    search found for ResNet18 (table 3). To search for your own: :func:`leakgauge.attacks.search_awa`. ``epoch`` is the
    one that is attacked, where the client took several of several batches; otherwise all steps are simulated. ``drops``
    (ours) lets the learning rate fall as AGIC does; in 1,000 steps on ResNet18 that was worse. ``mixed`` takes
    products in bfloat16 (:class:`~leakgauge.attacks.inversion.update_models.MixedPrecision`). Labels are the granted ones, or
    estimated from the last layer.
    """
    return Inversion(
        objective=LayerWeighted(L2(), weights_of(Q)),
        update_model=in_precision(EpochInterpolation(epoch), mixed),
        labels=LastLayer(),
        optimiser=Adam(lr=lr),
        schedule=Drops() if drops else Constant(),
        stop=MaxSteps(steps),
        box=box,
        restarts=restarts,
        keep_last=True,
        snapshot_every=snapshot_every,
    )


def weights_of(Q: Mapping[str, float] | str) -> ByKind:
    """The layer weights that Q stands for (equations 24 to 31)."""
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


def search_awa(
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
    r"""Find the Q for which :func:`awa` explains an update best (algorithm 2, lines 3 to 15):

    .. math:: Q^* = \arg\min_Q f(Q), \qquad f(Q) = \lVert \Delta\hat\theta^* - \Delta\tilde\theta_e \rVert^2
              \qquad (33, 34)

    in units of the summed gradient, by Bayesian optimisation over the ranges of table 2. Every trial starts from the
    same noise. With ``path`` a search that was interrupted goes on where it ended; ``jobs`` trials run at a time. The
    attack itself is then ``awa(Q=found.best.numbers)``. For the other arguments see
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
    """RecAttack of algorithm 2: ``attack`` with other weights, always from the same start."""

    observation: Observation
    attack: Inversion
    seed: int = 0

    def __call__(self, numbers: Mapping[str, float], check: Check, report: Report) -> float:
        """f(Q) for these numbers (33); on the way it is told to ``check`` at each tenth of the steps."""
        return self.attempt(numbers, check, report)[1]

    def attempt(self, numbers: Mapping[str, float], check: Check, report: Report) -> tuple[Reconstruction, float]:
        """The reconstruction with these numbers, and f(Q)."""
        noted = _Noted(LayerWeighted(L2(), weights_of(numbers)))
        attack = replace(self.attack, objective=noted)
        every = max(1, (attack.stop.max_steps or 1) // 10)

        def checked(step: int, total: int | None, loss: float) -> None:
            report(step, total, loss)
            if step % every == 0:
                check(step, noted.value)

        with seeded(self.seed, "attack"):
            targets = attack.labels(self.observation, generator(self.seed, "labels")).to(self.observation.device)
            solution, copies = attack.optimise(self.observation, targets, self.seed, checked)
        if solution.outcome.kind == "interrupted":
            raise KeyboardInterrupt
        client = attack.update_model.begin(self.observation, functional=False)
        found = client(solution.variables["inputs"], targets)
        unexplained = L2()(found, self.observation.summed_gradient()).item()
        return attack.reconstruction(self.observation, solution, copies, targets), unexplained


class _Noted:
    """A weighted objective that also notes the distance with equal weights, of the step that was taken last."""

    scale_free = False

    def __init__(self, weighted: LayerWeighted) -> None:
        self.weighted, self.value = weighted, float("nan")

    def begin(self, model: nn.Module) -> Distance:
        distance = self.weighted.begin(model)

        def noted(predicted: Params, observed: Params) -> Tensor:
            with torch.no_grad():
                self.value = float(L2()(predicted, observed))
            return distance(predicted, observed)

        return noted


def _digest(observation: Observation) -> str:
    """A short name for what was observed, by its content."""
    found = hashlib.sha256()
    for name, value in observation.difference().items():
        found.update(name.encode())
        found.update(value.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes())
    return found.hexdigest()[:16]


SPECS = (
    AttackSpec(
        name="awa",
        factory=awa,
        summary="AWA (Song, Wang, Zuazua 2023): one epoch by interpolation, layers weighted by kind.",
        fits=always("one epoch by interpolation, layers weighted"),
        cost=Cost.MINUTES,
        rank=2,
    ),
)
