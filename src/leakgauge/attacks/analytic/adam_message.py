r"""The equations of a message of Adam for a single sample, solved from a start near the sample.

With :math:`F(x)` the update that the known network and the known recipe give for a sample :math:`x`, and :math:`u` the
observed update in units of the learning rate, the residual of an entry is :math:`r = (F(x) - u) / \sigma`. Here
:math:`\sigma` is the standard deviation of its rounding error. One step of Adam determines :math:`x` through
:math:`\varepsilon` only. Several steps determine it better, because the gradients of a step relative to those of the
step before show how far the network has come. The derivatives are those of Adam itself, without smoothing.

Before the search, a few neurons of a piecewise linear network may be on the wrong side of a kink. Their residuals are
huge, so the search minimises

.. math:: \sum \log(1 + \rho^2 r^2) / \rho^2,

for which an entry that does not fit has nearly no weight. At the end, all entries must fit.
"""

from __future__ import annotations

import copy
import math
import warnings
from dataclasses import replace

import torch
from torch import Tensor
from torch.func import jvp, vmap

from leakgauge.attacks.analytic.adam_layer import decay_factor, noise_of, roundings_of
from leakgauge.attacks.analytic.levenberg import State
from leakgauge.attacks.analytic.whole_message import in_double
from leakgauge.core.observation import Observation
from leakgauge.core.params import Params
from leakgauge.core.progress import Report, silent
from leakgauge.federation.training import Trainer
from leakgauge.federation.update_rules import UpdateRule

#: The inverse of the residual, in rounding errors, above which the weight of an entry falls.
RHO = 0.1
#: The smallest size of an input for which its error is a share of its size.
SMALLEST = 0.05
#: The largest number of values, counted over directions and steps, whose derivatives are computed at the same time.
AT_ONCE = 2_000_000


