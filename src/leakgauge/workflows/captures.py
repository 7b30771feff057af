"""The captures of a federation, and the clients' own data for scoring.

No file in a folder of captures is trusted. A file is refused if it is not an intact observation of the given model. The
reason is reported, and the other files are used. No text from a file becomes part of a path.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Protocol, TypeVar

import torch
from torch import nn

from leakgauge import models
from leakgauge.core.container import Location
from leakgauge.core.errors import FileError, InvalidInput, LeakgaugeError, UnknownName, shown
from leakgauge.core.observation import DataSpec, LocalTraining, Observation
from leakgauge.core.observation_file import load, observation_files, plain
from leakgauge.core.truth import Truth
from leakgauge.data import Dataset, from_npz
from leakgauge.data.npz_samples import Kind
from leakgauge.federation.losses import LOSSES, named_loss
from leakgauge.runtime.cache import source_digest
from leakgauge.runtime.values import value_digest

Key = TypeVar("Key", bound=Hashable)

#: The largest number of other clients' samples that blind guesses are made from.
REFERENCE = 512


@dataclass(frozen=True)
class Captures:
    """A set of captures (saved observations), with their model and facts that are not stored in the files.

    Args:
        files: The files of the captures.
        model: The architecture, or ``(name, options)`` from which it is built. If the captures hold the name and the
            options, ``model`` is ``None``.
        known: Settings of the clients' training that are not in the captures, such as ``{"lr": 0.1}``.
        client: The name of the only client to read. ``None`` means all clients.
    """

    files: tuple[Path, ...]
    model: nn.Module | tuple[str, Mapping[str, Any]] | None = None
    known: Mapping[str, Any] = field(default_factory=dict)
    client: str | None = None

    def __post_init__(self) -> None:
        recipe = {item.name for item in fields(LocalTraining)}
        for name in self.known:
            if name not in recipe:
                raise UnknownName("part of a client's recipe called", name, recipe)
        self._name_loss()

    def _name_loss(self) -> None:
        """Import the loss that the user named. Without such a name, nothing is imported."""
        if "loss" in self.known:
            named_loss(self.known["loss"])

    @classmethod
    def find(
        cls,
        place: Location,
        model: nn.Module | str | None = None,
        model_options: Mapping[str, Any] | None = None,
        *,
        know: Mapping[str, Any] | None = None,
        client: str | None = None,
    ) -> Captures:
        """Find the captures in a file or a folder.

        Args:
            place: The file or the folder.
            model: The user's own architecture, or ``module:factory``.
            model_options: The options of the factory.
            know: Settings of the clients' training that are not in the captures.
            client: The name of the only client to read. The default is all clients.
        """
        chosen = (model, dict(model_options or {})) if isinstance(model, str) else model
        captures = cls(tuple(observation_files(Path(place))), chosen, dict(know or {}), client)
        captures.architecture()  # raises an error if the model cannot be built
        return captures

    def architecture(self) -> nn.Module | None:
        """Return the user's own architecture, or ``None`` if the user gave none."""
        if isinstance(self.model, tuple):
            name, options = self.model
            return models.build(name, **options)
        return self.model

    def load(self, file: Path, architecture: nn.Module | None) -> Observation:
        """Return the observation in one file, completed by the training settings in ``known``."""
        self._name_loss()  # in a process of its own, the loss is not imported yet
        return load(file, architecture).knowing(**self.known)

    def read(
        self, check: Callable[[Observation], None] | None = None
    ) -> Iterator[tuple[Path, Observation | LeakgaugeError]]:
        """Yield each file with its observation. If a file cannot be used, yield the file with the error.

        If there is only one file and it cannot be used, the error is raised.

        Args:
            check: A function that raises an error if an observation cannot be used.
        """
        architecture = self.architecture()
        for file in self.files:
            try:
                observation = self.load(file, architecture)
                if self.client is not None and observation.client != self.client:
                    continue
                if check is not None:
                    check(observation)
            except LeakgaugeError as problem:
                if len(self.files) == 1:
                    raise
                yield file, problem if isinstance(problem, FileError) else InvalidInput(f"{file}: {problem}")
                continue
            yield file, observation

    def definition(self, *files: Path) -> dict[str, Any]:
        """Return everything that a result from these files depends on, as a plain dictionary for the cache."""
        architecture = self.architecture()
        loss = LOSSES[named_loss(self.known["loss"])] if "loss" in self.known else None
        # The captures hold the parameters.
        model = f"{architecture!r} {value_digest(architecture, parameters=False)} {source_digest(architecture, loss)}"
        return {
            "captures": [_digest(file) for file in files],  # with the checksums of the weights that captures share
            "known": value_digest(dict(sorted(self.known.items()))),
            "model": model,
        }

    def nothing_read(self, refused: Sequence[str]) -> InvalidInput:
        """Return the error for the case that no capture can be used."""
        return InvalidInput(refused[0] if refused else f"there are no captures of a client called {self.client!r}")


