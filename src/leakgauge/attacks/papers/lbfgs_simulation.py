"""An attack of our own for small smooth networks, which combines L-BFGS with a simulation of local training.

EPAFL (Tabassum et al. 2024) and iDLG (Zhao et al. 2020) minimise the distance of one gradient by L-BFGS. Inverting
Gradients (Geiping et al. 2020, section 6) and DLF (Dimitrov et al. 2022) simulate local training. No paper that we know
combines the two.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from leakgauge.attacks.inversion.arrangement import ArrangedInversion
from leakgauge.attacks.inversion.labels import LastLayer, granted_labels
from leakgauge.attacks.inversion.priors import PixelRange
from leakgauge.attacks.inversion.settings import Effort
from leakgauge.attacks.inversion.smoothness import forward_pass
from leakgauge.attacks.inversion.update_models import FullSimulation
from leakgauge.attacks.papers.epafl import epafl
from leakgauge.attacks.spec import AttackSpec, Cost, Fit
from leakgauge.core.observation import Observation

#: The number of multiplications in one simulated local training, forward only, above which the attack takes too long.
#: One evaluation takes about ten times as many, and an attempt has some hundreds of evaluations.
WORK_LIMIT = 250_000_000
#: The weight of the penalty for pixels outside their range. It is zero at the client's samples.
RANGE = 0.1
#: The loss at or below which no further attempt is made. Wrong labels or orders leave a higher loss.
ENOUGH = 0.01


@dataclass(frozen=True)
class OptimisedLabels:
    """A source of labels that are optimised together with the samples, starting from an estimate.

    The last layer reveals the label of a single sample exactly, so this label is not optimised. For several samples,
    the label counts are estimates, and the labels of each batch are unknown. The optimisation can correct both.

    Args:
        estimate: The method that estimates the labels at the start.
        lean: The initial logit of the estimated label, in addition to noise. Other classes start at noise alone.
    """

    estimate: LastLayer = LastLayer(shuffle=True)  # noqa: RUF009 - frozen
    lean: float = 3.0

    def __call__(self, observation: Observation, generator: torch.Generator) -> Tensor:
        """Return the labels that are given, or else initial logits of shape (samples, classes).

        If the client has a single sample, its label is inferred, and no logits are needed.

        Args:
            observation: The client's message (gradient or weights), as the server sees it.
            generator: The random generator for all draws.
        """
        labels = self.estimate(observation, generator)
        classes = observation.data.classes
        if granted_labels(observation) is not None or len(labels) == 1 or classes is None:
            return labels
        logits = torch.randn(len(labels), classes, generator=generator).to(next(iter(observation.sent.values())))
        return logits + self.lean * torch.nn.functional.one_hot(labels.long(), classes).to(logits)


def smooth_and_small(observation: Observation) -> Fit:
    """Decide whether the network is smooth, and whether its local training is small enough to be simulated often."""
    training = observation.training
    if observation.kind == "weights" and training.lr is None:
        return Fit(False, "needs the client's learning rate, which is unknown")
    seen = forward_pass(observation)
    if seen.kinks:
        return Fit(False, f"made for smooth networks, and this one has {' and '.join(seen.kinks)}")
    passes = (training.samples or 1) * (1 if observation.kind == "gradient" else training.epochs or 1)
    work = passes * seen.operations
    if work > WORK_LIMIT:
        return Fit(
            False,
            f"made for small networks and few local steps: one pass here has {work / 1e6:,.0f} million "
            f"multiplications, and the limit is {WORK_LIMIT / 1e6:,.0f} million",
        )
    return Fit(True, "the network is smooth and small: second derivatives, through the local training")


def lbfgs_simulation(  # noqa: PLR0913
    *,
    threshold: float | None = 1e-5,
    patience: int | None = 4,
    tolerance: float = 0.1,
    lr: float = 1.0,
    steps: int = 40,
    restarts: int = 1,
    retries: int = 0,
    pool: int = 8,
    snapshot_every: int | None = None,
) -> ArrangedInversion:
    r"""Return L-BFGS on the distance between the observed update and the update of the simulated local training.

    .. math:: \arg\min_x \; 100\,\lVert \Delta\theta(x) - g \rVert^2 / \lVert g \rVert^2

    :math:`\Delta\theta(x)` is the update of the client's local training on the samples :math:`x`. :math:`g` is the
    observed update. A small penalty keeps pixels in their range. The labels, and the batches of every epoch, are
    searched together with the samples (:mod:`leakgauge.attacks.inversion.arrangement`). For one gradient or one local
    step, labels are optimised beside the samples, and this is
    :func:`~leakgauge.attacks.papers.epafl` with a relative loss and the penalty. Each retry has other starts.
    The attempt with the lowest loss is returned.

    On smooth networks L-BFGS converges to the exact samples where Adam is still far away. On piecewise linear networks
    it makes no progress, because their second derivatives are zero. The attack does not apply to such networks.

    Args:
        threshold: The loss, in per cent of the update's squared norm, below which the attack stops. ``None`` switches
            this rule off.
        patience: The number of steps without improvement after which an attempt ends. ``None`` switches this rule off.
        tolerance: The smallest relative decrease of the loss that counts as an improvement.
        lr: The learning rate of L-BFGS.
        steps: The largest number of steps of an attempt. One step is up to 20 iterations of L-BFGS.
        restarts: The number of independent starting points.
        retries: The number of further attempts if the attack did not converge.
        pool: The number of random starts of an attempt, of which the best one is continued, if labels or batches are
            searched.
        snapshot_every: The number of steps between two recorded iterates. By default, no iterates are recorded.
    """
    attack = epafl(
        threshold=threshold,
        patience=patience,
        tolerance=tolerance,
        relative=True,
        lr=lr,
        steps=steps,
        restarts=restarts,
        retries=retries,
        snapshot_every=snapshot_every,
    )
    attack = attack.with_settings(update_model=FullSimulation(new_orders=True), labels=OptimisedLabels())
    return ArrangedInversion(
        matching=attack.matching,
        labels=attack.labels,
        priors=(PixelRange(RANGE),),
        space=attack.space,
        descent=attack.descent,
        effort=Effort(restarts, retries=retries, enough=ENOUGH),
        caution=attack.caution,
        pool=pool,
    )


SPECS = (
    AttackSpec(
        name="lbfgs_simulation",
        factory=lbfgs_simulation,
        summary="L-BFGS through the simulated local training, our own composition for small smooth networks.",
        fits=smooth_and_small,
        cost=Cost.SECONDS,
        rank=0,
        audit={"retries": 2},
    ),
)
