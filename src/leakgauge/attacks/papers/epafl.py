"""On the Efficiency of Privacy Attacks in Federated Learning (EPAFL; Tabassum, Chow, Wang, Zhang, Wu 2024)."""

from __future__ import annotations

from leakgauge.attacks.inversion.attack import Inversion
from leakgauge.attacks.inversion.lbfgs import LineSearch
from leakgauge.attacks.inversion.stopping import AnyOf, MaxSteps, Plateau, Rule, Threshold
from leakgauge.attacks.papers.idlg import idlg
from leakgauge.attacks.spec import AttackSpec, Cost, one_gradient


def epafl(  # noqa: PLR0913
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
    r"""Return EPAFL, which is :func:`~leakgauge.attacks.papers.idlg` with early stopping (algorithm 1).

    With :math:`L_i` the loss at step :math:`i`, the attack stops as soon as

    .. math:: L_i < T \qquad\text{or}\qquad (1-\epsilon) \min_{j \le i-P} L_j \le \min_{i-P < j \le i} L_j.

    The first rule is a threshold (section 4.2.1). The second is a plateau (section 4.2.2, algorithm 2). Both together
    are the hybrid of section 4.2.3. A plateau at a high loss shows that the attempt failed. Only failed attempts are
    repeated, up to ``retries`` times.

    Args:
        threshold: The threshold T, which is the loss below which the attack stops. ``None`` switches this rule off.
        patience: The number P of steps without improvement that make a plateau. ``None`` switches this rule off.
        tolerance: The relative improvement epsilon that ends a plateau. In the paper, any improvement ends a plateau
            (0). The default is 0.1, because a failed attack may improve slowly for all 300 steps and cost more than ten
            successful attacks.
        relative: Whether the loss is relative to the gradient's squared norm, as in
            :func:`~leakgauge.attacks.papers.idlg`. Failures on weak gradients can then be detected, too.
        lr: The learning rate of L-BFGS.
        steps: The largest number of steps.
        line_search: The line search of L-BFGS.
        restarts: The number of independent starting points.
        retries: The number of further attempts if the attack did not converge.
        enough: The loss at or below which a plateau counts as success. This helps if rounding keeps every attempt above
            the threshold, so that all attempts look like failures.
        snapshot_every: The number of steps between two recorded iterates. By default, no iterates are recorded.
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
    return attack.with_settings(stop=AnyOf(*rules, MaxSteps(steps)), enough=enough)


SPECS = (
    AttackSpec(
        name="epafl",
        factory=epafl,
        summary="EPAFL (Tabassum et al. 2024): iDLG that stops early.",
        fits=one_gradient,
        cost=Cost.SECONDS,
        rank=1,
    ),
)
