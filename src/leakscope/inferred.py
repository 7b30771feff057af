"""What many rounds of captures give away together: each client's own model, a hidden column, who holds a record.

The attacker's part is :mod:`leakscope.inference`, on observations and on records that it is granted; how much of it is
right is told where the clients' data is at hand. Nothing in a folder of captures is trusted
(:mod:`leakscope.captured`), and rebuilt models are kept, so that a run that was stopped goes on where it was.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from leakscope.captured import ClientData, read_captures
from leakscope.container import Location, output_folder, read_container, write_atomically, write_container
from leakscope.errors import FileError, InvalidInput, LeakscopeError, printable
from leakscope.inference import (
    GlobalModel,
    LastReturned,
    LocalModel,
    LocalModelAttack,
    PublicRecords,
    attribute,
    source,
)
from leakscope.inference.messages import Messages, gradients_of, steps_in
from leakscope.metrics import Interval, mean_interval, wilson_interval
from leakscope.observation import Observation
from leakscope.params import buffers_of
from leakscope.progress import progress_bar
from leakscope.report import Page, Section, write_page
from leakscope.seeding import generator
from leakscope.storage import plain
from leakscope.truth import Truth

KIND, VERSION = "local model", 1
#: Sources are asked for so many records in all, as many of each client.
RECORDS = 2000
#: A sensitive column has at most so many values.
VALUES = 20
#: The models whose losses on a client's own data stand beside each other.
MODELS = ("rebuilt", "last returned", "global")
#: What the attacks' names mean.
WORDS = {
    "rebuilt model": "the value with which the rebuilt model explains the target best (LMRA, equation 3).",
    "gradients": "the values whose gradients point where the client went (LMRA, equation 2).",
    "equations": "a mean gradient is linear in which value each record has, and in which records it is of; solved.",
    "losses": "the client whose rebuilt model has the least loss on the record (Hu et al. 2021).",
    "vote": "the same on the models returned in each round, by majority (LMRA, appendix C.2).",
    "inputs": "the client whose mean input, as its first layer's gradients tell it, lies nearest.",
}


@dataclass(frozen=True)
class Figure:
    """What share of records one attack has right, as a mean over clients, and what a guess has without any message."""

    what: str
    attack: str
    right: Interval
    chance: float
    clients: int
    records: int

    @property
    def above_chance(self) -> bool:
        """Whether the whole interval lies above the guess."""
        return self.right.low is not None and self.right.low > self.chance

    def to_row(self) -> list[str]:
        """As a row of a table."""
        between = "-" if self.right.low is None else f"{self.right.low:.2f} to {self.right.high:.2f}"
        return [
            self.what, self.attack, f"{self.right.mean:.2f}", between, f"{self.chance:.2f}", str(self.clients),
            str(self.records),
        ]  # fmt: skip


@dataclass(frozen=True, eq=False)
class Inferred:
    """What was made of a folder of captures. ``fits`` are the losses on a client's own data, model by model."""

    models: dict[str, LocalModel]
    fits: dict[str, dict[str, float]]
    figures: list[Figure]
    notes: list[str]
    refused: list[str]
    threat_model: list[str]

    def verdict(self) -> tuple[str, bool | None]:
        """In a sentence, and whether any attack beats a guess; ``None`` where nobody's data was given."""
        rounds = min(model.rounds for model in self.models.values())
        made = f"From {rounds} or more rounds each, the models of {len(self.models)} clients were rebuilt"
        if not self.figures and not self.fits:
            return f"{made}. What they give away, nobody can say without the clients' data: give it with --data.", None
        if not self.figures:
            return f"{made}. Of the records nothing was asked: name a column, or give the data of two clients.", None
        best: dict[str, Figure] = {}
        for one in self.figures:
            if one.above_chance and (one.what not in best or one.right.mean > best[one.what].right.mean):
                best[one.what] = one
        if not best:
            return f"{made}. No attack tells more of the records than a guess.", False
        told = [
            f"{name}: {one.right.mean:.0%} right by {one.attack}, a guess {one.chance:.0%}"
            for name, one in best.items()
        ]
        return f"{made}. What the messages tell of the records: {'; '.join(told)}.", True


