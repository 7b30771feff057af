"""Attack what was captured from a federation: without the truth, or scored where a client's data is at hand.

Nothing in a folder of captures is trusted: a file that is no intact observation of the given model is refused in words
and the others are attacked, no text from a file becomes part of a path, and results go into the output folder only.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch import nn

from leakgauge.attacks.base import Attack, Reconstruction
from leakgauge.attacks.reconstruction_file import load_reconstruction, save_reconstruction
from leakgauge.core.container import Location, write_atomically
from leakgauge.core.errors import FileError, InvalidInput, UnknownName, printable
from leakgauge.core.observation import DataSpec, LocalTraining, Observation
from leakgauge.core.observation_file import load, plain
from leakgauge.core.truth import Truth
from leakgauge.data import Dataset, from_npz
from leakgauge.evaluation import Score, score
from leakgauge.evaluation.verdict import judge
from leakgauge.federation.training import LOSSES
from leakgauge.reports import Page, Section, contact_sheet, to_png, write_page

#: How many captures a page shows as pictures, and how many refused files it names.
SHOWN = 12
REFERENCE = 512
METRICS_SHOWN = ("psnr", "features", "recovered", "label_errors", "target_error")


@dataclass(frozen=True, eq=False)
class Attacked:
    """One capture and what an attack made of it; or the ``problem`` with its file."""

    file: Path
    problem: str = ""
    result: Reconstruction | None = None
    score: Score | None = None
    threat_model: tuple[str, ...] = ()
    labels_granted: bool = False
    before: bool = False
    picture: bytes | None = field(default=None, repr=False)


@dataclass(frozen=True, eq=False)
class ClientData:
    """Clients' own samples, for scoring: an npz file for a single client, or a folder with ``CLIENT.npz`` for each.

    The samples of the other clients in a folder tell what a guess without the message is worth. A sum of as many
    clients as there are files is scored with the samples of all.
    """

    place: Path

    def __post_init__(self) -> None:
        if not self.place.exists():
            raise FileError(f"{self.place}: there is no such file or folder of clients' data")
        if self.place.is_dir() and not self._files:
            raise FileError(f"{self.place}: holds no clients' data; expected files such as client-0.npz")

    @property
    def _files(self) -> list[Path]:
        return sorted(self.place.glob("*.npz"))

    def check(self, clients: Mapping[str, object]) -> None:
        """Refuse a single client's file where the captures are of several."""
        names = list(itertools.islice(clients, 2))
        if len(names) > 1 and not self.place.is_dir():
            raise InvalidInput(
                f"{self.place} is the data of one client, but there are captures of {names[0]!r} and "
                f"{names[1]!r}; choose with --client, or give a folder with a file for each client"
            )

    def truth(self, observation: Observation) -> Truth | None:
        """The truth about a capture, or ``None`` where its client's data is not here."""
        spec = observation.data
        if not self.place.is_dir():
            return _truth([self.place], [], spec)
        own = self.place / f"{plain(observation.client)}.npz"
        files = self._files
        if own in files:
            return _truth([own], [file for file in files if file != own], spec)
        if observation.client == f"sum of {len(files)} clients":
            return _truth(files, [], spec)
        return None


def read_captures(
    files: Sequence[Path], model: nn.Module | None, knowing: Mapping[str, Any] | None, client: str | None
) -> Iterator[tuple[Path, Observation | FileError]]:
    """The captures in some files, or what is wrong with a file; a single file that is wrong is an exception.

    ``knowing`` adds to what they tell of the recipe; with a ``client`` those of others are left out.
    """
    known = dict(knowing or {})
    recipe = {item.name for item in fields(LocalTraining)}
    for name in known:
        if name not in recipe:
            raise UnknownName("part of a client's recipe called", name, recipe)
    if known.get("loss", "mse") not in LOSSES:
        raise UnknownName("loss", known["loss"], LOSSES)
    for file in files:
        try:
            observation = load(file, model)
        except FileError as problem:
            if len(files) == 1:
                raise
            yield file, problem
            continue
        if client is None or observation.client == client:
            yield file, observation.knowing(**known)


def attack_captures(
    files: Sequence[Path],
    attack: Attack,
    output: Location,
    *,
    model: nn.Module | None = None,
    knowing: Mapping[str, Any] | None = None,
    client: str | None = None,
    data: ClientData | None = None,
    seed: int = 0,
    device: str | None = None,
) -> Iterator[Attacked]:
    """Attack each capture and keep the reconstruction; what was done before is not done again.

    ``knowing`` adds to what the captures tell of the recipe. With a single client's ``data`` the captures must be of
    one ``client``.
    """
    known = dict(knowing or {})
    whose: dict[str, None] = {}
    attacked = 0
    for file, observation in read_captures(files, model, known, client):
        if isinstance(observation, FileError):
            yield Attacked(file, problem=str(observation))
            continue
        whose[observation.client] = None
        if data is not None:
            data.check(whose)
        found = _attack_one(file, observation, attack, Path(output), known, data, seed, device)
        yield found if attacked < SHOWN else replace(found, picture=None)
        attacked += 1


