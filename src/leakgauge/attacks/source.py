"""Source inference (SIA), which infers the client that holds a record (Hu et al. 2021; LMRA, section 2.3).

====================  ==================================================================================================
:func:`by_loss`       The client whose model has the smallest loss on the record (Hu et al. 2021)
:func:`by_vote`       The client whose returned model has the smallest loss in the most rounds (LMRA, appendix C.2)
:func:`by_inputs`     The client whose mean input is nearest to the record, without any model (beyond the papers)
:func:`by_equations`  The client whose gradients contain the gradient of the record, without any model (beyond the
                      papers)
====================  ==================================================================================================
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor

from leakgauge.attacks.local_model.base import LocalModel, needs_step_length
from leakgauge.attacks.local_model.baselines import LastReturned
from leakgauge.attacks.local_model.first_layer import input_statistics
from leakgauge.attacks.local_model.messages import Messages, gradients_of, stacked
from leakgauge.attacks.record_shares import normalises_over_batches, record_shares
from leakgauge.attacks.spec import AttackSpec, Cost, Fit, always
from leakgauge.core.checks import not_negative, whole_number
from leakgauge.core.errors import InvalidInput
from leakgauge.core.observation import Observation
from leakgauge.core.progress import Report, silent


@dataclass(frozen=True, eq=False)
class Sources:
    """The inferred sources of records.

    Args:
        choice: The index of the inferred client for each record, (N,).
        scores: The score of every client for each record, (N, clients). The highest score wins.
    """

    choice: Tensor
    scores: Tensor = field(repr=False)

    def of_groups(self, groups: Tensor) -> Sources:
        """Return the inferred sources of groups of records that belong to the same client.

        The scores of a group are the sums over its records. An attacker who knows that some records belong together,
        such as the visits of one patient, has a better chance than with a single record.

        Args:
            groups: The number of the group of each record, (N,). The numbers run from 0 without gaps.
        """
        if len(groups) != len(self.scores):
            raise InvalidInput(f"there are {len(groups)} group numbers for {len(self.scores)} records")
        sums = torch.zeros(int(groups.max()) + 1, self.scores.shape[1], dtype=self.scores.dtype)
        sums.index_add_(0, groups.cpu(), self.scores.detach().cpu())
        return Sources(sums.argmax(1), sums)


def by_loss(models: Sequence[LocalModel], inputs: Tensor, targets: Tensor) -> Sources:
    """Infer the client whose model has the smallest loss on a record (Hu et al. 2021).

    Args:
        models: One model for each client. The models may come from any method.
        inputs: The records in their original units.
        targets: The targets of the records.
    """
    _check_clients(len(models))
    with torch.no_grad():
        losses = torch.stack([model.losses(inputs, targets) for model in models], dim=1)
    return Sources(losses.argmin(1), -losses)


def by_vote(clients: Sequence[Sequence[Observation]], inputs: Tensor, targets: Tensor) -> Sources:
    """Infer the client whose returned model has the smallest loss on a record in the most rounds (LMRA, appendix C.2).

    Only rounds in which all clients took part are used.

    Args:
        clients: The observations of each client, one per round.
        inputs: The records in their original units.
        targets: The targets of the records.
    """
    votes = torch.zeros(len(inputs), len(clients))
    for messages in _common_rounds(clients):
        models = [LastReturned()([observation], progress=False) for observation in messages]
        winners = by_loss(models, inputs, targets).choice.cpu()
        votes[torch.arange(len(inputs)), winners] += 1
    return Sources(votes.argmax(1), votes)


def by_inputs(clients: Sequence[Sequence[Observation]], inputs: Tensor) -> Sources:
    """Infer the client whose mean input is nearest to a record, after normalisation (beyond the papers).

    The gradients of a dense first layer reveal the mean input of a client
    (:mod:`leakgauge.attacks.local_model.first_layer`). The attack needs no labels. It separates clients whose inputs
    differ, and it cannot separate clients with the same distribution of inputs.

    Args:
        clients: The observations of each client, one per round.
        inputs: The records in their original units.
    """
    _check_clients(len(clients))
    means = []
    for rounds in clients:
        messages = Messages.read(rounds)
        data = messages.last.data
        statistics = input_statistics(stacked(gradients_of(messages)[0], messages.last.sent), data)
        if statistics is None:
            raise InvalidInput(
                f"the first layer of {messages.last.client}'s model does not show the mean of its inputs, because it "
                "is not dense, has few neurons or is followed by a normalisation; use by_loss() or by_vote()"
            )
        means.append(statistics[0].flatten())
    centres = torch.stack(means)
    distances = torch.cdist(data.normalise(inputs.to(centres)).flatten(1), centres)
    return Sources(distances.argmin(1), -distances)


def by_equations(
    clients: Sequence[Sequence[Observation]],
    inputs: Tensor,
    targets: Tensor,
    *,
    rounds: int = 5,
    ridge: float = 1e-2,
    report: Report = silent,
) -> Sources:
    r"""Infer the client whose gradients most clearly contain the gradient of a record (beyond the papers).

    The mean gradient of client :math:`c` in round :math:`t` is a weighted sum of the gradients of single records,
    :math:`g_{c,t} = \sum_i p_{ic} \nabla\ell(\theta_t; x_i, y_i)`. For a record that the client holds, :math:`p_{ic}`
    is one divided by the client's number of records. For all other records, :math:`p_{ic}` is zero. Ridge regression
    over the rounds in which all clients took part gives an estimate of :math:`p`. The score of client :math:`c` for
    record :math:`i` is :math:`p_{ic}` minus its mean over all records, divided by its standard deviation over all
    records.

    The attack finds the holder of a record even among clients with the same distribution of records. The clients'
    records that are not among ``inputs`` act as noise in these equations. The result is therefore better if ``inputs``
    holds a larger share of the clients' records. The attacker does not need to know the clients' learning rate or
    number of local steps.

    Args:
        clients: The observations of each client, one per round.
        inputs: The records in their original units.
        targets: The targets of the records.
        rounds: The number of rounds to use, counted from the first round with all clients.
        ridge: The penalty of the ridge regression, in units of the mean squared length of a record's gradient.
        report: A function ``report(step, total, loss)`` that shows progress.
    """
    _check_clients(len(clients))
    if rounds < 1:
        raise InvalidInput(f"rounds must be at least 1, not {rounds}")
    if not ridge > 0:
        raise InvalidInput(f"ridge must be above 0, not {ridge}")
    shares = record_shares(_common_rounds(clients)[:rounds], inputs, targets, ridge, report)
    scores = (shares - shares.mean(0)) / shares.std(0, correction=0).clamp_min(1e-30)
    return Sources(scores.argmax(1), scores)


def _common_rounds(clients: Sequence[Sequence[Observation]]) -> list[list[Observation]]:
    """Return the rounds in which all clients took part, each as a list with one message per client."""
    by_round = [{observation.round: observation for observation in rounds} for rounds in clients]
    shared = sorted(set.intersection(*map(set, by_round))) if by_round else []
    if not shared:
        raise InvalidInput("this attack needs rounds that all clients took part in, and there is none; use by_loss()")
    return [[rounds[number] for rounds in by_round] for number in shared]


def _check_clients(count: int) -> None:
    if count < 2:
        raise InvalidInput(f"a source is inferred among at least 2 clients, not {count}; pass more clients")


class SourceAttack(Protocol):
    """The interface of registered attacks that infer the source of records."""

    def __call__(
        self,
        rounds: Sequence[Sequence[Observation]],
        inputs: Tensor,
        targets: Tensor,
        *,
        models: Sequence[LocalModel] | None = None,
        report: Report = silent,
    ) -> Sources:
        """Infer the client that holds each record.

        Args:
            rounds: The observations of each client, one per round.
            inputs: The records in their original units.
            targets: The targets of the records.
            models: One rebuilt model for each client, if the attack uses models.
            report: A function ``report(step, total, loss)`` that shows progress.
        """


@dataclass(frozen=True)
class SourceByLoss:
    """The attack :func:`by_loss` as a class, so that the registry can build it by name. It has no options."""

    def __call__(
        self,
        rounds: Sequence[Sequence[Observation]],
        inputs: Tensor,
        targets: Tensor,
        *,
        models: Sequence[LocalModel] | None = None,
        report: Report = silent,
    ) -> Sources:
        """Infer the client of each record with the rebuilt models of all clients."""
        if models is None:
            raise InvalidInput(
                "source_by_loss needs a model of each client; rebuild them from the clients' rounds with "
                "leakgauge.attacks.local_model.Distilled() and pass them as models=..."
            )
        return by_loss(models, inputs, targets)


@dataclass(frozen=True)
class SourceByVote:
    """The attack :func:`by_vote` as a class, so that the registry can build it by name. It has no options."""

    def __call__(
        self,
        rounds: Sequence[Sequence[Observation]],
        inputs: Tensor,
        targets: Tensor,
        *,
        models: Sequence[LocalModel] | None = None,
        report: Report = silent,
    ) -> Sources:
        """Infer the client of each record with the models that the clients returned."""
        return by_vote(rounds, inputs, targets)


@dataclass(frozen=True)
class SourceByInputs:
    """The attack :func:`by_inputs` as a class, so that the registry can build it by name. It has no options."""

    def __call__(
        self,
        rounds: Sequence[Sequence[Observation]],
        inputs: Tensor,
        targets: Tensor,
        *,
        models: Sequence[LocalModel] | None = None,
        report: Report = silent,
    ) -> Sources:
        """Infer the client of each record from the mean inputs of all clients."""
        return by_inputs(rounds, inputs)


@dataclass(frozen=True)
class SourceByEquations:
    """The attack :func:`by_equations` as a class, so that the registry can build it by name.

    Args:
        rounds: The number of rounds to use, counted from the first round with all clients.
        ridge: The penalty of the ridge regression, in units of the mean squared length of a record's gradient.
    """

    rounds: int = 5
    ridge: float = 1e-2

    def __post_init__(self) -> None:
        whole_number("rounds", self.rounds)
        not_negative("ridge", self.ridge)

    def __call__(
        self,
        rounds: Sequence[Sequence[Observation]],
        inputs: Tensor,
        targets: Tensor,
        *,
        models: Sequence[LocalModel] | None = None,
        report: Report = silent,
    ) -> Sources:
        """Infer the client of each record from equations that describe the clients' gradients."""
        return by_equations(rounds, inputs, targets, rounds=self.rounds, ridge=self.ridge, report=report)


