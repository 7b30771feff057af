"""The samples that keepers stored on the clients' machines, as the truth behind captures.

Captures and kept samples are paired by the run, the client and the round.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from os import PathLike
from pathlib import Path

import torch

from leakgauge.core.container import Location, text_of
from leakgauge.core.errors import FileError, InvalidInput, shown
from leakgauge.core.kept_samples import FOLDER, REFERENCE, KeptSamples, kept_files, load_kept, read_heading
from leakgauge.core.observation import Observation
from leakgauge.core.observation_file import plain
from leakgauge.core.truth import Truth
from leakgauge.data import Dataset
from leakgauge.workflows.captures import Captures, ClientData, TruthSource, listed_names


@dataclass(frozen=True)
class Heading:
    """The run, the round and the client of one file of kept samples.

    Args:
        file: The file.
        run: The number or the name of the run.
        round: The index of the round.
        names: The names under which the server may know the client.
    """

    file: Path
    run: str
    round: int
    names: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class KeptData:
    """The samples that keepers stored, as a source of the truth behind captures.

    Args:
        place: The folder in which they were found.
        headings: The run, the round and the client of each file.
        key: The private key as PEM, if the samples are encrypted.
    """

    place: Path
    headings: tuple[Heading, ...]
    key: bytes | None = field(default=None, repr=False)

    @classmethod
    def of(cls, place: Path, files: Collection[Path], key: bytes | None) -> KeptData:
        """Return the kept samples in files.

        Args:
            place: The folder in which they were found, for sentences.
            files: The files.
            key: The private key as PEM, if the samples are encrypted.
        """
        return cls(place, tuple(Heading(file, *read_heading(file)) for file in files), key)

    def check(self, clients: Mapping[str, object]) -> None:
        """Accept captures of any clients, because kept samples name theirs."""

    def no_match(self, clients: Sequence[str]) -> InvalidInput:
        """Return the error for the case that the samples are of none of the captured clients and rounds.

        Args:
            clients: The names of the captured clients.
        """
        return InvalidInput(
            f"{self.place} holds kept samples of none of the captures, so nothing could be scored. They are of "
            f"{self._named()}, and there are captures of {listed_names(clients)}. The run, the client and the round "
            "must be the same on both sides"
        )

    def not_scored(self, clients: Collection[str]) -> tuple[str, ...]:
        """Return a sentence about clients of whom nothing was kept, or nothing if there are no such clients.

        Args:
            clients: The names of these clients.
        """
        if not clients:
            return ()
        return (
            f"Captures of {listed_names(clients)} are not scored, because {self.place} holds no kept samples of their "
            f"client, round and run. It holds those of {self._named()}.",
        )

    def _named(self) -> str:
        return listed_names(f"{one.names[0]} in round {one.round} of run {one.run}" for one in self.headings)

    def truth(self, observation: Observation, files: Sequence[Path] = ()) -> Truth | None:
        """Return the samples behind captures of one client, or ``None`` if nothing was kept of them.

        For several captures, these are the samples of all their rounds together, without an order.

        Args:
            observation: The first of the captures.
            files: The files of the captures.
        """
        numbers = dict.fromkeys(files[:1], observation.round)
        numbers |= {file: _round_of(file) for file in files[1:]}
        found = [one for file, number in numbers.items() for one in self._of(observation.client, number, file)]
        kept = [self._loaded(one, observation) for one in dict.fromkeys(found)]
        if not kept:
            return None
        others = self._others(observation, {name for one in kept for name in one.names})
        truths = [one.truth(observation.data, others) for one in kept]
        return truths[0] if len(truths) == 1 else _together(truths)

    def _of(self, client: str, round: int, file: Path) -> list[Heading]:
        """Return the kept samples behind one capture, which are those of all clients if the capture is their sum.

        If several files are of the same client and round, the one with the name of the capture counts.
        """
        folder = file.resolve().parent.name
        run = folder.removeprefix("run-") if folder.startswith("run-") else None
        fitting = [one for one in self.headings if one.round == round and run in (None, plain(one.run))]
        if client == f"sum of {len(fitting)} clients":
            return fitting
        named = [one for one in fitting if one.names[0] == client] or [one for one in fitting if client in one.names]
        if len(named) > 1:
            named = [one for one in named if one.file.name == file.name]
        return named if len(named) == 1 else []

    def _loaded(self, heading: Heading, observation: Observation) -> KeptSamples:
        try:
            kept = load_kept(heading.file, self.key)
        except FileError as problem:  # the other captures are still attacked
            raise InvalidInput(str(problem)) from problem
        if kept.data.shape != observation.data.shape:
            raise InvalidInput(
                f"{heading.file}: its samples have shape {kept.data.shape}, and those of the capture have "
                f"{observation.data.shape}"
            )
        Dataset(kept.inputs, kept.targets, observation.data, name=str(heading.file))  # refuses other targets by name
        return kept

    def _others(self, observation: Observation, names: Collection[str]) -> list[KeptSamples]:
        """Return samples of other clients, from which chance levels are computed."""
        found: list[KeptSamples] = []
        seen: set[str] = set()
        for one in self.headings:
            if set(one.names) & set(names) or one.names[0] in seen:
                continue
            seen.add(one.names[0])
            with contextlib.suppress(FileError, InvalidInput):  # chance levels need no certain client
                found.append(self._loaded(one, observation))
            if sum(len(other.inputs) for other in found) >= REFERENCE:
                break
        return found


def _together(truths: Sequence[Truth]) -> Truth:
    """Return the different samples of several rounds of one client."""
    inputs = torch.cat([one.inputs for one in truths])
    targets = torch.cat([one.targets for one in truths])
    seen: dict[bytes, int] = {}
    for row, (sample, target) in enumerate(zip(inputs, targets, strict=True)):
        seen.setdefault(sample.numpy().tobytes() + target.numpy().tobytes(), row)
    rows = torch.tensor(list(seen.values()))
    return replace(truths[0], inputs=inputs[rows], targets=targets[rows], order=(), trained=None)


def source_of_truths(
    data: Location | TruthSource | None, captures: Captures, key: Location | None = None
) -> TruthSource | None:
    """Return the clients' own samples that a user gave, or else those that keepers stored beside the captures.

    Args:
        data: The samples, or the file or the folder that holds them.
        captures: The captures.
        key: The file of the private key, if the kept samples are encrypted.
    """
    secret = None if key is None else _read(Path(key))
    if data is None:
        places = dict.fromkeys(file.parent / FOLDER for file in captures.files)
        files = [file for place in places if place.is_dir() for file in kept_files(place)]
        return KeptData.of(next(iter(places)), files, secret) if files else None
    if not isinstance(data, (str, PathLike)):
        return data
    place = Path(data)
    files = list(kept_files(place)) if place.is_dir() else []
    return KeptData.of(place, files, secret) if files else ClientData(place)


def _round_of(capture: Path) -> int:
    """Return the index of the round in the header of a capture, or -1 if there is none."""
    try:
        return int(json.loads(text_of(capture, "document") or "{}").get("round", -1))
    except (ValueError, TypeError, AttributeError):
        return -1


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as problem:
        raise FileError(f"{shown(str(path))}: cannot be read ({problem.strerror or problem})") from problem
