"""Source inference (SIA): which client holds a record (Hu et al. 2021; LMRA, section 2.3).

============  ==========================================================================================================
``by_loss``   the client whose model has the least loss on the record, on whichever models are given (Hu et al.)
``by_vote``   the same over the models returned in each round, by majority (LMRA, appendix C.2)
``by_inputs`` ours, without any model: the client whose inputs lie nearest to the record, as far as its gradients tell
============  ==========================================================================================================
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from leakscope.errors import InvalidInput
from leakscope.inference.local_model import LastReturned
from leakscope.inference.made_up import first_layer, stacked
from leakscope.inference.messages import LocalModel, Messages, gradients_of
from leakscope.observation import Observation


@dataclass(frozen=True, eq=False)
class Sources:
    """The client inferred for each record, and what speaks for each client, (N, clients): the highest score wins."""

    choice: Tensor
    scores: Tensor = field(repr=False)


def by_loss(models: Sequence[LocalModel], inputs: Tensor, targets: Tensor) -> Sources:
    """The client whose model has the smallest loss on a record: Hu et al.'s attack, on whichever models are given."""
    if len(models) < 2:
        raise InvalidInput(f"a source is inferred among at least 2 clients, not {len(models)}")
    with torch.no_grad():
        losses = torch.stack([model.losses(inputs, targets) for model in models], dim=1)
    return Sources(losses.argmin(1), -losses)


def by_vote(clients: Sequence[Sequence[Observation]], inputs: Tensor, targets: Tensor) -> Sources:
    """The client that has the smallest loss on a record in most rounds, by its returned model (LMRA, appendix C.2).

    ``clients`` holds the observations of each client; rounds that not all of them took part in are left out.
    """
    common = sorted(set.intersection(*({one.round for one in rounds} for rounds in clients))) if clients else []
    if not common:
        raise InvalidInput("the vote over rounds needs rounds that all clients took part in, and there is none")
    votes = torch.zeros(len(inputs), len(clients))
    by_round = [{one.round: one for one in rounds} for rounds in clients]
    for number in common:
        chosen = by_loss([LastReturned()([rounds[number]], progress=False) for rounds in by_round], inputs, targets)
        votes[torch.arange(len(inputs)), chosen.choice.cpu()] += 1
    return Sources(votes.argmax(1), votes)


def by_inputs(clients: Sequence[Sequence[Observation]], inputs: Tensor) -> Sources:
    """The client whose inputs have their mean nearest to a record, on the model's side (beyond the paper).

    A dense first layer gives that mean away (:mod:`leakscope.inference.made_up`). It needs no labels, and finds clients
    whose inputs differ; of clients with the same distribution of inputs it tells nothing.
    """
    if len(clients) < 2:
        raise InvalidInput(f"a source is inferred among at least 2 clients, not {len(clients)}")
    means = []
    for rounds in clients:
        messages = Messages.read(rounds)
        data = messages.last.data
        seen = first_layer(stacked(gradients_of(messages)[0], messages.last.sent), data)
        if seen is None:
            raise InvalidInput(
                f"the first layer of {messages.last.client}'s model does not tell where its inputs lie: it is not "
                "dense, has few neurons or a normalisation after it; use by_loss() or by_vote()"
            )
        means.append(seen[0].flatten())
    found = torch.stack(means)
    distances = torch.cdist(data.normalise(inputs.to(found)).flatten(1), found)
    return Sources(distances.argmin(1), -distances)
