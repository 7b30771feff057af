"""Source inference (SIA): which client holds a record (Hu et al. 2021; LMRA, section 2.3).

================  ======================================================================================================
``by_loss``       the client whose model has the least loss on the record, on whichever models are given (Hu et al.)
``by_vote``       the same over the models returned in each round, by majority (LMRA, appendix C.2)
``by_inputs``     ours, without any model: the client whose inputs lie nearest to the record, as far as gradients tell
``by_equations``  ours, without any model: the client whose gradients the record's own gradient is a part of
================  ======================================================================================================
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.func import grad, vmap
from torch.nn.modules.batchnorm import _BatchNorm

from leakgauge.attacks.local_model.dummies import first_layer, stacked
from leakgauge.attacks.local_model.messages import LocalModel, Messages, gradients_of, losses_of
from leakgauge.attacks.local_model.methods import LastReturned
from leakgauge.core.errors import InvalidInput
from leakgauge.core.observation import Observation
from leakgauge.core.params import Params, flatten
from leakgauge.core.progress import Report, silent

#: So many numbers of records' gradients are held at a time.
ROOM = 2**27


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
    votes = torch.zeros(len(inputs), len(clients))
    for messages in _common(clients):
        chosen = by_loss([LastReturned()([one], progress=False) for one in messages], inputs, targets)
        votes[torch.arange(len(inputs)), chosen.choice.cpu()] += 1
    return Sources(votes.argmax(1), votes)


def by_inputs(clients: Sequence[Sequence[Observation]], inputs: Tensor) -> Sources:
    """The client whose inputs have their mean nearest to a record, on the model's side (beyond the paper).

    A dense first layer gives that mean away (:mod:`leakgauge.attacks.local_model.dummies`). It needs no labels, and finds clients
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
                "dense, has few neurons or a normalisation after it; ask by loss or by vote"
            )
        means.append(seen[0].flatten())
    found = torch.stack(means)
    distances = torch.cdist(data.normalise(inputs.to(found)).flatten(1), found)
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
    r"""The client of whose gradients a record's own gradient is most clearly a part (beyond the paper).

    A mean gradient is linear in *which* records it is of:
    :math:`g_{c,t} = \sum_i p_{ic} \nabla\ell(\theta_t; x_i, y_i)` with :math:`p_{ic}` one over the client's number of
    records for those it holds, zero for the others. Least squares over the first ``rounds`` rounds that all clients
    took part in, with a penalty of ``ridge`` times the mean squared length of a record's gradient, give :math:`p`; what
    speaks for a client is by how many deviations (over the records) its :math:`p_{ic}` lies above the mean.

    Clients need not differ: it tells who holds a record even among clients with the same distribution. Records that are
    not asked about are noise to these equations, so the more of the clients' are, the better. No recipe is needed.
    """
    if len(clients) < 2:
        raise InvalidInput(f"a source is inferred among at least 2 clients, not {len(clients)}")
    if rounds < 1:
        raise InvalidInput(f"rounds must be at least 1, not {rounds}")
    if not ridge > 0:
        raise InvalidInput(f"ridge must be above 0, not {ridge}")
    chosen = _common(clients)[:rounds]
    gram, products = torch.zeros((), dtype=torch.double), torch.zeros((), dtype=torch.double)
    for number, messages in enumerate(chosen):
        wanted = torch.stack([flatten(one.difference()) for one in messages])
        first, second = _inner_products(messages, inputs, targets, wanted)
        weight = 1 / wanted.double().square().sum().clamp_min(1e-30)  # late rounds count as much as early ones
        gram, products = gram + weight * first, products + weight * second
        report(number + 1, len(chosen), math.nan)
    penalty = ridge * gram.diagonal().mean().clamp_min(1e-30)
    shares = torch.linalg.solve(gram + penalty * torch.eye(len(gram)).to(gram), products)
    scores = (shares - shares.mean(0)) / shares.std(0, correction=0).clamp_min(1e-30)
    return Sources(scores.argmax(1), scores)


def _inner_products(
    messages: Sequence[Observation], inputs: Tensor, targets: Tensor, wanted: Tensor
) -> tuple[Tensor, Tensor]:
    """Of records' gradients at one round's model: with each other, (N, N), and with what clients sent, (N, clients)."""
    first = messages[0]
    if any(not torch.equal(one.sent[name], value) for one in messages for name, value in first.sent.items()):
        raise InvalidInput(f"in round {first.round} the clients were not sent the same model; ask by loss")
    if first.training.mode == "train" and any(isinstance(module, _BatchNorm) for module in first.model.modules()):
        raise InvalidInput(
            "the model normalises over its batches, in which no record has a gradient of its own; ask by vote"
        )
    like = next(iter(first.sent.values()))
    seen = first.data.normalise(inputs.to(like))
    known = targets.to(like if targets.is_floating_point() else like.device)
    parts = torch.arange(len(seen), device=like.device).split(max(1, ROOM // wanted.shape[1]))
    gram = torch.zeros(len(seen), len(seen), dtype=torch.double, device=like.device)
    products = []
    for place, rows in enumerate(parts):
        own = _gradients(first, seen[rows], known[rows])
        products.append((own @ wanted.T).double())
        for other in parts[place:]:
            others = own if other is rows else _gradients(first, seen[other], known[other])
            block = (own @ others.T).double()
            gram[rows[0] : rows[-1] + 1, other[0] : other[-1] + 1] = block
            gram[other[0] : other[-1] + 1, rows[0] : rows[-1] + 1] = block.T
    return gram, torch.cat(products)


def _gradients(observation: Observation, inputs: Tensor, targets: Tensor) -> Tensor:
    """The gradient of each record by itself, (N, parameters)."""

    def loss(weights: Params, one: Tensor, target: Tensor) -> Tensor:
        return losses_of(observation, weights, one[None], target[None])[0]

    try:
        found = vmap(grad(loss), in_dims=(None, 0, 0), randomness="different")(dict(observation.sent), inputs, targets)
    except RuntimeError as problem:
        raise InvalidInput(
            f"the model cannot be run record by record ({str(problem).splitlines()[0]}); ask by vote"
        ) from problem
    return torch.cat([value.flatten(1) for value in found.values()], dim=1)


def _common(clients: Sequence[Sequence[Observation]]) -> list[list[Observation]]:
    """The rounds that all clients took part in, in their order, each with the messages of all."""
    by_round = [{one.round: one for one in rounds} for rounds in clients]
    shared = sorted(set.intersection(*map(set, by_round))) if by_round else []
    if not shared:
        raise InvalidInput("this attack needs rounds that all clients took part in, and there is none")
    return [[rounds[number] for rounds in by_round] for number in shared]
