"""Many rounds with many clients, keeping the messages of those that are watched.

Clients whose steps have the same shapes are trained together, as one vectorised step over stacked weights,
where that pays: for small models the cost of a step is in starting its operations, not in computing them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from statistics import fmean

import torch
from torch import nn

from leakgauge.core.errors import InvalidInput
from leakgauge.core.observation import LocalTraining, Mode, Observation
from leakgauge.core.params import Params, buffers_of, parameters_of, weighted_mean
from leakgauge.core.seeding import derive, generator, seeded
from leakgauge.core.truth import Truth
from leakgauge.data.dataset import Dataset
from leakgauge.federation.aggregation import aggregate
from leakgauge.federation.client import (
    architecture_of,
    check_exposure,
    check_model,
    check_training,
    explained,
    observe,
    order_of,
    prepared,
    protected,
    recipe_for,
    train_client,
    truth_of,
)
from leakgauge.federation.defence import (
    Defence,
    Protection,
    ServerDefence,
    Trained,
    check_defences,
    recipe_with,
    training_of,
)
from leakgauge.federation.training import Batch, State, Trainer, in_mode

#: Below this many parameters, training clients together is faster than one by one (measured on two cores).
TOGETHER_BELOW = 200_000

Returned = tuple[Params, Params]


@dataclass(frozen=True, eq=False)
class Federation:
    """What a federated training left behind: the global model, and the messages of the watched clients.

    ``spent`` is the epsilon that each client has spent, where a defence accounts for it.
    """

    weights: Params
    buffers: Params
    observations: dict[int, list[Observation]] = field(default_factory=dict)
    truths: dict[int, Truth] = field(default_factory=dict)
    history: list[tuple[int, float]] = field(default_factory=list)
    rounds: int = 0
    interrupted: bool = False
    spent: dict[int, float] = field(default_factory=dict)

    def load_into(self, model: nn.Module) -> nn.Module:
        """Put the trained weights and statistics into ``model``, and return it."""
        with torch.no_grad():
            for name, value in (*model.named_parameters(), *model.named_buffers()):
                value.copy_({**self.weights, **self.buffers}[name])
        return model


def run_federation(
    model: nn.Module,
    clients: Sequence[Dataset],
    *,
    rounds: int,
    lr: float,
    epochs: int = 1,
    batch_size: int | None = None,
    momentum: float = 0.0,
    weight_decay: float = 0.0,
    loss: str | None = None,
    mode: Mode = "train",
    clients_per_round: int | None = None,
    weighting: str = "samples",
    share_statistics: bool = True,
    defences: Defence | Iterable[Defence] = (),
    watch: Collection[int] = (),
    every: int = 1,
    granted: Iterable[str] = (),
    hidden: Iterable[str] = (),
    knows_defence: bool = False,
    test: Dataset | None = None,
    test_every: int = 10,
    together: bool | None = None,
    seed: int = 0,
    progress: Callable[[int, int], None] | None = None,
) -> Federation:
    """Federated averaging (McMahan et al. 2017): ``rounds`` rounds of selected clients, weighted averaging.

    ``clients_per_round`` are drawn anew each round (default: all). ``weighting`` is by ``"samples"`` or
    ``"uniform"``. Messages of the clients in ``watch`` are kept as observations every ``every``-th round.
    With ``share_statistics=False`` each client keeps its own batch-norm statistics and nobody else sees them.
    ``test`` is scored (accuracy, or mean squared error) every ``test_every`` rounds into ``history``; where
    statistics are private, with each client's own, and averaged. ``defences`` are those of every client, each
    with random numbers of its own.
    ``together=None`` trains equal-shaped clients in one vectorised step where the model is small and allows it, and
    no defence asks for the gradient of each sample, which would be those of all clients at once.
    The model itself is left as it is. Ctrl-C returns what was reached. ``progress(done, rounds)`` is called
    each round.
    """
    _check_arguments(clients, rounds, clients_per_round, weighting, watch, every, test, test_every)
    granted, hidden = check_exposure(clients[0], granted, hidden)
    recipes = [
        recipe_for(
            data, loss=loss, mode=mode, lr=lr, epochs=epochs, momentum=momentum, weight_decay=weight_decay,
            batch_size=batch_size,
        )
        for data in clients
    ]  # fmt: skip
    chain = check_defences(defences, model, mode, server=True)
    recipes = [recipe_with(chain, recipe) for recipe in recipes]
    for data, recipe in zip(clients, recipes, strict=True):
        check_model(model, data, recipe.loss)
        check_training(chain, model, recipe, granted)
    servers = [one for one in chain if isinstance(one, ServerDefence)]
    for server in servers:
        server.check(clients_per_round or len(clients))
    architecture = architecture_of(model, share_statistics)
    weights, shared = parameters_of(model), buffers_of(model)
    own = [shared for _ in clients]
    samples = [prepared(data, weights) for data in clients]
    small = sum(value.numel() for value in weights.values()) < TOGETHER_BELOW
    heavy = Protection(chain, seed)
    light = small and not heavy.needs_sample_gradients and not heavy.acts_on_steps
    if together and heavy.acts_on_steps:
        raise InvalidInput(f"clients cannot train together with {chain!r}, which act on each step; use together=False")
    train = _train_together if together or (together is None and light) else _train_one_by_one
    part = Part(model, chain, clients[0].spec.classes, rounds)
    taken = [0] * len(clients)
    observations: dict[int, list[Observation]] = {index: [] for index in watch}
    history: list[tuple[int, float]] = []
    done, interrupted = 0, False
    try:
        for number in range(rounds):
            chosen = _select(len(clients), clients_per_round, seed, number)
            before = {index: shared if share_statistics else own[index] for index in chosen}
            jobs = [(samples[i], recipes[i], before[i], derive(seed, "client", i, "round", number)) for i in chosen]
            try:
                results = train(part, jobs, weights)
            except _CannotTrainTogether:
                if together:
                    raise
                train = _train_one_by_one
                results = train(part, jobs, weights)
            for index in chosen:
                taken[index] += 1
            if number % every == 0 and observations.keys() & set(chosen):
                seen = {
                    index: observe(
                        model, clients[index], recipes[index], weights, gradient=None,
                        returned=returned, buffers=before[index], returned_buffers=statistics,
                        share_statistics=share_statistics, order=order_of(recipes[index], job[3]),
                        defences=chain, granted=granted, hidden=hidden, knows_defence=knows_defence, client=f"client-{index}", round=number,
                        architecture=architecture,
                    )
                    for index, job, (returned, statistics) in zip(chosen, jobs, results, strict=True)
                    if servers or index in observations
                }  # fmt: skip
                if servers:
                    whole, _ = aggregate([(one, truth_of(clients[index], ())) for index, one in seen.items()])
                    seen = dict.fromkeys(seen, whole)
                for index in observations.keys() & seen.keys():
                    observations[index].append(seen[index])
            shares = [float(len(clients[i])) if weighting == "samples" else 1.0 for i in chosen]
            weights = weighted_mean([returned for returned, _ in results], shares)
            if not all(bool(torch.isfinite(value).all()) for value in weights.values()):
                raise InvalidInput(f"the global model became NaN or Inf in round {number}; use a smaller lr than {lr}")
            if share_statistics:
                shared = weighted_mean([statistics for _, statistics in results], shares)
            else:
                for index, (_, statistics) in zip(chosen, results, strict=True):
                    own[index] = statistics
            done = number + 1
            if test is not None and (done % test_every == 0 or done == rounds):
                kept = [shared] if share_statistics else own
                history.append((done, fmean(evaluate(model, test, weights, buffers) for buffers in kept)))
            if progress is not None:
                progress(done, rounds)
    except KeyboardInterrupt:
        interrupted = True
    truths = {index: truth_of(clients[index], ()) for index in watch}
    spent = {}
    if (training := training_of(chain)) is not None:
        budgets = {i: training.spent(recipes[i], often, planned=rounds) for i, often in enumerate(taken) if often}
        spent = {index: epsilon for index, epsilon in budgets.items() if epsilon is not None}
    return Federation(weights, shared, observations, truths, history, done, interrupted, spent)


def evaluate(model: nn.Module, data: Dataset, weights: Params, buffers: Params, batch: int = 1024) -> float:
    """Accuracy (classification) or mean squared error (regression) of a model on ``data``."""
    total = 0.0
    with torch.no_grad(), in_mode(model, "eval"):
        for inputs, targets in zip(*(side.split(batch) for side in prepared(data, weights)), strict=True):
            outputs = torch.func.functional_call(model, {**weights, **buffers}, (inputs,))
            if data.spec.classes is None:
                total += float((outputs.reshape(targets.shape) - targets).square().sum())
            elif outputs.shape[-1] == 1:
                total += float(((outputs.reshape(targets.shape) > 0).long() == targets).sum())
            else:
                total += float((outputs.argmax(-1) == targets).sum())
    return total / len(data)


Job = tuple[Batch, LocalTraining, Params, int]


class _CannotTrainTogether(InvalidInput):
    """The model does something that cannot be vectorised, such as branching on a value."""


@dataclass(frozen=True, eq=False)
class Part:
    """What all clients of all rounds have in common."""

    model: nn.Module
    defences: tuple[Defence, ...]
    classes: int | None
    rounds: int


def _train_one_by_one(part: Part, jobs: Sequence[Job], weights: Params) -> list[Returned]:
    results = []
    for samples, recipe, buffers, seed in jobs:
        start = Trained((), weights, buffers)
        trained = train_client(
            part.model, samples, recipe, start, seed, part.defences, classes=part.classes, participations=part.rounds
        )
        results.append((trained.weights, trained.buffers))
    return results


def _train_together(part: Part, jobs: Sequence[Job], weights: Params) -> list[Returned]:
    """Train clients of equal sizes and recipes as one; the others, and those alone of their kind, one by one."""
    kinds: dict[LocalTraining, list[int]] = {}
    for position, (_, recipe, _, _) in enumerate(jobs):
        kinds.setdefault(recipe, []).append(position)
    results: dict[int, Returned] = {}
    for recipe, positions in kinds.items():
        group = [jobs[position] for position in positions]
        trained = (
            _train_one_by_one(part, group, weights) if len(group) == 1 else _train_group(part, group, recipe, weights)
        )
        results.update(zip(positions, trained, strict=True))
    return [results[position] for position in range(len(jobs))]


def _train_group(part: Part, jobs: Sequence[Job], recipe: LocalTraining, weights: Params) -> list[Returned]:
    trainer = Trainer(part.model, recipe, functional=True)
    orders = [order_of(recipe, seed) for *_, seed in jobs]
    protections = [Protection(part.defences, seed, part.classes) for *_, seed in jobs]
    count = len(jobs)
    state = trainer.start(
        {name: value.expand(count, *value.shape) for name, value in weights.items()},
        {name: torch.stack([buffers[name] for _, _, buffers, _ in jobs]) for name in jobs[0][2]},
    )
    step = _defended_step if protections[0].needs_sample_gradients else _plain_step
    try:
        with seeded(jobs[0][3], "dropout"), torch.no_grad(), trainer.active():
            for number in range(len(orders[0])):
                batches = [
                    protection.on_batch((samples[0][rows[number]], samples[1][rows[number]]))
                    for (samples, *_), rows, protection in zip(jobs, orders, protections, strict=True)
                ]
                inputs, targets = (torch.stack([batch[side] for batch in batches]) for side in (0, 1))
                state = step(trainer, state, (inputs, targets), protections)
    except ValueError as problem:
        raise explained(problem) from problem
    except RuntimeError as problem:
        first = str(problem).partition("\n")[0]
        raise _CannotTrainTogether(f"these clients cannot train together ({first}); use together=False") from problem
    return [
        (protected(protection, weights, _one_of(state.weights, index)), _one_of(state.buffers, index))
        for index, protection in enumerate(protections)
    ]


def _plain_step(trainer: Trainer, state: State, batch: Batch, _: Sequence[Protection]) -> State:
    """One step of all clients at once."""

    def step(weights: Params, velocity: Params, buffers: Params, batch: Batch) -> tuple[Params, Params, Params]:
        after = trainer.step(State(weights, velocity, buffers), batch, graph=True)
        return after.weights, after.velocity, after.buffers

    every_client = torch.func.vmap(step, randomness="different")
    return State(*every_client(state.weights, state.velocity, state.buffers, batch))


def _defended_step(trainer: Trainer, state: State, batch: Batch, protections: Sequence[Protection]) -> State:
    """One step: the gradients of all clients' samples at once, then each client's defences by themselves."""

    def of_samples(weights: Params, buffers: Params, batch: Batch) -> tuple[Params, Params]:
        return trainer.sample_gradients(State(weights, {}, buffers), batch)

    gradients, buffers = torch.func.vmap(of_samples, randomness="different")(state.weights, state.buffers, batch)
    means = [
        protection.mean_gradient({name: value[index] for name, value in gradients.items()})
        for index, protection in enumerate(protections)
    ]
    return trainer.descend(state, {name: torch.stack([mean[name] for mean in means]) for name in means[0]}, buffers)


def _one_of(stacked: Params, index: int) -> Params:
    """One client's tensors, as copies: a view would keep every client's in memory."""
    return {name: value[index].clone() for name, value in stacked.items()}


def _select(clients: int, wanted: int | None, seed: int, number: int) -> list[int]:
    if wanted is None or wanted == clients:
        return list(range(clients))
    order = torch.randperm(clients, generator=generator(seed, "selection", number))
    return sorted(order[:wanted].tolist())


def _check_arguments(
    clients: Sequence[Dataset],
    rounds: int,
    wanted: int | None,
    weighting: str,
    watch: Collection[int],
    every: int,
    test: Dataset | None,
    test_every: int,
) -> None:
    if not clients:
        raise InvalidInput("a federation needs at least one client")
    for name, value in (("rounds", rounds), ("every", every), ("test_every", test_every)):
        if value < 1:
            raise InvalidInput(f"{name} must be at least 1, not {value}")
    if test is not None and not len(test):
        raise InvalidInput("the test data holds no samples")
    if wanted is not None and not 1 <= wanted <= len(clients):
        raise InvalidInput(f"clients_per_round must lie between 1 and {len(clients)}, not {wanted}")
    if weighting not in ("samples", "uniform"):
        raise InvalidInput(f"weighting must be 'samples' or 'uniform', not {weighting!r}")
    for index in watch:
        if not 0 <= index < len(clients):
            raise InvalidInput(f"cannot watch client {index}: there are clients 0 to {len(clients) - 1}")
