r"""L-BFGS for many independent problems at once.

The rules are those of ``torch.optim.LBFGS`` without line search, problem by problem: one step is up to
``inner`` iterations or ``evaluations`` evaluations, the first iteration of a run moves by
:math:`\min(1, 1/\lVert g\rVert_1)` times the learning rate, every later one by the learning rate along

.. math:: d = -H_k\, g_k,

with :math:`H_k` from the last ``history`` pairs :math:`(s_i, y_i) = (x_{i+1}-x_i, g_{i+1}-g_i)` by the
two-loop recursion (Nocedal and Wright 2006, algorithm 7.4). A pair with :math:`s^\top y \le 10^{-10}` is
not used. Problems that are done with their step wait without costing evaluations.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from leakscope.inversion.checks import positive, whole
from leakscope.inversion.optimisers import Evaluate, Run
from leakscope.params import Params


@dataclass(frozen=True)
class LBFGS:
    """L-BFGS with a fixed step, as DLG uses it (Zhu et al. 2019: learning rate 1)."""

    lr: float = 1.0
    inner: int = 20
    evaluations: int = 25
    history: int = 100
    tolerance_gradient: float = 1e-7
    tolerance_change: float = 1e-9

    def __post_init__(self) -> None:
        positive("lr", self.lr)
        for name in ("inner", "evaluations", "history"):
            whole(name, getattr(self, name))

    def begin(self, variables: Params) -> Run:
        """Start from these variables."""
        return _LBFGSRun(self, variables)


class _LBFGSRun:
    def __init__(self, settings: LBFGS, variables: Params) -> None:
        self.settings = settings
        self.shapes = {name: value.shape[1:] for name, value in variables.items()}
        self.x = torch.cat([value.detach().reshape(len(value), -1) for value in variables.values()], dim=1)
        problems = len(self.x)
        # Pair number i of a problem is in slot i modulo the history. Slots are made as they are needed; one that a
        # problem has not filled has an inverse, and so a weight, of zero.
        self.s = self.y = self.x.new_zeros(0, *self.x.shape)
        self.inverse = self.x.new_zeros(0, problems)  # 1 / s.y
        self.pairs = torch.zeros(problems, dtype=torch.long)
        self.curvature = self.x.new_ones(problems)
        self.iterations = torch.zeros(problems, dtype=torch.long)
        self.direction = torch.zeros_like(self.x)
        self.moved = torch.zeros_like(self.x)
        self.gradient = torch.zeros_like(self.x)

    @property
    def variables(self) -> Params:
        return self._unflatten(self.x)

    def _unflatten(self, x: Tensor) -> Params:
        sizes = [shape.numel() for shape in self.shapes.values()]
        parts = x.split(sizes, dim=1)
        return {
            name: part.reshape(len(x), *shape) for (name, shape), part in zip(self.shapes.items(), parts, strict=True)
        }

    def _evaluate(self, evaluate: Evaluate, rows: Tensor) -> tuple[Tensor, Tensor]:
        losses, gradients = evaluate(self._unflatten(self.x[rows]), rows)
        return losses, torch.cat([gradients[name].reshape(len(rows), -1) for name in self.shapes], dim=1)

    def step(self, evaluate: Evaluate, factor: float) -> Tensor:
        settings, lr = self.settings, self.settings.lr * factor
        first_losses, gradient = self._evaluate(evaluate, torch.arange(len(self.x)))
        losses, evaluations = first_losses.clone(), 1
        active = (gradient.abs().amax(1) > settings.tolerance_gradient).cpu().nonzero().flatten()
        for inner in range(1, settings.inner + 1):
            if not len(active):
                break
            self._learn(active, gradient)
            g, d = gradient[active], self.direction[active]
            fresh = self.iterations[active] == 1
            length = torch.where(fresh.to(g.device), (1 / g.abs().sum(1)).clamp(max=1.0) * lr, lr)
            downhill = ((g * d).sum(1) <= -settings.tolerance_change).cpu()
            self.gradient[active] = g
            active, move = active[downhill], (length.unsqueeze(1) * d)[downhill]
            if not len(active):
                break
            self.moved[active] = move
            self.x[active] += move
            if inner == settings.inner:
                break
            previous = losses[active]
            losses[active], gradient[active] = self._evaluate(evaluate, active)
            evaluations += 1
            if evaluations >= settings.evaluations:
                break
            going = (
                (gradient[active].abs().amax(1) > settings.tolerance_gradient)
                & (move.abs().amax(1) > settings.tolerance_change)
                & ((losses[active] - previous).abs() >= settings.tolerance_change)
            )
            active = active[going.cpu()]
        return first_losses

    def _learn(self, rows: Tensor, gradient: Tensor) -> None:
        """Take in the last move of these problems, and find their next direction."""
        g = gradient[rows]
        started = self.iterations[rows] > 0
        self.iterations[rows] += 1
        old = rows[started]
        if len(old):
            self._remember(old, self.moved[old], gradient[old] - self.gradient[old])
        pairs, filled = self.pairs[rows], min(int(self.pairs[rows].max()), len(self.s))
        slots = [(pairs - age) % len(self.s) for age in range(1, filled + 1)]  # newest first
        q = -g
        weights: list[Tensor] = []
        for slot in slots:
            weight = self.inverse[slot, rows] * (self.s[slot, rows] * q).sum(1)
            q = q - weight.unsqueeze(1) * self.y[slot, rows]
            weights.append(weight)
        d = q * self.curvature[rows].unsqueeze(1)
        for slot, weight in zip(reversed(slots), reversed(weights), strict=True):
            beta = self.inverse[slot, rows] * (self.y[slot, rows] * d).sum(1)
            d = d + (weight - beta).unsqueeze(1) * self.s[slot, rows]
        self.direction[rows] = d

    def _remember(self, rows: Tensor, s: Tensor, y: Tensor) -> None:
        """Put one pair each of these problems in the place of their oldest, if it shows curvature."""
        product = (s * y).sum(1)
        good = (product > 1e-10).cpu()
        used, s, y, product = rows[good], s[good], y[good], product[good]
        slot = self.pairs[used] % self.settings.history
        if len(used) and int(slot.max()) >= len(self.s):
            more = min(max(10, len(self.s)), self.settings.history - len(self.s))
            self.s, self.y, self.inverse = (
                torch.cat([kept, kept.new_zeros(more, *kept.shape[1:])]) for kept in (self.s, self.y, self.inverse)
            )
        self.s[slot, used], self.y[slot, used], self.inverse[slot, used] = s, y, 1 / product
        self.curvature[used] = product / y.square().sum(1)
        self.pairs[used] += 1

    def keep(self, rows: Tensor) -> None:
        for name in ("x", "pairs", "curvature", "iterations", "direction", "moved", "gradient"):
            setattr(self, name, getattr(self, name)[rows])
        for name in ("s", "y", "inverse"):
            setattr(self, name, getattr(self, name)[:, rows])
