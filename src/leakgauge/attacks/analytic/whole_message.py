r"""The equations of a client's whole message, and their derivatives.

The unknowns :math:`u` are the coordinates of all samples and the unknown targets. The known network and the known
recipe give the message :math:`F(u)` that a client with these samples would send. With the observed message :math:`g`,
the equations are :math:`F(u) = g`. There is one equation for each weight of the model, so a few samples have far fewer
unknowns than equations. Each parameter's equations are divided by a power of their length, because parameters with
small gradients may hold the information about single pixels.

While the search is far from a solution, further equations demand smooth pictures or small table values. Their weight
falls to zero on the way, so the solution does not depend on them.
"""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.func import jvp, vmap

from leakgauge.attacks.analytic.coordinates import Coordinates
from leakgauge.attacks.analytic.levenberg import State
from leakgauge.attacks.inversion.update_models import FullSimulation
from leakgauge.core.data_spec import DataSpec
from leakgauge.core.observation import Observation
from leakgauge.core.params import Params

#: The largest number of values in the matrix of derivatives. Equations are drawn at random above it.
LARGEST_MATRIX = 25_000_000
#: The largest number of weights, counted over directions and steps, whose derivatives are computed at the same time.
AT_ONCE = 20_000_000
#: A parameter's equations are divided by at least this share of the length of the whole message.
SHORTEST = 1e-3

#: The weight of a pixel's distance from grey, relative to that of the difference of two neighbours.
TOWARDS_GREY = 0.1

#: A function that returns the targets of all samples from the unknown targets.
Targets = Callable[[Tensor], Tensor]


@dataclass(frozen=True, eq=False)
class Unknowns:
    """The unknowns of the equations, which are coordinates of samples and then unknown targets.

    Args:
        samples: The number of samples.
        coordinates: The coordinates of a sample.
        targets: The map from the unknown targets to the targets.
        start: The first guess of the unknown targets.
    """

    samples: int
    coordinates: Coordinates
    targets: Targets
    start: Tensor

    @property
    def count(self) -> int:
        """The number of unknowns."""
        return self.samples * self.coordinates.count + len(self.start)

    def split(self, point: Tensor) -> tuple[Tensor, Tensor]:
        """Return the model's inputs and the targets.

        Args:
            point: The values of all unknowns.
        """
        size = self.samples * self.coordinates.count
        inputs = self.coordinates.inputs(point[:size].reshape(self.samples, -1))
        return inputs, self.targets(point[size:])


def in_double(observation: Observation) -> Observation:
    """Return an observation whose tensors have double precision.

    Args:
        observation: The client's message (gradient or weights), as the server sees it.
    """

    def doubled(tensors: Params) -> Params:
        return {name: value.double() if value.is_floating_point() else value for name, value in tensors.items()}

    return replace(
        observation,
        sent=doubled(observation.sent),
        gradient=None if observation.gradient is None else doubled(observation.gradient),
        returned=None if observation.returned is None else doubled(observation.returned),
        buffers=doubled(observation.model_buffers()),
    )


