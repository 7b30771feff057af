"""Record what a real Flower run exchanges, on the server's side or on a client's.

::

    from leakgauge.federation.recording.flower import Recorder

    recorder = Recorder("captures", model=Net(), data=DataSpec((3, 32, 32), classes=10))

    strategy = recorder.strategy(FedAvg())  # in the server app: what the server sees of every client
    app = ClientApp(mods=[recorder.mod])  # in a client app: what this client sends

The server's recorder belongs around the outermost strategy, where it sees the clients' answers as they arrive. A mod
that comes first in the list sees what leaves the client, after all other mods; one that comes last sees what the
client's own training returns, before them.

A client is called ``client-K`` where it tells its ``partition-id`` (a metric in its answer; on the client's side, the
node's configuration), else ``node-ID``. Under SecAgg+ a server gets no client's weights but the mean over all, and this
is what is recorded: one observation of the ``sum of N clients`` a round.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping
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

_MASKED = "its answer holds no weights; if they are masked for secure aggregation, record the server's side"


class Recorder(Captures):
    """Keep messages of a Flower run as observations; the arguments are those of :class:`Captures`."""

    def strategy(self, strategy: AnyStrategy) -> AnyStrategy:
        """The same strategy, whose training rounds are recorded; any of ``flwr.serverapp`` or ``flwr.server``."""
        if isinstance(strategy, type):
            raise InvalidInput(f"give a strategy, not its class: {strategy.__name__}()")
        recorded: Any = copy.copy(strategy)
        if _has(strategy, "configure_train", "aggregate_train"):
            self._watch_messages(recorded)
        elif _has(strategy, "configure_fit", "aggregate_fit"):
            self._watch_results(recorded)
        else:
            raise InvalidInput(f"{strategy!r} is no strategy of Flower: it does not configure and aggregate training")
        return recorded  # type: ignore[no-any-return]

    @property
    def mod(self) -> Mod:
        """A mod for a client app, which records what this client gets and sends."""
        if isinstance(self.clients, int):
            raise InvalidInput("a client's side does not know of other clients; choose by ids: clients=[0, 1]")
        return self._mod

    def _mod(self, message: Message, context: Context, call_next: Callable[[Message, Context], Message]) -> Message:
        got = self._quietly(_Held.of_training, message)
        answer = call_next(message, context)
        if got is not None and got.arrays:  # other stages of a secure aggregation carry no weights
            self._quietly(self._keep_own, got, answer, message, context)
        return answer

    def _keep_own(self, got: _Held, answer: Message, message: Message, context: Context) -> None:
        partition = context.node_config.get("partition-id")
        number = str(got.told.get("server-round", message.metadata.group_id))
        round = int(number) if number.isdecimal() else 0
        if self.wants(round, context.node_id, partition):
            told = {**context.run_config, **got.told}
            self._keep_answer(answer, got, told, round, (context.run_id, context.node_id, partition))

    def _watch_messages(self, strategy: Any) -> None:
        """Watch a strategy of today's message API."""
        configure, aggregate = strategy.configure_train, strategy.aggregate_train
        sent: dict[int, RecordDict] = {}

        def configure_train(*arguments: Any, **named: Any) -> Iterable[Message]:
            messages = list(configure(*arguments, **named))
            sent.clear()
            sent.update((one.metadata.dst_node_id, one.content) for one in messages)
            return messages

        def aggregate_train(server_round: int, replies: Iterable[Message]) -> Any:
            answers = list(replies)
            self._quietly(self._keep_round, server_round, answers, sent)
            sent.clear()
            return aggregate(server_round, answers)

        strategy.configure_train, strategy.aggregate_train = configure_train, aggregate_train

    def _keep_round(self, round: int, answers: list[Message], sent: Mapping[int, RecordDict]) -> None:
        content, held = None, None
        for answer in answers:
            node = answer.metadata.src_node_id
            if answer.has_error() or node not in sent:
                continue
            partition = _told(answer.content).get("partition-id")
            if not self.wants(round, node, partition):
                continue
            if held is None or content is not sent[node]:  # most strategies send the same to all
                content, held = sent[node], _Held.of(sent[node])
            self._keep_answer(answer, held, held.told, round, (answer.metadata.run_id, node, partition))

    def _keep_answer(
        self, answer: Message, got: _Held, told: Mapping[str, object], round: int, who: tuple[int, int, object]
    ) -> None:
        if answer.has_error():
            return
        run, node, partition = who
        client = _name(node, partition)
        gave = _Held.of(answer.content)
        if not gave.arrays:
            self.complain(_MASKED, f"{client}: {_MASKED}")
            return
        self.keep(Exchange(run, round, client, got.decoded(), gave.decoded(), {**told, **gave.told}))

    def _watch_results(self, strategy: Any) -> None:
        """Watch a strategy of the older API, the one that the SecAgg+ workflow takes."""
        configure, aggregate = strategy.configure_fit, strategy.aggregate_fit
        sent: dict[str, FitIns] = {}

        def configure_fit(*arguments: Any, **named: Any) -> list[tuple[ClientProxy, FitIns]]:
            instructions = list(configure(*arguments, **named))
            sent.clear()
            sent.update((proxy.cid, one) for proxy, one in instructions)
            return instructions

        def aggregate_fit(server_round: int, results: list[tuple[ClientProxy, FitRes]], failures: Any) -> Any:
            self._quietly(self._keep_results, server_round, results, sent)
            sent.clear()
            return aggregate(server_round, results, failures)

        strategy.configure_fit, strategy.aggregate_fit = configure_fit, aggregate_fit

    def _keep_results(self, round: int, results: list[tuple[ClientProxy, FitRes]], sent: Mapping[str, FitIns]) -> None:
        known = [(proxy, result) for proxy, result in results if proxy.cid in sent]
        first = known[0][1].parameters if known else None
        if len(known) > 1 and all(result.parameters is first for _, result in known):
            self._keep_sum(round, known, sent)  # the workflow of a secure aggregation gives all the same object
            return
        for proxy, result in known:
            node, partition = _node(proxy), result.metrics.get("partition-id")
            if self.wants(round, node, partition):
                told = {**sent[proxy.cid].config, "num-examples": result.num_examples}
                arrays = (_arrays(sent[proxy.cid].parameters), _arrays(result.parameters))
                self.keep(Exchange(_run(proxy), round, _name(node, partition), *arrays, told))

    def _keep_sum(self, round: int, results: list[tuple[ClientProxy, FitRes]], sent: Mapping[str, FitIns]) -> None:
        if (round - 1) % self.every:
            return
        proxy, result = results[0]
        samples = sum(one.num_examples for _, one in results)
        told = {**sent[proxy.cid].config, "num-examples": samples}
        arrays = (_arrays(sent[proxy.cid].parameters), _arrays(result.parameters))
        number = len(results)
        self.keep(Exchange(_run(proxy), round, f"sum of {number} clients", *arrays, told, summed=number))

    def _quietly(self, act: Callable[..., Result], *arguments: Any) -> Result | None:
        """Whatever goes wrong in recording is said in the log, and the training goes on."""
        try:
            return act(*arguments)
        except Exception as problem:
            self.complain(repr(problem), f"a client: {problem!r}")
            return None


