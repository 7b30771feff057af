r"""Word read-off, which rebuilds sparse rows, such as word counts, from the columns of a dense layer's gradient.

The gradient of the kernel of a dense layer that gets the samples has one column for each value of a sample. The column
of word :math:`j` is :math:`m_j = \sum_i x_{ij}\, \delta_i`, where :math:`x_{ij}` is the amount of the word in sample
:math:`i` and :math:`\delta_i` the sum of the sample's gradients at the layer's outputs. The columns of words that the
client does not have are zero. Most words of a large vocabulary are in one sample only, and the columns of all words of
one sample are multiples of the same vector (:mod:`.bags`). This needs no second layer and no bias, and holds over any
number of local steps of SGD.

The length of :math:`\delta_i` is unknown, so each sample is known up to a factor. Whole numbers without a common
divisor have no other factor. Other amounts are scaled such that the known network gives the observed
:math:`\delta_i`. If the data is normalised, the bias shows which part of a column comes from the subtracted mean.

A sample is proven if the known network gives its :math:`\delta_i`, including the length, for one label.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from leakgauge.attacks.analytic.bags import Bags, real_bags, whole_bags
from leakgauge.attacks.analytic.dense import DenseChain, DoesNotFit, augmented
from leakgauge.attacks.analytic.rebuilt_batch import agreement
from leakgauge.attacks.base import Attack, Reconstruction
from leakgauge.attacks.inversion.stopping import Outcome
from leakgauge.attacks.spec import AttackSpec, Cost, Fit
from leakgauge.core.checks import positive
from leakgauge.core.observation import Observation
from leakgauge.core.one_gradient import gradient_of, mixes_linearly, why_no_gradient
from leakgauge.core.params import inside
from leakgauge.core.progress import Report

#: The number of rounding errors within which columns agree.
ROUNDINGS = 64.0
#: At most this share of the columns may belong to words of the client.
SPARSE = 0.5
#: The number of corrections of a sample's scale.
CORRECTIONS = 30
#: The largest relative distance of messages that counts as the same message.
SAME_MESSAGE = 1e-4


@dataclass(frozen=True, eq=False)
class _Rows:
    """Rebuilt rows.

    Args:
        samples: The rows, (samples, values), without normalisation.
        labels: The label of each row.
        errors: The relative error of each row's gradient at the outputs of the layer.
        explained: The share of the client's words that are assigned to rows.
    """

    samples: Tensor
    labels: Tensor
    errors: Tensor
    explained: float

    @property
    def quality(self) -> tuple[int, float]:
        """The number of proven rows, and the share of assigned words."""
        return int((self.errors < SAME_MESSAGE).sum()), self.explained


@dataclass(frozen=True)
class WordReadOff(Attack):
    """The attack that rebuilds sparse rows. See :func:`word_read_off`.

    Args:
        tolerance: The largest relative error of a proven row's gradient.
    """

    uses_defences: ClassVar[bool] = False

    tolerance: float = 1e-4

    def __post_init__(self) -> None:
        positive("tolerance", self.tolerance, up_to=0.5)

    def run(self, observation: Observation, seed: int, report: Report) -> Reconstruction:
        """Rebuild the client's rows from the columns of a dense layer's gradient.

        Args:
            observation: The client's message (gradient or weights), as the server sees it.
            seed: Not used, because the attack is deterministic.
            report: Not used, because the attack takes only a moment.
        """
        message = _Columns(observation)
        count, vectors = int(observation.training.need("samples")), message.vectors
        both = (whole_bags(vectors, count, message.rounding), real_bags(vectors, count, message.rounding))
        rows = max((message.rows(bags) for bags in both), key=lambda one: one.quality)
        proven = int((rows.errors < self.tolerance).sum())
        exact = proven == count and rows.explained == 1
        exact = exact and agreement(observation, rows.samples, rows.labels) < SAME_MESSAGE
        shared = message.with_shared_words(rows.samples)
        like = next(iter(observation.sent.values()))
        samples = shared.reshape(-1, *observation.data.shape).to(like)
        words = (
            f"the client's {len(vectors)} words of {message.total} are read off exactly, {rows.explained:.0%} of them "
            f"are assigned to {len(rows.samples)} of {count} rows, and {proven} rows are proven"
        )
        labels = rows.labels if observation.data.classes is not None and len(rows.labels) == count else None
        return Reconstruction(samples, labels, Outcome("converged" if exact else "finished", 0, words))


class _Columns:
    """The columns of the first dense layer's gradient that belong to words of the client.

    Args:
        observation: The client's message (gradient or weights), as the server sees it.
    """

    def __init__(self, observation: Observation) -> None:
        self.observation, self.chain = observation, _chain(observation)
        self.one_step = why_no_gradient(observation) is None
        update = gradient_of(observation) if self.one_step else observation.difference()
        matrix = augmented({name: value.double() for name, value in update.items()}, self.chain.first)
        self.bias = matrix[:, -1] if self.chain.has_bias(self.chain.first) else None
        assert self.chain.entrance is not None
        kernel = matrix[:, : len(self.chain.entrance.order)]
        columns = torch.empty_like(kernel)
        columns[:, self.chain.entrance.order] = kernel / self.chain.entrance.scale
        data = observation.data
        mean, std = (value.double().expand(data.shape).flatten() for value in data.statistics(columns))
        if self.bias is None and bool(mean.any()):
            raise DoesNotFit(
                "the rows are normalised by a mean, and no bias shows which part of a column comes from it"
            )
        shift = torch.zeros_like(columns) if self.bias is None else mean * self.bias[:, None]
        errors = self._errors(columns * std, shift, std)
        columns = columns * std + shift
        lengths = columns.norm(dim=0)
        self.total = columns.shape[1]
        self.words = torch.nonzero(lengths > errors).flatten()
        longest = lengths.amax().clamp_min(1e-300)
        self.rounding = float(errors[self.words].amax() / longest) if len(self.words) else 0.0
        self.vectors = columns[:, self.words].T

    def rows(self, bags: Bags) -> _Rows:
        """Return the rows of several bags of words, with the scale and the label that the known network confirms.

        Args:
            bags: The bags of words, whose amounts may be in unknown units.
        """
        directions = torch.zeros(len(bags.parts), self.total, dtype=torch.double, device=bags.parts.device)
        directions[:, self.words] = bags.amounts
        lengths = self._lengths(bags.parts)
        if lengths is not None:
            directions, bags = directions / lengths[:, None], replace(bags, parts=bags.parts * lengths[:, None])
        found = [self._scaled(row, part, lengths is None) for row, part in zip(directions, bags.parts, strict=True)]
        if self.one_step and bool(bags.explained.all()):
            found += self._empty(found)
        samples = torch.stack([one[0] for one in found]) if found else directions
        labels = torch.tensor([one[1] for one in found], dtype=torch.long, device=samples.device)
        errors = torch.tensor([one[2] for one in found], dtype=torch.double)
        return _Rows(samples, labels, errors, float(bags.explained.double().mean()) if len(bags.explained) else 0.0)

    def with_shared_words(self, samples: Tensor) -> Tensor:
        """Return rows in which every row has a little of each of the client's words that no row has.

        Which rows have these words is not known, and that the client has them is.

        Args:
            samples: The rows, without normalisation.
        """
        count = int(self.observation.training.need("samples"))
        rows = torch.cat([samples, samples.new_zeros(max(0, count - len(samples)), self.total)])
        left = self.words[~samples[:, self.words].any(0)]
        amounts = samples[samples != 0]
        rows[:, left] = float(amounts.mean() if len(amounts) else 1.0) / count
        return rows

    def _lengths(self, parts: Tensor) -> Tensor | None:
        """Return the factors of the parts that add up to the bias's gradient, if the parts are linearly independent."""
        if self.bias is None or not len(parts) or int(torch.linalg.matrix_rank(parts, rtol=1e-4)) < len(parts):
            return None
        factors: Tensor = torch.linalg.lstsq(parts.T, self.bias[:, None]).solution[:, 0]
        rest = float((self.bias - factors @ parts).norm())
        return factors if bool((factors > 0).all()) and rest <= SAME_MESSAGE * float(self.bias.norm()) else None

    def _empty(self, found: list[tuple[Tensor, int, float]]) -> list[tuple[Tensor, int, float]]:
        """Return the rows without any word, which only the bias shows.

        Args:
            found: All rows with words, with their labels and errors.
        """
        if self.bias is None or any(error > SAME_MESSAGE for _, _, error in found):
            return []
        rest = self.bias - sum((self._gradient(row, label) for row, label, _ in found), torch.zeros_like(self.bias))
        empty: list[tuple[Tensor, int, float]] = []
        row = torch.zeros(self.total, dtype=torch.double, device=rest.device)
        gradients = [self._gradient(row, label) for label in range(self.observation.data.classes or 1)]
        for _ in range(int(self.observation.training.need("samples")) - len(found)):
            label = min(range(len(gradients)), key=lambda index: float((rest - gradients[index]).norm()))
            rest = rest - gradients[label]
            empty.append((row, label, 0.0))
        exact = float(rest.norm()) <= SAME_MESSAGE * float(self.bias.norm())
        return empty if exact else []

    def _scaled(self, row: Tensor, part: Tensor, unknown: bool) -> tuple[Tensor, int, float]:
        """Return a row in the units of the data, its label, and the relative error of its gradient.

        Args:
            row: The row, up to a factor if ``unknown`` is true and it holds other numbers than whole ones.
            part: The part of the row in the gradient at the outputs of the layer.
            unknown: Whether the factor is unknown.
        """
        classes, whole = self.observation.data.classes or 1, not unknown or bool((row == row.round()).all())
        best = (row, 0, float("inf"))
        for label in range(classes):
            scaled, error = (row, self._error(row, part, label)) if whole else self._real_scale(row, part, label)
            if error < best[2]:
                best = (scaled, label, error)
        return best

    def _real_scale(self, row: Tensor, part: Tensor, label: int) -> tuple[Tensor, float]:
        """Return a row with the factor for which the known network gives a gradient of the observed length."""
        scaled = row
        for _ in range(CORRECTIONS):
            gradient = self._gradient(scaled, label)
            length = float(gradient @ part) / max(float(part @ part), 1e-300)
            if not length > 0:
                return row, float("inf")
            scaled = row / length
        return scaled, self._error(scaled, part * length, label)

    def _error(self, row: Tensor, part: Tensor, label: int) -> float:
        gradient = self._gradient(row, label)
        if not self.one_step:  # the length of a sum of gradients is not known
            gradient = gradient * float(gradient @ part) / float(gradient.square().sum().clamp_min(1e-300))
        return float((gradient - part).norm() / part.norm().clamp_min(1e-300))

    def _gradient(self, row: Tensor, label: int) -> Tensor:
        """Return the part of one row in the mean gradient at the outputs of the layer."""
        data, chain = self.observation.data, self.chain
        assert chain.entrance is not None
        inputs = data.normalise(row.reshape(1, *data.shape)).flatten(1)[:, chain.entrance.order]
        inputs = inputs * chain.entrance.scale + chain.entrance.shift
        points = chain.with_ones(inputs, chain.first)
        target = torch.tensor([label], device=row.device)
        if self.observation.data.classes is None:
            target = target.double()
        (gradient,) = chain.gradients(points @ chain.augmented_weight().T, target)
        return gradient[0] / int(self.observation.training.need("samples"))

    def _errors(self, columns: Tensor, shift: Tensor, std: Tensor) -> Tensor:
        """Return the largest rounding error of each column.

        Args:
            columns: The columns before the correction for the subtracted mean.
            shift: This correction.
            std: The factor of each column.
        """
        kernel = self.observation.sent[inside(self.chain.first, "weight")]
        eps = torch.finfo(kernel.dtype).eps
        errors: Tensor = ROUNDINGS * eps * (columns.norm(dim=0) + shift.norm(dim=0))
        if self.observation.kind == "weights":  # the change of a weight is rounded as the weight is
            assert self.chain.entrance is not None
            change = self.observation.difference()[inside(self.chain.first, "weight")].double().norm()
            unit = (columns / std).norm() / change.clamp_min(1e-300)
            sizes = torch.empty_like(std.expand(len(errors)))
            sizes[self.chain.entrance.order] = kernel.double().norm(dim=0)
            errors = errors + 2 * eps * unit * std * sizes * (columns.any(0) | shift.any(0))
        return errors


