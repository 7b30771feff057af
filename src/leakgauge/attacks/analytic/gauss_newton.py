r"""Gauss-Newton, an attack that solves the equations of the whole message for all samples at once.

Let :math:`u` be the unknown samples and targets, :math:`F(u)` the message that a client with them would send, and
:math:`g` the observed message. The Levenberg-Marquardt method solves :math:`F(u) = g` from random starts. Each
iteration needs the derivatives of the message with respect to every unknown, which forward-mode differentiation through
the simulated local training gives. This is affordable for some hundreds of unknowns. The method converges in some ten
iterations, where gradient descent and L-BFGS on :math:`\lVert F(u) - g \rVert^2` need thousands.

From random starts, most searches end in wrong solutions, which are noise rather than pictures. The search therefore
begins with equations that demand smooth pictures, and lowers their weight to zero in a few stages.

The attacker recognises success. Wrong solutions leave a residual that is far above the rounding errors of the message.
A solution counts as exact only if

1. the residual of the whole message is at most :data:`PROVEN`, or as small as the rounding of returned weights,
2. the derivatives determine every unknown, with an estimated error below a quarter of a grey level,
3. unknown labels have come out as one class each.

DLG (Zhu et al. 2019) solves the same equations by L-BFGS. We know of no attack that uses the Gauss-Newton matrix.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, replace
from typing import ClassVar, Self

import torch
from torch import Tensor
from torch.nn import functional as F

from leakgauge.attacks.analytic.coordinates import Coordinates, coordinates_of
from leakgauge.attacks.analytic.levenberg import search
from leakgauge.attacks.analytic.whole_message import Unknowns, WholeMessage, in_double
from leakgauge.attacks.base import Attack, Reconstruction
from leakgauge.attacks.inversion.free_targets import head_for, unknown_targets
from leakgauge.attacks.inversion.heads import Numbers
from leakgauge.attacks.inversion.labels import LastLayer, granted_labels
from leakgauge.attacks.inversion.last_layer import outputs_for_labels
from leakgauge.attacks.inversion.smoothness import forward_pass
from leakgauge.attacks.inversion.stopping import Outcome
from leakgauge.attacks.spec import AttackSpec, Cost, Fit
from leakgauge.core.checks import whole_number
from leakgauge.core.errors import MissingKnowledge
from leakgauge.core.observation import Observation
from leakgauge.core.one_gradient import mixes_linearly
from leakgauge.core.progress import Report
from leakgauge.core.seeding import generator, seeded

#: The largest relative residual of the whole message that counts as a proof. Returned weights have larger rounding
#: errors, up to which a larger residual counts, but never more than the second number.
PROVEN, PROVEN_WITH_ROUNDING = 1e-5, 3e-5
#: The largest estimated error of an exact solution, in units of one grey level of 256.
LARGEST_ERROR = 0.25
#: The losses that are linear in the targets, up to terms that do not depend on the weights.
LINEAR = ("mse", "binary_cross_entropy", "cross_entropy")
#: The largest distance of an unknown label from one class.
ONE_CLASS = 0.05
#: The powers by which starts divide a parameter's equations by their length, in turn.
POWERS = (1.0, 0.0, 0.5)
#: The weight at which the demand for smooth pictures begins, in turn. It falls by the factor in each stage.
SMOOTH, FALL, STAGES = (0.1, 0.5, 0.03), 0.3, 6
#: The number of iterations in each stage.
OF_STAGE = 8
#: The largest number of unknowns.
MOST_UNKNOWNS = 600
#: The factor by which the number of starts grows if a dense layer shows the span of the samples. A start is then cheap,
#: and few starts end at the samples.
IN_SPAN = 4
#: The largest number of unknowns for a piecewise linear network.
MOST_OF_KINKED = 100
#: The number of multiplications in the derivatives of one message, forward only, above which the attack takes too long.
WORK_LIMIT = 2_000_000_000
#: The smallest number of equations for each unknown.
EQUATIONS = 2


@dataclass(frozen=True, eq=False)
class Ending:
    """The end of the search from one start.

    Args:
        point: The values of all unknowns.
        residual: The relative residual of the whole message.
        error: The estimated error of one value of a sample, in the model's units.
    """

    point: Tensor
    residual: float
    error: float


@dataclass(frozen=True)
class GaussNewton(Attack):
    """The attack that solves the equations of the whole message. See :func:`gauss_newton`.

    Args:
        starts: The largest number of random starts.
        iterations: The largest number of iterations from one start.
    """

    uses_defences: ClassVar[bool] = False

    starts: int
    iterations: int

    def __post_init__(self) -> None:
        whole_number("starts", self.starts)
        whole_number("iterations", self.iterations)

    @property
    def takes_direction(self) -> bool:
        """Whether the attack needs no more than the direction of a gradient."""
        return True

    def run(self, observation: Observation, seed: int, report: Report) -> Reconstruction:
        """Reconstruct the client's samples.

        Args:
            observation: The client's message (gradient or weights), as the server sees it.
            seed: The seed of the random starts.
            report: The progress function, which gets the lowest residual.
        """
        if not (fit := fits(observation)).applies:
            raise MissingKnowledge(f"gauss_newton() does not apply: {fit.reason}. Use inverting_gradients() instead")
        message = in_double(observation)
        unknowns = _unknowns(message, coordinates_of(observation), generator(seed, "labels"))
        samples = unknowns.coordinates.random(unknowns.samples, message.data, generator(seed, "guess"))
        best = Ending(torch.cat([samples.flatten(), unknowns.start]), math.inf, math.inf)
        interrupted = False
        try:
            for number in range(starts := self._starts(unknowns)):
                best = min(best, self._search(message, unknowns, number, seed), key=lambda ending: ending.residual)
                report(number + 1, starts, best.residual)
                if _is_exact(best, unknowns, observation):
                    break
        except KeyboardInterrupt:
            interrupted = True
        return _reconstruction(best, unknowns, observation, interrupted)

    def forecast(self, observation: Observation) -> float | None:
        """Return the seconds that all starts may take on this machine, from the timed derivatives of the message.

        Args:
            observation: The client's message (gradient or weights), as the server sees it.
        """
        if not fits(observation).applies:
            return None
        message = in_double(observation)
        unknowns = _unknowns(message, coordinates_of(observation), generator(0, "labels"))
        with seeded(0, "forecast"):
            problem = WholeMessage(message, unknowns, 1.0, generator(0, "forecast"))
        times = []
        for number in range(2):  # the first evaluation in a process is slower
            began = time.perf_counter()
            point = torch.full((unknowns.count,), 0.1 * number, dtype=torch.double, device=message.device)
            problem.normal_equations(point, problem.evaluate(point[None]))
            times.append(time.perf_counter() - began)
        return self._starts(unknowns) * (STAGES * OF_STAGE + self.iterations) * min(times)

    def scaled(self, factor: float) -> Self:
        """Return the attack with a multiple of its starts, and at least one.

        Args:
            factor: The multiple.
        """
        return replace(self, starts=max(1, round(self.starts * factor)))

    def _starts(self, unknowns: Unknowns) -> int:
        return self.starts * (1 if unknowns.coordinates.basis is None else IN_SPAN)

    def _search(self, message: Observation, unknowns: Unknowns, number: int, seed: int) -> Ending:
        """Return the end of the search from one random start."""
        draw = generator(seed, "gauss-newton", number)
        problem = WholeMessage(message, unknowns, POWERS[number % len(POWERS)], draw)
        samples = unknowns.coordinates.random(unknowns.samples, message.data, draw)
        start = torch.cat([samples.flatten(), unknowns.start])
        points = start[None]
        for stage in range(STAGES):
            weight = SMOOTH[number % len(SMOOTH)] * FALL**stage
            points, _ = search(problem.smoothed(weight), points, OF_STAGE)
        (point,), (square,) = search(problem, points, self.iterations)
        residual = problem.relative_residual(point)
        error = _error(problem, point, float(square)) if residual <= PROVEN_WITH_ROUNDING else math.inf
        return Ending(point, residual, error)


def _is_exact(ending: Ending, unknowns: Unknowns, observation: Observation) -> bool:
    """Return whether the three conditions at the top of this module hold."""
    if not (ending.residual <= _proven(observation) and _grey_levels(ending, observation) <= LARGEST_ERROR):
        return False
    targets = ending.point[unknowns.samples * unknowns.coordinates.count :]
    if not len(targets) or (observation.data.classes is None and observation.data.target_values is None):
        return True
    return bool(torch.minimum(targets.abs(), (targets - 1).abs()).max() < ONE_CLASS)


def _grey_levels(ending: Ending, observation: Observation) -> float:
    """Return the estimated error in grey levels, or in shares of 1/255 of a standard deviation for table values."""
    return 255 * ending.error * (max(observation.data.std) if observation.data.bounded else 1.0)


def _reconstruction(best: Ending, unknowns: Unknowns, observation: Observation, interrupted: bool) -> Reconstruction:
    data = observation.data
    inputs, targets = unknowns.split(best.point)
    samples = data.denormalise(inputs).to(next(iter(observation.sent.values())).dtype)
    words = f"{unknowns.count} unknowns solved from the whole message, relative residual {best.residual:.1g}"
    if _is_exact(best, unknowns, observation):
        error = f"with an estimated error of {_grey_levels(best, observation):.1g} grey levels"
        outcome = Outcome("converged", 0, f"{words}, exact, {error}")
    elif interrupted:
        outcome = Outcome("interrupted", 0, "interrupted, and the best solution so far is returned")
    else:
        outcome = Outcome("finished", 0, f"{words}, not exact")
    labels = _labels(targets[: unknowns.samples], observation)
    return Reconstruction(samples.clamp(0, 1) if data.bounded else samples, labels, outcome, best.residual)


def _proven(observation: Observation) -> float:
    """Return the largest relative residual that counts as a proof, from the rounding of returned weights."""
    if observation.returned is None:
        return PROVEN
    steps = {name: torch.finfo(value.dtype).eps / 4 for name, value in observation.returned.items()}
    rounding = sum(float((steps[name] * value).square().sum()) for name, value in observation.returned.items())
    update = sum(float(value.square().sum()) for value in observation.difference().values())
    return min(max(PROVEN, 3 * math.sqrt(rounding / update)) if update else PROVEN, PROVEN_WITH_ROUNDING)


def _error(problem: WholeMessage, point: Tensor, square: float) -> float:
    """Return the estimated error of one value of a sample, or infinity if the equations do not determine all unknowns.

    The noise is estimated from the residuals.
    """
    matrix = problem.derivatives(point)
    unknowns, equations = matrix.shape
    if equations <= unknowns:
        return math.inf
    inverse, failed = torch.linalg.inv_ex(matrix @ matrix.T)
    if bool(failed):
        return math.inf
    coordinates = problem.unknowns.coordinates
    variances = inverse.diagonal()[: problem.unknowns.samples * coordinates.count]
    if not len(variances):
        return math.sqrt(square / equations)
    if bool((variances < 0).any()):
        return math.inf
    spread = 1.0 if coordinates.basis is None else float(coordinates.basis.square().sum(1).mean())
    share = coordinates.count / coordinates.origin.numel() * spread
    return math.sqrt(square / (equations - unknowns) * share * float(variances.mean()))


def _unknowns(message: Observation, coordinates: Coordinates, draw: torch.Generator) -> Unknowns:
    """Return the unknowns of a message, with the targets that the attacker does not know.

    The losses are linear in the targets, also for targets that are no labels.
    """
    samples, classes, loss = int(message.training.need("samples")), message.data.classes, message.training.loss
    none = torch.zeros(0, dtype=torch.double, device=message.device)
    if unknown_targets(message) and loss in LINEAR:
        return _unknown_targets(message, coordinates)
    labels = LastLayer()(message, draw)
    granted = granted_labels(message) is not None
    if granted or samples == 1 or classes is None or outputs_for_labels(message) is None:
        return Unknowns(samples, coordinates, lambda free: labels, none)
    if loss == "binary_cross_entropy":
        return Unknowns(samples, coordinates, lambda free: free, labels.double())
    start = F.one_hot(labels.long(), classes).double()
    return Unknowns(samples, coordinates, lambda free: free.reshape(samples, classes), start.flatten())


def _unknown_targets(message: Observation, coordinates: Coordinates) -> Unknowns:
    """Return the unknowns of a message whose targets are no classes. Labels and masks start between their values."""
    samples, head = int(message.training.need("samples")), head_for(message)
    if head is None:
        raise MissingKnowledge(f"the loss {message.training.loss!r} does not fit the targets of {message.client}")
    shape, first = (samples, *head.variables), 0.0 if isinstance(head, Numbers) else 0.5
    start = torch.full((math.prod(shape),), first, dtype=torch.double, device=message.device)
    return Unknowns(samples, coordinates, lambda free: free.reshape(shape), start)


def _labels(targets: Tensor, observation: Observation) -> Tensor:
    """Return labels, or the targets of a regression."""
    if unknown_targets(observation):
        head, dtype = head_for(observation), next(iter(observation.sent.values())).dtype
        return targets.to(dtype) if head is None or isinstance(head, Numbers) else head.decided(targets.to(dtype) - 0.5)
    if observation.data.classes is None:
        return targets.to(next(iter(observation.sent.values())).dtype)
    if not targets.is_floating_point():
        return targets
    return targets.argmax(1) if targets.ndim == 2 else (targets > 0.5).long()


def fits(observation: Observation) -> Fit:
    """Decide whether the attack applies. It needs few unknowns, and a smooth network or a dense first layer.

    Args:
        observation: The client's message (gradient or weights), as the server sees it.
    """
    training = observation.training
    missing = [name for name in ("samples", "epochs", "batch_size", "lr") if getattr(training, name) is None]
    if observation.kind == "gradient":
        missing = [name for name in missing if name == "samples"]
    if missing:
        return Fit(False, f"needs the client's {missing[0]}, which is unknown")
    if not any(bool(value.any()) for value in observation.difference().values()):
        return Fit(False, "the update is zero, so it has no equations")
    if not mixes_linearly(observation):
        return Fit(False, "steps of Adam are little more than signs, whose derivatives are zero")
    coordinates = coordinates_of(observation)
    if not coordinates.count:
        return Fit(False, "the first dense layer shows the only sample, and dense_read_off returns it")
    count = int(training.need("samples")) * coordinates.count
    if count > MOST_UNKNOWNS:
        return Fit(False, f"made for at most {MOST_UNKNOWNS} unknowns, and the samples have {count:,}")
    try:
        unknowns = _unknowns(observation, coordinates, generator(0, "fits"))
    except MissingKnowledge as reason:
        return Fit(False, str(reason))
    return _affordable(observation, unknowns)


def _affordable(observation: Observation, unknowns: Unknowns) -> Fit:
    """Decide from counts of unknowns, equations and multiplications."""
    training, count = observation.training, unknowns.count
    equations = sum(value.numel() for value in observation.sent.values())
    if equations < EQUATIONS * count:
        return Fit(False, f"the message has {equations:,} equations for {count:,} unknowns, which is too few")
    seen = forward_pass(observation)
    if seen.kinks and (unknowns.coordinates.basis is None or count > MOST_OF_KINKED):
        return Fit(False, f"made for smooth networks, and this one has {' and '.join(seen.kinks)}")
    passes = unknowns.samples * (1 if observation.kind == "gradient" else int(training.need("epochs")))
    work = count * passes * seen.operations
    if work > WORK_LIMIT:
        return Fit(False, f"the derivatives need {work / 1e6:,.0f} million multiplications, more than the limit")
    return Fit(True, f"{equations:,} equations of a small network for {count:,} unknowns")


def gauss_newton(*, starts: int = 12, iterations: int = 50) -> GaussNewton:
    """Solve the equations of the whole message for the samples, for small networks and few samples.

    The attack knows whether its result is exact. It needs no prior, and applies to one gradient and to several local
    steps with a known recipe. Unknown labels and the targets of a regression are solved together with the samples.

    Args:
        starts: The largest number of random starts, of which there are four times as many if a dense layer shows the
            span of the samples. The attack stops at the first exact solution.
        iterations: The largest number of Levenberg-Marquardt iterations from one start.
    """
    return GaussNewton(starts, iterations)


SPECS = (
    AttackSpec(
        name="gauss_newton",
        factory=gauss_newton,
        summary="Gauss-Newton (ours): the equations of the whole message, solved for a few samples of a small network.",
        fits=fits,
        cost=Cost.SECONDS,
        rank=0,
        audit={"starts": 6},
        exact=True,
        takes_direction=True,
    ),
)
