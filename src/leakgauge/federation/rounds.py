"""Federated averaging over many rounds, with a record of the messages of watched clients."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean

import torch
from torch import Tensor, nn

from leakgauge.core.errors import InvalidInput
from leakgauge.core.observation import LocalTraining, Mode, Observation
from leakgauge.core.params import Params, buffers_of, parameters_of, weighted_mean
from leakgauge.core.seeding import derive
from leakgauge.core.truth import Truth
from leakgauge.data.dataset import Dataset
from leakgauge.federation.aggregation import aggregate
from leakgauge.federation.client import order_of, truth_of
from leakgauge.federation.client_recipe import Recipe
from leakgauge.federation.defence import (
    Defence,
    check_defences,
    recipe_with,
    refusal,
    training_of,
)
from leakgauge.federation.exposure import Exchanged, Exposure, architecture_of, observe
from leakgauge.federation.losses import Loss
from leakgauge.federation.model_check import explaining, prepared
from leakgauge.federation.round_plan import Plan, Sampling, Testing, Watching, check_counts
from leakgauge.federation.steering import Steering
from leakgauge.federation.together import (
    Answer,
    CannotTrainTogether,
    Job,
    Shared,
    pays_off,
    train_one_by_one,
    train_together,
)
from leakgauge.federation.training import in_mode


@dataclass(frozen=True, eq=False)
class Federation:
    """The result of a federated training.

    Args:
        weights: The weights of the global model.
        buffers: The batch-norm statistics of the global model.
        observations: A dictionary from the index of each watched client to its recorded messages.
        truths: A dictionary from the index of each watched client to its samples.
        history: The number of finished rounds and the test score, as one pair for each tested round.
        rounds: The number of finished rounds.
        interrupted: Whether Ctrl-C ended the training.
        spent: A dictionary from the index of each client to the privacy budget (epsilon) that the client has spent. The
            dictionary is empty if no defence has a privacy budget.
        refused: A dictionary from the index of each client that refused to train in some rounds to one sentence for
            each of these rounds. Only a defence that checks the received weights refuses.
    """

    weights: Params
    buffers: Params
    observations: dict[int, list[Observation]] = field(default_factory=dict)
    truths: dict[int, Truth] = field(default_factory=dict)
    history: list[tuple[int, float]] = field(default_factory=list)
    rounds: int = 0
    interrupted: bool = False
    spent: dict[int, float] = field(default_factory=dict)
    refused: dict[int, list[str]] = field(default_factory=dict)

    def load_into(self, model: nn.Module) -> nn.Module:
        """Copy the trained weights and statistics into ``model``, and return ``model``."""
        with torch.no_grad():
            for name, value in (*model.named_parameters(), *model.named_buffers()):
                value.copy_({**self.weights, **self.buffers}[name])
        return model


def run_federation(  # noqa: PLR0913
    model: nn.Module,
    clients: Sequence[Dataset],
    *,
    rounds: int,
    lr: float | None = None,
    epochs: int | None = None,
    batch_size: int | None = None,
    momentum: float | None = None,
    weight_decay: float | None = None,
    loss: str | Loss | None = None,
    mode: Mode | None = None,
    recipe: LocalTraining | None = None,
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
    steering: Steering | None = None,
    seed: int = 0,
    progress: Callable[[int, int], None] | None = None,
) -> Federation:
    """Train a model by federated averaging (McMahan et al. 2017) and record the messages of watched clients.

    Ctrl-C ends the training early. The result of the finished rounds is then returned.

    Args:
        model: The first global model. It is not changed.
        clients: The samples of each client.
        rounds: The number of rounds.
        lr: The learning rate of the clients.
        epochs: The number of passes over a client's samples in a round, by default 1.
        batch_size: The number of samples in a batch. By default, all of a client's samples form one batch.
        momentum: The momentum of the clients' SGD, by default 0.
        weight_decay: The weight decay of the clients, by default 0.
        loss: The name of a loss in :data:`~leakgauge.federation.losses.LOSSES`, ``"module:function"``, or a function of
            outputs and targets. By default, it is cross-entropy for classes (binary if the model has one output) and
            mean squared error for a regression.
        mode: The mode of the clients' models, ``"train"`` (the default) or ``"eval"``.
        recipe: Further settings of the training, as in :func:`~leakgauge.federation.client.fedavg`.
        clients_per_round: The number of clients that are drawn at random in each round. By default, all clients.
        weighting: The weight of a client in the average: its number of samples (``"samples"``) or 1 (``"uniform"``).
        share_statistics: Whether batch-norm statistics are sent and averaged. If not, each client keeps its own
            statistics, and the server never sees them.
        defences: The defences of every client, in the order in which they are applied.
        watch: The indices of the clients whose messages are recorded.
        every: The interval between recorded rounds. 1 records every round.
        granted: The additional knowledge that the attacker is given, as in :func:`~leakgauge.federation.client.fedavg`.
        hidden: The training settings that the attacker does not know, such as ``"lr"``.
        knows_defence: Whether the attacker knows the defences.
        test: The test data. The score is the accuracy or the mean squared error. If statistics are not shared, the
            model is scored with the statistics of each client, and the mean score is taken.
        test_every: The interval between tested rounds. The last round is always tested.
        together: Whether clients with equal training settings train in one vectorised step. By default, they do so if
            the model is small and can be vectorised. However, a defence that needs the gradient of each sample or acts
            on steps prevents this.
        steering: Further rounds in which a malicious server sends chosen clients weights of its own making. All
            messages of these rounds are recorded. By default, there are none.
        seed: The seed of all random numbers.
        progress: A function that is called after each round, with the number of finished rounds and the number of all
            rounds.
    """
    check_counts(clients, rounds, test, every=every, test_every=test_every)
    sampling = Sampling(clients_per_round, weighting, seed)
    sampling.check(len(clients))
    watching = Watching(watch, every)
    watching.check(len(clients))
    exposure = Exposure.of(granted, hidden, knows_defence, share_statistics)
    shared = Recipe(lr, epochs, batch_size, momentum, weight_decay, loss, mode, recipe)
    trainings = [shared.for_client(data, model) for data in clients]
    if trainings[0].lr is None:
        raise InvalidInput("local training needs a learning rate. Pass lr=..., or a recipe with lr.")
    chain = check_defences(defences, model, trainings[0].mode, server=True)
    plan = Plan(
        model=model,
        clients=clients,
        recipes=[recipe_with(chain, training) for training in trainings],
        defences=chain,
        rounds=rounds,
        sampling=sampling,
        exposure=exposure,
        watching=watching,
        testing=Testing(test, test_every),
        together=together,
        steering=steering,
    )
    plan.check()
    return _Training(plan).run(progress)


def evaluate(model: nn.Module, data: Dataset, weights: Params, buffers: Params, batch: int = 1024) -> float:
    """Return the accuracy of a model, or its mean squared error for a regression.

    For several labels and for masks, the accuracy is the share of right entries.

    Args:
        model: The architecture.
        data: The test samples.
        weights: The weights of the model.
        buffers: The batch-norm statistics of the model.
        batch: The number of samples in one forward pass.
    """
    total = 0.0
    with torch.no_grad(), in_mode(model, "eval"):
        for inputs, targets in zip(*(side.split(batch) for side in prepared(data, weights)), strict=True):
            with explaining("the model's test failed"):
                outputs = torch.func.functional_call(model, {**weights, **buffers}, (inputs,))
            if not isinstance(outputs, Tensor):
                raise InvalidInput(
                    f"the model returns a {type(outputs).__name__}, so its accuracy cannot be computed. "
                    "Train without test data, and test the result yourself."
                )
            if data.spec.target_values is not None:
                total += float((decided(outputs, targets) == targets).double().flatten(1).mean(1).sum())
            elif data.spec.classes is None:
                total += float((outputs.reshape(targets.shape) - targets).square().sum())
            elif outputs.shape[-1] == 1:
                total += float(((outputs.reshape(targets.shape) > 0).long() == targets).sum())
            else:
                total += float((outputs.argmax(-1) == targets).sum())
    return total / len(data)


def decided(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the labels that the outputs of a model stand for, in the shape of the targets.

    Args:
        outputs: One logit for each entry of the targets, or one for each class of each entry in the second dimension.
        targets: Several labels of each sample, or masks.

    >>> decided(torch.tensor([[2.0, -1.0]]), torch.tensor([[1.0, 1.0]]))
    tensor([[1., 0.]])
    """
    if outputs.numel() == targets.numel():
        return (outputs.reshape(targets.shape) > 0).to(targets.dtype)
    return outputs.argmax(1).reshape(targets.shape).to(targets.dtype)


