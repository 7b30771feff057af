r"""The share of each record in the clients' gradients, by ridge regression over many rounds (beyond the papers).

The mean gradient of client :math:`c` in round :math:`t` is a weighted sum of the gradients of single records,
:math:`g_{c,t} = \sum_i p_{ic} \nabla\ell(\theta_t; x_i, y_i)`. With :math:`G_t` the gradients of all records at the
weights of round :math:`t`, the shares :math:`p` solve

.. math:: \Bigl(\sum_t w_t G_t G_t^\top + \lambda I\Bigr) p = \sum_t w_t G_t g_t^\top .

The matrix has one row and one column for each record. For up to :data:`DENSE` records it is built and solved directly.
For more records, conjugate gradients solve the system with products of :math:`G_t` and of its transpose, which are
derivatives of the weighted loss. They need memory for one vector of records for each client.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor
from torch.func import grad, vjp, vmap
from torch.nn.modules.batchnorm import _BatchNorm

from leakgauge.attacks.local_model.messages import losses_of
from leakgauge.core.errors import InvalidInput
from leakgauge.core.observation import Observation
from leakgauge.core.params import Params, flatten
from leakgauge.core.progress import Report, silent

#: The largest number of values in the records' gradients that are held in memory at a time.
ROOM = 2**27
#: The largest number of records for which the matrix of the equations is built. It then takes 128 MiB.
DENSE = 4096
#: The largest numbers of records and of vectors whose losses are differentiated at a time.
BLOCK, AT_A_TIME = 1024, 16
#: The relative residual at which conjugate gradients stop, and their largest number of steps.
TOLERANCE, STEPS = 1e-4, 200


def record_shares(
    rounds: Sequence[Sequence[Observation]],
    inputs: Tensor,
    targets: Tensor,
    ridge: float,
    report: Report = silent,
) -> Tensor:
    """Return the share of each record in the gradients of each client, (N, clients).

    Args:
        rounds: The observations of each round, one for each client.
        inputs: The records in their original units.
        targets: The targets of the records.
        ridge: The penalty, in units of the mean squared length of a record's gradient.
        report: A function ``report(step, total, loss)`` that shows progress.
    """
    gradients = [RecordGradients(messages, inputs, targets) for messages in rounds]
    solve = _solve_directly if len(inputs) <= DENSE else _solve_by_products
    return solve(gradients, ridge, report)


class RecordGradients:
    """The gradients of single records at the weights of one round.

    Args:
        messages: The observations of the round, one for each client. All clients were sent the same model.
        inputs: The records in their original units.
        targets: The targets of the records.
    """

    def __init__(self, messages: Sequence[Observation], inputs: Tensor, targets: Tensor) -> None:
        first = messages[0]
        if any(
            not torch.equal(message.sent[name], value) for message in messages for name, value in first.sent.items()
        ):
            raise InvalidInput(f"in round {first.round} the clients were not sent the same model; use by_loss()")
        if normalises_over_batches(first):
            raise InvalidInput(
                "the model normalises over its batches, so a single record has no gradient of its own; use by_vote()"
            )
        like = next(iter(first.sent.values()))
        self.observation = first
        self.inputs = first.data.normalise(inputs.to(like))
        self.targets = targets.to(like if targets.is_floating_point() else like.device)
        self.updates = torch.stack([flatten(message.difference()) for message in messages])
        # Late rounds count as much as early ones.
        self.weight = 1 / float(self.updates.double().square().sum().clamp_min(1e-30))

    def __len__(self) -> int:
        return len(self.inputs)

    def blocks(self) -> list[Tensor]:
        """Return the indices of the records in blocks whose gradients fit into memory."""
        return list(torch.arange(len(self), device=self.inputs.device).split(max(1, ROOM // self.updates.shape[1])))

    def each(self, rows: Tensor) -> Tensor:
        """Return the gradient of each single record of a block, (records, parameters)."""

        def loss(weights: Params, record: Tensor, target: Tensor) -> Tensor:
            return losses_of(self.observation, weights, record[None], target[None])[0]

        per_record = vmap(grad(loss), in_dims=(None, 0, 0), randomness="different")
        try:
            gradients = per_record(dict(self.observation.sent), self.inputs[rows], self.targets[rows])
        except RuntimeError as problem:
            raise InvalidInput(
                f"the model cannot be run record by record ({str(problem).splitlines()[0]}); use by_vote()"
            ) from problem
        return torch.cat([value.flatten(1) for value in gradients.values()], dim=1)

    def mixtures(self, shares: Tensor) -> Params:
        """Return sums of the records' gradients, weighted by shares, with one sum for each column.

        Args:
            shares: The weight of each record in each sum, (N, sums).
        """
        sums: Params = {}
        for rows in self._parts():
            transposed = vjp(partial(self._losses, rows), dict(self.observation.sent))[1]
            (part,) = vmap(transposed, chunk_size=AT_A_TIME)(shares[rows].T.to(self.inputs))
            sums = {name: sums[name] + value for name, value in part.items()} if sums else part
        return sums

    def products(self, directions: Params) -> Tensor:
        """Return inner products of the records' gradients with directions, (N, directions).

        Args:
            directions: Named weights whose first dimension is the direction.
        """
        products = []
        for rows in self._parts():
            transposed = vjp(partial(self._losses, rows), dict(self.observation.sent))[1]
            # The mixture of gradients is a linear function of the shares, and its derivative is its transpose.
            forward = vjp(lambda shares, mix=transposed: mix(shares)[0], self.inputs.new_zeros(len(rows)))[1]
            products.append(vmap(forward, chunk_size=AT_A_TIME)(directions)[0].T)
        return torch.cat(products).double()

    def _parts(self) -> list[Tensor]:
        return list(torch.arange(len(self), device=self.inputs.device).split(BLOCK))

    def _losses(self, rows: Tensor, weights: Params) -> Tensor:
        return losses_of(self.observation, weights, self.inputs[rows], self.targets[rows])


def _solve_directly(rounds: Sequence[RecordGradients], ridge: float, report: Report) -> Tensor:
    """Return the shares by building the matrix of the equations, (N, clients)."""
    count = len(rounds[0])
    matrix = torch.zeros(count, count, dtype=torch.double, device=rounds[0].inputs.device)
    right = matrix.new_zeros(count, len(rounds[0].updates))
    for number, gradients in enumerate(rounds):
        _add_round(gradients, matrix, right)
        report(number + 1, len(rounds), math.nan)
    penalty = ridge * float(matrix.diagonal().mean().clamp_min(1e-30))
    matrix.diagonal().add_(penalty)
    shares: Tensor = torch.linalg.solve(matrix, right)
    return shares


def _add_round(gradients: RecordGradients, matrix: Tensor, right: Tensor) -> None:
    """Add the equations of one round to the matrix and to the right side, in place."""
    blocks = gradients.blocks()
    for place, rows in enumerate(blocks):
        own = gradients.each(rows)
        right[rows] += gradients.weight * (own @ gradients.updates.T).double()
        for columns in blocks[place:]:
            others = own if columns is rows else gradients.each(columns)
            block = gradients.weight * (own @ others.T).double()
            matrix[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1] += block
            if columns is not rows:
                matrix[columns[0] : columns[-1] + 1, rows[0] : rows[-1] + 1] += block.T


def _solve_by_products(rounds: Sequence[RecordGradients], ridge: float, report: Report) -> Tensor:
    """Return the shares by conjugate gradients, which need no matrix, (N, clients)."""
    squares, right = _lengths_and_products(rounds)
    penalty = ridge * float(squares.mean().clamp_min(1e-30))
    scale = 1 / (squares + penalty)[:, None]  # Records differ in the length of their gradients by orders of magnitude.
    shares, rest = torch.zeros_like(right), right
    direction = scaled = scale * rest
    square, limit = (rest * scaled).sum(0), TOLERANCE * right.norm(dim=0)
    for step in range(STEPS):
        if bool((rest.norm(dim=0) <= limit).all()):
            break
        image = penalty * direction
        for gradients in rounds:
            image = image + gradients.weight * gradients.products(gradients.mixtures(direction))
        length = square / (direction * image).sum(0).clamp_min(1e-300)
        shares, rest = shares + length * direction, rest - length * image
        scaled = scale * rest
        square, before = (rest * scaled).sum(0), square
        direction = scaled + square / before.clamp_min(1e-300) * direction
        report(step + 1, STEPS, float(rest.norm()))
    return shares


def _lengths_and_products(rounds: Sequence[RecordGradients]) -> tuple[Tensor, Tensor]:
    """Return the squared length of each record's gradients, (N,), and their products with the updates, (N, clients)."""
    device = rounds[0].inputs.device
    squares = torch.zeros(len(rounds[0]), dtype=torch.double, device=device)
    right = squares.new_zeros(len(rounds[0]), len(rounds[0].updates))
    for gradients in rounds:
        for rows in gradients.blocks():
            own = gradients.each(rows)
            squares[rows] += gradients.weight * own.square().sum(1).double()
            right[rows] += gradients.weight * (own @ gradients.updates.T).double()
    return squares, right


def normalises_over_batches(observation: Observation) -> bool:
    """Return whether a record's outputs depend on the other records of its batch."""
    batch_norm = any(isinstance(module, _BatchNorm) for module in observation.model.modules())
    return batch_norm and observation.training.mode == "train"
