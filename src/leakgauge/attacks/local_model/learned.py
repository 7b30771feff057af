r"""Algorithm 2 of LMRA with a neural network as the update map (section 3.2).

The mapping network :math:`G(w, \theta)` predicts the client's update of a model :math:`\theta`. The network is fitted
to the observed updates (equation 7). Then the attack searches for the model with the shortest predicted update
(equation 8).

The paper's network goes from d parameters through a few dozen neurons back to d parameters. The first layer is
determined only within the space that the observed models span. The last layer is determined only within the space that
the observed updates span. So the map is fitted here between the *coordinates* of models and of updates in these two
spaces. There are at most as many coordinates as rounds. Memory and time grow no faster than rounds x parameters, and an
epoch takes the same time for any model.

The paper sets the hyper-parameters by hand for each client (tables 5 to 8). Here held-out rounds choose the width, the
weight decay and the epoch to stop at.
"""

from __future__ import annotations

import copy
import itertools
import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from leakgauge.attacks.local_model.base import Estimate, LocalModelAttack, needs_step_length, relative
from leakgauge.attacks.local_model.messages import Messages, weight_updates_of
from leakgauge.attacks.spec import AttackSpec, Cost
from leakgauge.core.checks import not_negative, positive, whole_number
from leakgauge.core.errors import InvalidInput
from leakgauge.core.progress import Report
from leakgauge.core.seeding import seeded


@dataclass(frozen=True, eq=False)
class Coordinates:
    """A coordinate system for the space that some vectors span around their mean, with an orthonormal basis.

    Args:
        mean: The mean of the vectors, (parameters,).
        basis: The basis, (coordinates, parameters).
        unit: The length of one unit, which is the root mean squared distance of the vectors from their mean.
    """

    mean: Tensor
    basis: Tensor
    unit: float

    @classmethod
    def of(cls, vectors: Tensor, tolerance: float = 1e-6) -> Coordinates:
        """Compute the coordinate system of the given vectors, from the eigenvectors of their Gram matrix.

        Args:
            vectors: The vectors, (rounds, parameters).
            tolerance: The smallest length of a direction that is kept, as a share of the length of the longest
                direction.
        """
        centred = vectors - vectors.mean(0)
        values, rotation = torch.linalg.eigh(centred @ centred.T)
        nonzero = values > tolerance**2 * values[-1].clamp_min(1e-300)
        basis = (rotation[:, nonzero].T @ centred) / values[nonzero].sqrt().unsqueeze(1)
        return cls(vectors.mean(0), basis, math.sqrt(float(values.clamp_min(0).mean())) or 1.0)

    def inside(self, vectors: Tensor) -> Tensor:
        """Convert parameter vectors to coordinates in this system."""
        return (vectors - self.mean) @ self.basis.T / self.unit

    def outside(self, coordinates: Tensor) -> Tensor:
        """Convert coordinates in this system back to parameter vectors."""
        return self.mean + self.unit * coordinates @ self.basis


@dataclass(frozen=True, eq=False)
class _Fitted:
    """A fitted mapping network, with its hyper-parameters and its mean squared error on the held-out rounds."""

    network: nn.Module
    error: float
    width: int
    decay: float


@dataclass(frozen=True, eq=False)
class _Pairs:
    """The models and the updates of all rounds, both as coordinates, and the choice of held-out rounds."""

    models: Tensor
    updates: Tensor
    held_out: Tensor