def infer_captures(
    files: Sequence[Path],
    method: LocalModelAttack,
    output: Location,
    *,
    model: nn.Module | None = None,
    knowing: Mapping[str, Any] | None = None,
    client: str | None = None,
    data: ClientData | None = None,
    sensitive: str | None = None,
    seed: int = 0,
) -> Inferred:
    """Rebuild the model of every client that was captured, and ask about the records in ``data``.

    ``sensitive`` is the column, or the category, that is hidden from the attacker and to be inferred. Sources are asked
    for where the data of at least two clients is there; always naming one of these is the guess to beat.
    """
    if sensitive is not None and data is None:
        raise InvalidInput("to infer a column the clients' records are needed, all but that column: give --data")
    rounds, digests, refused = _read(files, model, knowing, client)
    if data is not None:
        data.check(rounds)
    truths = {name: data.truth(own[0]) for name, own in rounds.items()} if data is not None else {}
    known = {name: truth for name, truth in truths.items() if truth is not None}
    if data is not None and not known:
        raise InvalidInput(f"{data.place} holds the data of none of these clients: {', '.join(list(rounds)[:5])}")
    values = None if sensitive is None else _values(known.values(), sensitive)
    output_folder(output)
    models = {}
    for name, own in list(rounds.items()):
        try:
            models[name] = _rebuilt(own, method, Path(output), digests[name].hexdigest(), seed)
        except LeakscopeError as problem:
            if len(rounds) == 1:
                raise
            refused.append(f"all of {name}: {problem}")
            del rounds[name]
            known.pop(name, None)
    fits = {name: _fits(models[name], rounds[name], truth) for name, truth in known.items()}
    figures, notes = [], []
    if sensitive is not None and values is not None:
        found, words = _attributes(models, rounds, known, sensitive, values)
        figures += found
        notes += words
    if len(known) > 1:
        found, words = _sources(models, rounds, known, seed)
        figures += found
        notes += words
    threat = list(next(iter(rounds.values()))[-1].threat_model())
    if sensitive is not None:
        threat.append(f"To infer {sensitive!r} it knows the clients' records and their targets, all but that column.")
    if len(known) > 1:
        threat.append("To infer sources it knows records with their targets, each of which one of the clients holds.")
    return Inferred(models, fits, figures, notes, refused, threat)


def _read(
    files: Sequence[Path], model: nn.Module | None, knowing: Mapping[str, Any] | None, client: str | None
) -> tuple[dict[str, list[Observation]], dict[str, Any], list[str]]:
    """The rounds of each client, a digest of what they were read from, and the files that were refused."""
    rounds: dict[str, list[Observation]] = {}
    digests: dict[str, Any] = {}
    refused = []
    for file, found in read_captures(files, model, knowing, client):
        if isinstance(found, FileError):
            refused.append(str(found))
            continue
        rounds.setdefault(found.client, []).append(found)
        digest = digests.setdefault(found.client, hashlib.sha256(json.dumps(dict(knowing or {})).encode()))
        digest.update(file.read_bytes())
    if not rounds:
        raise InvalidInput(refused[0] if refused else f"there are no captures of a client called {client!r}")
    return rounds, digests, refused


def _rebuilt(
    rounds: Sequence[Observation], method: LocalModelAttack, output: Path, made_from: str, seed: int
) -> LocalModel:
    """A client's model, from the file of an earlier run that did the same, or made now and kept."""
    last = max(rounds, key=lambda one: one.round)
    target = output / f"{plain(last.client)}.local-model.safetensors"
    asked = {"method": repr(method), "seed": seed, "made_from": made_from}
    if target.exists():
        document, tensors = read_container(target, KIND, VERSION)
        if all(document.get(key) == value for key, value in asked.items()):
            own = {name: value for name, value in tensors.items() if name in last.sent}
            buffers = {name: value for name, value in tensors.items() if name not in last.sent}
            return LocalModel(
                last.model, own, buffers if buffers or not buffers_of(last.model) else None, last.data,
                last.training.loss, document["outcome"], client=last.client, method=document["method"],
                rounds=document["rounds"], seconds=document["seconds"],
            )  # fmt: skip
    found = method(rounds, seed=seed)
    said = {"outcome": found.outcome, "rounds": found.rounds, "seconds": found.seconds, "client": found.client}
    write_container(target, KIND, VERSION, asked | said, {**found.weights, **(found.buffers or {})})
    return found


