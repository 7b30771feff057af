r"""L-BFGS for many independent problems at once.

The rules for each problem are those of ``torch.optim.LBFGS``. One step has at most ``inner`` iterations and at most
``evaluations`` evaluations of the loss. The first iteration of a run moves by :math:`\min(1, 1/\lVert g\rVert_1)` times
the learning rate. Every later iteration moves by the learning rate times

.. math:: d = -H_k\, g_k,

where :math:`g` is the gradient, and the inverse Hessian :math:`H_k` is estimated from the last ``history`` pairs
:math:`(s_i, y_i) = (x_{i+1}-x_i, g_{i+1}-g_i)` by the two-loop recursion (Nocedal and Wright 2006, algorithm 7.4). A
pair with :math:`s^\top y` at or below ``tolerance_curvature`` is not used. This limit is :math:`10^{-10}` by default. A
problem that has finished its step early waits for the other problems, and its loss is not evaluated again.

In PyTorch, the loops of the recursion go over the history in Python, one pair at a time. Here each loop is replaced by
the triangular system that the loop solves. With :math:`S, Y` the pairs from oldest to newest, :math:`R_{ij} = s_i^\top
y_j` for :math:`i \le j`, the diagonal :math:`D` of :math:`R`, and :math:`\gamma = s^\top y / y^\top y` of the newest
pair,

.. math:: R\,a = -S^\top g, \qquad q = -g - Y a, \qquad R^\top c = D a - \gamma\, Y^\top q, \qquad d = \gamma q + S c,

which need only four products with the history, computed for all problems together (compare Byrd, Nocedal and Schnabel
1994).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

from leakgauge.attacks.inversion.optimisers import Evaluate, Run
from leakgauge.core.checks import not_negative, positive, whole_number
from leakgauge.core.errors import UnknownName
from leakgauge.core.params import Params

LineSearch = Literal["none", "backtracking"]

#: The share of the predicted decrease that a backtracking search requires (Nocedal and Wright, section 3.1).
ARMIJO = 1e-4


@dataclass(frozen=True)
class LBFGS:
    """L-BFGS with a fixed step, as in DLG (Zhu et al. 2019, learning rate 1), or with a line search.

    The tolerances are those of PyTorch. They are absolute, so they stop a problem when its loss is below about 1e-6,
    even if the loss could still fall.

    Args:
        lr: The learning rate.
        inner: The largest number of iterations in one step.
        evaluations: The largest number of evaluations of the loss in one step.
        history: The number of stored pairs of moves and gradient changes, from which the curvature is estimated.
        tolerance_gradient: A step ends if no entry of the gradient is larger than this value.
        tolerance_change: A step ends if the variables or the loss change by less than this value.
        tolerance_curvature: A pair is not used if the inner product of its move and its gradient change is at or below
            this value.
        line_search: ``"backtracking"`` halves the move of a problem until its loss falls enough (Armijo's rule; Nocedal
            and Wright 2006, algorithm 3.1), within the same number of evaluations. ``"none"`` is cheaper but may move
            far away, and some problems never recover from such a move.
    """

    lr: float = 1.0
    inner: int = 20
    evaluations: int = 25
    history: int = 100
    tolerance_gradient: float = 1e-7
    tolerance_change: float = 1e-9
    tolerance_curvature: float = 1e-10
    line_search: LineSearch = "none"

    def __post_init__(self) -> None:
        positive("lr", self.lr)
        for name in ("inner", "evaluations", "history"):
            whole_number(name, getattr(self, name))
        for name in ("tolerance_gradient", "tolerance_change", "tolerance_curvature"):
            not_negative(name, getattr(self, name))
        if self.line_search not in get_args(LineSearch):
            raise UnknownName("line search", self.line_search, get_args(LineSearch))

    def begin(self, variables: Params) -> Run:
        """Return the state of a new optimisation run.

        Args:
            variables: The initial values of the variables. The given tensors are not changed.
        """
        return _LBFGSRun(self, variables)


class _LBFGSRun:
    def __init__(self, settings: LBFGS, variables: Params) -> None:
        self.settings = settings
        self.shapes = {name: value.shape[1:] for name, value in variables.items()}
        self.x = torch.cat([value.detach().reshape(len(value), -1) for value in variables.values()], dim=1)
        problems, size = self.x.shape
        # Pair number i of a problem is in slot i modulo the length of the history. R is ordered from oldest to newest.
        # Slots are added when they are needed. Slots that a problem has not filled are zero, with 1 on R's diagonal.
        self.s = self.y = self.x.new_zeros(problems, 0, size)
        self.products = self.x.new_zeros(problems, 0, 0)  # R
        self.pairs = torch.zeros(problems, dtype=torch.long)
        self.curvature = self.x.new_ones(problems)  # gamma
        self.iterations = torch.zeros(problems, dtype=torch.long)
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
        losses, spent = first_losses.clone(), torch.ones(len(self.x), dtype=torch.long)
        active = (gradient.abs().amax(1) > settings.tolerance_gradient).cpu().nonzero().flatten()
        for inner in range(1, settings.inner + 1):
            if not len(active):
                break
            d = self._direction(active, gradient[active])
            g = self.gradient[active] = gradient[active]
            fresh = self.iterations[active] == 1
            length = torch.where(fresh.to(g.device), (1 / g.abs().sum(1)).clamp(max=1.0) * lr, lr)
            slope = (g * d).sum(1)
            downhill = (slope <= -settings.tolerance_change).cpu()
            active, move, slope = active[downhill], (length.unsqueeze(1) * d)[downhill], (length * slope)[downhill]
            if not len(active):
                break
            self.moved[active] = move
            self.x[active] += move
            searching = settings.line_search == "backtracking"
            if inner == settings.inner and not searching:
                break
            previous = losses[active]
            losses[active], gradient[active] = self._evaluate(evaluate, active)
            spent[active] += 1
            if searching:
                self._backtrack(evaluate, active, losses, gradient, previous, slope, spent)
            going = (
                (gradient[active].abs().amax(1) > settings.tolerance_gradient)
                & (self.moved[active].abs().amax(1) > settings.tolerance_change)
                & ((losses[active] - previous).abs() >= settings.tolerance_change)
            )
            active = active[going.cpu() & (spent[active] < settings.evaluations)]
        return first_losses

    def _backtrack(
        self,
        evaluate: Evaluate,
        rows: Tensor,
        losses: Tensor,
        gradient: Tensor,
        previous: Tensor,
        slope: Tensor,
        spent: Tensor,
    ) -> None:
        """Halve the move of each problem until the loss falls enough. Undo a move that never lowers the loss enough."""
        share = torch.ones_like(slope)
        while True:
            # The negation also catches a loss that is NaN.
            far = ~(losses[rows] <= previous + ARMIJO * share * slope).cpu()
            lost = rows[far & (spent[rows] >= self.settings.evaluations)]
            far &= spent[rows] < self.settings.evaluations
            if not bool(far.any()):
                self.x[lost] -= self.moved[lost]
                self.moved[lost] = 0
                gradient[lost] = self.gradient[lost]
                return
            back = rows[far]
            share[far] /= 2
            self.moved[back] /= 2
            self.x[back] -= self.moved[back]
            losses[back], gradient[back] = self._evaluate(evaluate, back)
            spent[back] += 1

    def _direction(self, rows: Tensor, g: Tensor) -> Tensor:
        """Store the last move of each problem, and return the direction of the next move."""
        started = self.iterations[rows] > 0
        self.iterations[rows] += 1
        if bool(started.any()):
            old = rows[started]
            self._remember(old, self.moved[old], g[started] - self.gradient[old])
        filled = min(int(self.pairs[rows].max()), self.s.shape[1])
        if not filled:
            return -g
        everyone = len(rows) == len(self.x)
        s, y, r, gamma = (
            value if everyone else value[rows] for value in (self.s, self.y, self.products, self.curvature[:, None])
        )
        s, y, r = s[:, :filled], y[:, :filled], r[:, :filled, :filled]
        slots = self._by_age(rows, filled)
        onto_s = _times(s, -g).gather(1, slots)
        a = torch.linalg.solve_triangular(r, onto_s.unsqueeze(2), upper=True).squeeze(2)
        q = -g - _combine(torch.zeros_like(a).scatter(1, slots, a), y)
        onto_y = _times(y, q).gather(1, slots)
        rest = r.diagonal(dim1=1, dim2=2) * a - gamma * onto_y
        c = torch.linalg.solve_triangular(r.mT, rest.unsqueeze(2), upper=False).squeeze(2)
        return gamma * q + _combine(torch.zeros_like(c).scatter(1, slots, c), s)

    def _by_age(self, rows: Tensor, filled: int) -> Tensor:
        """Return the indices of the stored pairs, from the oldest to the newest. Empty entries come last."""
        pairs = self.pairs[rows].unsqueeze(1)
        oldest = torch.where(pairs > self.settings.history, pairs, 0)
        return ((oldest + torch.arange(filled)) % filled).to(self.x.device)

    def _remember(self, rows: Tensor, s: Tensor, y: Tensor) -> None:
        """Store the last move and gradient change of each problem as a pair, if their inner product is large enough.

        If the history of a problem is full, the new pair replaces the oldest pair.
        """
        product = (s * y).sum(1)
        good = (product > self.settings.tolerance_curvature).cpu()
        rows, s, y, product = rows[good], s[good], y[good], product[good]
        if not len(rows):
            return
        history, slot = self.settings.history, self.pairs[rows] % self.settings.history
        if int(slot.max()) >= self.s.shape[1]:
            self._grow(min(max(10, self.s.shape[1]), history - self.s.shape[1]))
        self.s[rows, slot], self.y[rows, slot] = s, y
        self.curvature[rows] = product / y.square().sum(1)
        full = rows[self.pairs[rows] >= history]
        if len(full):
            self.products[full, :-1, :-1] = self.products[full, 1:, 1:]
            self.products[full, -1, :-1] = 0
        self.pairs[rows] += 1
        # The new column of R holds the products of every s, the new one included, with the new y.
        everyone = len(rows) == len(self.x)
        slots = self._by_age(rows, self.s.shape[1])
        column = _times(self.s if everyone else self.s[rows], y).gather(1, slots)
        place = self.pairs[rows].clamp(max=history) - 1
        newer = torch.arange(column.shape[1]) > place[:, None]
        self.products[rows, :, place] = column.masked_fill(newer.to(column.device), 0)

    def _grow(self, more: int) -> None:
        """Allocate memory for more stored pairs."""
        problems, slots, size = self.s.shape
        self.s, self.y = (torch.cat([old, old.new_zeros(problems, more, size)], dim=1) for old in (self.s, self.y))
        products = torch.eye(slots + more, dtype=self.x.dtype, device=self.x.device).repeat(problems, 1, 1)
        products[:, :slots, :slots] = self.products
        self.products = products

    def keep(self, rows: Tensor) -> None:
        for name in ("x", "s", "y", "products", "pairs", "curvature", "iterations", "moved", "gradient"):
            setattr(self, name, getattr(self, name)[rows])


def _times(history: Tensor, vectors: Tensor) -> Tensor:
    """Return the inner products of each problem's vector with the vectors in its history, (problems, pairs)."""
    return torch.bmm(vectors.unsqueeze(1), history.mT).squeeze(1)  # this order is four times faster than the other


def _combine(weights: Tensor, history: Tensor) -> Tensor:
    """Return the weighted sum of the vectors in each problem's history, (problems, size)."""
    return torch.bmm(weights.unsqueeze(1), history).squeeze(1)