class WholeMessage:
    """The least-squares problem of the equations, for :func:`leakgauge.attacks.analytic.levenberg.search`.

    The client's order of samples in each epoch is drawn at random when the problem is made.

    Args:
        observation: The client's message in double precision.
        unknowns: The unknowns.
        power: The power of a parameter's length by which its equations are divided, from 0 to 1.
        draw: The random generator of the drawn equations.
    """

    def __init__(self, observation: Observation, unknowns: Unknowns, power: float, draw: torch.Generator) -> None:
        self.unknowns = unknowns
        self.client = FullSimulation(new_orders=True).begin(observation, functional=True)
        self.observed = observation.summed_gradient()
        self.length = math.sqrt(sum(float(value.square().sum()) for value in self.observed.values()))
        self.passes = 1 if observation.kind == "gradient" else observation.training.steps
        self.factors = self._factors(power)
        self.rows = self._rows(draw)
        self.data, self.smoothing = observation.data, 0.0
        self._known: tuple[Tensor, Tensor] | None = None

    def smoothed(self, weight: float) -> WholeMessage:
        """Return the problem with equations that demand smooth pictures or small table values.

        Args:
            weight: The weight of these equations.
        """
        problem = copy.copy(self)
        problem.smoothing, problem._known = weight, None
        return problem

    def onto_plane(self, points: Tensor) -> Tensor:
        """Return the points, because all points are allowed."""
        return points

    def directions(self) -> Tensor:
        """Return the unit vectors, because all unknowns may move."""
        return torch.eye(self.unknowns.count, dtype=torch.double, device=self.unknowns.start.device)

    def evaluate(self, points: Tensor) -> State:
        """Return the points, the weighted residuals of the equations and the squared residuals."""
        residuals = torch.stack([self._residual(point) for point in points])
        return points.clone(), residuals, residuals.square().sum(1).nan_to_num(torch.inf)

    def normal_equations(self, directions: Tensor, state: State) -> tuple[Tensor, Tensor]:
        """Return the gradient and the Gauss-Newton matrix of half the squared residual, for each point."""
        points, residuals, _ = state
        matrices = [self.derivatives(point) for point in points]
        gradients = [matrix @ residual for matrix, residual in zip(matrices, residuals, strict=True)]
        return torch.stack(gradients), torch.stack([matrix @ matrix.T for matrix in matrices])

    def derivatives(self, point: Tensor) -> Tensor:
        """Return the derivatives of the equations, (unknowns, equations).

        Args:
            point: The values of all unknowns.
        """
        if self._known is None or not torch.equal(self._known[0], point):
            numbers = self.passes * sum(value.numel() for value in self.observed.values())
            along = vmap(lambda move: jvp(self._residual, (point,), (move,))[1], chunk_size=max(1, AT_ONCE // numbers))
            with torch.no_grad(), warnings.catch_warnings():
                # At the first use, PyTorch loads its rules with a function that it calls deprecated.
                warnings.simplefilter("ignore", DeprecationWarning)
                self._known = (point.clone(), along(self.directions()))
        return self._known[1]

    def relative_residual(self, point: Tensor) -> float:
        """Return the length of the residual of all equations, as a share of the length of the message.

        Args:
            point: The values of all unknowns.
        """
        differences = self._differences(*self.unknowns.split(point))
        rest = sum(float(value.square().sum()) for value in differences.values())
        return math.sqrt(rest) / self.length if self.length else math.inf

    def _differences(self, inputs: Tensor, targets: Tensor) -> Params:
        predicted = self.client(inputs, targets)
        return {name: predicted[name] - seen for name, seen in self.observed.items() if name in self.factors}

    def _residual(self, point: Tensor) -> Tensor:
        inputs, targets = self.unknowns.split(point)
        parts = []
        for name, difference in self._differences(inputs, targets).items():
            flat = difference.flatten()
            rows = self.rows[name]
            parts.append(self.factors[name] * (flat if rows is None else flat[rows]))
        if self.smoothing:
            parts += [self.smoothing * part.flatten() for part in _roughness(inputs, self.data)]
        return torch.cat(parts)

    def _factors(self, power: float) -> dict[str, float]:
        shortest = SHORTEST * self.length
        lengths = {name: float(value.norm()) for name, value in self.observed.items()}
        return {
            name: 1 / (max(length, shortest) ** power * self.length ** (1 - power))
            for name, length in lengths.items()
            if length
        }

    def _rows(self, draw: torch.Generator) -> dict[str, Tensor | None]:
        """Return the drawn equations of each parameter, or ``None`` for a parameter whose equations are all used."""
        share = LARGEST_MATRIX / self.unknowns.count
        sizes = {name: self.observed[name].numel() for name in self.factors}
        limit = _limit(list(sizes.values()), share)
        rows: dict[str, Tensor | None] = {}
        for name, size in sizes.items():
            rows[name] = None
            if size > limit:
                rows[name] = torch.randperm(size, generator=draw)[:limit].to(self.observed[name].device)
                self.factors[name] *= math.sqrt(size / limit)
        return rows


def _roughness(inputs: Tensor, data: DataSpec) -> Iterator[Tensor]:
    """Yield the differences of neighbouring pixels and a tenth of each contrast, or the values of a table's rows."""
    if not data.bounded:
        yield inputs
        return
    pixels = data.denormalise(inputs)
    yield TOWARDS_GREY * (pixels - 0.5)
    for axis in range(2, pixels.ndim):
        yield pixels.diff(dim=axis)


def _limit(sizes: list[int], total: float) -> int:
    """Return the largest number of equations of one parameter for which all parameters have at most ``total``."""
    left, limit = total, max(sizes, default=1)
    for index, size in enumerate(sorted(sizes)):
        limit = max(1, int(left / (len(sizes) - index)))
        if size > limit:
            return limit
        left -= size
    return max(sizes, default=1)
