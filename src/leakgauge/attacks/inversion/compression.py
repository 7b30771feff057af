r"""Functions that recognise a pruned or quantised message from the message alone.

*Pruning* sets entries to zero. A gradient without pruning (a dense gradient) has zeros too, where a unit is dead or an
input is zero. For one sample, such zeros fill whole rows and columns. Only zeros between non-zero rows and columns are
*scattered*. With several samples, dead units scatter zeros as well, so scattered zeros prove nothing without one of
three further signs:

- The last layer has scattered zeros. Without pruning it has none and no row of zeros, because with softmax and
  cross-entropy every class has an error.
- Biases are zero although weights of the same unit are not.
- No small entries were sent. A dense gradient has entries of any small size. Top-k pruning sends only the entries above
  a limit.

*Quantisation* leaves few different magnitudes in each tensor. All of them are multiples of one step :math:`s`. The
rounding error has a variance of about :math:`s^2 / 12`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from leakgauge.attacks.inversion.known_defences import known_defences
from leakgauge.core.observation import Observation
from leakgauge.core.one_gradient import optimiser_of
from leakgauge.core.params import Params

#: The share of scattered zeros from which a message may be pruned.
SCATTERED = 0.05
#: The number of scattered zeros, or of missing biases, below which they prove nothing.
FEWEST = 8
#: The smallest ratio of the least to the median magnitude from which the small entries are missing.
TRUNCATED = 0.05
#: The number of different magnitudes below which a missing tail proves nothing.
FEWEST_MAGNITUDES = 30
#: The largest number of steps between zero and the largest entry of a quantised tensor. Finer steps hide nothing.
MOST_LEVELS = 4096
#: The number of entries of a tensor whose magnitudes are compared.
COMPARED = 4096
#: The number of units in the last place up to which rounding may explain a zero in a difference of weights.
ULPS = 32


@dataclass(frozen=True)
class Pruned:
    """The entries of a pruned message that were sent.

    Args:
        sent: A dictionary from the name of each parameter to a mask of the entries that were sent.
        limits: A dictionary from the name of each parameter to the largest possible size of an entry that was not sent.
            The size is infinite if the entries were left out at random.
    """

    sent: Params
    limits: dict[str, float]


@dataclass(frozen=True)
class Message:
    """An update, of which some entries are ignored.

    Args:
        observed: The update, with zeros in place of the ignored entries.
        used: A dictionary from the name of each parameter to a mask, which is 1 for the entries that count and 0 for
            the ignored entries. ``None`` means that all entries count.
        pruned: The entries that were sent and the limits of the others, if the message is pruned.
    """

    observed: Params
    used: Params | None = None
    pruned: Pruned | None = None

    @staticmethod
    def of(observed: Params, used: Params, pruned: Pruned | None = None) -> Message:
        """Return the update in which only some entries count.

        Args:
            observed: The update.
            used: The mask of the entries that count.
            pruned: The limits of entries that pruning left out. By default, predictions of these entries are ignored.
        """
        return Message({name: value * used[name] for name, value in observed.items()}, used, pruned)

    def visible(self, predicted: Params) -> Params:
        """Return a prediction with zeros in place of the ignored entries.

        An entry that pruning left out must be small. If its prediction is above the limit, the result holds the excess,
        which counts as an error.

        Args:
            predicted: The predicted update.
        """
        if self.used is None:
            return predicted
        visible = {name: predicted[name] * mask for name, mask in self.used.items()}
        if self.pruned is None:
            return visible
        scale = self._scale(visible)
        return {name: value + self._excess(name, predicted[name], scale) for name, value in visible.items()}

    def _scale(self, visible: Params) -> float:
        """Return the factor by which a prediction must be multiplied to fit the update best, or 0 if it is negative."""
        product, square = (
            sum(float((value.detach() * other[name].detach()).sum()) for name, value in visible.items())
            for other in (self.observed, visible)
        )
        return max(0.0, product / square) if square > 0 else 0.0

    def _excess(self, name: str, predicted: Tensor, scale: float) -> Tensor | float:
        """Return the part of a prediction above the limit, for the entries of one parameter that pruning left out."""
        assert self.pruned is not None
        limit = self.pruned.limits[name] / scale if scale > 0 else math.inf
        if not math.isfinite(limit):
            return 0.0
        return (1 - self.pruned.sent[name]) * (predicted - predicted.clamp(-limit, limit))


def pruning_of(observation: Observation) -> Pruned | None:
    """Return the entries that were sent if the message is pruned, and otherwise ``None``.

    Args:
        observation: The message of the client.
    """
    update = observation.difference()
    names = {defence.name for defence in known_defences(observation) if defence.place == "update"}
    truncated = "TopK" in names or (_is_sgd(observation) and _has_no_small_entries(update))
    known = bool(names & {"TopK", "RandomPruning"})
    if not known and (not _is_pruned(observation, update, truncated) or rounding_noise(observation) > 0):
        return None
    least = {name: _least(value) for name, value in update.items()}
    lowest = min(least.values())
    limits = {name: value if math.isfinite(value) else lowest for name, value in least.items()}
    if not truncated:
        limits = dict.fromkeys(update, math.inf)
    return Pruned({name: (value != 0).to(value) for name, value in update.items()}, limits)


def rounding_noise(observation: Observation) -> float:
    """Return the share of a quantised message's squared norm that is rounding error, or 0 if it is not quantised.

    Args:
        observation: The message of the client.
    """
    if not _is_sgd(observation):
        return 0.0
    update, floors = observation.difference(), _rounding(observation)
    steps = {name: _step(value, floors[name]) for name, value in update.items() if bool(value.any())}
    judged = {name: step for name, step in steps.items() if step is not None}
    entries = {name: update[name].numel() for name in judged}
    if sum(entries[name] for name, step in judged.items() if step > 0) < 0.9 * max(1, sum(entries.values())):
        return 0.0
    error = sum(entries[name] * step**2 / 12 for name, step in judged.items())
    return min(1.0, error / sum(float(value.double().square().sum()) for value in update.values()))


def _is_sgd(observation: Observation) -> bool:
    """Return whether the update is a sum of gradients. Adam gives all entries of an update about the same size."""
    return observation.kind == "gradient" or optimiser_of(observation) == "sgd"


def _is_pruned(observation: Observation, update: Params, truncated: bool) -> bool:
    matrices = {name: value.flatten(1) for name, value in update.items() if value.dim() > 1 and value.numel()}
    if not matrices:
        return False
    floors, last = _rounding(observation), list(matrices)[-1]
    classes = observation.data.classes if observation.training.loss == "cross_entropy" else None
    full = last if classes is not None and len(matrices[last]) == classes > 1 else None
    others = any(bool(value.any()) for name, value in matrices.items() if name != full)
    if full is not None and observation.kind == "gradient" and others and not bool(matrices[full].any()):
        return True  # an error reaches earlier layers only through units that enter the last layer
    blocks = {name: _scattered(value, floors[name], name == full) for name, value in matrices.items()}
    if not _many(*(sum(column) for column in zip(*blocks.values(), strict=True))):
        return False
    return truncated or (full is not None and _many(*blocks[full])) or _biases_are_pruned(update, matrices, floors)


def _many(zeros: int, entries: int) -> bool:
    return zeros >= max(FEWEST, SCATTERED * entries)


def _scattered(matrix: Tensor, floor: float, full: bool) -> tuple[int, int]:
    """Count the zeros and all entries of a matrix, without rows and columns that consist of zeros only.

    Zeros that the rounding of the weights may have caused are subtracted.

    Args:
        matrix: The update of one parameter, with one row for each unit.
        floor: The size of updates that rounding of the weights may distort.
        full: Whether rows of zeros are counted too. This is for the last layer, where only pruning makes a row zero.
    """
    sent = matrix != 0
    if _is_rounded(matrix, floor):
        return 0, 0
    rows, columns = len(sent) if full else int(sent.any(1).sum()), int(sent.any(0).sum())
    return rows * columns - int(sent.sum()) - _by_rounding(matrix, floor), rows * columns


def _is_rounded(value: Tensor, floor: float) -> bool:
    """Return whether at least half of a tensor's non-zero entries are so small that rounding distorts them."""
    sent = value[value != 0].abs()
    return not len(sent) or float(sent.median()) <= floor


