r"""Algorithm 2 with a network as the update map (LMRA, section 3.2).

A mapping network :math:`G(w, \theta)` is fitted to the client's updates (equation 7), then the model with the shortest
predicted update is sought (equation 8). The paper's network goes from d parameters through a few dozen neurons back to
d parameters. Its first layer sees models only through the span of the observed ones, and least squares pulls its last
layer only along the observed updates. So the same map is fitted here between the *coordinates* of models and of updates
in these two spans, at most as many as there are rounds: nothing grows faster than rounds x parameters, and an epoch
takes the same time for any model.

Hyper-parameters, which the paper sets by hand for each client (tables 5 to 8), are chosen by held-out rounds: the
width, the weight decay, and when to stop.
"""

from __future__ import annotations

import copy
import itertools
import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from leakgauge.attacks.local_model.messages import Found, LocalModelAttack, Messages, relative
from leakgauge.attacks.local_model.methods import steps_of
from leakgauge.core.errors import InvalidInput
from leakgauge.core.progress import Report
from leakgauge.core.seeding import seeded


@dataclass(frozen=True, eq=False)
class Coordinates:
    """An orthonormal basis of the span of some vectors around their mean, in units of their mean distance from it."""

    mean: Tensor
    basis: Tensor
    unit: float

    @classmethod
    def of(cls, vectors: Tensor, tolerance: float = 1e-6) -> Coordinates:
        """The basis, by the eigenvectors of the small Gram matrix."""
        centred = vectors - vectors.mean(0)
        values, rotation = torch.linalg.eigh(centred @ centred.T)
        kept = values > tolerance**2 * values[-1].clamp_min(1e-300)
        basis = (rotation[:, kept].T @ centred) / values[kept].sqrt().unsqueeze(1)
        return cls(vectors.mean(0), basis, math.sqrt(float(values.clamp_min(0).mean())) or 1.0)

    def inside(self, vectors: Tensor) -> Tensor:
        """Vectors as coordinates."""
        return (vectors - self.mean) @ self.basis.T / self.unit

    def outside(self, coordinates: Tensor) -> Tensor:
        """Coordinates as vectors."""
        return self.mean + self.unit * coordinates @ self.basis


@dataclass(frozen=True)
class Learned(LocalModelAttack):
    """Algorithm 2: fit the update map with a network, then find the model it leaves alone.

    Every pair of ``widths`` (two hidden layers each) and ``decays`` is trained by Adam for up to ``epochs`` full-batch
    epochs on all but each ``hold``-th round, and kept where it predicts those best. The model is then found by L-BFGS
    on the squared predicted update, with ``pull`` times the squared coordinates (0.001 in the authors' settings), from
    the model that the client returned last.
    """

    widths: tuple[int, ...] = (16, 64)
    decays: tuple[float, ...] = (1e-3, 0.5)
    epochs: int = 1000
    lr: float = 1e-3
    hold: int = 5
    pull: float = 1e-3
    steps: int = 200

    def __post_init__(self) -> None:
        for name in ("epochs", "steps"):
            if getattr(self, name) < 1:
                raise InvalidInput(f"{name} must be at least 1, not {getattr(self, name)}")
        if self.hold < 2:
            raise InvalidInput(f"hold must be at least 2 (every second round is held out), not {self.hold}")
        if not self.widths or not self.decays:
            raise InvalidInput("widths and decays must each name at least one value to choose from")

    def run(self, messages: Messages, seed: int, report: Report) -> Found:
        """Fit and choose the map (7), then descend (8)."""
        if len(messages) < 2 * self.hold:
            raise InvalidInput(
                f"a map learned from {len(messages)} rounds cannot be checked by held-out ones; give at least "
                f"{2 * self.hold}, or use Secant()"
            )
        sent, updates = messages.sent.double(), steps_of(messages).double()
        models, changes = Coordinates.of(sent), Coordinates.of(updates)
        inputs, answers = models.inside(sent).float(), changes.inside(updates).float()
        # where "no update" lies among the coordinates of updates, and what of it no coordinate can reach
        nothing = changes.inside(torch.zeros_like(updates[-1:]))[0].float()
        held = torch.arange(len(messages), device=sent.device) % self.hold == self.hold // 2
        choices = list(itertools.product(self.widths, self.decays))
        best: tuple[float, nn.Module | None, tuple[int, float]] = (math.inf, None, choices[0])
        for number, (width, decay) in enumerate(choices):
            with seeded(seed, "map", width, decay):
                network = mapping(inputs.shape[1], width, answers.shape[1]).to(inputs.device)
            error, network = self._fit(network, decay, inputs, answers, held)
            report(number + 1, len(choices), error)
            if error < best[0]:
                best = (error, network, (width, decay))
        error, chosen, (width, decay) = best
        if chosen is None:
            raise InvalidInput("no network learned the update map: the client's rounds are not finite numbers")
        point = self._descend(chosen, nothing, models.inside(sent[-1:] + updates[-1:]).float())
        with torch.no_grad():
            left = float((chosen(point) - nothing).norm()) * changes.unit
        share = relative(math.sqrt(error), float((answers - nothing).square().sum(1).mean().sqrt()))
        outcome = (
            f"the update of a held-out round is predicted with an error of {share:.0%} ({width} x 2 neurons, weight "
            f"decay {decay:g}); the shortest predicted update is {left:.3g}"
        )
        return Found(models.outside(point.double())[0], outcome, None, {"held_out_error": share, "update_left": left})

    def _fit(
        self, network: nn.Module, decay: float, inputs: Tensor, answers: Tensor, held: Tensor
    ) -> tuple[float, nn.Module]:
        """The network at the epoch where it predicts the held-out rounds best, and its mean squared error there."""
        optimiser = torch.optim.AdamW(network.parameters(), lr=self.lr, weight_decay=decay)
        best, kept = math.inf, copy.deepcopy(network)
        for epoch in range(self.epochs):
            loss = (network(inputs[~held]) - answers[~held]).square().sum(1).mean()
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            if epoch % 10 == 9:
                with torch.no_grad():
                    error = float((network(inputs[held]) - answers[held]).square().sum(1).mean())
                if error < best:
                    best, kept = error, copy.deepcopy(network)
        return best, kept

    def _descend(self, network: nn.Module, nothing: Tensor, start: Tensor) -> Tensor:
        point: Tensor = start.clone().requires_grad_()
        optimiser = torch.optim.LBFGS([point], max_iter=self.steps, line_search_fn="strong_wolfe")

        def closure() -> Tensor:
            loss: Tensor = (network(point) - nothing).square().sum() + self.pull * point.square().sum()
            point.grad = torch.autograd.grad(loss, point)[0]
            return loss.detach()

        optimiser.step(closure)
        return point.detach()


def mapping(inputs: int, width: int, outputs: int) -> nn.Module:
    """The paper's AxB network: two hidden layers of ``width`` neurons, each followed by a ReLU (appendix C.2)."""
    return nn.Sequential(
        nn.Linear(inputs, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, outputs)
    )
