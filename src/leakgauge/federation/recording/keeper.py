"""A keeper on a client's machine, which stores the samples of each round in the order in which the client trains.

::

    import leakgauge as lg

    data = lg.DataSpec((1, 28, 28), classes=10, mean=(0.1307,), std=(0.3081,))  # as the app normalises
    keeper = lg.keeper("captures", data=data, run="tuesday")

    with keeper.client("hospital-3", round=4):
        train(net, optimizer, keeper.watch(loader))

The files stay in the folder on this machine, and only this user can read them. With ``key``, the samples are encrypted
for an auditor. Attacks on captures in the same folder are then scored without ``--data``.

A keeper is a guest in somebody else's training. The batches that the training gets are those of the loader, and a
problem costs one sentence in the log. Nothing is stored if the training raises an error.

The training that a client works on belongs to the process and not to a keeper, because frameworks copy the objects of
an app for each message.
"""

from __future__ import annotations

import hashlib
import itertools
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from leakgauge.core.container import Location
from leakgauge.core.data_spec import DataSpec
from leakgauge.core.errors import FileError, InvalidInput, printable, shown
from leakgauge.core.kept_samples import KeptSamples, kept_path, save_kept
from leakgauge.core.sealing import check_public_key
from leakgauge.federation.recording.recorder import check_normalisation

log = logging.getLogger("leakgauge")

#: The keys of samples and targets in batches that are dictionaries, in the order in which they are tried.
INPUTS = ("img", "image", "images", "pixel_values", "inputs", "input", "x", "features", "data")
TARGETS = ("label", "labels", "target", "targets", "y", "fine_label")
#: The largest size in bytes of the different samples of one client in one round.
MOST_BYTES = 2 * 2**30

Run = int | str | Callable[[], int | str]


@dataclass(eq=False)
class ClientTraining:
    """The training of one client in one round, in this process.

    Args:
        round: The index of the round.
        names: The names under which the server may know the client. The first one is its usual name.
        run: The number or the name of the run. Without one, nothing is stored.
        wanted: Whether samples are stored for this training.
    """

    round: int
    names: tuple[str, ...]
    run: int | str | None = None
    wanted: bool = True
    collected: dict[str, Collected] = field(default_factory=dict)


_current: ContextVar[ClientTraining | None] = ContextVar("the training that this thread works on", default=None)
#: The trainings that the process works on. Clients may train in threads of their own.
_open: dict[int, ClientTraining] = {}
_numbers = itertools.count()


@contextmanager
def working_on(training: ClientTraining) -> Iterator[ClientTraining]:
    """Collect the samples of all watched loaders in a training, and store them at the end.

    Args:
        training: The training. Its run may be set before the end.
    """
    number, token = next(_numbers), _current.set(training)
    _open[number] = training
    try:
        yield training
    finally:
        _current.reset(token)
        del _open[number]
    for collected in training.collected.values():
        collected.save(training)


def current_training() -> ClientTraining | None:
    """Return the training that this thread works on. In a thread of the training, it is the only one of the process."""
    training = _current.get()
    if training is None and len(_open) == 1:
        training = next(iter(_open.values()), None)
    return training


def keeper(
    folder: Location,
    *,
    data: DataSpec,
    run: Run | None = None,
    key: Location | None = None,
    inputs: str | int | None = None,
    targets: str | int | None = None,
) -> Keeper:
    """Return a keeper of the samples that the clients in this process train on.

    Args:
        folder: The folder to write to. The samples of a run are in the folder ``run-NUMBER/kept``.
        data: The shape, classes and normalisation of a sample. ``mean`` and ``std`` must be stated.
        run: The number or the name of the run, as the recorder has it.
        key: The file of the auditor's public key, for which the samples are encrypted. By default, they are not.
        inputs: The key or the place of the samples in a batch. By default, it is found.
        targets: The key or the place of the targets in a batch. By default, it is found.
    """
    return Keeper(folder, data, run, key, inputs, targets)


