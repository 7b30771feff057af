"""On the Efficiency of Privacy Attacks in Federated Learning (Tabassum, Chow, Wang, Zhang, Wu 2024): EPAFL."""

from __future__ import annotations

from dataclasses import replace

from leakgauge.attacks.inversion.attack import Inversion
from leakgauge.attacks.inversion.lbfgs import LineSearch
from leakgauge.attacks.inversion.stopping import AnyOf, MaxSteps, Plateau, Rule, Threshold
from leakgauge.attacks.papers.idlg import idlg
from leakgauge.attacks.spec import AttackSpec, Cost, one_gradient


def epafl(
    *,
    threshold: float | None = 1e-5,
    patience: int | None = 15,
    tolerance: float = 0.1,
    relative: bool = False,
    lr: float = 1.0,
    steps: int = 300,
    line_search: LineSearch = "none",
    restarts: int = 1,
    retries: int = 0,
    enough: float | None = None,
    snapshot_every: int | None = None,
) -> Inversion:
    r""":func:`~leakgauge.attacks.papers.idlg` that knows when to stop (algorithm 1): with :math:`L_i` the loss at step
    :math:`i`, as soon as

    .. math:: L_i < T \qquad\text{or}\qquad (1-\epsilon) \min_{j \le i-P} L_j \le \min_{i-P < j \le i} L_j,

    that is below a ``threshold`` T (section 4.2.1), or on a plateau that has lasted for a ``patience`` of P steps
    (section 4.2.2, algorithm 2); both together are the hybrid of section 4.2.3, ``None`` leaves one out. In the paper
    any improvement ends a plateau (``tolerance`` 0); but a failed attack may creep downhill for all its 300 steps, at
    more cost than ten successful ones, so that here an improvement counts if it is one of a tenth.

    A plateau at a high loss is how a failure shows: ``retries`` starts only those again. ``relative`` (see
    :func:`~leakgauge.attacks.papers.idlg`) makes failures on weak gradients show too. A threshold that floats cannot reach
    makes every attempt look failed; with ``enough``, plateaus at or below that loss count as success.
    """
    rules: list[Rule] = []
    if threshold is not None:
        rules.append(Threshold(threshold))
    if patience is not None:
        rules.append(Plateau(patience, tolerance))
    attack = idlg(
        lr=lr,
        steps=steps,
        relative=relative,
        line_search=line_search,
        restarts=restarts,
        retries=retries,
        snapshot_every=snapshot_every,
    )
    return replace(attack, stop=AnyOf(*rules, MaxSteps(steps)), enough=enough)


SPECS = (
    AttackSpec(
        name="epafl",
        factory=epafl,
        summary="EPAFL (Tabassum et al. 2024): iDLG that stops early.",
        fits=one_gradient,
        cost=Cost.SECONDS,
        rank=1,
        audit={"retries": 2},
    ),
)