class TruthSource(Protocol):
    """A source of the clients' own samples, which are used to score attacks."""

    def check(self, clients: Mapping[str, object]) -> None:
        """Raise an error if the samples cannot be those of these clients."""

    def no_match(self, clients: Sequence[str]) -> InvalidInput:
        """Return the error for the case that the samples are of none of these clients."""

    def not_scored(self, clients: Collection[str]) -> tuple[str, ...]:
        """Return a sentence about clients whose samples are not given, or nothing if there are no such clients."""

    def truth(self, observation: Observation, files: Sequence[Path] = ()) -> Truth | None:
        """Return the true samples behind captures of one client, or ``None`` if they are not given."""


@dataclass(frozen=True, eq=False)
class ClientData:
    """The clients' own samples, which are used to score attacks.

    If the data of several clients is given, the samples of the other clients are used to compute chance levels. If a
    capture is the sum of the messages of all clients in the folder, it is scored with the samples of all these clients.

    Args:
        place: An npz file of a single client, or a folder with one file ``CLIENT.npz`` for each client.
    """

    place: Path

    def __post_init__(self) -> None:
        if not self.place.exists():
            raise FileError(f"{self.place}: there is no such file or folder of clients' data")
        if self.place.is_dir() and not self._files:
            raise FileError(f"{self.place}: holds no clients' data. Expected files such as client-0.npz")

    @property
    def _files(self) -> list[Path]:
        return sorted(self.place.glob("*.npz"))

    def check(self, clients: Mapping[str, object]) -> None:
        """Raise an error if the data is the file of one client, but there are captures of several clients."""
        names = list(itertools.islice(clients, 2))
        if len(names) > 1 and not self.place.is_dir():
            raise InvalidInput(
                f"{self.place} is the data of one client, but there are captures of {names[0]!r} and {names[1]!r}. "
                "Choose one with --client, or pass a folder with a file for each client"
            )

    def no_match(self, clients: Sequence[str]) -> InvalidInput:
        """Return the error for the case that the data is of none of the captured clients.

        Args:
            clients: The names of the captured clients.
        """
        held = listed_names(file.name for file in self._files)
        return InvalidInput(
            f"{self.place} holds the data of none of the captured clients, so nothing could be scored. It holds "
            f"{held}, and there are captures of {listed_names(clients)}. Rename the files to CLIENT.npz, such as "
            f"{plain(clients[0])}.npz"
        )

    def not_scored(self, clients: Collection[str]) -> tuple[str, ...]:
        """Return a sentence about clients whose data is not given, or nothing if there are no such clients.

        Args:
            clients: The names of these clients.
        """
        if not clients:
            return ()
        held = listed_names(file.name for file in self._files)
        return (
            f"The captures of {listed_names(clients)} are not scored, because {self.place} has no data of them. It "
            f"holds {held}.",
        )

    def truth(self, observation: Observation, files: Sequence[Path] = ()) -> Truth | None:
        """Return the true samples behind captures of one client, or ``None`` if the data of this client is not given.

        Args:
            observation: The first of the captures.
            files: The files of the captures.
        """
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


def listed_names(names: Iterable[str], most: int = 3) -> str:
    """Return the first names as a text, without repetitions, and the number of the others.

    Args:
        names: The names.
        most: The number of names that are listed.
    """
    found = list(dict.fromkeys(names))
    left = len(found) - most
    return ", ".join(shown(name) for name in found[:most]) + (f" and {left} more" if left > 0 else "")


def _digest(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def truths_of(
    data: TruthSource, observations: Mapping[Key, Observation], files: Mapping[Key, Sequence[Path]]
) -> tuple[dict[Key, Truth], dict[Key, str]]:
    """Return the true samples behind captures, and the error of each capture whose description does not fit them.

    If the data fits no capture, or if its names match none, the data is wrong, and an error is raised.

    Args:
        data: The clients' own samples.
        observations: The captures, or the first one of each client.
        files: The files of these captures.
    """
    truths: dict[Key, Truth] = {}
    problems: dict[Key, InvalidInput] = {}
    for key, observation in observations.items():
        try:
            truth = data.truth(observation, files[key])
        except InvalidInput as problem:
            problems[key] = problem
            continue
        if truth is not None:
            truths[key] = truth
    if problems and not truths:
        raise next(iter(problems.values()))
    if observations and not truths:
        raise data.no_match([observation.client for observation in observations.values()])
    return truths, {key: str(problem) for key, problem in problems.items()}


def _truth(own: Sequence[Path], others: Sequence[Path], spec: DataSpec) -> Truth:
    samples = [_samples(file, spec) for file in own]
    rest = [_samples(file, spec) for file in others]
    return Truth(
        torch.cat([part.inputs for part in samples]),
        torch.cat([part.targets for part in samples]),
        spec,
        reference_inputs=torch.cat([part.inputs for part in rest])[:REFERENCE] if rest else None,
        reference_targets=torch.cat([part.targets for part in rest])[:REFERENCE] if rest else None,
    )


def _samples(file: Path, spec: DataSpec) -> Dataset:
    try:
        series = spec.is_series or len(spec.shape) == 2
        kind: Kind | None = "series" if series else "picture" if spec.is_image else None
        dataset = from_npz(
            file, kind=kind, time_axis=spec.time_axis
        )  # the capture, and not the file, may have the wrong number of classes
        return Dataset(dataset.inputs, dataset.targets, spec, name=str(file))
    except InvalidInput as problem:
        raise InvalidInput(
            f"{problem}. Does {file.name} hold this client's samples as a person sees them?"
        ) from problem