class _Training:
    """The state of a federated training between rounds."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.weights, self.buffers = parameters_of(plan.model), buffers_of(plan.model)
        #: The statistics that each client keeps for itself, if statistics are not shared.
        self.private_buffers = [self.buffers for _ in plan.clients]
        self.samples = [prepared(data, self.weights) for data in plan.clients]
        self.architecture = architecture_of(plan.model, plan.exposure.share_statistics)
        self.shared = Shared(plan.model, plan.defences, plan.clients[0].spec.classes, plan.rounds)
        vectorised = pays_off(self.weights, plan.protection) if plan.together is None else plan.together
        self.train = train_together if vectorised else train_one_by_one
        self.participations = [0] * len(plan.clients)
        self.observations: dict[int, list[Observation]] = {index: [] for index in plan.recorded}
        self.refused: dict[int, list[str]] = {}
        self.history: list[tuple[int, float]] = []
        self.done = 0

    def run(self, progress: Callable[[int, int], None] | None) -> Federation:
        """Train until the last round or until Ctrl-C, and return the result."""
        interrupted = False
        try:
            for number in range(self.plan.all_rounds):
                self._steer(number)
                self._round(number)
                if progress is not None:
                    progress(self.done, self.plan.all_rounds)
        except KeyboardInterrupt:
            interrupted = True
        return Federation(
            self.weights,
            self.buffers,
            self.observations,
            {index: truth_of(self.plan.clients[index], ()) for index in self.plan.recorded},
            self.history,
            self.done,
            interrupted,
            self._spent(),
            self.refused,
        )

    def _steer(self, number: int) -> None:
        """Let a malicious server send the steered clients weights of its own making, if this is a steered round."""
        steering, sent = self.plan.steering, self.weights
        if steering is None or number < self.plan.rounds:
            return
        for index in steering.clients:
            weights = steering.rule.next_weights(self.observations[index], sent)
            problem = refusal(self.plan.defences, weights, [sent] * (len(self.plan.clients) - 1))
            if problem:
                self.refused.setdefault(index, []).append(f"round {number}: {problem}")
                continue
            job = self._job(index, number)
            [answer] = train_one_by_one(self.shared, [job], weights)
            self.participations[index] += 1
            message = self._observation(index, number, job, answer)
            self.observations[index].append(replace(message, sent=weights, steered=steering.rule.rule))

    def _round(self, number: int) -> None:
        chosen = self.plan.chosen(number)
        if not chosen:  # a malicious server steers every client
            self.done = number + 1
            return
        jobs = {index: self._job(index, number) for index in chosen}
        answers = dict(zip(chosen, self._trained(list(jobs.values())), strict=True))
        for index in chosen:
            self.participations[index] += 1
        if number % self.plan.watching.every == 0 and set(self.plan.watching.clients) & answers.keys():
            self._record(number, jobs, answers)
        self._average(number, answers)
        self.done = number + 1
        self._test()

    def _job(self, index: int, number: int) -> Job:
        shared = self.plan.exposure.share_statistics
        return Job(
            self.samples[index],
            self.plan.recipes[index],
            self.buffers if shared else self.private_buffers[index],
            derive(self.plan.sampling.seed, "client", index, "round", number),
        )

    def _trained(self, jobs: Sequence[Job]) -> list[Answer]:
        try:
            return self.train(self.shared, jobs, self.weights)
        except CannotTrainTogether:
            if self.plan.together:
                raise
            self.train = train_one_by_one
            return self.train(self.shared, jobs, self.weights)

    def _record(self, number: int, jobs: Mapping[int, Job], answers: Mapping[int, Answer]) -> None:
        """Record the messages of the watched clients, or the mean of all messages if the server gets only this mean."""
        seen = {
            index: self._observation(index, number, jobs[index], answer)
            for index, answer in answers.items()
            if self.plan.only_sums or index in self.plan.watching.clients
        }
        if self.plan.only_sums:
            mean, _ = aggregate([(one, truth_of(self.plan.clients[index], ())) for index, one in seen.items()])
            seen = dict.fromkeys(seen, mean)
        for index in set(self.plan.watching.clients) & seen.keys():
            self.observations[index].append(seen[index])

    def _observation(self, index: int, number: int, job: Job, answer: Answer) -> Observation:
        exchanged = Exchanged(
            self.weights,
            job.buffers,
            answer.buffers,
            returned=answer.weights,
            order=order_of(job.training, job.seed),
        )
        return observe(
            self.architecture,
            self.plan.clients[index],
            job.training,
            exchanged,
            self.plan.exposure,
            defences=self.plan.defences,
            client=f"client-{index}",
            round=number,
        )

    def _average(self, number: int, answers: Mapping[int, Answer]) -> None:
        shares = [self.plan.sampling.share(self.plan.clients[index]) for index in answers]
        self.weights = weighted_mean([answer.weights for answer in answers.values()], shares)
        if not all(bool(torch.isfinite(value).all()) for value in self.weights.values()):
            raise InvalidInput(
                f"the global model became NaN or Inf in round {number}. "
                f"Use a smaller lr than {self.plan.recipes[0].lr}."
            )
        if self.plan.exposure.share_statistics:
            self.buffers = weighted_mean([answer.buffers for answer in answers.values()], shares)
        else:
            for index, answer in answers.items():
                self.private_buffers[index] = answer.buffers

    def _test(self) -> None:
        testing = self.plan.testing
        if testing.data is None or (self.done % testing.every and self.done != self.plan.all_rounds):
            return
        statistics = [self.buffers] if self.plan.exposure.share_statistics else self.private_buffers
        scores = (evaluate(self.plan.model, testing.data, self.weights, buffers) for buffers in statistics)
        self.history.append((self.done, fmean(scores)))

    def _spent(self) -> dict[int, float]:
        """Return the privacy budget (epsilon) that each participating client has spent.

        The result is empty if no defence has a privacy budget.
        """
        defence = training_of(self.plan.defences)
        if defence is None:
            return {}
        budgets = {
            index: defence.spent(self.plan.recipes[index], count, planned=self.plan.rounds)
            for index, count in enumerate(self.participations)
            if count
        }
        return {index: epsilon for index, epsilon in budgets.items() if epsilon is not None}
