"""A recorder for a training loop of any kind, such as a hand-written one.

::

    import leakgauge as lg

    data = lg.DataSpec((1, 28, 28), classes=10, mean=(0.1307,), std=(0.3081,))  # as the app normalises
    recorder = lg.record("captures", model=Net(), data=data)

    recorder.keep("hospital-3", 4, sent, returned, lr=0.01, epochs=1, batch_size=32, samples=600)  # two state dicts

    with recorder.client("hospital-3", round=4, model=net, optimizer=optimizer, epochs=1, batch_size=32, samples=600):
        train(net, optimizer)

A message that cannot be recorded costs one sentence in the log, and never an exception. Only an unknown name of a
setting is an error, because a misspelt setting would be missing in every capture.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn
from torch.optim import Optimizer

from leakgauge.core.container import Location, new_folder
from leakgauge.core.errors import InvalidInput, UnknownName, printable
from leakgauge.core.observation import DataSpec, LocalTraining
from leakgauge.federation.recording.keeper import ClientTraining, Keeper, client_name, working_on
from leakgauge.federation.recording.optimiser_settings import carries_state, left_out, optimiser_settings
from leakgauge.federation.recording.recorder import RECIPE_KEYS, UNKNOWN, Captures, Exchange
from leakgauge.federation.recording.states import Arrays, array_in, arrays_in, items_in, named_as_in
from leakgauge.federation.recording.watched_training import WatchedTraining

#: The weights in a message: a state dict, a dictionary of arrays, or a list of arrays in the order of the model.
State = Mapping[str, Any] | Sequence[Any]

_FIELDS = tuple(item.name for item in fields(LocalTraining))
#: Other names of settings, and the names in a recipe.
_ALIASES = {key.replace("-", "_"): name for name, keys in RECIPE_KEYS.items() for key in keys}


def record(
    folder: Location,
    *,
    model: nn.Module,
    data: DataSpec,
    training: LocalTraining = UNKNOWN,
    every: int = 1,
    clients: int | Collection[str] | None = None,
    run: int | str | None = None,
) -> LoopRecorder:
    """Return a recorder for the messages between a server and its clients in a training loop of any kind.

    Nothing is written before the first message.

    Args:
        folder: The folder to write to. The captures of a run are in a folder ``run-NUMBER`` of their own.
        model: The architecture of the exchanged weights. Weights with ``requires_grad=False`` may be missing in the
            messages. They keep the values of this model.
        data: The shape, classes and normalisation of a sample. ``mean`` and ``std`` must be stated.
        training: The settings of the clients' training that are the same for all messages.
        every: The interval between recorded rounds. The first round is always recorded.
        clients: The names of the clients to record, or the number of clients to record. By default, all clients.
        run: The number or the name of the run. By default, the first number without a folder. Processes that record
            the same run need the same one.
    """
    return LoopRecorder(Captures(Path(folder), model, data, training, every=every, clients=clients), run)


@dataclass(eq=False)
class LoopRecorder:
    """A recorder for a training loop of any kind, as :func:`record` returns it.

    Args:
        captures: The folder and the facts that are the same for all messages.
        run: The number or the name of the run. By default, the first number without a folder.
    """

    captures: Captures
    run: int | str | None = None
    _first: int | None = field(default=None, init=False, repr=False)

    def keep(
        self,
        client: str | int,
        round: int,
        sent: State,
        returned: State | None = None,
        *,
        gradient: State | None = None,
        **recipe: Any,
    ) -> Path | None:
        """Record one message, and return the path of its file. If this fails, log the failure and return ``None``.

        Args:
            client: The name of the client. A number K becomes ``client-K``.
            round: The index of the round. Rounds may be counted from 0 or from 1.
            sent: The weights that the client got, as a state dict, as a dictionary of arrays, or as a list of arrays in
                the order of the model's state dict or of its parameters.
            returned: The weights that the client returned, in one of these forms.
            gradient: The gradient that the client returned instead of weights, in one of these forms.
            recipe: The settings of the client's training that the server knows, such as ``lr``, ``epochs``,
                ``batch_size``, ``samples`` and ``optimizer="sgd"`` (:class:`leakgauge.LocalTraining`).
        """
        settings = _settings(recipe)
        who = client_name(client)
        with self._guarded(who, round) as done:
            if not self._selects(who, round):
                return None
            if (returned is None) == (gradient is None):
                raise InvalidInput("keep() needs either returned or gradient")
            before = arrays_in(sent)
            answer = arrays_in(returned) if gradient is None else _gradients(gradient, before)
            done.append(self._save(who, round, (before, answer), settings, gradient=gradient is not None))
        return done[0] if done else None

    @contextmanager
    def client(
        self, client: str | int, round: int, model: nn.Module, *, optimizer: Optimizer | None = None, **recipe: Any
    ) -> Iterator[None]:
        """Record the training of a client in this process, as a context manager around the training.

        The weights at the start are those that the client got, and the weights at the end are those that it returns.
        If the training raises an error, nothing is recorded.

        Args:
            client: The name of the client. A number K becomes ``client-K``.
            round: The index of the round. Rounds may be counted from 0 or from 1.
            model: The client's model, which is trained in place.
            optimizer: The optimiser, from which its settings are read. It must be new, because averages of gradients
                of earlier rounds are not in the message.
            recipe: The other settings of the client's training that the server knows, such as ``epochs``,
                ``batch_size`` and ``samples`` (:class:`leakgauge.LocalTraining`).
        """
        settings, who, before = _settings(recipe), client_name(client), None
        with self._guarded(who, round):
            if self._selects(who, round):
                known = {} if optimizer is None else _read(optimizer)
                sent, frozen = arrays_in(model.state_dict()), self._untrained(model, optimizer)
                before = (sent, known, frozen, WatchedTraining(model, optimizer))
        training = ClientTraining(round, (who,), wanted=before is not None)
        with working_on(training):
            try:
                yield
            finally:
                if before is not None:
                    before[-1].stop()
            if before is None:
                return
            with self._guarded(who, round):
                sent, known, frozen, watched = before
                now = {} if optimizer is None else optimiser_settings(optimizer)
                # What was changed during the round is unknown.
                changed = {"schedule" if name == "lr" else name: None for name in now if now[name] != known[name]}
                settings = {**known, **changed, **watched.settings, **settings}
                own = replace_training(self.captures, who, settings)
                wrong = watched.contradiction(own)
                if not wrong and own.accumulation is None and watched.counted(own):
                    settings["accumulation"] = 1  # otherwise, there were fewer steps
                if wrong:
                    raise InvalidInput(f"{wrong}, and attacks with a wrong recipe find nothing")
                self._save(who, round, (sent, arrays_in(model.state_dict())), settings, frozen=frozen)
            training.run = self.run

    def keeper(
        self, *, key: Location | None = None, inputs: str | int | None = None, targets: str | int | None = None
    ) -> Keeper:
        """Return a keeper of the samples that the clients in this process train on (:func:`leakgauge.keeper`).

        Inside :meth:`client`, ``keeper.watch(loader)`` is enough. Around any other training, use ``keeper.client()``.

        Args:
            key: The file of the auditor's public key, for which the samples are encrypted.
            inputs: The key or the place of the samples in a batch. By default, it is found.
            targets: The key or the place of the targets in a batch. By default, it is found.
        """
        captures = self.captures
        return Keeper(captures.folder, captures.data, self.name_of_run, key, inputs, targets)

    def name_of_run(self) -> int | str:
        """Return the number or the name of the run. Without one, it is chosen now, and its folder is created."""
        if self.run is None:
            self.run = int(new_folder(Path(self.captures.folder), "run").name.removeprefix("run-"))
        return self.run

    @contextmanager
    def _guarded(self, who: str, round: int) -> Iterator[list[Path | None]]:
        """Log an error in the body instead of raising it. Yield a list for the body's result."""
        try:
            yield []
        except Exception as problem:
            text = str(problem) if isinstance(problem, InvalidInput) else repr(problem)
            self.captures.warn(f"{who}: {text}", f"{who} in round {round}: {printable(text)}")

    def _selects(self, who: str, round: int) -> bool:
        """Return whether a message must be recorded. The first round that is seen counts as round 1."""
        self._first = round if self._first is None else self._first
        return self.captures.selects(1 + max(0, round - self._first), who)

    def _untrained(self, model: nn.Module, optimizer: Optimizer | None) -> tuple[str, ...]:
        """Return the names of the weights that this client does not train, as the recorder's model has them."""
        names = {name for name, value in model.named_parameters() if not value.requires_grad}
        names |= set() if optimizer is None else set(left_out(optimizer, model))
        marks: Arrays = {name: np.array(name in names) for name, _ in model.named_parameters()}
        marks = named_as_in(self.captures.model, "the client's model", marks)
        own = dict(self.captures.model.named_parameters())
        for name, mark in marks.items():
            if name in own and not mark and not own[name].requires_grad:
                raise InvalidInput(f"it trains {name!r}, which has requires_grad=False in the recorder's model")
        return tuple(name for name, mark in marks.items() if mark and name in own)

    def _save(
        self,
        who: str,
        round: int,
        arrays: tuple[Arrays, Arrays],
        settings: Mapping[str, Any],
        *,
        gradient: bool = False,
        frozen: tuple[str, ...] = (),
    ) -> Path | None:
        """Save one message of the run, whose folder is chosen at the first message."""
        captures = self.captures
        own = replace_training(captures, who, settings)
        sends: Any = "gradient" if gradient else "weights"
        exchange = Exchange(self.name_of_run(), round, who, *arrays, sends=sends, frozen=frozen, training=own)
        return captures.keep(exchange)


