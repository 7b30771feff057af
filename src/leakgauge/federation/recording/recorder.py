"""Keep what a federation exchanges as observations on disk, whoever runs it.

A recorder must not harm the training that it watches: whatever goes wrong while a message is kept (a full disk, a
client whose training diverged, arrays that do not fit the model) is one sentence in the log, and no exception. One
message is handled at a time, so that memory does not grow with clients or rounds, and each file is written whole or
not at all.
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
from leakgauge.core.errors import InvalidInput
from leakgauge.core.observation import DataSpec, LocalTraining, Observation
from leakgauge.core.params import Params

log = logging.getLogger("leakgauge")

Arrays = Mapping[str, NDArray[Any]]

#: What an app's configuration may call the parts of a client's recipe, written with - or with _.
RECIPE_KEYS: dict[str, tuple[str, ...]] = {
    "lr": ("lr", "learning-rate", "client-lr"),
    "epochs": ("local-epochs", "epochs", "num-epochs"),
    "batch_size": ("batch-size", "local-batch-size"),
    "samples": ("num-examples",),
    "momentum": ("momentum",),
    "weight_decay": ("weight-decay",),
}


#: A recipe of which nothing is known but the loss and the mode.
UNKNOWN = LocalTraining(momentum=None, weight_decay=None)


@dataclass(frozen=True, eq=False)
class Exchange:
    """One client's message of one round, as a framework hands it over; ``summed`` counts the clients of a sum."""

    run: int
    round: int
    client: str
    sent: Arrays = field(repr=False)
    returned: Arrays = field(repr=False)
    told: Mapping[str, object] = field(default_factory=dict)
    summed: int = 1


@dataclass(eq=False)
class Captures:
    """A folder for what a federation exchanges: ``folder/run-ID/CLIENT_round-NUMBER.safetensors``.

    ``model`` is the architecture of the exchanged weights, ``data`` what a sample looks like. Of the clients' recipe,
    the observation knows what ``training`` says, then what ``config`` says, then what a message says, such as
    ``lr``, ``local-epochs``, ``batch-size`` and ``num-examples``; nothing else is taken for known. ``every`` keeps the
    first round and then every so many; ``clients`` keeps those with these ids, or so many of them. ``sends`` says
    whether clients return trained ``"weights"`` or a ``"gradient"``.
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
        self.model = copy.deepcopy(self.model).cpu()  # what the app does with its own must not change ours
        self._first: set[int] = set()
        self._said: set[str] = set()

    def wants(self, round: int, node: int, partition: object = None) -> bool:
        """Whether to keep this round of the client on this node, which holds this part of the data, if that is told."""
        if (round - 1) % self.every:
            return False
        if isinstance(self.clients, int):
            if len(self._first) < self.clients:
                self._first.add(node)
            return node in self._first
        return self.clients is None or node in self.clients or partition in self.clients

    def keep(self, exchange: Exchange) -> Path | None:
        """Save one message; what goes wrong is said in the log, once, and the path is ``None``."""
        try:
            observation = self.observation(exchange)
            folder = Path(self.folder) / f"run-{exchange.run}"
            stem, number = observation_file.stem(observation), 1
            path = folder / f"{stem}{SUFFIX}"
            while path.exists():
                number += 1
                path = folder / f"{stem}_{number}{SUFFIX}"
            return observation_file.save(observation, path)
        except Exception as problem:
            self.complain(f"{exchange.client}: {problem}", f"{exchange.client} in round {exchange.round}: {problem}")
            return None

    def complain(self, key: str, words: str) -> None:
        """Say in the log that a message was not kept, once for each ``key``."""
        if key not in self._said and len(self._said) < 1000:
            self._said.add(key)
            log.warning("Leakgauge did not record the message of %s", words)

    def observation(self, exchange: Exchange) -> Observation:
        """The message as an observation."""
        sent, buffers = self._split("the weights sent", exchange.sent)
        returned, after = self._split("the client's answer", exchange.returned)
        trees: dict[str, Any] = {"returned" if self.sends == "weights" else "gradient": returned}
        training = self.recipe(exchange.told)
        if exchange.summed > 1 and training.batch_size is not None:  # the batches of all, as in federated.aggregation
            training = replace(training, batch_size=training.batch_size * exchange.summed)
        return Observation(
            model=self.model,
            data=self.data,
            sent=sent,
            training=training,
            buffers=buffers,
            returned_buffers=after,
            client=exchange.client,
            round=exchange.round,
            **trees,
        )

    def recipe(self, told: Mapping[str, object]) -> LocalTraining:
        """What is known of the client's recipe, given what its message and the configuration of its round tell."""
        training = self.training
        for source in (self.config, told):
            plain = {key.replace("_", "-"): value for key, value in source.items() if isinstance(key, str)}
            for name, keys in RECIPE_KEYS.items():
                value = next((plain[key] for key in keys if key in plain), None)
                if isinstance(value, float) and value.is_integer() and name in ("epochs", "batch_size", "samples"):
                    value = int(value)
                if isinstance(value, (int, float)):
                    try:
                        training = replace(training, **{name: value})  # type: ignore[arg-type]
                    except InvalidInput as problem:
                        self.complain(f"recipe: {name}", f"a client fully: its configuration says {problem}")
        return training

    def _split(self, what: str, arrays: Arrays) -> tuple[Params, Params | None]:
        """A state dict as weights and statistics, in the model's types; lists of arrays are in the model's order."""
        state = self.model.state_dict()
        if arrays.keys() != state.keys() and list(arrays) == [str(index) for index in range(len(state))]:
            arrays = dict(zip(state, arrays.values(), strict=True))
        weights, statistics = dict(self.model.named_parameters()), dict(self.model.named_buffers())
        for name in arrays:
            if name not in state:
                raise InvalidInput(f"{what} hold {name!r}, which the model does not have; is this the right model?")
        for name in weights:
            if name not in arrays:
                raise InvalidInput(f"{what} lack {name!r}; an observation is of all the model's weights")
        held = {name: _tensor(arrays[name], like) for name, like in weights.items()}
        if any(name in state and name not in arrays for name in statistics):
            return held, None
        return held, {
            name: _tensor(arrays[name], like) if name in state else like.detach().clone()
            for name, like in statistics.items()
        }


def _tensor(values: NDArray[Any], like: Tensor) -> Tensor:
    tensor = torch.from_numpy(np.array(values))
    if tensor.is_floating_point() and not like.is_floating_point():
        tensor = tensor.round()  # averaging turns counters into fractions
    return tensor.to(like.dtype)
