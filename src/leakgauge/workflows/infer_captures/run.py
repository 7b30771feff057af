"""From a folder of captures to rebuilt models, and to what is asked about the records."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from leakgauge.attacks.local_model import GlobalModel, LastReturned, LocalModel, LocalModelAttack
from leakgauge.core.container import Location, output_folder, read_container, write_container
from leakgauge.core.errors import FileError, InvalidInput, LeakgaugeError
from leakgauge.core.observation import Observation
from leakgauge.core.observation_file import plain
from leakgauge.core.params import buffers_of
from leakgauge.core.truth import Truth
from leakgauge.workflows.attack_captures import ClientData, read_captures
from leakgauge.workflows.infer_captures.inferences import Figure, attributes, sources, values_of

KIND, VERSION = "local model", 1
#: The models whose losses on a client's own data stand beside each other.
MODELS = ("rebuilt", "last returned", "global")
#: Of fewer rounds than these a page says that they are few; LMRA's figures are of 100.
FEW = 10


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
        """In a sentence, and whether any attack beats a guess; ``None`` where nothing could be asked."""
        rounds = [model.rounds for model in self.models.values()]
        seen = f"{min(rounds)}" if min(rounds) == max(rounds) else f"{min(rounds)} to {max(rounds)}"
        several = "s" if len(rounds) > 1 else ""
        made = f"The model{several} of {len(rounds)} client{several} were rebuilt from {seen} rounds each."
        if not several:
            made = f"The model of one client was rebuilt from {seen} round{'s' if rounds[0] > 1 else ''}."
        if not self.figures and not self.fits:
            return f"{made} What it gives away, nobody can say without the clients' data: give it with --data.", None
        if not self.figures:
            return f"{made} Of the records nothing was asked: name a column, or give the data of two clients.", None
        best: dict[str, Figure] = {}
        for one in self.figures:
            if one.above_chance and (one.what not in best or one.right.mean > best[one.what].right.mean):
                best[one.what] = one
        if not best:
            return f"{made} No attack was shown to tell more of the records than a guess does.", False
        told = [
            f"{name}: {one.right.mean:.0%} right by {one.attack}, a guess {one.chance:.0%}"
            for name, one in best.items()
        ]
        return f"{made} What the messages tell of the records: {'; '.join(told)}.", True


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
    for where the data of at least two clients is there.
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
    values = None if sensitive is None else values_of(known.values(), sensitive)
    models = {}
    folder = output_folder(Path(output) / "models")
    for name, own in list(rounds.items()):
        try:
            models[name] = _rebuilt(own, method, folder, digests[name].hexdigest(), seed)
        except LeakgaugeError as problem:
            refused.append(f"all of {name}: {problem}")
            del rounds[name]
            known.pop(name, None)
    if not models:
        raise InvalidInput(f"no client's model could be rebuilt; {refused[-1]}")
    fits = {name: _fits(models[name], rounds[name], truth) for name, truth in known.items()}
    few = [name for name, model in models.items() if model.rounds < FEW]
    figures, notes = [], [_few(few)] if few else []
    threat = list(next(iter(rounds.values()))[-1].threat_model())
    if sensitive is not None and values is not None and known:
        found, words = attributes(models, rounds, known, sensitive, values)
        figures += found
        notes += words
        threat.append(f"To infer {sensitive!r} it knows the clients' records and their targets, all but that column.")
    if len(known) > 1:
        found, words = sources(models, rounds, known, seed)
        figures += found
        notes += words
        threat.append("To infer sources it knows records with their targets, each of which one of the clients holds.")
    return Inferred(models, fits, figures, notes, refused, threat)


def _few(clients: Sequence[str]) -> str:
    who = clients[0] if len(clients) == 1 else f"{len(clients)} clients"
    return (
        f"Fewer than {FEW} rounds were captured of {who}. LMRA's own figures are of 100: more may tell more than "
        "this page does."
    )


def _read(
    files: Sequence[Path], model: nn.Module | None, knowing: Mapping[str, Any] | None, client: str | None
) -> tuple[dict[str, list[Observation]], dict[str, Any], list[str]]:
    """The rounds of each client, a digest of what they were read from, and the files that were refused."""
    rounds: dict[str, list[Observation]] = {}
    digests: dict[str, Any] = {}
    refused: list[str] = []
    names: dict[str, str] = {}
    for file, found in read_captures(files, model, knowing, client):
        if isinstance(found, FileError):
            refused.append(str(found))
            continue
        if names.setdefault(plain(found.client), found.client) != found.client:
            raise InvalidInput(
                f"the clients {names[plain(found.client)]!r} and {found.client!r} have one name as files; choose with "
                "--client"
            )
        rounds.setdefault(found.client, []).append(found)
        start = json.dumps([dict(knowing or {}), repr(found.model)], sort_keys=True)
        digest = digests.setdefault(found.client, hashlib.sha256(start.encode()))
        digest.update(file.read_bytes())
    if not rounds:
        raise InvalidInput(refused[0] if refused else f"there are no captures of a client called {client!r}")
    return rounds, digests, refused


def _rebuilt(
    rounds: Sequence[Observation], method: LocalModelAttack, folder: Path, made_from: str, seed: int
) -> LocalModel:
    """A client's model, from the file of an earlier run that did the same, or made now and kept."""
    last = max(rounds, key=lambda one: one.round)
    target = folder / f"{plain(last.client)}.safetensors"
    asked = {"method": repr(method), "seed": seed, "made_from": made_from}
    kept = _kept(target, asked, last)
    if kept is not None:
        return kept
    found = method(rounds, seed=seed)
    said = {"outcome": found.outcome, "rounds": found.rounds, "seconds": found.seconds, "client": found.client}
    write_container(target, KIND, VERSION, asked | said, {**found.weights, **(found.buffers or {})})
    return found


def _kept(target: Path, asked: Mapping[str, Any], last: Observation) -> LocalModel | None:
    """The model of an earlier run, if that asked for the same; a file that is damaged is as good as none."""
    try:
        document, tensors = read_container(target, KIND, VERSION)
    except FileError:
        return None
    if any(document.get(key) != value for key, value in asked.items()):
        return None
    own = {name: value for name, value in tensors.items() if name in last.sent}
    buffers = {name: value for name, value in tensors.items() if name not in last.sent}
    return LocalModel(
        last.model, own, buffers if buffers or not buffers_of(last.model) else None, last.data, last.training.loss,
        document["outcome"], client=last.client, method=document["method"], rounds=document["rounds"],
        seconds=document["seconds"],
    )  # fmt: skip


def _fits(rebuilt: LocalModel, rounds: Sequence[Observation], truth: Truth) -> dict[str, float]:
    """The mean loss of three models on a client's own data."""
    models = {MODELS[0]: rebuilt}
    for name, proxy in zip(MODELS[1:], (LastReturned(), GlobalModel()), strict=True):
        try:
            models[name] = proxy(rounds, progress=False)
        except LeakgaugeError:  # gradients without a learning rate lead to no model
            continue
    with torch.no_grad():
        return {name: float(one.losses(truth.inputs, truth.targets).mean()) for name, one in models.items()}