class AdamMessage:
    """The least-squares problem of a message of Adam, for :func:`leakgauge.attacks.analytic.levenberg.search`.

    A point holds those inputs of the model that are unknown.

    Args:
        observation: The client's message, whose recipe and learning rate are known.
        targets: The target of the sample.
        known: The inputs of the model as one vector. The unknown inputs have any values.
        unknown: The indices of the unknown inputs.
    """

    def __init__(self, observation: Observation, targets: Tensor, known: Tensor, unknown: Tensor) -> None:
        self.observation, self.targets, self.known, self.unknown = observation, targets, known, unknown
        assert observation.returned is not None
        training = observation.training
        self.lr, self.steps = training.need("lr"), training.steps
        self.double, self.shape = in_double(observation), (1, *observation.data.shape)
        self.trainer = Trainer(observation.model, training, functional=True, as_attacker=True)
        dtype = next(iter(observation.sent.values())).dtype
        decay = (1 - decay_factor(training, self.lr, dtype)) / self.lr
        rule = UpdateRule.of(training)  # with the derivatives of Adam itself
        self.trainer.rule = replace(rule, weight_decay=decay) if training.optimiser == "adamw" else rule
        returned, self.fixed = observation.returned, set(observation.sent) - set(self.trainer.trainable)
        self.observed = self._flat(
            {name: (value.double() - returned[name].double()) / self.lr for name, value in observation.sent.items()}
        )
        noise = {
            name: noise_of(value, returned[name], self.lr, roundings_of(training))
            for name, value in observation.sent.items()
        }
        self.noise = self._flat(noise)
        self.scale = self.noise
        self.cache: dict[str, Tensor] = {}  # shared by all copies
        self.report: Report = silent  # called before derivatives are computed, so that a time limit can end the search

    def coarse(self, noise: float) -> AdamMessage:
        """Return the problem with a larger noise of all entries.

        Args:
            noise: The standard deviation of the noise, in units of the learning rate.
        """
        problem = copy.copy(self)
        problem.scale = (self.noise.square() + noise**2).sqrt()
        return problem

    def blurred(self, share: float, point: Tensor) -> AdamMessage:
        """Return the problem with as much noise in each entry as errors of the unknown inputs would cause.

        Entries of neurons with small gradients change much faster than others. Without this noise, they would allow
        only tiny steps. The search has to reduce the errors from stage to stage.

        Args:
            share: The standard deviation of the errors, as a share of each input.
            point: The point at which the derivatives are taken.
        """
        sizes = point.abs().clamp_min(SMALLEST)[:, None]
        moves = (self.derivatives(point) * sizes).square().sum(0)  # in units of the noise
        problem = copy.copy(self)
        problem.scale = self.noise * (1 + share**2 * moves).sqrt()
        return problem

    def onto_plane(self, points: Tensor) -> Tensor:
        """Return the points, because all points are allowed."""
        return points

    def directions(self) -> Tensor:
        """Return the unit vectors, because all unknowns may move."""
        return torch.eye(len(self.unknown), dtype=torch.double, device=self.known.device)

    def inputs(self, point: Tensor) -> Tensor:
        """Return all inputs of the model as one vector.

        Args:
            point: The unknown inputs.
        """
        return self.known.index_put((self.unknown,), point)

    def evaluate(self, points: Tensor) -> State:
        """Return the points, the residuals, and the sum that the search minimises."""
        residuals = torch.stack([self.residual(point) for point in points])
        sums = (RHO * residuals).square().log1p().sum(1) / RHO**2
        return points.clone(), residuals, sums.nan_to_num(torch.inf)

    def normal_equations(self, directions: Tensor, state: State) -> tuple[Tensor, Tensor]:
        """Return the gradient and the Gauss-Newton matrix of half the sum, for each point."""
        gradients, matrices = [], []
        for point, residual in zip(state[0], state[1], strict=True):
            derivatives = self.derivatives(point)
            weighted = derivatives / (1 + (RHO * residual).square())
            gradients.append(weighted @ residual)
            matrices.append(weighted @ derivatives.T)
        return torch.stack(gradients), torch.stack(matrices)

    def residual(self, point: Tensor) -> Tensor:
        """Return the residual of each entry, in units of its rounding error.

        Args:
            point: The unknown inputs.
        """
        return (self._updates(point, self.double) - self.observed) / self.scale

    def derivatives(self, point: Tensor) -> Tensor:
        """Return the derivatives of the residuals, (unknowns, entries).

        Args:
            point: The unknown inputs.
        """
        known = self.cache.get("point")
        if known is None or not torch.equal(known, point):
            self.report(0, None, math.nan)
            chunk = max(1, AT_ONCE // (self.steps * len(self.observed)))
            along = vmap(
                lambda move: jvp(lambda inputs: self._updates(inputs, self.double), (point,), (move,))[1],
                chunk_size=chunk,
            )
            with torch.no_grad(), warnings.catch_warnings():
                # At the first use, PyTorch loads its rules with a function that it calls deprecated.
                warnings.simplefilter("ignore", DeprecationWarning)
                derivatives = along(self.directions()).nan_to_num(0.0, 0.0, 0.0)
            self.cache.update(point=point.clone(), derivatives=derivatives)
        return self.cache["derivatives"] / self.scale

    def disagreement(self, point: Tensor) -> float:
        """Return how far the changes of weights are from the simulated ones, relative to how far they differ.

        Both are medians over the changed weights. The result is near 0 for the sample, and near 1 for any other sample.

        Args:
            point: The unknown inputs.
        """
        changed = self.observed != 0
        observed, simulated = self.observed[changed].abs(), self._updates(point, self.double)[changed].abs()
        spread = (observed - observed.median()).abs().median().clamp_min(1e-300)
        return float((simulated - observed).abs().median() / spread)

    def misfit(self, point: Tensor) -> float:
        """Return the mean squared residual of the weights that have changed or should have changed.

        It is near 1 if there is nothing but rounding.

        Args:
            point: The unknown inputs.
        """
        residual = self.residual(point)
        changed = (self.observed != 0) | (residual != 0)
        return float(residual[changed].square().mean()) if bool(changed.any()) else torch.inf

    def errors(self, point: Tensor) -> Tensor:
        """Return the estimated error of each unknown input at a solution, or infinity if it is not determined.

        There are two estimates, of which the larger one counts. The first follows from the rounding of weights. For the
        second, the client's training is simulated in the precision of the client, which has rounding errors of its own.

        Args:
            point: The unknown inputs at the solution.
        """
        matrix = self.derivatives(point)
        inverse, failed = torch.linalg.inv_ex(matrix @ matrix.T)
        if bool(failed) or bool((inverse.diagonal() < 0).any()):
            return torch.full_like(point, torch.inf)
        first = inverse.diagonal().sqrt()
        rough = (self._updates(point, self.observation) - self._updates(point, self.double)) / self.noise
        second = (inverse @ (matrix @ rough)).square().mean().sqrt()
        return torch.maximum(first, second)

    def _updates(self, point: Tensor, observation: Observation) -> Tensor:
        """Return the simulated update in units of the learning rate, in the precision of the observation's tensors."""
        sent = observation.sent
        inputs = self.inputs(point).reshape(self.shape).to(next(iter(sent.values())).dtype)
        targets = self.targets.to(inputs.dtype) if self.targets.is_floating_point() else self.targets
        start = self.trainer.start(sent, observation.model_buffers())
        state = self.trainer.run(start, [(inputs, targets)] * int(observation.training.need("epochs")), "graph")
        lost = {name: (value.double() - state.weights[name].double()) / self.lr for name, value in sent.items()}
        return self._flat(lost)

    def _flat(self, tensors: Params) -> Tensor:
        return torch.cat([value.flatten() for name, value in tensors.items() if name not in self.fixed])


def with_rate(observation: Observation, lr: float) -> Observation:
    """Return an observation whose learning rate is known.

    Args:
        observation: The client's message.
        lr: The learning rate.
    """
    return replace(observation, training=replace(observation.training, lr=lr))
