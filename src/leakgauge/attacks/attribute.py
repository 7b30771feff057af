r"""Attribute inference (AIA): a hidden column of records whose other columns and targets are public.

With :math:`h_\theta` a model's output, :math:`p_i` the public part of record i, :math:`s` a value of the sensitive
attribute and :math:`y_i` the target (one-hot for a class):

===================  ==============================================================================================
:func:`by_model`     :math:`\arg\min_s \lVert h_\theta(p_i, s) - y_i \rVert^2` for each record by itself (LMRA, 3)
:func:`by_gradient`  :math:`\arg\max_{s_1 \ldots s_N} \sum_t \cos(\nabla L(\theta_t; (p_i, s_i, y_i)_i), \theta_t -
                     \theta_{c,t})` for all at once (LMRA, 2; Lyu and Chen 2021)
:func:`by_equations` the s that solve the client's gradient, which is linear in which value each record has
                     (beyond the paper)
===================  ==============================================================================================
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn import functional as F

from leakgauge.attacks.local_model.messages import LocalModel, Messages, gradients_of, losses_of, points_of
from leakgauge.core.errors import InvalidInput
from leakgauge.core.observation import DataSpec, Observation
from leakgauge.core.params import Params
from leakgauge.core.progress import Report, silent


@dataclass(frozen=True, eq=False)
class PublicRecords:
    """Records of which the attacker knows all but the sensitive attribute; make them with :meth:`hiding`.

    ``inputs`` are as a person sees them, blank (NaN) in the sensitive ``columns``; ``values`` has a row of those
    columns for each value that the attribute may have.
    """

    inputs: Tensor = field(repr=False)
    targets: Tensor = field(repr=False)
    data: DataSpec
    columns: tuple[int, ...]
    values: Tensor

    @classmethod
    def hiding(
        cls, inputs: Tensor, targets: Tensor, data: DataSpec, attribute: str, values: Sequence[float] = (0.0, 1.0)
    ) -> PublicRecords:
        """Blank one attribute: a column, with the ``values`` it may have, or a category with its one-hot columns.

        >>> data = DataSpec((3,), 2, bounded=False, columns=("age", "job=a", "job=b"))
        >>> PublicRecords.hiding(torch.tensor([[30.0, 1.0, 0.0]]), torch.tensor([1]), data, "job").inputs
        tensor([[30., nan, nan]])
        """
        if inputs.ndim != 2 or tuple(inputs.shape[1:]) != data.shape:
            raise InvalidInput(
                f"records must be rows of a table with {data.shape} columns, not of shape {tuple(inputs.shape)}"
            )
        if len(inputs) != len(targets):
            raise InvalidInput(f"{len(inputs)} records but {len(targets)} targets")
        groups = data.one_hot_groups
        feature = attribute.partition("=")[0]
        if attribute not in groups and len(groups.get(feature, ())) > 1:
            raise InvalidInput(f"{attribute!r} is one column of a category, and the others tell it: hide {feature!r}")
        if attribute in groups:
            columns, choices = tuple(groups[attribute]), torch.eye(len(groups[attribute]))
        elif attribute in data.columns:
            columns, choices = (data.columns.index(attribute),), torch.tensor([[float(value)] for value in values])
        else:
            known = ", ".join([*data.columns[:8], *groups]) or "the data names none"
            raise InvalidInput(f"there is no column or category {attribute!r} to hide (there are: {known})")
        if len(choices) < 2:
            raise InvalidInput("an attribute with fewer than two values has nothing to infer; give values=(0, 1)")
        blank = inputs.clone()
        blank[:, columns] = torch.nan
        return cls(blank, targets, data, columns, choices)

    def __len__(self) -> int:
        return len(self.inputs)

    def known(self) -> Tensor:
        """What the attacker knows of the records, as numbers: all columns but the hidden one, and the targets."""
        rest = [column for column in range(self.inputs.shape[1]) if column not in self.columns]
        return torch.cat((self.inputs[:, rest], _targets(self, self.inputs)), dim=1)

    def filled(self, choice: Tensor) -> Tensor:
        """The records with these values: one index a record, or the shares of all values, (N, values)."""
        shares = F.one_hot(choice, len(self.values)) if choice.ndim == 1 else choice
        complete = self.inputs.to(shares.device).clone()
        complete[:, self.columns] = shares.to(complete) @ self.values.to(complete)
        return complete


@dataclass(frozen=True, eq=False)
class Attributes:
    """The value inferred for each record (an index into ``values``), and the score of every value, (N, values).

    ``coefficient`` is the weight of a binary attribute in a linear regression, for which :meth:`guarantee` holds.
    """

    choice: Tensor
    scores: Tensor = field(repr=False)
    values: Tensor = field(repr=False)
    coefficient: float | None = None
    outcome: str = ""

    def guarantee(self, mean_squared_error: float) -> float | None:
        r"""Proposition 4: the share of a linear regression's records that are right for certain, given its error there.

        At least :math:`1 - 4 E_c / \theta[s]^2` with :math:`E_c` the mean squared error of the model on the client's
        true records, which the client knows and the attacker does not. ``None`` for other models.
        """
        if self.coefficient is None:
            return None
        return max(0.0, 1 - 4 * mean_squared_error / max(self.coefficient**2, 1e-300))


def by_model(model: LocalModel, records: PublicRecords, prior: Sequence[float] | None = None) -> Attributes:
    r"""The value that fits a record's target best, for each record by itself (LMRA, equation 3; Yeom et al. 2018).

    ``prior`` are the shares of the values in the population, if the attacker is granted them (Fredrikson et al. 2014);
    the score is then the logarithm of :math:`P(s) P(y_i | p_i, s)`, for a regression with Gaussian residuals.
    """
    with torch.no_grad():
        outputs = [model.probabilities(records.filled(_all(records, value))) for value in range(len(records.values))]
    targets = _targets(records, outputs[0])
    distances = torch.stack([(output - targets).square().sum(1) for output in outputs], dim=1)
    scores = -distances
    if prior is not None:
        if records.data.classes is None:
            scores = -distances / (2 * distances.min(1).values.mean().clamp_min(1e-30))
        else:
            likely = [(output * targets).sum(1) for output in outputs]
            scores = torch.stack(likely, dim=1).clamp_min(1e-30).log()
        scores = scores + _shares(records, prior).to(scores).log()
    coefficient = None
    if records.data.classes is None and len(records.values) == 2 and len(records.columns) == 1:
        effects = (outputs[1] - outputs[0]).squeeze(1)
        if float(effects.std(correction=0)) <= 1e-4 * float(effects.abs().mean()) and not model.has_statistics:
            coefficient = float(effects.mean())
    outcome = "each record by itself, on the model"
    if coefficient is not None:
        outcome += (
            f"; the attribute moves the prediction by {coefficient:.4g} everywhere, so at least 1 - 4 E / "
            f"{coefficient**2:.4g} of the records are right, E the model's squared error on them (proposition 4)"
        )
    return Attributes(scores.argmax(1), scores, records.values, coefficient, outcome)


def by_gradient(
    observations: Sequence[Observation],
    records: PublicRecords,
    *,
    rounds: int = 5,
    steps: int = 40,
    lr: float = 0.1,
    prior: Sequence[float] | None = None,
    report: Report = silent,
) -> Attributes:
    """The values whose gradient points where the client went, over ``rounds`` evenly spaced rounds (LMRA, equation 2).

    A record has shares of all values while they are sought, by ``steps`` of Adam from equal shares, or from those of
    the population where the attacker is granted them (``prior``); the largest counts.
    """
    messages = Messages.read(observations)
    problem = _Problem(messages, records, _spaced(len(messages), rounds))
    free = _shares(records, prior).log().to(messages.sent).requires_grad_()
    optimiser = torch.optim.Adam([free], lr=lr)
    cosine = torch.zeros(())
    for step in range(steps):
        total = torch.zeros_like(free)
        cosine = torch.zeros(())
        for place in range(len(problem.points)):
            inputs = problem.inputs(free.softmax(1))
            similarity = F.cosine_similarity(problem.gradient(place, inputs), problem.wanted[place], dim=0)
            total -= torch.autograd.grad(similarity, free)[0]
            cosine += float(similarity.detach()) / len(problem.points)
        free.grad = total
        optimiser.step()
        report(step + 1, steps, -float(cosine))
    scores = free.detach().softmax(1)
    return Attributes(
        scores.argmax(1), scores, records.values, None, f"gradients agree to a cosine of {float(cosine):.3f}"
    )


def by_equations(
    observations: Sequence[Observation],
    records: PublicRecords,
    *,
    rounds: int = 3,
    steps: int = 30,
    prior: Sequence[float] | None = None,
    report: Report = silent,
) -> Attributes:
    r"""The values that solve the client's gradient, by least squares over its first ``rounds`` rounds (our own).

    A mean gradient is linear in *which* value each record has: :math:`g_t = \frac1N \sum_i \sum_s p_{is}
    \nabla\ell(\theta_t; p_i, s, y_i)` with :math:`p_{is}` one for the true value. There are as many equations as
    parameters, so for full-batch clients with one local step the attribute is found at any number of records that is
    small beside the model. :math:`p` is sought by ``steps`` of conjugate gradients, with one product and one transposed
    product a step, from equal shares. Needs the learning rate and the number of local steps.

    What is found are zeros and ones with noise. An attacker who is granted the shares of the values in the population
    (``prior``) knows how far these would spread without it, takes the rest of the variance for the noise's
    :math:`\sigma^2`, and weighs :math:`p_{is} / \sigma^2 + \log P(s)`. Where records outnumber the equations,
    shares stay near equal and show no noise: the prior then changes nothing.
    """
    messages = Messages.read(observations)
    problem = _Problem(messages, records, list(range(min(rounds, len(messages)))))
    if not problem.scaled:
        raise InvalidInput(
            "by_equations() needs the client's gradient with its scale: supply observation.knowing(lr=..., epochs=..., "
            "batch_size=..., samples=...), or use by_gradient()"
        )
    shares = _shares(records, None).to(messages.sent)
    right = _centred(problem.transposed([w - g for w, g in zip(problem.wanted, problem.mixed(shares), strict=True)]))
    direction, rest = right.clone(), right.clone()
    square = float(rest.square().sum())
    first = square
    for step in range(steps):
        if square <= 1e-12 * first:
            break
        image = problem.mixed(direction)
        length = square / max(sum(float(one.square().sum()) for one in image), 1e-300)
        shares = shares + length * direction
        rest = rest - length * _centred(problem.transposed(image))
        square, before = float(rest.square().sum()), square
        direction = rest + square / before * direction
        report(step + 1, steps, square)
    scores = shares
    if prior is not None:
        known = _shares(records, prior).to(shares)
        # A few that are far off say nothing of the others' noise.
        kept = shares.clamp(*shares.flatten().quantile(torch.tensor([0.05, 0.95]).to(shares)))
        noise = (kept - known).square().mean() - (known * (1 - known)).mean()
        values = len(records.values)  # shares add up to one, so that their noise has one dimension less
        scores = shares / (noise * values / (values - 1)).clamp_min(1e-6) + known.log()
    return Attributes(
        scores.argmax(1), scores, records.values, None, f"least squares over {len(problem.points)} rounds"
    )


class _Problem:
    """The client's gradients in some rounds, as functions of the sensitive values."""

    def __init__(self, messages: Messages, records: PublicRecords, rounds: Sequence[int]) -> None:
        last = messages.last
        self.records, self.last = records, last
        self.points = [messages.unflatten(point) for point in points_of(messages)[list(rounds)]]
        gradients, self.scaled = gradients_of(messages)
        self.wanted = list(gradients[list(rounds)])
        like = next(iter(last.sent.values()))
        targets = records.targets.to(like.device)
        self.targets = targets.to(like.dtype) if targets.is_floating_point() else targets
        self.every = [
            records.data.normalise(records.filled(_all(records, value)).to(like))
            for value in range(len(records.values))
        ]

    def inputs(self, shares: Tensor) -> Tensor:
        return self.records.data.normalise(self.records.filled(shares).to(shares))

    def _losses(self, weights: Params, inputs: Tensor) -> Tensor:
        """The loss of each record."""
        return losses_of(self.last, weights, inputs, self.targets)

    def gradient(self, place: int, inputs: Tensor) -> Tensor:
        """The mean gradient at one round's model, differentiable to the inputs."""
        leaves = {name: value.detach().requires_grad_() for name, value in self.points[place].items()}
        found = torch.autograd.grad(self._losses(leaves, inputs).mean(), list(leaves.values()), create_graph=True)
        return torch.cat([value.reshape(-1) for value in found])

    def mixed(self, shares: Tensor) -> list[Tensor]:
        """The mean gradient in each round, of losses mixed by shares: linear in them."""
        found = []
        for point in self.points:
            leaves = {name: value.detach().requires_grad_() for name, value in point.items()}
            total = sum(
                ((shares[:, value] * self._losses(leaves, inputs)).sum() for value, inputs in enumerate(self.every)),
                torch.zeros((), device=shares.device),
            )
            gradients = torch.autograd.grad(total / len(shares), list(leaves.values()))
            found.append(torch.cat([value.reshape(-1) for value in gradients]))
        return found

    def transposed(self, directions: Sequence[Tensor]) -> Tensor:
        """How each record's loss with each value changes along a direction, over the rounds: the adjoint of mixed."""
        columns = []
        for inputs in self.every:
            # the gradient of a sum with factors, along the direction, differentiated to the factors
            factors = torch.zeros(len(self.records)).to(directions[0]).requires_grad_()
            along = factors.new_zeros(())
            for point, direction in zip(self.points, directions, strict=True):
                leaves = {name: value.detach().requires_grad_() for name, value in point.items()}
                total = (factors * self._losses(leaves, inputs)).sum() / len(factors)
                found = torch.autograd.grad(total, list(leaves.values()), create_graph=True)
                along = along + torch.cat([value.reshape(-1) for value in found]) @ direction
            columns.append(torch.autograd.grad(along, factors)[0])
        return torch.stack(columns, dim=1)


