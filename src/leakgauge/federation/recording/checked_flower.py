"""A mod for Flower clients, which checks the received weights before the client trains on them.

::

    from leakgauge.federation.recording.checked_flower import ModelGuard

    guard = ModelGuard(Net(), data=lg.DataSpec((3, 32, 32), classes=10, mean=(0.5,), std=(0.5,)))
    app = ClientApp(mods=[guard.mod])

If there is a sign of a manipulation, the client app does not run. The server gets an error without the reason, because
the reason would help a malicious server. The client's log has the reason and, for every round, the digest of the
weights. Clients compare digests over a channel that the server does not control.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from leakgauge.core.data_spec import DataSpec
from leakgauge.core.errors import InvalidInput, LeakgaugeError, MissingExtra, printable
from leakgauge.federation.received import ModelCheck, check_model

try:
    from flwr.app import Context, Error, Message, MessageType
except ImportError as problem:
    raise MissingExtra("checking models in a Flower run", "flwr", "flower") from problem

log = logging.getLogger("leakgauge")

#: The code of the error that a server gets from a client that refuses its model.
REFUSED = 451


@dataclass(eq=False)
class ModelGuard:
    """A guard that keeps a Flower client from training on weights with a sign of a manipulation.

    Args:
        model: The agreed architecture.
        data: The description of the client's samples.
        samples: Samples of the client, on which layers are watched. By default, random ones of the same kind.
        keep: The number of the latest results that are kept in ``results``.
    """

    model: nn.Module
    data: DataSpec
    samples: Tensor | None = field(default=None, repr=False)
    keep: int = 100
    #: The results of the latest rounds.
    results: list[ModelCheck] = field(default_factory=list, init=False, repr=False)

    def __post_init__(self) -> None:
        if not isinstance(self.model, nn.Module):
            raise InvalidInput(f"model must be the agreed architecture, not {type(self.model).__name__}")
        if not isinstance(self.data, DataSpec):
            raise InvalidInput("data must be a DataSpec, the description of the client's samples")

    def check(self, weights: Mapping[str, Tensor]) -> ModelCheck:
        """Check received weights, and keep the result.

        Args:
            weights: The weights by the names of the model's state, or numbered in the order of this state.
        """
        names = list(self.model.state_dict())
        numbered = all(name.isdecimal() for name in weights)
        if numbered and len(weights) == len(names):
            weights = dict(zip(names, (weights[name] for name in sorted(weights, key=int)), strict=True))
        result = check_model(self.model, self.data, weights=weights, samples=self.samples)
        self.results = [*self.results, result][-self.keep :]
        return result

    def mod(self, message: Message, context: Context, call_next: Callable[[Message, Context], Message]) -> Message:
        """Check the weights in a message to train on, and pass the message on if there is no sign.

        Args:
            message: The message of the server.
            context: The context of the client.
            call_next: The next mod, or the client app.
        """
        if message.metadata.message_type.split(".")[0] != MessageType.TRAIN:
            return call_next(message, context)
        try:
            reason = self._reason(message)
        except LeakgaugeError as problem:
            reason = str(problem)
        except Exception as problem:  # the message is the server's
            reason = f"it cannot be read ({type(problem).__name__})"
        if reason:
            log.warning("This client does not train on the received model: %s", printable(reason, longest=1000))
            return Message(Error(REFUSED, "the client refuses the model"), reply_to=message)
        return call_next(message, context)

    def _reason(self, message: Message) -> str:
        """Return why the client does not train on the weights of a message, or an empty text."""
        records = list(message.content.array_records.values())
        if not records:
            return ""  # a stage of secure aggregation without weights
        for record in records:
            weights = {name: torch.as_tensor(array.numpy()) for name, array in record.items()}
            result = self.check(weights)
            if result.refused:
                return " ".join(one.sentence for one in result.signs)
            log.info("Leakgauge: no known manipulation found in the received model, digest %s", result.digest)
        return ""