def _first_layer_shows_inputs(observation: Observation) -> Fit:
    gradients = {name: value.unsqueeze(0) for name, value in observation.difference().items()}
    if input_statistics(gradients, observation.data) is None:
        return Fit(
            False,
            "needs a dense first layer with a bias, with at least 8 neurons and without a normalisation after it",
        )
    return Fit(True, "the first layer is dense, so its gradients show the mean input")


def _records_have_gradients(observation: Observation) -> Fit:
    if normalises_over_batches(observation):
        return Fit(False, "the model normalises over its batches, so a single record has no gradient of its own")
    return Fit(True, "solves for the records that each gradient is of; the recipe may be unknown")


SPECS = (
    AttackSpec(
        name="source_by_loss",
        factory=SourceByLoss,
        summary="The client whose rebuilt model has the smallest loss on the record (Hu et al. 2021).",
        recovers="source",
        reads="rounds",
        fits=always("works with any models of the clients"),
        cost=Cost.INSTANT,
        rank=1,
    ),
    AttackSpec(
        name="source_by_vote",
        factory=SourceByVote,
        summary="The client whose returned model has the smallest loss in most rounds (LMRA, appendix C.2).",
        recovers="source",
        reads="rounds",
        fits=needs_step_length("compares the losses of the models that the clients returned"),
        cost=Cost.INSTANT,
        rank=2,
    ),
    AttackSpec(
        name="source_by_inputs",
        factory=SourceByInputs,
        summary="The client whose mean input, seen in the first layer's gradients, is nearest (beyond LMRA).",
        recovers="source",
        reads="rounds",
        fits=_first_layer_shows_inputs,
        cost=Cost.INSTANT,
        rank=3,
    ),
    AttackSpec(
        name="source_by_equations",
        factory=SourceByEquations,
        summary="Least squares on the clients' gradients, which are linear in the records they are of (beyond LMRA).",
        recovers="source",
        reads="rounds",
        fits=_records_have_gradients,
        cost=Cost.SECONDS,
        rank=1,
    ),
)
