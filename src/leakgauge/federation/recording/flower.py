"""A recorder of Flower runs, on the server's side or on a client's side.

::

    from leakgauge.federation.recording.flower import Recorder

    recorder = Recorder("captures", model=Net(), data=DataSpec((3, 32, 32), classes=10))

    strategy = recorder.strategy(FedAvg())  # in the server app: records what the server gets from every client
    app = ClientApp(mods=[recorder.mod])  # in a client app: records what this client sends

Wrap the outermost strategy, because it gets the clients' answers in the form in which they arrive. In a list of mods,
the first mod sees the message that leaves the client, after all other mods have changed it. The last mod sees the
result of the client's training, before any other mod changes it.

A client is named ``client-K`` if its ``partition-id`` is known, and ``node-ID`` otherwise. On the server's side, the
``partition-id`` is a metric in the client's answer. On the client's side, it is in the configuration of the node. Under
SecAgg+, the server gets the mean of all clients' weights and not the weights of single clients. The recording then has
one observation for each round, with the name ``sum of N clients``.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from leakgauge.core.errors import InvalidInput, MissingExtra
from leakgauge.federation.recording.recorder import Arrays, Captures, Exchange

try:
    from flwr.app import ArrayRecord, Context, Message, MessageType, RecordDict
    from flwr.common import FitIns, FitRes, Parameters, parameters_to_ndarrays
    from flwr.server.client_proxy import ClientProxy
except ImportError as problem:
    raise MissingExtra("recording a Flower run", "flwr", "flower") from problem

AnyStrategy = TypeVar("AnyStrategy")
Result = TypeVar("Result")
Mod = Callable[[Message, Context, Callable[[Message, Context], Message]], Message]

_NO_WEIGHTS = "its answer holds no weights. If they are masked for secure aggregation, record the server's side."


class Recorder(Captures):
    """A recorder of a Flower run.

    Args:
        folder: The folder to write to.
        model: The architecture of the exchanged weights.
        data: The shape, classes and normalisation of a sample.
        training: The settings of the clients' training, as far as they are known.
        config: The configuration of the app, usually ``context.run_config``.
        every: The interval between recorded rounds. The first round is always recorded.
        clients: The clients to record, each by its ``partition-id`` or node id. By default, all clients. On the
            server's side, this can also be the number of clients to record.
        sends: Whether clients return trained ``"weights"`` or a ``"gradient"``.
    """

    def strategy(self, strategy: AnyStrategy) -> AnyStrategy:
        """Return a copy of a strategy whose training rounds are recorded.

        Args:
            strategy: Any strategy of ``flwr.serverapp`` or ``flwr.server``.
        """
        if isinstance(strategy, type):
            raise InvalidInput(f"strategy() needs an object, not its class: {strategy.__name__}()")
        recorded: Any = copy.copy(strategy)
        if _has(strategy, "configure_train", "aggregate_train"):
            self._watch_messages(recorded)
        elif _has(strategy, "configure_fit", "aggregate_fit"):
            self._watch_results(recorded)
        else:
            raise InvalidInput(f"{strategy!r} is not a strategy of Flower, because it does not aggregate training")
        return recorded  # type: ignore[no-any-return]

    @property
    def mod(self) -> Mod:
        """The mod of a client app, which records the messages that this client gets and sends."""
        if isinstance(self.clients, int):
            raise InvalidInput("a client does not know how many others there are. Choose by ids, as in clients=[0, 1].")
        return self._mod

    def _mod(self, message: Message, context: Context, call_next: Callable[[Message, Context], Message]) -> Message:
        received = self._safely(_Contents.of_training, message)
        answer = call_next(message, context)
        if received is not None and received.arrays:  # a message of another stage of secure aggregation has none
            self._safely(self._keep_own, received, answer, message, context)
        return answer

    def _keep_own(self, received: _Contents, answer: Message, message: Message, context: Context) -> None:
        """Record this client's own message."""
        sender = _Sender(context.run_id, context.node_id, context.node_config.get("partition-id"))
        number = str(received.reported.get("server-round", message.metadata.group_id))
        round = int(number) if number.isdecimal() else 0
        if self.selects(round, sender.node, sender.partition):
            reported = {**context.run_config, **received.reported}
            self._keep_answer(answer, received, reported, round, sender)

    def _watch_messages(self, strategy: Any) -> None:
        """Let a strategy of the message API (``flwr.serverapp``) record its training rounds."""
        configure, aggregate = strategy.configure_train, strategy.aggregate_train
        sent: dict[int, RecordDict] = {}

        def configure_train(*arguments: Any, **named: Any) -> Iterable[Message]:
            messages = list(configure(*arguments, **named))
            sent.clear()
            sent.update((message.metadata.dst_node_id, message.content) for message in messages)
            return messages

        def aggregate_train(server_round: int, replies: Iterable[Message]) -> Any:
            answers = list(replies)
            self._safely(self._keep_round, server_round, answers, sent)
            sent.clear()
            return aggregate(server_round, answers)

        strategy.configure_train, strategy.aggregate_train = configure_train, aggregate_train

    def _keep_round(self, round: int, answers: list[Message], sent: Mapping[int, RecordDict]) -> None:
        """Record the answers of the selected clients in a round."""
        content, contents = None, None
        for answer in answers:
            node = answer.metadata.src_node_id
            if answer.has_error() or node not in sent:
                continue
            sender = _Sender(answer.metadata.run_id, node, _reported(answer.content).get("partition-id"))
            if not self.selects(round, node, sender.partition):
                continue
            if contents is None or content is not sent[node]:  # most strategies send the same object to all clients
                content, contents = sent[node], _Contents.of(sent[node])
            self._keep_answer(answer, contents, contents.reported, round, sender)

    def _keep_answer(
        self, answer: Message, received: _Contents, reported: Mapping[str, object], round: int, sender: _Sender
    ) -> None:
        """Record one answer, unless the client failed or the weights are masked by secure aggregation."""
        if answer.has_error():
            return
        returned = _Contents.of(answer.content)
        if not returned.arrays:
            self.warn(_NO_WEIGHTS, f"{sender.name}: {_NO_WEIGHTS}")
            return
        settings = {**reported, **returned.reported}
        self.keep(Exchange(sender.run, round, sender.name, received.decoded(), returned.decoded(), settings))

    def _watch_results(self, strategy: Any) -> None:
        """Let a strategy of the older API (``flwr.server``) record its rounds. The SecAgg+ workflow needs this API."""
        configure, aggregate = strategy.configure_fit, strategy.aggregate_fit
        sent: dict[str, FitIns] = {}

        def configure_fit(*arguments: Any, **named: Any) -> list[tuple[ClientProxy, FitIns]]:
            instructions = list(configure(*arguments, **named))
            sent.clear()
            sent.update((proxy.cid, instruction) for proxy, instruction in instructions)
            return instructions

        def aggregate_fit(server_round: int, results: list[tuple[ClientProxy, FitRes]], failures: Any) -> Any:
            self._safely(self._keep_results, server_round, results, sent)
            sent.clear()
            return aggregate(server_round, results, failures)

        strategy.configure_fit, strategy.aggregate_fit = configure_fit, aggregate_fit

    def _keep_results(self, round: int, results: list[tuple[ClientProxy, FitRes]], sent: Mapping[str, FitIns]) -> None:
        """Record the results of a round that ran with the older API."""
        known = [(proxy, result) for proxy, result in results if proxy.cid in sent]
        first = known[0][1].parameters if known else None
        if len(known) > 1 and all(result.parameters is first for _, result in known):
            self._keep_sum(round, known, sent)  # the SecAgg+ workflow gives all results the same object
            return
        for proxy, result in known:
            sender = _Sender(_run(proxy), _node(proxy), result.metrics.get("partition-id"))
            if self.selects(round, sender.node, sender.partition):
                reported = {**sent[proxy.cid].config, "num-examples": result.num_examples}
                arrays = (_arrays(sent[proxy.cid].parameters), _arrays(result.parameters))
                self.keep(Exchange(sender.run, round, sender.name, *arrays, reported))

    def _keep_sum(self, round: int, results: list[tuple[ClientProxy, FitRes]], sent: Mapping[str, FitIns]) -> None:
        """Record the mean of all clients' weights as one message."""
        if (round - 1) % self.every:
            return
        proxy, result = results[0]
        samples = sum(answer.num_examples for _, answer in results)
        reported = {**sent[proxy.cid].config, "num-examples": samples}
        arrays = (_arrays(sent[proxy.cid].parameters), _arrays(result.parameters))
        count = len(results)
        self.keep(Exchange(_run(proxy), round, f"sum of {count} clients", *arrays, reported, summed=count))

    def _safely(self, act: Callable[..., Result], *arguments: Any) -> Result | None:
        """Call a function and return its result. On an error, log the error, return ``None`` and let training go on."""
        try:
            return act(*arguments)
        except Exception as problem:
            self.warn(repr(problem), f"a client: {problem!r}")
            return None