class Keeper:
    """A keeper of the samples that the clients in this process train on, as :func:`keeper` returns it.

    Args:
        folder: The folder to write to.
        data: The shape, classes and normalisation of a sample.
        run: The number or the name of the run, or a function that returns it.
        key: The file of the auditor's public key.
        inputs: The key or the place of the samples in a batch.
        targets: The key or the place of the targets in a batch.
    """

    def __init__(
        self,
        folder: Location,
        data: DataSpec,
        run: Run | None = None,
        key: Location | None = None,
        inputs: str | int | None = None,
        targets: str | int | None = None,
    ) -> None:
        if not isinstance(data, DataSpec):
            raise InvalidInput(f"data must be a DataSpec, not {shown(data)}")
        check_normalisation(data)
        self.folder, self.data, self.run = Path(folder), data, run
        self.key = None if key is None else _read_key(Path(key))
        self.inputs, self.targets = inputs, targets
        self._noted: set[str] = set()

    @contextmanager
    def client(self, client: str | int, round: int) -> Iterator[None]:
        """Keep the samples of the loaders that a client trains on, as a context manager around its training.

        Args:
            client: The name of the client. A number K becomes ``client-K``.
            round: The index of the round, counted as the recorder counts it.
        """
        if self.run is None:
            raise InvalidInput('a keeper needs the name of the run, as in lg.keeper(..., run="tuesday")')
        training = ClientTraining(round, (client_name(client),))
        with working_on(training):
            yield
            try:
                training.run = self.run() if callable(self.run) else self.run
            except Exception as problem:
                self.note(f"Leakgauge kept no samples of {training.names[0]}: {problem}")

    def watch(self, loader: Iterable[Any]) -> WatchedLoader:
        """Return a loader that yields the same batches, which are kept.

        Watch only the loader of the training. Passes under ``torch.no_grad()`` are not kept.

        Args:
            loader: A ``DataLoader``, or anything that yields batches of samples and targets.
        """
        return WatchedLoader(loader, self)

    def note(self, sentence: str) -> None:
        """Log a sentence once."""
        if sentence not in self._noted:
            self._noted.add(sentence)
            log.warning("%s", printable(sentence, longest=1000))

    def collected(self) -> Collected | None:
        """Return the samples that are collected for the training in work, or ``None`` if none are wanted."""
        training = current_training()
        if training is None:
            self.note(
                "Leakgauge kept no samples of a watched loader, because it does not know the client and the round. "
                "Train inside keeper.client(name, round=...), or put keeper.mod into the client app of Flower"
            )
            return None
        if not training.wanted or not torch.is_grad_enabled():
            return None
        return training.collected.setdefault(str(self.folder), Collected(self))


class WatchedLoader:
    """A loader that yields the batches of another one, which are kept.

    All other attributes are those of the other loader.

    Args:
        loader: The other loader.
        keeper: The keeper.
    """

    def __init__(self, loader: Iterable[Any], keeper: Keeper) -> None:
        self._loader, self._keeper = loader, keeper

    def __iter__(self) -> Iterator[Any]:
        collected = self._keeper.collected()
        if collected is None:
            yield from self._loader
            return
        collected.passes.append(0)
        for batch in self._loader:
            collected.add(batch)
            yield batch

    def __len__(self) -> int:
        return len(self._loader)  # type: ignore[arg-type]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._loader, name)


