"""Functions that rebuild the model of every captured client and infer facts about records."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from leakgauge.attacks import registry
from leakgauge.attacks.local_model import GlobalModel, LastReturned, LocalModel, LocalModelAttack
from leakgauge.attacks.requirements import Workload, check_requirements
from leakgauge.core.container import Location, output_folder
from leakgauge.core.errors import InvalidInput, LeakgaugeError, TasksFailed
from leakgauge.core.observation import Observation
from leakgauge.core.observation_file import plain
from leakgauge.core.params import buffers_of
from leakgauge.core.progress import Report
from leakgauge.core.truth import Truth
from leakgauge.evaluation.gate import Check, Condition
from leakgauge.evaluation.inferred import column_values
from leakgauge.runtime import Task, run_tasks
from leakgauge.runtime.cache import Cache, Entry
from leakgauge.workflows.captures import Captures, TruthSource, truths_of
from leakgauge.workflows.infer_captures.questions import Federation, Inference, infer_column, infer_owners
from leakgauge.workflows.infer_captures.recipes import check_recipes, sentences_of, with_checks
from leakgauge.workflows.result import Running, WorkflowResult

#: The method that is chosen by what the captures hold.
AUTO = "auto"
#: The names of the models whose losses on a client's own data are compared.
MODELS = ("rebuilt", "last returned", "global")
#: If a client has fewer rounds than this, a note says so. The figures in the LMRA paper are from 100 rounds.
FEW_ROUNDS = 10


@dataclass(frozen=True, eq=False, kw_only=True)
class InferredCaptures(WorkflowResult):
    """The result of inference from many rounds of captures.

    Args:
        models: The rebuilt model of each client.
        losses: For each client, a dictionary from the name of each compared model to its loss on the client's own data.
        inferences: The result of each attack on a hidden column or on the owners of records.
        notes: Sentences for the reader.
        threat_model: Sentences about what the attacker sees and knows.
        scored: Whether the clients' data is given.
    """

    models: dict[str, LocalModel]
    losses: dict[str, dict[str, float]]
    inferences: tuple[Inference, ...]
    notes: tuple[str, ...]
    threat_model: tuple[str, ...]
    scored: bool

    def check(self, conditions: Sequence[Condition]) -> list[Check]:
        """Compare conditions with the findings. If the data of some clients is not given, no condition is met."""
        unscored = len(self.models) - len(self.losses)
        missing = [
            Check(one, "any attack", f"{unscored} clients without data", None, failed=True) for one in conditions
        ]
        return super().check(conditions) + (missing if unscored else [])

    def sentence(self) -> str:
        """Return the result as a short text."""
        rounds = [model.rounds for model in self.models.values()]
        seen = f"{min(rounds)}" if min(rounds) == max(rounds) else f"{min(rounds)} to {max(rounds)}"
        clients = "the model of one client" if len(rounds) == 1 else f"the models of {len(rounds)} clients"
        made = f"Rebuilt {clients} from {seen} round{'s' if max(rounds) > 1 else ''} each."
        if self.scored and not self.inferences:
            return f"{made} Nothing was inferred. Name a column with --sensitive, or pass the data of two clients."
        best: dict[str, Inference] = {}
        for one in self.inferences:
            if one.verdict.leaks and (one.about not in best or one.measure.value > best[one.about].measure.value):
                best[one.about] = one
        shares = [
            f"{about}: {one.measure.value:.0%} right by {one.attack}, chance {one.measure.chance:.0%}"
            for about, one in best.items()
        ]
        inferred = f" Inferred {'; '.join(shares)}." if shares else ""
        return f"{made} {self.verdict.sentence}{inferred}"


@dataclass(frozen=True)
class InferenceTask:
    """The inputs of :func:`run_inference`, such as the captures and the attack.

    Args:
        captures: The captures of all clients.
        method: The attack that rebuilds local models, or its name. ``"auto"`` is the attack of the malicious server if
            the captures hold rounds of one, and ``"lmra"`` otherwise.
        options: The options of the method, if the method is a name.
        data: The clients' records.
        sensitive: The name of the column or category to infer.
        seed: The seed of the attacks.
    """

    captures: Captures
    method: str | LocalModelAttack = AUTO
    options: Mapping[str, Any] = field(default_factory=dict)
    data: TruthSource | None = None
    sensitive: str | None = None
    seed: int = 0

    def attack_on(self, rounds: Mapping[str, Sequence[Observation]]) -> LocalModelAttack:
        """Return the attack that rebuilds local models from these rounds.

        Args:
            rounds: The observations of each client.
        """
        if isinstance(self.method, LocalModelAttack):
            return self.method
        rules = {one.steered for client in rounds.values() for one in client if one.steered in registry.ATTACKS}
        automatic = min(rules, default="lmra")
        built: LocalModelAttack = registry.build(automatic if self.method == AUTO else self.method, **self.options)
        return built


def run_inference(task: InferenceTask, output: Location, running: Running | None = None) -> InferredCaptures:
    """Rebuild all models, infer facts about records, and return the result.

    Args:
        task: The captures, the attack and the records.
        output: The folder for the cache.
        running: The engine, the device and the listener of the tasks that rebuild models.
    """
    running = running or Running()
    if task.sensitive is not None and task.data is None:
        raise InvalidInput("inferring a column needs the clients' records. Pass them with --data")
    rounds, files, refused = _read(task.captures)
    truths, unfit = _truths(task.data, rounds, files)
    refused += [f"all of {name}: {problem}" for name, problem in unfit.items()]
    rounds = {name: observations for name, observations in rounds.items() if name not in unfit}
    files = {name: files[name] for name in rounds}
    values = None if task.sensitive is None else column_values(list(truths.values()), task.sensitive)
    method = task.attack_on(rounds)
    models, problems, failed = _rebuild(task, method, rounds, files, output, running)
    refused += [f"all of {name}: {problem}" for name, problem in problems.items()]
    if not models:
        raise InvalidInput(f"no client's model could be rebuilt. {refused[-1] if refused else 'Interrupted.'}")
    kept = {name: rounds[name] for name in models}
    truths = {name: truth for name, truth in truths.items() if name in models}
    checks = {} if task.data is None else check_recipes(task.data, kept, files, truths)
    federation = Federation(kept, models, truths)
    answers, threats = _answers(federation, task, values)
    inferences = tuple(inference for answer in answers for inference in answer.inferences)
    few = [name for name, model in models.items() if model.rounds < FEW_ROUNDS]
    return InferredCaptures(
        models=models,
        losses={name: _losses(models[name], kept[name], truth) for name, truth in truths.items()},
        inferences=inferences,
        notes=(
            *sentences_of(checks),
            *([_few(few)] if few else []),
            *(note for answer in answers for note in answer.notes),
            *(() if task.data is None else task.data.not_scored([name for name in models if name not in truths])),
        ),
        threat_model=(*next(iter(kept.values()))[-1].threat_model(), *threats),
        scored=bool(truths),
        findings=with_checks([inference.finding() for inference in inferences], checks),
        refused=tuple(refused),
        failed=failed,
        complete=failed is None and len(models) + len(problems) == len(rounds),
    )


def _answers(
    federation: Federation, task: InferenceTask, values: Sequence[float] | None
) -> tuple[list[Any], list[str]]:
    answers, threats = [], []
    if task.sensitive is not None and values is not None and federation.truths:
        answers.append(infer_column(federation, task.sensitive, values))
        threats.append(f"To infer {task.sensitive!r} it knows the clients' records and targets, except that column.")
    if len(federation.truths) > 1:
        answers.append(infer_owners(federation, task.seed))
        threats.append("To infer owners it knows records with their targets, each of which belongs to one client.")
    return answers, threats


def _few(clients: Sequence[str]) -> str:
    who = clients[0] if len(clients) == 1 else f"{len(clients)} clients"
    return (
        f"Fewer than {FEW_ROUNDS} rounds were captured of {who}. LMRA's own figures are of 100. With more rounds, more "
        "may be inferred than this page shows."
    )


def _read(captures: Captures) -> tuple[dict[str, list[Observation]], dict[str, list[Path]], list[str]]:
    """Return the observations and the files of each client, and sentences about the refused files."""
    refused: list[str] = []
    usable: list[tuple[Path, Observation]] = []
    for file, observation in captures.read(lambda one: check_requirements(one, Workload(1, 1))):
        if isinstance(observation, LeakgaugeError):
            refused.append(str(observation))
        else:
            usable.append((file, observation))
    reasons = _misfits([observation for _, observation in usable])
    rounds: dict[str, list[Observation]] = {}
    files: dict[str, list[Path]] = {}
    for (file, observation), reason in zip(usable, reasons, strict=True):
        if reason:
            refused.append(f"{file}: {reason}")
            continue
        rounds.setdefault(observation.client, []).append(observation)
        files.setdefault(observation.client, []).append(file)
    if not rounds:
        raise captures.nothing_read(refused)
    return rounds, files, refused


def _misfits(observations: Sequence[Observation]) -> list[str]:
    """Return, for each capture, the reason why it does not fit the others, or an empty text.

    All captures of a federation describe the same data and the same weights, and most captures of a folder are right.
    Two clients whose names are the same as names of files cannot be told apart. A client is used if its name is a
    name of a file as it stands.
    """
    kinds = [_kind(observation) for observation in observations]
    usual = Counter(kinds).most_common(1)
    names: dict[str, set[str]] = {}
    for observation in observations:
        names.setdefault(plain(observation.client), set()).add(observation.client)
    reasons = []
    for observation, kind in zip(observations, kinds, strict=True):
        name = observation.client
        twins = names[plain(name)] - {name}
        if kind != usual[0][0]:
            reasons.append("its data or its weights are not like those of most captures here")
        elif twins and name != plain(name):
            twin = min(twins)
            reasons.append(f"the clients {name!r} and {twin!r} have the same name as files. Choose one with --client")
        else:
            reasons.append("")
    return reasons


def _kind(observation: Observation) -> tuple[object, ...]:
    shapes = tuple((name, tuple(value.shape)) for name, value in observation.sent.items())
    return observation.data, observation.kind, shapes


def _truths(
    data: TruthSource | None,
    rounds: Mapping[str, Sequence[Observation]],
    files: Mapping[str, Sequence[Path]],
) -> tuple[dict[str, Truth], dict[str, str]]:
    """Return the records of each client, and the error of each client whose records do not fit its captures."""
    if data is None:
        return {}, {}
    data.check(rounds)
    known, problems = truths_of(data, {name: observations[0] for name, observations in rounds.items()}, files)
    return known, problems


def _rebuild(
    task: InferenceTask,
    method: LocalModelAttack,
    rounds: Mapping[str, Sequence[Observation]],
    files: Mapping[str, Sequence[Path]],
    output: Location,
    running: Running,
) -> tuple[dict[str, LocalModel], dict[str, str], TasksFailed | None]:
    """Rebuild the model of each client, and collect errors.

    Return the rebuilt models, the error message of each client whose model cannot be rebuilt, and the tasks that failed
    unexpectedly. Models that are in the cache are not rebuilt again.
    """
    cache = Cache(output_folder(Path(output)) / "cache")
    asked = {"method": repr(method), "seed": task.seed, "device": running.device}
    definitions = {name: {**task.captures.definition(*paths), **asked} for name, paths in files.items()}
    entries = {name: cache.get(definition) for name, definition in definitions.items()}
    tasks = [
        Task(f"model of {name}", rebuild_model, {"files": tuple(files[name]), "client": name})
        for name, entry in entries.items()
        if entry is None
    ]
    common = {"captures": task.captures, "method": method, "seed": task.seed, "device": running.device}
    problems: dict[str, str] = {}
    failed = None
    try:
        results = run_tasks(tasks, engine=running.engine, jobs=running.jobs, watch=running.watch, common=common)
        for done, (document, tensors) in results:
            name = done.arguments["client"]
            if "problem" in document:
                problems[name] = document["problem"]
                continue
            cache.put(definitions[name], document, tensors)
            entries[name] = Entry(document, tensors)
    except TasksFailed as problem:
        failed = problem
    except KeyboardInterrupt:
        pass
    models = {name: _model(entry, rounds[name]) for name, entry in entries.items() if entry is not None}
    return models, problems, failed


def rebuild_model(
    captures: Captures,
    method: LocalModelAttack,
    files: Sequence[Path],
    client: str,
    seed: int,
    report: Report,
    device: str | None = None,
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Rebuild the model of one client. The model is returned as plain values and tensors.

    Args:
        captures: The captures that the files belong to.
        method: The attack that rebuilds local models.
        files: The files of the client's rounds.
        client: The name of the client.
        seed: The seed of the attack.
        report: The function that is called after each step.
        device: The device of the attack.
    """
    architecture = captures.architecture()
    rounds = [captures.load(file, architecture) for file in files]
    rounds = rounds if device is None else [observation.to(device) for observation in rounds]
    try:
        model = method(rounds, seed=seed, progress=report)
    except LeakgaugeError as problem:  # the models of the other clients are still rebuilt
        return {"problem": str(problem)}, {}
    document = {
        "outcome": model.outcome,
        "rounds": model.rounds,
        "seconds": model.seconds,
        "client": client,
        "method": model.method,
    }
    tensors = {**model.weights, **(model.buffers or {})}
    return document, {name: value.detach().cpu() for name, value in tensors.items()}


