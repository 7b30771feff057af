"""Records with a hidden attribute, and the values that an attack infers for this attribute."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn import functional as F

from leakgauge.core.errors import InvalidInput
from leakgauge.core.observation import DataSpec


@dataclass(frozen=True, eq=False)
class PublicRecords:
    """Records of which the attacker knows everything except the sensitive attribute.

    Use :meth:`hiding` to create an object.

    Args:
        inputs: The records in their original units, (N, columns). The sensitive columns hold NaN.
        targets: The targets of the records.
        data: The columns and the normalisation of the records.
        columns: The indices of the sensitive columns.
        values: The possible contents of the sensitive columns, (values, sensitive columns).
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
        """Hide one attribute of complete records.

        >>> data = DataSpec((3,), 2, bounded=False, columns=("age", "job=a", "job=b"))
        >>> PublicRecords.hiding(torch.tensor([[30.0, 1.0, 0.0]]), torch.tensor([1]), data, "job").inputs
        tensor([[30., nan, nan]])

        Args:
            inputs: The records in their original units, (N, columns).
            targets: The targets of the records.
            data: The columns and the normalisation of the records.
            attribute: The name of a column, or of a category with one-hot columns.
            values: The possible values of a column. They are not used for a category, which has one value for each of
                its one-hot columns.
        """
        if inputs.ndim != 2 or tuple(inputs.shape[1:]) != data.shape:
            raise InvalidInput(
                f"records must be rows of a table with {data.shape} columns, not of shape {tuple(inputs.shape)}"
            )
        if len(inputs) != len(targets):
            raise InvalidInput(f"{len(inputs)} records but {len(targets)} targets; pass one target for each record")
        columns, choices = _sensitive_columns(data, attribute, values)
        if len(choices) < 2:
            raise InvalidInput(
                "an attribute with fewer than two values cannot be inferred; pass its values, such as values=(0, 1)"
            )
        blank = inputs.clone()
        blank[:, columns] = torch.nan
        return cls(blank, targets, data, columns, choices)

    def __len__(self) -> int:
        return len(self.inputs)

    def known(self) -> Tensor:
        """Return one tensor with the public columns and the targets of all records."""
        public = [column for column in range(self.inputs.shape[1]) if column not in self.columns]
        return torch.cat((self.inputs[:, public], self.targets_like(self.inputs)), dim=1)

    def filled(self, choice: Tensor) -> Tensor:
        """Return complete records with the given values in the sensitive columns.

        Args:
            choice: The index of one value for each record, (N,), or the shares of all values for each record, (N,
                values).
        """
        shares = F.one_hot(choice, len(self.values)) if choice.ndim == 1 else choice
        complete = self.inputs.to(shares.device).clone()
        complete[:, self.columns] = shares.to(complete) @ self.values.to(complete)
        return complete

    def with_value(self, value: int) -> Tensor:
        """Return complete records in which every record has the sensitive value with the given index."""
        return self.filled(torch.full((len(self),), value))

    def targets_like(self, outputs: Tensor) -> Tensor:
        """Return the targets in the shape of a model's outputs, (N, ...). Classes become one-hot vectors."""
        targets = self.targets.to(outputs.device)
        if self.data.classes is None:
            return targets.to(outputs).reshape(len(self), -1)
        return F.one_hot(targets, self.data.classes).to(outputs)

    def shares(self, prior: Sequence[float] | None) -> Tensor:
        """Return the share of each possible value for each record, (N, values), as far as the attacker knows it.

        Every record has the shares of the prior. Without a prior, the shares of all values are equal.

        Args:
            prior: The shares of the values in the population, if the attacker knows these shares.
        """
        values = len(self.values)
        known = torch.ones(values) if prior is None else torch.tensor([float(share) for share in prior])
        if len(known) != values or not bool((known > 0).all()):
            raise InvalidInput(f"the prior must be {values} shares above 0, not {tuple(known.tolist())}")
        return (known / known.sum()).expand(len(self), -1)


def _sensitive_columns(data: DataSpec, attribute: str, values: Sequence[float]) -> tuple[tuple[int, ...], Tensor]:
    """Return the indices of an attribute's columns, and the content of these columns for each possible value."""
    groups = data.one_hot_groups
    feature = attribute.partition("=")[0]
    if attribute not in groups and len(groups.get(feature, ())) > 1:
        raise InvalidInput(
            f"{attribute!r} is one column of a category, and the other columns reveal it; hide {feature!r} instead"
        )
    if attribute in groups:
        return tuple(groups[attribute]), torch.eye(len(groups[attribute]))
    if attribute in data.columns:
        return (data.columns.index(attribute),), torch.tensor([[float(value)] for value in values])
    known = ", ".join([*data.columns[:8], *groups]) or "none, because the data has no column names"
    raise InvalidInput(f"there is no column or category {attribute!r} to hide (known: {known})")


@dataclass(frozen=True, eq=False)
class Attributes:
    """The inferred values of a hidden attribute.

    Args:
        choice: The index of the inferred value for each record, (N,).
        scores: The score of every value for each record, (N, values). The highest score wins.
        values: The possible values, one row per value.
        coefficient: The weight of a binary attribute in a linear regression, for which :meth:`guarantee` holds.
            ``None`` for other models.
        outcome: A description of the result in words.
    """

    choice: Tensor
    scores: Tensor = field(repr=False)
    values: Tensor = field(repr=False)
    coefficient: float | None = None
    outcome: str = ""

    def guarantee(self, mean_squared_error: float) -> float | None:
        r"""Return a lower bound of the share of correct values for a linear regression (LMRA, proposition 4).

        The bound is :math:`1 - 4 E_c / \theta[s]^2`, where :math:`\theta[s]` is the weight of the attribute. The client
        knows :math:`E_c`, and the attacker does not. For other models, the result is ``None``.

        Args:
            mean_squared_error: :math:`E_c`, the mean squared error of the model on the client's true records.
        """
        if self.coefficient is None:
            return None
        return max(0.0, 1 - 4 * mean_squared_error / max(self.coefficient**2, 1e-300))