@dataclass(frozen=True)
class _Sender:
    """The run and the node that a message comes from, and the ``partition-id`` of the client, if this id is known."""

    run: int
    node: int
    partition: object

    @property
    def name(self) -> str:
        """The client's name."""
        if isinstance(self.partition, (int, float)) and self.partition == int(self.partition):
            return f"client-{int(self.partition)}"
        return f"node-{self.node}"


class _Contents:
    """The weights and settings in a message. The weights stay encoded until they are needed."""

    def __init__(self, arrays: Mapping[str, Any], reported: Mapping[str, object]) -> None:
        self.arrays, self.reported = arrays, reported
        self._decoded: Arrays | None = None

    @classmethod
    def of_training(cls, message: Message) -> _Contents | None:
        """Return the contents of a message that requests training, or ``None`` for any other message."""
        training = message.metadata.message_type.partition(".")[0] == MessageType.TRAIN
        return cls.of(message.content) if training and not message.has_error() else None

    @classmethod
    def of(cls, content: RecordDict) -> _Contents:
        """Return the weights and settings in the content of a Flower message."""
        records: list[ArrayRecord] = list(content.array_records.values())
        return cls(dict(records[0]) if len(records) == 1 else {}, _reported(content))

    def decoded(self) -> Arrays:
        """Return the weights as numpy arrays, decoded from the bytes of the message."""
        if self._decoded is None:
            self._decoded = {name: array.numpy() for name, array in self.arrays.items()}
        return self._decoded


def _reported(content: RecordDict) -> dict[str, object]:
    """Return the settings and metrics in the content of a Flower message."""
    reported: dict[str, object] = {}
    for config in content.config_records.values():
        reported |= config
    for metrics in content.metric_records.values():
        reported |= metrics
    return reported


def _arrays(parameters: Parameters) -> Arrays:
    return {str(index): array for index, array in enumerate(parameters_to_ndarrays(parameters))}


def _has(strategy: object, *names: str) -> bool:
    return all(callable(getattr(strategy, name, None)) for name in names)


def _node(proxy: ClientProxy) -> int:
    return int(getattr(proxy, "node_id", 0)) or (int(proxy.cid) if proxy.cid.isdecimal() else 0)


def _run(proxy: ClientProxy) -> int:
    return int(getattr(proxy, "run_id", 0))