def _shares(records: PublicRecords, prior: Sequence[float] | None) -> Tensor:
    """The shares of all values for each record at first, (N, values): the population's, or equal ones."""
    values = len(records.values)
    known = torch.ones(values) if prior is None else torch.tensor([float(share) for share in prior])
    if len(known) != values or not bool((known > 0).all()):
        raise InvalidInput(f"the prior must be {values} shares above 0, not {tuple(known.tolist())}")
    return (known / known.sum()).expand(len(records), -1)


def _centred(shares: Tensor) -> Tensor:
    """Changes of shares that leave their sum over values as it is."""
    return shares - shares.mean(1, keepdim=True)


def _all(records: PublicRecords, value: int) -> Tensor:
    return torch.full((len(records),), value)


def _targets(records: PublicRecords, outputs: Tensor) -> Tensor:
    targets = records.targets.to(outputs.device)
    if records.data.classes is None:
        return targets.to(outputs).reshape(len(records), -1)
    return F.one_hot(targets, records.data.classes).to(outputs)


def _spaced(count: int, wanted: int) -> list[int]:
    """Evenly spaced rounds, the first and the last among them."""
    if wanted < 1:
        raise InvalidInput(f"rounds must be at least 1, not {wanted}")
    return sorted({round(place) for place in torch.linspace(0, count - 1, min(wanted, count)).tolist()})
