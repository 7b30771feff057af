"""The scores of inferred attributes and inferred owners of records, and the chance levels of these scores.

A chance level is the score of the best guess without any message.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from leakgauge.attacks.attribute import PublicRecords
from leakgauge.core.errors import InvalidInput
from leakgauge.core.measure import Measure
from leakgauge.core.truth import Truth
from leakgauge.evaluation.chance import Chance
from leakgauge.evaluation.imputation import imputed
from leakgauge.evaluation.intervals import wilson_interval
from leakgauge.evaluation.metrics.registry import METRICS

#: The largest number of different values of a sensitive column.
MOST_VALUES = 20
#: A size of groups that no client's data reaches, so that all of a client's records form one group.
WHOLE = 2**31
MOST_FREQUENT = "the most frequent value"
OTHER_COLUMNS = "what the other columns predict"


@dataclass(frozen=True, eq=False)
class HiddenColumn:
    """The records of one client without a sensitive column, and the true values of that column.

    Args:
        records: The records as the attacker knows them.
        values: The true value of each record, as an index into the possible values.
    """

    records: PublicRecords
    values: Tensor

    @classmethod
    def of(cls, truth: Truth, column: str, values: Sequence[float] = ()) -> HiddenColumn:
        """Return the records of a client with one column hidden.

        Args:
            truth: The client's records.
            column: The column, or the category, to hide.
            values: The values that the column can have. Pass no values for a column of zeros and ones, or for a
                category.
        """
        if not values or column in truth.data.one_hot_groups:
            records = PublicRecords.hiding(truth.inputs, truth.targets, truth.data, column)
            if column in truth.data.one_hot_groups:
                return cls(records, truth.inputs[:, records.columns].argmax(1).cpu())
            return cls(records, truth.inputs[:, records.columns[0]].round().long().cpu())
        records = PublicRecords.hiding(truth.inputs, truth.targets, truth.data, column, values)
        hidden = truth.inputs[:, records.columns[0]]
        matches = hidden.unsqueeze(1) == torch.tensor(list(values)).to(hidden)
        return cls(records, matches.long().argmax(1).cpu())


def column_values(truths: Sequence[Truth], column: str) -> Sequence[float]:
    """Return the different values of a column in the records of all clients.

    The result is empty for a category, because a category has one column for each value.

    Args:
        truths: The records of each client.
        column: The column, or the category, to infer.
    """
    data = truths[0].data
    if not data.columns:
        raise InvalidInput(
            f"there is no column {column!r}, because these captures name no columns. "
            "Record a table with DataSpec(columns=...)"
        )
    PublicRecords.hiding(truths[0].inputs, truths[0].targets, data, column)  # checks the column
    if column in data.one_hot_groups:
        return ()
    place = data.columns.index(column)
    values: list[float] = torch.cat([truth.inputs[:, place] for truth in truths]).unique().tolist()
    if not 2 <= len(values) <= MOST_VALUES:
        raise InvalidInput(
            f"the column {column!r} has {len(values)} values. One with 2 to {MOST_VALUES} can be inferred"
        )
    return values


def share_measure(metric: str, right: Sequence[Tensor], chance: Chance) -> Measure:
    """Return the share of all clients' records about which an attack is right, as a measure.

    Args:
        metric: ``"attribute_accuracy"`` or ``"source_accuracy"``.
        right: Whether the attack is right about each record, one tensor for each client.
        chance: The share of records for which the best guess without any message is right.
    """
    count = sum(len(part) for part in right)
    interval = wilson_interval(float(sum(part.sum() for part in right)), count)
    return Measure(
        metric,
        interval.mean,
        interval.low,
        interval.high,
        chance=chance.value,
        n=count,
        of="records",
        direction=METRICS[metric].direction,
        worst=max(float(part.double().mean()) for part in right),
        unit=METRICS[metric].unit,
        chance_source=chance.source,
    )


def groups_of(sizes: Sequence[int], group: int) -> tuple[Tensor, Tensor]:
    """Divide the records of several clients into groups of records of the same client.

    Args:
        sizes: The number of records of each client. The records of a client follow each other.
        group: The largest number of records in a group, or :data:`WHOLE`.

    Returns:
        The number of the group of each record, and the index of the client that owns each group.

    >>> groups_of([3, 2], 2)
    (tensor([0, 0, 1, 2, 2]), tensor([0, 0, 1]))
    """
    numbers, owners = [], list[int]()
    for owner, size in enumerate(sizes):
        numbers.append(len(owners) + torch.arange(size) // group)
        owners += [owner] * (-(-size // group))
    return torch.cat(numbers), torch.tensor(owners)


def attribute_chance(hidden: HiddenColumn, truth: Truth, column: str) -> Chance:
    """Return the share of a client's hidden values that the best guess without any message gets right.

    There are two guesses. One is the client's most frequent value for all records. The other is a prediction from the
    other columns, which is learned on the reference samples.

    Args:
        hidden: The hidden column.
        truth: The client's records, with reference samples.
        column: The name of the column.
    """
    frequent = Chance(most_frequent([hidden.values]), MOST_FREQUENT)
    if truth.reference_inputs is None or truth.reference_targets is None:
        return frequent
    reference = Truth(truth.reference_inputs, truth.reference_targets, truth.data)
    others = HiddenColumn.of(reference, column)
    predicted = imputed(hidden.records.known(), others.records.known(), others.values)
    share = float((predicted == hidden.values).double().mean())
    return Chance(share, OTHER_COLUMNS) if share > frequent.value else frequent


def attribute_chance_among(clients: Mapping[str, HiddenColumn]) -> Chance:
    """Return the share of several clients' hidden values that the best guess without any message gets right.

    There are two guesses. One gives all records of a client the client's most frequent value. The other is a prediction
    from the other columns, which is learned on the records of the other clients.

    Args:
        clients: The hidden column of each client.
    """
    frequent = Chance(most_frequent([client.values for client in clients.values()]), MOST_FREQUENT)
    if len(clients) < 2:
        return frequent
    public = {name: client.records.known() for name, client in clients.items()}
    right = []
    for name, client in clients.items():
        others = [other for other in clients if other != name]
        known, values = (
            torch.cat(parts) for parts in zip(*((public[o], clients[o].values) for o in others), strict=True)
        )
        right.append(imputed(public[name], known, values) == client.values)
    share = float(torch.cat(right).double().mean())
    return Chance(share, OTHER_COLUMNS) if share > frequent.value else frequent


def most_frequent(values: Sequence[Tensor]) -> float:
    """Return the share of records that have the most frequent value of their own client.

    Args:
        values: The value of each record, with one tensor for each client.
    """
    return sum(float(torch.bincount(part).max()) for part in values) / sum(len(part) for part in values)