def _fits(rebuilt: LocalModel, rounds: Sequence[Observation], truth: Truth) -> dict[str, float]:
    """The mean loss of three models on a client's own data."""
    models = {MODELS[0]: rebuilt}
    for name, proxy in zip(MODELS[1:], (LastReturned(), GlobalModel()), strict=True):
        try:
            models[name] = proxy(rounds, progress=False)
        except LeakscopeError:  # gradients without a learning rate lead to no model
            continue
    with torch.no_grad():
        return {name: float(one.losses(truth.inputs, truth.targets).mean()) for name, one in models.items()}


def _values(truths: Iterable[Truth], sensitive: str) -> Sequence[float]:
    """The values that a sensitive column has among all clients; those of a category are its one-hot columns."""
    every = list(truths)
    if sensitive in every[0].data.one_hot_groups or sensitive not in every[0].data.columns:
        PublicRecords.hiding(every[0].inputs, every[0].targets, every[0].data, sensitive)  # says what there is
        return ()
    place = every[0].data.columns.index(sensitive)
    values: list[float] = torch.cat([one.inputs[:, place] for one in every]).unique().tolist()
    if not 2 <= len(values) <= VALUES:
        raise InvalidInput(f"the column {sensitive!r} has {len(values)} values; one with 2 to {VALUES} can be inferred")
    return values


def _hidden(truth: Truth, sensitive: str, values: Sequence[float]) -> tuple[PublicRecords, Tensor]:
    """A client's records without the sensitive column, and which of its values each has."""
    if sensitive in truth.data.one_hot_groups:
        records = PublicRecords.hiding(truth.inputs, truth.targets, truth.data, sensitive)
        return records, truth.inputs[:, records.columns].argmax(1)
    records = PublicRecords.hiding(truth.inputs, truth.targets, truth.data, sensitive, values)
    column = truth.inputs[:, records.columns[0]]
    return records, (column.unsqueeze(1) == torch.tensor(list(values)).to(column)).long().argmax(1)


def _attributes(
    models: Mapping[str, LocalModel],
    rounds: Mapping[str, Sequence[Observation]],
    known: Mapping[str, Truth],
    sensitive: str,
    values: Sequence[float],
) -> tuple[list[Figure], list[str]]:
    """How many values of the hidden column each attack has right."""
    messages = {name: Messages.read(rounds[name]) for name in known}
    attacks: dict[str, Callable[[str, PublicRecords], attribute.Attributes]] = {
        "rebuilt model": lambda name, records: attribute.by_model(models[name], records),
        "gradients": lambda name, records: attribute.by_gradient(rounds[name], records),
    }
    notes = []
    if all(gradients_of(one)[1] for one in messages.values()):
        attacks["equations"] = lambda name, records: attribute.by_equations(rounds[name], records)
        if any((steps_in(one.last) or 0) > 1 for one in messages.values()):
            notes.append("Clients take several steps a round, which is noise to the gradients' equations.")
    else:
        notes.append("The gradients' equations want the clients' lr, epochs, batch size and samples: give --know.")
    hidden = {name: _hidden(truth, sensitive, values) for name, truth in known.items()}
    guesses = [float(torch.bincount(secret).max()) / len(secret) for _, secret in hidden.values()]
    figures = []
    for attack, ask in attacks.items():
        right = []
        with progress_bar(f"{sensitive} by {attack}") as report:
            for number, (name, (records, secret)) in enumerate(hidden.items()):
                right.append((ask(name, records).choice.cpu() == secret).double())
                report(number + 1, len(hidden), math.nan)
        figures.append(_figure(sensitive, attack, right, sum(guesses) / len(guesses)))
    return figures, notes