def _chain(observation: Observation) -> DenseChain:
    training = observation.training
    if not mixes_linearly(observation):
        raise DoesNotFit("columns are sums over samples for SGD only, and this client uses Adam")
    decay = observation.kind == "weights" and training.weight_decay != 0
    if decay and why_no_gradient(observation) is not None:
        raise DoesNotFit("weight decay hides which columns of the first layer's update are zero")
    if training.samples is None:
        raise DoesNotFit("needs the number of samples, which is unknown")
    chain = DenseChain(observation, needs_bias=False)
    chain.check_rows()
    return chain


def fits(observation: Observation) -> Fit:
    """Decide whether the attack applies. Most columns of the first dense layer's gradient must be zero.

    Args:
        observation: The client's message (gradient or weights), as the server sees it.
    """
    if observation.data.is_image:
        return Fit(False, "made for rows of words, and these are pictures")
    try:
        columns = _Columns(observation)
    except DoesNotFit as reason:
        return Fit(False, str(reason))
    if not 0 < len(columns.words) <= SPARSE * columns.total:
        return Fit(False, f"{len(columns.words)} of {columns.total} columns have changed, so the rows are not sparse")
    return Fit(
        True,
        f"{len(columns.words)} of {columns.total} columns of the first dense layer's gradient are not zero, which "
        "names the words or categories of the client",
    )


def word_read_off(*, tolerance: float = 1e-4) -> WordReadOff:
    """Rebuild sparse rows, such as word counts, from the columns of a dense first layer's gradient.

    The columns that are not zero name the client's words exactly. Words of one sample have columns of the same
    direction, which gives the rows. The model may be linear, without a bias, and the message may come from several
    local steps of SGD.

    Args:
        tolerance: The largest relative error of the gradient of a row that counts as proven.
    """
    return WordReadOff(tolerance)


SPECS = (
    AttackSpec(
        name="word_read_off",
        factory=word_read_off,
        summary="Word read-off (ours): columns of a dense layer's gradient name the words of sparse rows.",
        fits=fits,
        cost=Cost.INSTANT,
        rank=20,
        audit={},
        exact=True,
    ),
)