def _attack_one(
    file: Path,
    observation: Observation,
    attack: Attack,
    output: Path,
    knowing: Mapping[str, Any],
    data: ClientData | None,
    seed: int,
    device: str | None,
) -> Attacked:
    truth = None if data is None else data.truth(observation)  # a mistake in it is said before the attack
    target = output / f"{file.stem}.reconstruction.safetensors"
    source = hashlib.sha256(file.read_bytes() + (json.dumps(knowing, sort_keys=True).encode() if knowing else b""))
    result = None
    if target.exists():
        kept, made_from = load_reconstruction(target)
        if (kept.attack, kept.seed, made_from) == (repr(attack), seed, source.hexdigest()):
            result = kept if kept.outcome.kind != "interrupted" else None
    before = result is not None
    if result is None:
        result = attack(observation, seed=seed, device=device)
        save_reconstruction(result, target, source=source.hexdigest())
    scored = None if truth is None else score(result, truth)
    picture = None
    if observation.data.is_image and observation.data.shape[0] in (1, 3):
        picture = to_png(_sheet(result, truth, scored))
        write_atomically(output / f"{file.stem}.png", picture)
    return Attacked(
        file,
        result=result,
        score=scored,
        threat_model=tuple(observation.threat_model()),
        labels_granted=observation.labels is not None or observation.label_counts is not None,
        before=before,
        picture=picture,
    )


def _sheet(result: Reconstruction, truth: Truth | None, scored: Score | None) -> Image.Image:
    if truth is None or scored is None:
        return contact_sheet({"reconstructed": result.samples})
    return contact_sheet({"original": truth.inputs, "reconstructed": scored.pairing.apply(result.samples.float())})


def verdict_of(found: Sequence[Attacked]) -> tuple[str, bool | None]:
    """What the captures say in one sentence, and whether they leak; ``None`` where nobody's data was given."""
    scored = [one for one in found if one.score is not None]
    if not scored:
        return (
            "What the server sees is below, and what the attack makes of it. How right that is, nobody can say without "
            "the clients' data: give it with --data.",
            None,
        )
    rows = [{name: one.score[name].to_row() for name in one.score} for one in scored if one.score is not None]
    verdict = judge(rows, labels_granted=any(one.labels_granted for one in scored))
    return (
        f"The attack on {len(scored)} capture{'s' * (len(scored) > 1)}: {verdict}.",
        verdict != "nothing above chance",
    )


def rows_of(found: Sequence[Attacked], *, brief: bool = False) -> list[list[str]]:
    """A table of what was attacked, its head first; ``brief`` says in few words how an attack ended."""
    attacked = [one for one in found if one.result is not None]
    metrics = [
        name for name in ("psnr", "features", "recovered", "label_errors", "target_error") if _any_has(attacked, name)
    ]
    head = ["client", "round", "loss", "seconds", *(f"{name} (chance)" for name in metrics), "outcome"]
    rows = [head]
    for one in attacked:
        result = one.result
        assert result is not None
        figures = [
            f"{one.score[name].mean:.3g} ({one.score[name].chance:.3g})" if one.score and name in one.score else "-"
            for name in metrics
        ]
        words = re.split("[:;]", str(result.outcome))[0] if brief else str(result.outcome)
        outcome = f"{words}{' (done before)' if one.before else ''}"
        cells = [result.client, str(result.round), f"{result.loss:.3g}", f"{result.seconds:.1f}"]
        rows.append([printable(cell) for cell in (*cells, *figures, outcome)])
    return rows


def refused_of(found: Sequence[Attacked]) -> list[str]:
    """The files that were refused, in sentences, the first of them by name."""
    problems = [printable(one.problem) for one in found if one.problem]
    more = [f"and {len(problems) - SHOWN} more files that were refused"] if len(problems) > SHOWN else []
    return problems[:SHOWN] + more


def write_captured(found: Sequence[Attacked], output: Location, attack: Attack, command: str) -> Path:
    """The page about the captures."""
    verdict, leaks = verdict_of(found)
    attacked = [one for one in found if one.result is not None]
    sections = [Section("What the attacker sees and knows", attacked[0].threat_model if attacked else ())]
    sections.append(Section("What came back", [f"Attack: {attack!r}"], rows_of(found)))
    for one in attacked[:SHOWN]:
        notes = [] if one.score is None else list(one.score.notes)
        name = printable(one.file.stem)
        sections.append(Section(name, notes, picture=one.picture, alt=f"reconstructions from {name}"))
    if refused := refused_of(found):
        sections.append(Section("Files that were refused", refused))
    sections.append(Section("To do it again", code=command))
    return write_page(Page("Captured updates", verdict, leaks, sections), Path(output) / "captured.html")


def _any_has(found: Sequence[Attacked], metric: str) -> bool:
    return any(one.score is not None and metric in one.score for one in found)


def _truth(own: Sequence[Path], others: Sequence[Path], spec: DataSpec) -> Truth:
    samples = [_samples(file, spec) for file in own]
    rest = [_samples(file, spec) for file in others]
    return Truth(
        torch.cat([one.inputs for one in samples]),
        torch.cat([one.targets for one in samples]),
        spec,
        reference_inputs=torch.cat([one.inputs for one in rest])[:REFERENCE] if rest else None,
        reference_targets=torch.cat([one.targets for one in rest])[:REFERENCE] if rest else None,
    )


def _samples(file: Path, spec: DataSpec) -> Dataset:
    try:
        found = from_npz(file, classes=spec.classes)
        return Dataset(found.inputs, found.targets, spec, name=str(file))
    except InvalidInput as problem:
        raise InvalidInput(
            f"{problem}; does {file.name} hold this client's samples as a person sees them?"
        ) from problem