def _sources(
    models: Mapping[str, LocalModel], rounds: Mapping[str, Sequence[Observation]], known: Mapping[str, Truth], seed: int
) -> tuple[list[Figure], list[str]]:
    """For how many records each attack finds the client that holds them, among all that were captured."""
    some = {}
    for name, truth in known.items():
        order = torch.randperm(len(truth.inputs), generator=generator(seed, "sources", name))
        rows = order[: max(1, RECORDS // len(known))]
        some[name] = truth.inputs[rows], truth.targets[rows]
    inputs, targets = (torch.cat([one[place] for one in some.values()]) for place in (0, 1))
    sizes = [len(one) for one, _ in some.values()]
    names, messages = list(rounds), list(rounds.values())
    attacks: dict[str, Callable[[], source.Sources]] = {
        "losses": lambda: source.by_loss([models[name] for name in names], inputs, targets),
        "vote": lambda: source.by_vote(messages, inputs, targets),
        "inputs": lambda: source.by_inputs(messages, inputs),
        "equations": lambda: source.by_equations(messages, inputs, targets),
    }
    figures, notes = [], []
    for attack, ask in attacks.items():
        try:
            choice = ask().choice.cpu()
        except LeakscopeError as problem:
            notes.append(f"Sources by {attack} could not be asked for: {problem}.")
            continue
        right = [(part == names.index(name)).double() for name, part in zip(some, choice.split(sizes), strict=True)]
        figures.append(_figure("source of a record", attack, right, 1 / len(known)))
    return figures, notes


def _figure(what: str, attack: str, right: Sequence[Tensor], chance: float) -> Figure:
    """A mean over clients; of a single client, the share of its records."""
    records = sum(len(one) for one in right)
    if len(right) == 1:
        share = wilson_interval(float(right[0].sum()), records)
    else:
        share = mean_interval(torch.stack([one.mean() for one in right]), limits=(0.0, 1.0))
    return Figure(what, attack, share, chance, len(right), records)


def models_table(found: Inferred, *, brief: bool = False) -> list[list[str]]:
    """The rebuilt models as a table, its head first; unless ``brief``, with what each method says of its model."""
    fitted = [name for name in MODELS if any(name in fits for fits in found.fits.values())]
    rows = [["client", "rounds", "seconds", *(f"loss, {name}" for name in fitted), *([] if brief else ["outcome"])]]
    for name, model in found.models.items():
        losses = [f"{found.fits[name][one]:.3g}" if one in found.fits.get(name, {}) else "-" for one in fitted]
        said = [] if brief else [model.outcome]
        rows.append([printable(name), str(model.rounds), f"{model.seconds:.1f}", *losses, *said])
    return rows


def figures_table(found: Inferred) -> list[list[str]]:
    """What each attack has right as a table, its head first."""
    head = ["what", "attack", "right", "95% interval", "chance", "clients", "records"]
    return [head, *(one.to_row() for one in found.figures)]


def write_inferred(found: Inferred, output: Location, command: str) -> Path:
    """The page, and the figures as JSON beside it."""
    verdict, leaks = found.verdict()
    sections = [Section("What the attacker sees and knows", found.threat_model)]
    if found.figures:
        used = dict.fromkeys(one.attack for one in found.figures)
        words = ["Means over clients.", *(f"{name}: {WORDS[name]}" for name in used), *found.notes]
        sections.append(Section("What the messages tell of the records", words, figures_table(found)))
    method = f"Method: {next(iter(found.models.values())).method}; losses are on the client's own data."
    sections.append(Section("Rebuilt models", [method], models_table(found)))
    if found.refused:
        sections.append(Section("Files that were refused", [printable(one) for one in found.refused]))
    sections.append(Section("To do it again", code=command))
    document = {
        "verdict": verdict,
        "leaks": leaks,
        "figures": [
            {"what": one.what, "attack": one.attack, "right": one.right.mean, "low": one.right.low,
             "high": one.right.high, "chance": one.chance, "clients": one.clients, "records": one.records}
            for one in found.figures
        ],
        "losses": found.fits,
        "refused": found.refused,
    }  # fmt: skip
    write_atomically(Path(output) / "inferred.json", json.dumps(document, indent=1).encode())
    return write_page(Page("Many rounds, together", verdict, leaks, sections), Path(output) / "inferred.html")