def replace_training(captures: Captures, who: str, settings: Mapping[str, Any]) -> LocalTraining:
    """Return the settings of a client's training. A setting that is invalid is unknown, and the log says so.

    Args:
        captures: The recorder, with the settings that are the same for all messages.
        who: The name of the client.
        settings: The settings of this client.
    """
    try:
        return replace(captures.training, **settings)
    except InvalidInput:
        training = captures.training
    for name, value in settings.items():
        try:
            training = replace(training, **{name: value})
        except InvalidInput as problem:
            if name == "optimiser":  # taken for another one, it would hide leaks
                raise
            training = _without(training, name)
            sentence = f"Leakgauge records {who} without {name}, which is invalid: {problem}"
            captures.note(f"recipe of {who}: {name}", sentence)
    return training


def _without(training: LocalTraining, name: str) -> LocalTraining:
    """Return settings in which one is unknown, if it can be unknown."""
    try:
        return replace(training, **{name: None})  # type: ignore[arg-type]
    except InvalidInput:
        return training


def _settings(recipe: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings under the names that a recipe has for them. An unknown name is an error."""
    settings = {}
    for key, value in recipe.items():
        name = key if key in _FIELDS else _ALIASES.get(key)
        if name is None:
            raise UnknownName("part of a client's recipe called", key, _FIELDS)
        settings[name] = value.lower() if name == "optimiser" and isinstance(value, str) else value
    return settings


def _read(optimizer: Optimizer) -> dict[str, Any]:
    """Return the settings of an optimiser that can be repeated."""
    settings = optimiser_settings(optimizer)
    if carries_state(optimizer):
        raise InvalidInput(
            f"its optimiser {type(optimizer).__name__} holds averages of gradients of earlier rounds, which are not in "
            "the message, so nobody can repeat the training. Make a new optimiser in each round"
        )
    return settings


def _gradients(state: object, sent: Arrays) -> Arrays:
    """Return a gradient as arrays. A weight that the loss does not depend on has ``None`` in PyTorch, which is 0."""
    given = {
        name: np.zeros_like(sent[name]) if value is None and name in sent else value for name, value in items_in(state)
    }
    return {name: array_in(value) for name, value in given.items() if value is not None}
