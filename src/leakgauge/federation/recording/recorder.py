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

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from leakgauge.core import observation_file
from leakgauge.core.container import SUFFIX
from leakgauge.core.errors import FileError, InvalidInput, printable, shown
from leakgauge.core.observation import DataSpec, LocalTraining, Observation
from leakgauge.core.params import Params

log = logging.getLogger("leakgauge")

Arrays = Mapping[str, NDArray[Any]]

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


#: A recipe of which only the loss and the mode are known.
UNKNOWN = LocalTraining(momentum=None, weight_decay=None, optimiser=None)

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
    """

    run: int
    round: int
    client: str
    sent: Arrays = field(repr=False)
    returned: Arrays = field(repr=False)
    reported: Mapping[str, object] = field(default_factory=dict)
    summed: int = 1
    steered: str = ""


@dataclass(eq=False)
class Captures:
    """A folder of recorded messages, in files named ``folder/run-ID/CLIENT_round-NUMBER.safetensors``.

    The weights that clients were sent are in files of the folder ``folder/run-ID/sent``. Clients that were sent the
    same weights share one of these files.

    The training recipe in an observation comes from three sources. A setting in the message overrides ``config``, and
    ``config`` overrides ``training``. A setting that is in none of the three sources is unknown to the attacker.

    Args:
        folder: The folder to write to.
        model: The architecture of the exchanged weights.
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
    clients: int | Collection[int] | None = None
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
        self.model = copy.deepcopy(self.model).cpu()  # the app may change its own model later
        self._chosen_nodes: set[int] = set()
        self._warned: set[str] = set()

    def selects(self, round: int, node: int, partition: object = None) -> bool:
        """Return whether the message of a client in a round must be recorded.

        Args:
            round: The index of the round. The first round has the index 1.
            node: The id of the client's node.
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
            observation = self.observation(exchange)
            folder = Path(self.folder) / f"run-{exchange.run}"
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
        except Exception as problem:
            self.warn(f"{exchange.client}: {problem}", f"{exchange.client} in round {exchange.round}: {problem}")
            return None

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
        sent, buffers = self.split("the weights sent", exchange.sent)
        returned, buffers_after = self.split("the client's answer", exchange.returned)
        answer: dict[str, Any] = {"returned" if self.sends == "weights" else "gradient": returned}
        training = self.recipe(exchange.reported, exchange.client)
        if exchange.summed > 1 and training.batch_size is not None:
            # The batches of a sum are those of all clients together, as in leakgauge.federation.aggregation.
            training = replace(training, batch_size=training.batch_size * exchange.summed)
        return Observation(
            model=self.model,
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

    def split(self, source: str, arrays: Arrays) -> tuple[Params, Params | None]:
        """Split arrays into weights and batch-norm statistics, and convert them to the number types of the model.

        If the arrays have indices instead of names, they are in the order of the model's state dict. If statistics are
        missing, ``None`` is returned instead of the statistics.

        Args:
            source: The origin of the arrays, for error messages.
            arrays: The arrays of a message.
        """
        state = self.model.state_dict()
        if arrays.keys() != state.keys() and list(arrays) == [str(index) for index in range(len(state))]:
            arrays = dict(zip(state, arrays.values(), strict=True))
        expected, statistics = dict(self.model.named_parameters()), dict(self.model.named_buffers())
        for name in arrays:
            if name not in state:
                raise InvalidInput(
                    f"{source} hold {shown(name)}, which the model does not have. Is this the right model?"
                )
        for name in expected:
            if name not in arrays:
                raise InvalidInput(f"{source} lack {name!r}. An observation needs all weights of the model.")
        weights = {name: _tensor(source, name, arrays[name], like) for name, like in expected.items()}
        if any(name in state and name not in arrays for name in statistics):
            return weights, None
        return weights, {
            name: _tensor(source, name, arrays[name], like) if name in state else like.detach().clone()
            for name, like in statistics.items()
        }


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


def _tensor(source: str, name: str, values: NDArray[Any], like: Tensor) -> Tensor:
    """Convert an array to a tensor of the model's number type.

    Args:
        source: The words for the message that holds the array.
        name: The name of the weight or the statistic.
        values: The array. An array of another shape is refused before it is copied.
        like: The weight or the statistic of the model.
    """
    if tuple(values.shape) != tuple(like.shape):
        raise InvalidInput(
            f"{source}: {name!r} has shape {shown(tuple(values.shape))}, but the model's is {tuple(like.shape)}. Is "
            "this the right model?"
        )
    if values.dtype.kind not in "fiub":
        raise InvalidInput(
            f"{source}: {name!r} holds values of type {printable(str(values.dtype))}, and weights are real numbers"
        )
    tensor = torch.from_numpy(np.array(values, dtype=values.dtype.newbyteorder("=")))
    if tensor.is_floating_point() and not like.is_floating_point():
        tensor = tensor.round()  # averaging turns counters into fractions
    return tensor.to(like.dtype)