class _Held:
    """The weights and the words of a message. Arrays stay as the bytes that they arrive in until they are needed."""

    def __init__(self, arrays: Mapping[str, Any], told: Mapping[str, object]) -> None:
        self.arrays, self.told = arrays, told
        self._decoded: Arrays | None = None

    @classmethod
    def of_training(cls, message: Message) -> _Held | None:
        """What a message holds, if it asks for training."""
        training = message.metadata.message_type.partition(".")[0] == MessageType.TRAIN
        return cls.of(message.content) if training and not message.has_error() else None

    @classmethod
    def of(cls, content: RecordDict) -> _Held:
        """The weights and words in a message's contents."""
        records: list[ArrayRecord] = list(content.array_records.values())
        return cls(dict(records[0]) if len(records) == 1 else {}, _told(content))

    def decoded(self) -> Arrays:
        """The arrays as numbers."""
        if self._decoded is None:
            self._decoded = {name: array.numpy() for name, array in self.arrays.items()}
        return self._decoded


def _told(content: RecordDict) -> dict[str, object]:
    told: dict[str, object] = {}
    for config in content.config_records.values():
        told |= config
    for metrics in content.metric_records.values():
        told |= metrics
    return told


def _arrays(parameters: Parameters) -> Arrays:
    return {str(index): array for index, array in enumerate(parameters_to_ndarrays(parameters))}


def _has(strategy: object, *names: str) -> bool:
    return all(callable(getattr(strategy, name, None)) for name in names)


def _name(node: int, partition: object) -> str:
    whole = isinstance(partition, (int, float)) and partition == int(partition)
    return f"client-{int(partition)}" if whole else f"node-{node}"  # type: ignore[call-overload]


def _node(proxy: ClientProxy) -> int:
    return int(getattr(proxy, "node_id", 0)) or (int(proxy.cid) if proxy.cid.isdecimal() else 0)


def _run(proxy: ClientProxy) -> int:
    return int(getattr(proxy, "run_id", 0))