def _by_rounding(value: Tensor, floor: float) -> int:
    """Estimate how many zeros are due to rounding, from the number of entries that are almost zero."""
    return 4 * int(((value != 0) & (value.abs() <= 4 * floor / ULPS)).sum())


def _biases_are_pruned(update: Params, matrices: Params, floors: dict[str, float]) -> bool:
    """Return whether many biases are zero in units that have non-zero weights."""
    missing, alive = 0, 0
    for name, matrix in matrices.items():
        place = f"{name.rpartition('.')[0]}.bias"
        bias = update.get(place)
        if bias is None or bias.shape != matrix.shape[:1] or _is_rounded(bias, floors[place]):
            continue
        units = (matrix != 0).any(1)
        missing += int((units & (bias == 0)).sum()) - _by_rounding(bias, floors[place])
        alive += int(units.sum())
    return _many(missing, alive)


def _has_no_small_entries(update: Params) -> bool:
    """Return whether small entries are missing in the message as a whole, or in most of its tensors."""
    values = [value.flatten() for value in update.values()]
    if _ends_above_zero(torch.cat([value.double() for value in values])):
        return True
    judged = [value for value in values if int((value != 0).sum()) >= FEWEST_MAGNITUDES]
    ended = sum(value.numel() for value in judged if _ends_above_zero(value))
    return ended > 0.9 * sum(value.numel() for value in judged)