class Collected:
    """The different samples of one training, and the order in which the client trained on them.

    Args:
        keeper: The keeper, which knows how batches look.
    """

    def __init__(self, keeper: Keeper) -> None:
        self.keeper = keeper
        self.passes: list[int] = []
        self._rows: dict[tuple[bytes, int], int] = {}
        self._inputs: list[Tensor] = []
        self._targets: list[Tensor] = []
        self._order: list[Tensor] = []
        self._seen: dict[bytes, int] = {}
        self._bytes = 0
        self._broken = ""

    def add(self, batch: Any) -> None:
        """Collect one batch of the last pass. A problem ends the collection, and never the training."""
        if self._broken:
            return
        try:
            self._add(*_split(batch, self.keeper.inputs, self.keeper.targets))
        except Exception as problem:
            self._broken = str(problem) if isinstance(problem, InvalidInput) else repr(problem)
            self._inputs, self._targets = [], []

    def _add(self, inputs: Tensor, targets: Tensor) -> None:
        data = self.keeper.data
        if tuple(inputs.shape[1:]) != data.shape:
            raise InvalidInput(f"a sample has shape {tuple(inputs.shape[1:])}, and data describes {data.shape}")
        if len(inputs) != len(targets):
            raise InvalidInput(f"a batch has {len(inputs)} samples and {len(targets)} targets")
        inputs = data.denormalise(inputs.double()).float() if inputs.is_floating_point() else inputs.clone()
        if self.passes[-1] == 0:
            self._seen = {}
        rows = []
        for sample, target in zip(inputs, targets, strict=True):
            digest = hashlib.blake2b(sample.numpy().tobytes() + target.numpy().tobytes(), digest_size=16).digest()
            # Two equal samples of one pass are two samples.
            number = self._seen[digest] = self._seen.get(digest, -1) + 1
            row = self._rows.setdefault((digest, number), len(self._inputs))
            if row == len(self._inputs):
                self._bytes += sample.nbytes + target.nbytes
                if self._bytes > MOST_BYTES:
                    raise InvalidInput(f"the different samples of one round take more than {MOST_BYTES >> 30} GiB")
                self._inputs.append(sample.clone())
                self._targets.append(target.clone())
            rows.append(row)
        self._order.append(torch.tensor(rows, dtype=torch.int64))
        self.passes[-1] += 1

    def save(self, training: ClientTraining) -> None:
        """Store the samples as those of a training. A problem costs one sentence in the log."""
        who = training.names[0]
        try:
            if self._broken:
                raise InvalidInput(self._broken)
            if training.run is None or not self._order:
                return
            passes = tuple(count for count in self.passes if count)
            samples = (torch.stack(self._inputs), torch.stack(self._targets))
            kept = KeptSamples(
                str(training.run),
                training.round,
                training.names,
                self.keeper.data,
                *samples,
                tuple(self._order),
                passes,
            )
            _store(kept, self.keeper.folder, self.keeper.key)
        except Exception as problem:
            text = str(problem) if isinstance(problem, (InvalidInput, FileError)) else repr(problem)
            self.keeper.note(f"Leakgauge kept no samples of {who} in round {training.round}: {text}")


def _store(kept: KeptSamples, folder: Path, key: bytes | None) -> None:
    while True:
        path = kept_path(folder, kept.run, kept.names[0], kept.round)
        try:
            save_kept(kept, path, key)
            return
        except FileError:
            if not path.exists():  # otherwise another process was quicker
                raise


def _split(batch: Any, inputs: str | int | None, targets: str | int | None) -> tuple[Tensor, Tensor]:
    """Return the samples and the targets in a batch."""
    if isinstance(batch, Mapping):
        one, other = _key(batch, inputs, INPUTS, "inputs"), _key(batch, targets, TARGETS, "targets")
    elif isinstance(batch, Sequence) and not isinstance(batch, (str, bytes)):
        one, other = 0 if inputs is None else inputs, 1 if targets is None else targets
    else:
        raise InvalidInput(f"a batch is a {type(batch).__name__}, and neither a pair nor a dictionary")
    return _tensor(batch[one]), _tensor(batch[other])


def _key(batch: Mapping[Any, Any], given: str | int | None, usual: Sequence[str], argument: str) -> Any:
    found = given if given is not None else next((name for name in usual if name in batch), None)
    if found is None or found not in batch:
        names = ", ".join(map(str, batch))
        raise InvalidInput(f'a batch has {names}. Name one of them, as in lg.keeper(..., {argument}="...")')
    return found


def _tensor(value: Any) -> Tensor:
    """Return a part of a batch as a tensor in the main memory."""
    tensor = value if isinstance(value, Tensor) else torch.from_numpy(np.asarray(value))
    tensor = tensor.detach().cpu()
    return tensor.float() if tensor.dtype in (torch.bfloat16, torch.float16) else tensor.contiguous()


def client_name(client: object) -> str:
    """Return the name of a client. A number K becomes ``client-K``.

    Args:
        client: The name or the number.
    """
    whole = isinstance(client, (int, np.integer)) and not isinstance(client, bool)
    return f"client-{client}" if whole else str(client)


def _read_key(path: Path) -> bytes:
    try:
        key = path.read_bytes()
    except OSError as problem:
        raise FileError(f"{path}: the auditor's public key cannot be read ({problem.strerror or problem})") from problem
    check_public_key(key)
    return key
