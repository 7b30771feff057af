"""The contents of Flower's messages: the sender, the round, the weights and the settings."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from leakgauge.core.errors import InvalidInput, MissingExtra, shown
from leakgauge.federation.recording.keeper import ClientTraining
from leakgauge.federation.recording.states import Arrays

try:
    from flwr.app import Context, Message, MessageType, RecordDict
    from flwr.common import Parameters, parameters_to_ndarrays
except ImportError as problem:
    raise MissingExtra("recording a Flower run", "flwr", "flower") from problem


@dataclass(frozen=True)
class Sender:
    """The run and the node that a message comes from, and the ``partition-id`` of the client, if this id is known."""

    run: int
    node: int
    partition: int | None

    @classmethod
    def of_this_node(cls, context: Context) -> Sender:
        """Return the sender of what this client sends."""
        return cls(context.run_id, context.node_id, _partition(context.node_config.get("partition-id")))

    @property
    def name(self) -> str:
        """The client's name."""
        return f"node-{self.node}" if self.partition is None else f"client-{self.partition}"


def training_message(message: Message, context: Context) -> ClientTraining | None:
    """Return the training that a message requests, or ``None`` for any other message.

    Args:
        message: The message, as the client got it.
        context: The context of the client.
    """
    received = Contents.of_training(message)
    if received is None or not received.arrays:  # a message of another stage of secure aggregation has none
        return None
    sender = Sender.of_this_node(context)
    names = dict.fromkeys([sender.name, f"node-{sender.node}"])
    return ClientTraining(round_of(received, message), tuple(names), sender.run)


def round_of(received: Contents, message: Message) -> int:
    """Return the index of the round, as the server states it.

    Args:
        received: The contents of the message.
        message: The message, as the client got it.
    """
    number = str(received.reported.get("server-round", message.metadata.group_id))
    return int(number) if number.isdecimal() else 0


def node_of(answer: object) -> str:
    """Return the name of the node that an answer comes from, as far as the answer has such a name."""
    node = getattr(getattr(answer, "metadata", None), "src_node_id", None)
    return f"node-{node}" if isinstance(node, int) else "a client"


def sender_of(answer: Message, sent: Mapping[int, tuple[int, RecordDict]]) -> Sender | None:
    """Return the sender of an answer, or ``None`` if the client failed.

    The run is that of the server's message, because a client could send any number.
    """
    node = answer.metadata.src_node_id
    if node not in sent:
        raise InvalidInput("nothing was sent to this node in this round")
    return None if answer.has_error() else Sender(sent[node][0], node, claimed(reported_in(answer.content)))


def claimed(reported: Mapping[str, object] | None) -> int | None:
    """Return the ``partition-id`` that a client reports, or ``None`` if it reports no valid one."""
    return _partition((reported or {}).get("partition-id"))


def _partition(value: object) -> int | None:
    """Return a ``partition-id`` as a whole number, or ``None`` if it is not valid."""
    valid = isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < 2**63
    return int(value) if valid and value == int(value) else None  # type: ignore[call-overload]


class Contents:
    """The weights and settings in a message. The weights stay encoded until they are needed."""

    def __init__(self, arrays: Mapping[str, Any], reported: Mapping[str, object]) -> None:
        self.arrays, self.reported = arrays, reported
        self._decoded: Arrays | None = None

    @classmethod
    def of_training(cls, message: Message) -> Contents | None:
        """Return the contents of a message that requests training, or ``None`` for any other message."""
        training = message.metadata.message_type.partition(".")[0] == MessageType.TRAIN
        return cls.of(message.content) if training and not message.has_error() else None

    @classmethod
    def of(cls, content: RecordDict) -> Contents:
        """Return the weights and settings in the content of a Flower message."""
        arrays: dict[str, Any] = {}
        for record in content.array_records.values():
            twice = sorted(arrays.keys() & record.keys())
            if twice:
                raise InvalidInput(
                    f"a message holds {shown(twice[0])} in two of its ArrayRecords, and only one can be the model's"
                )
            arrays |= record
        return cls(arrays, reported_in(content))

    def decoded(self) -> Arrays:
        """Return the weights as numpy arrays, decoded from the bytes of the message."""
        if self._decoded is None:
            self._decoded = {name: array_of(name, array.numpy) for name, array in self.arrays.items()}
        return self._decoded


def reported_in(content: RecordDict) -> dict[str, object]:
    """Return the settings and metrics in the content of a Flower message.

    Args:
        content: The content of the message.
    """
    reported: dict[str, object] = {}
    for config in content.config_records.values():
        reported |= config
    for metrics in content.metric_records.values():
        reported |= metrics
    return reported


def read_arrays(content: RecordDict) -> Arrays:
    """Return the weights in the content of a message. Without weights, the result is empty."""
    return Contents.of(content).decoded()


def reported_partition(answer: Message) -> int | None:
    """Return the ``partition-id`` that a client reports in its answer, or ``None`` if it reports no valid one."""
    return None if answer.has_error() else claimed(reported_in(answer.content))


def arrays_of(parameters: Parameters) -> Arrays:
    """Return the weights in a message of the older API.

    Args:
        parameters: The encoded weights.
    """

    def decode(tensor: bytes) -> Callable[[], Any]:
        return lambda: parameters_to_ndarrays(Parameters([tensor], parameters.tensor_type))[0]

    return {str(index): array_of(str(index), decode(tensor)) for index, tensor in enumerate(parameters.tensors)}


def array_of(name: str, decode: Callable[[], Any]) -> NDArray[Any]:
    """Decode an array from the bytes of a message, or raise an error that names the array."""
    try:
        array = decode()
    except Exception as problem:  # the bytes are a client's
        raise InvalidInput(
            f"the array {shown(name)} cannot be decoded from its bytes ({type(problem).__name__}). Is the client's "
            "framework another one?"
        ) from problem
    if not isinstance(array, np.ndarray):
        raise InvalidInput(f"the array {shown(name)} is a {type(array).__name__}, not an array of numpy")
    return array
