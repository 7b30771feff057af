"""A folder of observations, recorded from the messages of any federated-learning framework.

A recorder must not harm the training that it watches. An error while a message is saved causes one sentence in the log
and never an exception. Examples are a full disk, a client whose training diverged, and arrays that do not fit the
model. Messages are handled one at a time, so memory does not grow with clients or rounds. Each file is written
completely or not at all.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn

from leakgauge.core import observation_file
from leakgauge.core.container import SUFFIX
from leakgauge.core.errors import FileError, InvalidInput, printable
from leakgauge.core.observation import DataSpec, LocalTraining, Observation
from leakgauge.core.params import Params
from leakgauge.federation.recording.states import Arrays, check_rest, split_state, unwrapped

log = logging.getLogger("leakgauge")

#: The keys in an app's configuration for each part of a client's recipe. A key may be written with - or with _.
RECIPE_KEYS: dict[str, tuple[str, ...]] = {
    "lr": ("lr", "learning-rate", "client-lr"),
    "epochs": ("local-epochs", "epochs", "num-epochs"),
    "batch_size": ("batch-size", "local-batch-size"),
    "samples": ("num-examples",),
    "momentum": ("momentum",),
    "weight_decay": ("weight-decay",),
    "optimiser": ("optimiser", "optimizer"),
    "nesterov": ("nesterov",),
    "dampening": ("dampening",),
    "eps": ("eps", "adam-eps", "epsilon"),
    "schedule": ("lr-schedule",),
    "clip_norm": ("clip-norm", "max-grad-norm", "gradient-clipping"),
    "proximal": ("proximal-mu", "proximal"),
    "label_smoothing": ("label-smoothing",),
    "local_steps": ("local-steps", "num-local-steps"),
    "accumulation": ("accumulation", "gradient-accumulation-steps", "accumulation-steps"),
}
#: The settings that are words.
_WORDS = ("optimiser", "schedule")
#: The settings that are whole numbers.
_WHOLE = ("epochs", "batch_size", "samples", "accumulation", "local_steps")


#: A recipe of which only the loss and the mode are known. An unknown setting is not 0, so the defaults are left out.
UNKNOWN = LocalTraining(
    momentum=None, weight_decay=None, optimiser=None, nesterov=None, dampening=None, betas=None, eps=None,
    schedule=None, clip_norm=None, proximal=None, label_smoothing=None, accumulation=None,
)  # fmt: skip

#: The largest number of different warnings that a recorder logs.
MOST_WARNINGS = 1000


@dataclass(frozen=True, eq=False)
class Exchange:
    """One client's message of one round, as a framework delivers it.

    Args:
        run: The id of the run.
        round: The index of the round. The first round has the index 1.
        client: The client's name.
        sent: The arrays that the client got.
        returned: The arrays that the client returned.
        reported: The settings in the round's configuration and the metrics in the client's answer.
        summed: The number of clients whose messages were averaged into this message. It is 1 for the message of a
            single client.
        steered: The rule of a malicious server that sent weights of its own making. Empty for an honest server.
        sends: Whether ``returned`` holds ``"weights"`` or a ``"gradient"``. By default, as the recorder says.
        frozen: The names of weights that this client does not train, besides those that are frozen in the model.
        training: The settings of this client's training. By default, they are read from ``reported``.
    """

    run: int | str
    round: int
    client: str
    sent: Arrays = field(repr=False)
    returned: Arrays = field(repr=False)
    reported: Mapping[str, object] = field(default_factory=dict)
    summed: int = 1
    steered: str = ""
    sends: Literal["weights", "gradient"] | None = None
    frozen: tuple[str, ...] = ()
    training: LocalTraining | None = None


@dataclass(eq=False)
class Captures:
    """A folder of recorded messages, in files named ``folder/run-ID/CLIENT_round-NUMBER.safetensors``.

    The weights that clients were sent are in files of the folder ``folder/run-ID/sent``. Clients that were sent the
    same weights share one of these files.

    The training recipe in an observation comes from three sources. A setting in the message overrides ``config``, and
    ``config`` overrides ``training``. A setting that is in none of the three sources is unknown to the attacker.

    Args:
        folder: The folder to write to.
        model: The architecture of the exchanged weights. Weights with ``requires_grad=False`` may be missing in the
            messages. They keep the values of this model.
        data: The shape, classes and normalisation of a sample. ``mean`` and ``std`` must be stated.
        training: The settings of the clients' training, as far as they are known.
        config: The configuration of the app, from which ``lr``, ``local-epochs``, ``batch-size``, ``optimizer`` and
            other settings are read (:data:`RECIPE_KEYS`).
        every: The interval between recorded rounds. The first round is always recorded.
        clients: The ids of the clients to record, or the number of clients to record. By default, all clients.
        sends: Whether clients return trained ``"weights"`` or a ``"gradient"``.
    """

    folder: str | Path
    model: nn.Module = field(repr=False)
    data: DataSpec
    training: LocalTraining = UNKNOWN
    config: Mapping[str, object] = field(default_factory=dict)
    every: int = 1
    clients: int | Collection[int] | Collection[str] | None = None
    sends: Literal["weights", "gradient"] = "weights"

    def __post_init__(self) -> None:
        for name, kind in (("model", nn.Module), ("data", DataSpec), ("training", LocalTraining), ("config", Mapping)):
            if not isinstance(getattr(self, name), kind):
                raise InvalidInput(f"{name} must be a {kind.__name__}, not {getattr(self, name)!r}")
        check_normalisation(self.data)
        for name in ("every", "clients"):
            number = getattr(self, name)
            if isinstance(number, int) and (isinstance(number, bool) or number < 1):
                raise InvalidInput(f"{name} must be at least 1, not {number}")
        if not isinstance(self.every, int):
            raise InvalidInput(f"every must be a whole number, not {self.every!r}")
        if self.clients is not None and not isinstance(self.clients, (int, Collection)):
            raise InvalidInput(f"clients must be a number or ids, not {self.clients!r}")
        if self.sends not in ("weights", "gradient"):
            raise InvalidInput(f"sends must be 'weights' or 'gradient', not {self.sends!r}")
        self.folder = Path(self.folder)
        self.model = copy.deepcopy(unwrapped(self.model)).cpu()  # the app may change its own model later
        self._chosen_nodes: set[int | str] = set()
        self._warned: set[str] = set()

    def selects(self, round: int, node: int | str, partition: object = None) -> bool:
        """Return whether the message of a client in a round must be recorded.

        Args:
            round: The index of the round. The first round has the index 1.
            node: The id of the client's node, or the name of the client.
            partition: The ``partition-id`` of the client, if it is known.
        """
        if (round - 1) % self.every:
            return False
        if isinstance(self.clients, int):
            if len(self._chosen_nodes) < self.clients:
                self._chosen_nodes.add(node)
            return node in self._chosen_nodes
        return self.clients is None or node in self.clients or partition in self.clients

    def keep(self, exchange: Exchange) -> Path | None:
        """Save one message, and return the path of its file. If this fails, log the failure and return ``None``."""
        try:
            return self.save(exchange)
        except Exception as problem:
            self.warn(f"{exchange.client}: {problem}", f"{exchange.client} in round {exchange.round}: {problem}")
            return None

    def save(self, exchange: Exchange) -> Path:
        """Save one message, and return the path of its file. If this fails, an error is raised."""
        observation = self.observation(exchange)
        folder = Path(self.folder) / f"run-{observation_file.plain(str(exchange.run))}"
        stem, number = observation_file.stem(observation), 1
        path = folder / f"{stem}{SUFFIX}"
        while True:
            while path.exists():
                number += 1
                path = folder / f"{stem}_{number}{SUFFIX}"
            try:
                return observation_file.save(observation, path, replace=False, shared=True)
            except FileError:
                if not path.exists():  # otherwise another recorder was quicker
                    raise

    def warn(self, key: str, message: str) -> None:
        """Log that a message was not recorded. Later warnings with the same ``key`` are not logged."""
        self.note(key, f"Leakgauge did not record the message of {message}")

    def note(self, key: str, sentence: str) -> None:
        """Log a sentence. Later sentences with the same ``key`` are not logged."""
        if key not in self._warned and len(self._warned) < MOST_WARNINGS:
            self._warned.add(key)
            log.warning("%s", printable(sentence, longest=1000))

    def observation(self, exchange: Exchange) -> Observation:
        """Return the message as an observation."""
        sends, model = exchange.sends or self.sends, self._frozen(exchange.frozen)
        sent, buffers = self.split("the weights sent", exchange.sent, model)
        # Frozen weights that are not returned stay as they were sent, and their gradient is 0.
        rest = sent if sends == "weights" else {name: torch.zeros_like(value) for name, value in sent.items()}
        returned, buffers_after = self.split("the client's answer", exchange.returned, model, rest)
        if sends == "weights":
            check_rest("the client's answer", exchange.returned, sent, exchange.sent, model)
            self._check_frozen(exchange.client, model, sent, returned)
        answer: dict[str, Any] = {"returned" if sends == "weights" else "gradient": returned}
        training = exchange.training or self.recipe(exchange.reported, exchange.client)
        if exchange.summed > 1 and training.batch_size is not None:
            # The batches of a sum are those of all clients together, as in leakgauge.federation.aggregation.
            training = replace(training, batch_size=training.batch_size * exchange.summed)
        return Observation(
            model=model,
            data=self.data,
            sent=sent,
            training=training,
            buffers=buffers,
            returned_buffers=buffers_after,
            client=exchange.client,
            round=exchange.round,
            steered=exchange.steered,
            **answer,
        )

    def recipe(self, reported: Mapping[str, object], client: str = "a client") -> LocalTraining:
        """Return the settings of a client's training, as far as they are known.

        Args:
            reported: The settings and metrics that came with the client's message.
            client: The name of the client, for sentences in the log.
        """
        training = self.training
        for source in (self.config, reported):
            settings = {key.replace("_", "-"): value for key, value in source.items() if isinstance(key, str)}
            for name, keys in RECIPE_KEYS.items():
                value = _setting(name, next((settings[key] for key in keys if key in settings), None))
                if value is None:
                    continue
                try:
                    training = replace(training, **{name: value})  # type: ignore[arg-type]
                except InvalidInput as problem:
                    self.note(
                        f"recipe of {client}: {name}",
                        f"Leakgauge records {client} without {name}. Its configuration is invalid: {problem}",
                    )
        return training

    def split(
        self, source: str, arrays: Arrays, model: nn.Module | None = None, rest: Params | None = None
    ) -> tuple[Params, Params | None]:
        """Split the arrays of a message as in :func:`leakgauge.federation.recording.states.split_state`.

        Args:
            source: The origin of the arrays, for error messages.
            arrays: The arrays of a message.
            model: The architecture, in which weights are frozen. By default, the recorder's model.
            rest: The weights that the message may leave out. By default, the frozen weights of the model.
        """
        return split_state(self.model if model is None else model, source, arrays, rest)

    def _check_frozen(self, client: str, model: nn.Module, sent: Params, returned: Params) -> None:
        """Log that a client changed a weight that is frozen, which a simulation does not repeat."""
        for name, value in model.named_parameters():
            if not value.requires_grad and not torch.equal(sent[name], returned[name]):
                self.note(
                    f"frozen {client}",
                    f"Leakgauge records {client}, but it changed {name!r}, which has requires_grad=False in the "
                    "recorder's model. If the client trains it, attacks fail without a reason. If its defence adds "
                    "noise to all weights, this is as it should be",
                )
                return

    def _frozen(self, names: Collection[str]) -> nn.Module:
        """Return the architecture in which these weights are frozen, besides those that are frozen anyway."""
        parameters = dict(self.model.named_parameters())
        if not any(parameters[name].requires_grad for name in names):
            return self.model
        model = copy.deepcopy(self.model)
        for name in names:
            model.get_parameter(name).requires_grad_(False)
        return model


def check_normalisation(data: DataSpec) -> None:
    """Raise an error if the description of the samples does not say how the app normalises them.

    With a wrong normalisation, every attack simulates another training than the client's and finds nothing.

    Args:
        data: The description of the samples.
    """
    if not data.says_normalisation:
        raise InvalidInput(
            "data does not say how the app normalises its inputs, and a wrong guess hides leaks. Pass "
            "DataSpec(..., mean=(0.1307,), std=(0.3081,)) with the values of the app's transforms, or "
            "mean=(0,), std=(1,) if the app does not normalise"
        )


def _setting(name: str, value: object) -> int | float | str | None:
    """Return a setting if it has the right type, and ``None`` otherwise. For a count, a float such as 3.0 becomes 3."""
    if name in _WORDS:
        return value.lower() if isinstance(value, str) else None
    if isinstance(value, float) and value.is_integer() and name in _WHOLE:
        return int(value)
    return value if isinstance(value, (int, float)) else None