def _ends_above_zero(values: Tensor) -> bool:
    magnitudes = values[values != 0].abs().unique()
    count = len(magnitudes)
    if count < FEWEST_MAGNITUDES:
        return False
    # The least of n magnitudes of a dense gradient is about 1/n of their median.
    return float(magnitudes[0] / magnitudes.median()) > max(TRUNCATED, 10 / count)


def _least(value: Tensor) -> float:
    sent = value[value != 0].abs()
    return float(sent.min()) if len(sent) else math.inf


def _rounding(observation: Observation) -> dict[str, float]:
    """Return, for each parameter, the size below which the rounding of the weights may distort an update."""
    if observation.kind == "gradient":
        return dict.fromkeys(observation.difference(), 0.0)
    return {
        name: ULPS * torch.finfo(value.dtype).eps * float(value.abs().max()) if value.numel() else 0.0
        for name, value in observation.sent.items()
    }


def _step(value: Tensor, floor: float) -> float | None:
    """Return the distance between the levels of a quantised tensor, or 0 if the tensor is not quantised.

    The result is ``None`` if the tensor is too small to decide.
    """
    flat = value.flatten()
    flat = flat[:: max(1, len(flat) // COMPARED)]
    magnitudes = flat[flat != 0].abs().double().sort().values
    if len(flat) < 4 * FEWEST or not len(magnitudes):
        return None
    if float(magnitudes.median()) <= floor:
        return 0.0
    same = max(1e-5 * float(magnitudes[-1]), floor / ULPS)
    gaps = magnitudes.diff(prepend=magnitudes.new_zeros(1))
    levels = magnitudes[gaps > same]
    if len(levels) == 1 and value.shape[0] == 1:
        return None  # one sample with binary features has such a gradient too
    if 4 * len(levels) > len(flat):
        return 0.0
    step = float(gaps[gaps > same].min())
    counts = levels / step
    even = bool(((counts - counts.round()).abs() < 0.05).all())
    return step if even and float(counts[-1]) <= MOST_LEVELS else 0.0
