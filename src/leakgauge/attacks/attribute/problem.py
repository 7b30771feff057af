"""The gradients that a client would have with given values of the hidden attribute."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from leakgauge.attacks.attribute.records import PublicRecords
from leakgauge.attacks.local_model.messages import Messages, gradients_of, losses_of, points_of
from leakgauge.core.params import Params
from leakgauge.federation.derivatives import CheapSecondDerivatives


class GradientProblem:
    """A calculator of the gradients that the client would have with given values of the hidden attribute.

    Args:
        messages: The messages of the client.
        records: The client's records, without the sensitive attribute.
        rounds: The indices of the rounds to use.
    """

    def __init__(self, messages: Messages, records: PublicRecords, rounds: Sequence[int]) -> None:
        last = messages.last
        self.records, self.last = records, last
        self.points = [messages.unflatten(point) for point in points_of(messages)[list(rounds)]]
        gradients, self.scaled = gradients_of(messages)
        self.observed = list(gradients[list(rounds)])
        like = next(iter(last.sent.values()))
        targets = records.targets.to(like.device)
        self.targets = targets.to(like.dtype) if targets.is_floating_point() else targets
        self.candidates = [
            records.data.normalise(records.with_value(value).to(like)) for value in range(len(records.values))
        ]

    def inputs(self, shares: Tensor) -> Tensor:
        """Return normalised records whose sensitive columns hold a weighted mean of the possible values.

        Args:
            shares: The weight of each possible value for each record, (N, values).
        """
        return self.records.data.normalise(self.records.filled(shares).to(shares))

    def _losses(self, weights: Params, inputs: Tensor) -> Tensor:
        """Return the client's loss of each record."""
        with CheapSecondDerivatives():
            return losses_of(self.last, weights, inputs, self.targets)

    def gradient(self, place: int, inputs: Tensor) -> Tensor:
        """Return the mean gradient of the records in one round.

        The result can be differentiated with respect to the inputs.

        Args:
            place: The position of the round among the used rounds.
            inputs: The complete records, normalised for the model.
        """
        leaves = {name: value.detach().requires_grad_() for name, value in self.points[place].items()}
        gradients = torch.autograd.grad(self._losses(leaves, inputs).mean(), list(leaves.values()), create_graph=True)
        return torch.cat([value.reshape(-1) for value in gradients])

    def mixed(self, shares: Tensor) -> list[Tensor]:
        """Return the mean gradient of each round, as a linear function of shares.

        Each record is counted once with every possible value, and its loss is weighted by the share of this value.

        Args:
            shares: The weight of each possible value for each record, (N, values).
        """
        mixed = []
        for point in self.points:
            leaves = {name: value.detach().requires_grad_() for name, value in point.items()}
            total = sum(
                (
                    (shares[:, value] * self._losses(leaves, inputs)).sum()
                    for value, inputs in enumerate(self.candidates)
                ),
                torch.zeros((), device=shares.device),
            )
            gradients = torch.autograd.grad(total / len(shares), list(leaves.values()))
            mixed.append(torch.cat([value.reshape(-1) for value in gradients]))
        return mixed

    def transposed(self, directions: Sequence[Tensor]) -> Tensor:
        """Return inner products of gradients and directions, for each record and each possible value, (N, values).

        For a record with one possible value, the gradient of the loss is computed in each round. Its inner products
        with the directions of the rounds are summed, and the sum is divided by the number N of records. This is the
        adjoint of :meth:`mixed`.

        Args:
            directions: One vector for each used round, with one entry for each parameter of the model.
        """
        columns = []
        for inputs in self.candidates:
            # Weight the losses by factors, take the gradient along the direction, and differentiate it by the factors.
            factors = torch.zeros(len(self.records)).to(directions[0]).requires_grad_()
            along = factors.new_zeros(())
            for point, direction in zip(self.points, directions, strict=True):
                leaves = {name: value.detach().requires_grad_() for name, value in point.items()}
                total = (factors * self._losses(leaves, inputs)).sum() / len(factors)
                gradients = torch.autograd.grad(total, list(leaves.values()), create_graph=True)
                along = along + torch.cat([value.reshape(-1) for value in gradients]) @ direction
            columns.append(torch.autograd.grad(along, factors)[0])
        return torch.stack(columns, dim=1)