@dataclass(frozen=True)
class Learned(LocalModelAttack):
    """The attack that predicts updates with a network and searches for a model with a zero update (LMRA, algorithm 2).

    For every pair of a width and a weight decay, a network is trained by Adam with full batches. The network that
    predicts the held-out rounds best is used. L-BFGS then minimises the squared predicted update plus ``pull`` times
    the squared coordinates, from the model that the client returned last.

    Args:
        widths: The candidate numbers of neurons in each of the two hidden layers.
        decays: The candidate weight decays.
        epochs: The largest number of epochs of a network.
        lr: The learning rate of Adam.
        hold: The distance between held-out rounds. Every ``hold``-th round is held out.
        pull: The weight of the squared coordinates in the minimised sum. It is 0.001 in the authors' settings.
        steps: The largest number of L-BFGS iterations.
    """

    widths: tuple[int, ...] = (16, 64)
    decays: tuple[float, ...] = (1e-3, 0.5)
    epochs: int = 1000
    lr: float = 1e-3
    hold: int = 5
    pull: float = 1e-3
    steps: int = 200

    def __post_init__(self) -> None:
        for name in ("widths", "decays"):
            object.__setattr__(self, name, tuple(getattr(self, name)))
        for name in ("epochs", "steps"):
            whole_number(name, getattr(self, name))
        whole_number("hold", self.hold, at_least=2)
        positive("lr", self.lr)
        not_negative("pull", self.pull)
        for width in self.widths:
            whole_number("each of widths", width)
        for decay in self.decays:
            not_negative("each of decays", decay)
        if not self.widths or not self.decays:
            raise InvalidInput("widths and decays must each hold at least one candidate")

    def run(self, messages: Messages, seed: int, report: Report) -> Estimate:
        """Fit a network that predicts updates (equation 7), then search for a model with a zero update (equation 8)."""
        if len(messages) < 2 * self.hold:
            raise InvalidInput(
                f"a map learned from {len(messages)} rounds cannot be checked on held-out rounds; pass at least "
                f"{2 * self.hold} rounds, or use Secant()"
            )
        sent, updates = messages.sent.double(), weight_updates_of(messages).double()
        models, changes = Coordinates.of(sent), Coordinates.of(updates)
        held_out = torch.arange(len(messages), device=sent.device) % self.hold == self.hold // 2
        pairs = _Pairs(models.inside(sent).float(), changes.inside(updates).float(), held_out)
        # The coordinates of a zero update. The part that lies outside the span of the updates is lost.
        zero = changes.inside(torch.zeros_like(updates[-1:]))[0].float()
        best = self._choose(pairs, seed, report)
        point = self._descend(best.network, zero, models.inside(sent[-1:] + updates[-1:]).float())
        with torch.no_grad():
            remainder = float((best.network(point) - zero).norm()) * changes.unit
        share = relative(math.sqrt(best.error), float((pairs.updates - zero).square().sum(1).mean().sqrt()))
        outcome = (
            f"the update of a held-out round is predicted with an error of {share:.0%} (two layers of {best.width} "
            f"neurons, weight decay {best.decay:g}). The shortest predicted update has the length {remainder:.3g}"
        )
        figures = {"held_out_error": share, "update_left": remainder}
        return Estimate(models.outside(point.double())[0], outcome, None, figures)

    def _choose(self, pairs: _Pairs, seed: int, report: Report) -> _Fitted:
        """Fit a network for each pair of width and weight decay. Return the network with the lowest held-out error."""
        choices = list(itertools.product(self.widths, self.decays))
        best: _Fitted | None = None
        for number, (width, decay) in enumerate(choices):
            with seeded(seed, "map", width, decay):
                network = mapping(pairs.models.shape[1], width, pairs.updates.shape[1]).to(pairs.models.device)
            error, network = self._fit(network, decay, pairs)
            report(number + 1, len(choices), error)
            if error < (math.inf if best is None else best.error):
                best = _Fitted(network, error, width, decay)
        if best is None:
            raise InvalidInput(
                "no network has a finite error on the held-out rounds, which is measured every 10 epochs; the client's "
                "rounds diverged, or epochs is below 10"
            )
        return best

    def _fit(self, network: nn.Module, decay: float, pairs: _Pairs) -> tuple[float, nn.Module]:
        """Train a network, and return its lowest held-out squared error and the network at the epoch of this error."""
        inputs, answers, held_out = pairs.models, pairs.updates, pairs.held_out
        optimiser = torch.optim.AdamW(network.parameters(), lr=self.lr, weight_decay=decay)
        best_error, best_network = math.inf, copy.deepcopy(network)
        for epoch in range(self.epochs):
            loss = (network(inputs[~held_out]) - answers[~held_out]).square().sum(1).mean()
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            if epoch % 10 == 9:
                with torch.no_grad():
                    error = float((network(inputs[held_out]) - answers[held_out]).square().sum(1).mean())
                if error < best_error:
                    best_error, best_network = error, copy.deepcopy(network)
        return best_error, best_network

    def _descend(self, network: nn.Module, zero: Tensor, start: Tensor) -> Tensor:
        """Search for the model whose predicted update is shortest, and return this model as a vector of coordinates.

        The coordinates belong to the space that the models of all rounds span.
        """
        point: Tensor = start.clone().requires_grad_()
        optimiser = torch.optim.LBFGS([point], max_iter=self.steps, line_search_fn="strong_wolfe")

        def closure() -> Tensor:
            loss: Tensor = (network(point) - zero).square().sum() + self.pull * point.square().sum()
            point.grad = torch.autograd.grad(loss, point)[0]
            return loss.detach()

        optimiser.step(closure)
        return point.detach()


def mapping(inputs: int, width: int, outputs: int) -> nn.Module:
    """Return the paper's mapping network, which has two hidden layers of ``width`` neurons with ReLU (appendix C.2).

    Args:
        inputs: The number of coordinates of a model.
        width: The number of neurons in each hidden layer.
        outputs: The number of coordinates of an update.
    """
    return nn.Sequential(
        nn.Linear(inputs, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, outputs)
    )


SPECS = (
    AttackSpec(
        name="learned",
        factory=Learned,
        summary="A network learns the update map, and L-BFGS finds its zero (LMRA, Driouich et al., algorithm 2).",
        recovers="model",
        reads="rounds",
        fits=needs_step_length("works with any model; needs rounds to hold out, at least 10 by default"),
        cost=Cost.SECONDS,
        rank=2,
    ),
)