def _model(entry: Entry, rounds: Sequence[Observation]) -> LocalModel:
    last = max(rounds, key=lambda observation: observation.round)
    weights = {name: value for name, value in entry.tensors.items() if name in last.sent}
    buffers = {name: value for name, value in entry.tensors.items() if name not in last.sent}
    document = entry.document
    return LocalModel(
        last.model,
        weights,
        buffers if buffers or not buffers_of(last.model) else None,
        last.data,
        last.training.loss,
        document["outcome"],
        client=last.client,
        method=document["method"],
        rounds=document["rounds"],
        seconds=document["seconds"],
    )


def _losses(rebuilt: LocalModel, rounds: Sequence[Observation], truth: Truth) -> dict[str, float]:
    """Return the mean losses of the rebuilt model, the last returned model and the global model on a client's own data.

    The result is a dictionary from the name of each model to its loss.
    """
    models = {MODELS[0]: rebuilt}
    for name, baseline in zip(MODELS[1:], (LastReturned(), GlobalModel()), strict=True):
        try:
            models[name] = baseline(rounds, progress=False)
        except LeakgaugeError:  # no model can be computed from gradients without a learning rate
            continue
    with torch.no_grad():
        return {name: float(model.losses(truth.inputs, truth.targets).mean()) for name, model in models.items()}
