"""A recorder of Flower runs, on the server's side or on a client's side.

::

    import leakgauge as lg
    from leakgauge.federation.recording.flower import Recorder

    data = lg.DataSpec((3, 32, 32), classes=10, mean=(0.5,), std=(0.5,))  # as the app normalises
    recorder = Recorder("captures", model=Net(), data=data)

    strategy = recorder.strategy(FedAvg())  # in the server app: records what the server gets from every client
    app = ClientApp(mods=[recorder.mod])  # in a client app: records what this client sends

Wrap the outermost strategy, because it gets the clients' answers in the form in which they arrive. In a list of mods,
the first mod sees the message that leaves the client, after all other mods have changed it. The last mod sees the
result of the client's training, before any other mod changes it.

A client is named ``client-K`` if its ``partition-id`` is known, and ``node-ID`` otherwise. On the server's side, the
``partition-id`` is a metric in the client's answer, which the client can choose freely. The first node with a
``partition-id`` keeps it for the whole run. A node that claims the same one later, or in the same round, is named
``node-ID``, and the log has a sentence about it. On the client's side, the ``partition-id`` is in the configuration of
the node.

Answers are recorded one by one. An answer that cannot be read never keeps the answers of other clients from being
recorded.

Under SecAgg+, the server gets the mean of all clients' weights and not the weights of single clients. The recording
then has one observation for each round, with the name ``sum of N clients``.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from leakgauge.core.errors import InvalidInput, MissingExtra, printable
from leakgauge.federation.recording.flower_messages import (
    Contents,
    Sender,
    arrays_of,
    claimed,
    node_of,
    round_of,
    sender_of,
)
from leakgauge.federation.recording.recorder import Captures, Exchange

try:
    from flwr.app import Context, Message, RecordDict
    from flwr.common import FitIns, FitRes
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
        data: The shape, classes and normalisation of a sample. ``mean`` and ``std`` must be stated.
        training: The settings of the clients' training, as far as they are known.
        config: The configuration of the app, usually ``context.run_config``.
        every: The interval between recorded rounds. The first round is always recorded.
        clients: The clients to record, each by its ``partition-id`` or node id. By default, all clients. On the
            server's side, this can also be the number of clients to record.
        sends: Whether clients return trained ``"weights"`` or a ``"gradient"``.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        #: The first node that reported a ``partition-id``, for each run and ``partition-id``.
        self._owners: dict[tuple[int, int | None], int] = {}
        #: The rule of a malicious server for each node that it steers in this round. An honest server steers none.
        self.steered: dict[int, str] = {}

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
        received = self._safely("this client", Contents.of_training, message)
        answer = call_next(message, context)
        if received is not None and received.arrays:  # a message of another stage of secure aggregation has none
            self._safely("this client", self._keep_own, received, answer, message, context)
        return answer

    def _keep_own(self, received: Contents, answer: Message, message: Message, context: Context) -> None:
        """Record this client's own message."""
        sender, round = Sender.of_this_node(context), round_of(received, message)
        if self.selects(round, sender.node, sender.partition):
            reported = {**context.run_config, **received.reported}
            self._keep_answer(answer, received, reported, round, sender)

    def _watch_messages(self, strategy: Any) -> None:
        """Change a strategy of the message API (``flwr.serverapp``) such that its training rounds are recorded."""
        configure, aggregate = strategy.configure_train, strategy.aggregate_train
        sent: dict[int, tuple[int, RecordDict]] = {}

        def configure_train(*arguments: Any, **named: Any) -> Iterable[Message]:
            messages = list(configure(*arguments, **named))
            sent.clear()
            metadata = ((message.metadata, message.content) for message in messages)
            sent.update((facts.dst_node_id, (facts.run_id, content)) for facts, content in metadata)
            return messages

        def aggregate_train(server_round: int, replies: Iterable[Message]) -> Any:
            answers = list(replies)
            self._safely("all clients", self._keep_round, server_round, answers, sent)
            sent.clear()
            return aggregate(server_round, answers)

        strategy.configure_train, strategy.aggregate_train = configure_train, aggregate_train

    def _keep_round(self, round: int, answers: list[Message], sent: Mapping[int, tuple[int, RecordDict]]) -> None:
        """Record the answers of the selected clients in a round, one by one."""
        pairs = [(answer, self._safely(node_of(answer), sender_of, answer, sent)) for answer in answers]
        known = [(answer, sender) for answer, sender in pairs if sender is not None]
        content, contents = None, None
        for (answer, _), sender in zip(known, self._trusted([sender for _, sender in known]), strict=True):
            if not self.selects(round, sender.node, sender.partition) and sender.node not in self.steered:
                continue
            if contents is None or content is not sent[sender.node][1]:  # most strategies send all clients the same
                content = sent[sender.node][1]
                contents = Contents.of(content)
            self._safely(sender.name, self._keep_answer, answer, contents, contents.reported, round, sender)

    def _trusted(self, senders: Sequence[Sender]) -> list[Sender]:
        """Return the senders of a round. A ``partition-id`` that another node has or claims is removed.

        Clients choose the ``partition-id`` that they report, so one client may report that of another.
        """
        claims = Counter((sender.run, sender.partition) for sender in set(senders))
        trusted = []
        for sender in senders:
            claim, alone = (sender.run, sender.partition), replace(sender, partition=None)
            if claims[claim] == 1:
                self._owners.setdefault(claim, sender.node)
            if sender == alone or self._owners.get(claim) == sender.node:
                trusted.append(sender)
                continue
            trusted.append(alone)
            self.note(
                f"{alone.name} claims {sender.name}",
                f"Leakgauge names a client {alone.name} and not {sender.name}, because another node has or claims the "
                f"same partition-id {sender.partition}",
            )
        return trusted

    def _keep_answer(
        self, answer: Message, received: Contents, reported: Mapping[str, object], round: int, sender: Sender
    ) -> None:
        """Record one answer, unless the client failed or the weights are masked by secure aggregation."""
        if answer.has_error():
            return
        returned = Contents.of(answer.content)
        if not returned.arrays:
            self.warn(f"{sender.name}: {_NO_WEIGHTS}", f"{sender.name}: {_NO_WEIGHTS}")
            return
        settings = {**reported, **returned.reported}
        arrays, rule = (received.decoded(), returned.decoded()), self.steered.get(sender.node, "")
        self.keep(Exchange(sender.run, round, sender.name, *arrays, settings, steered=rule))

    def _watch_results(self, strategy: Any) -> None:
        """Change a strategy of the older API (``flwr.server``) such that its rounds are recorded.

        The SecAgg+ workflow needs the older API.
        """
        configure, aggregate = strategy.configure_fit, strategy.aggregate_fit
        sent: dict[str, FitIns] = {}

        def configure_fit(*arguments: Any, **named: Any) -> list[tuple[ClientProxy, FitIns]]:
            instructions = list(configure(*arguments, **named))
            sent.clear()
            sent.update((proxy.cid, instruction) for proxy, instruction in instructions)
            return instructions

        def aggregate_fit(server_round: int, results: list[tuple[ClientProxy, FitRes]], failures: Any) -> Any:
            self._safely("all clients", self._keep_results, server_round, results, sent)
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
        senders = [Sender(_run(proxy), _node(proxy), claimed(result.metrics)) for proxy, result in known]
        for (proxy, result), sender in zip(known, self._trusted(senders), strict=True):
            if self.selects(round, sender.node, sender.partition):
                self._safely(sender.name, self._keep_result, round, sender, sent[proxy.cid], result)

    def _keep_result(self, round: int, sender: Sender, instruction: FitIns, result: FitRes) -> None:
        """Record one result of the older API."""
        reported = {**instruction.config, "num-examples": result.num_examples}
        arrays = (arrays_of(instruction.parameters), arrays_of(result.parameters))
        self.keep(Exchange(sender.run, round, sender.name, *arrays, reported))

    def _keep_sum(self, round: int, results: list[tuple[ClientProxy, FitRes]], sent: Mapping[str, FitIns]) -> None:
        """Record the mean of all clients' weights as one message."""
        if (round - 1) % self.every:
            return
        proxy, result = results[0]
        samples = sum(answer.num_examples for _, answer in results)
        reported = {**sent[proxy.cid].config, "num-examples": samples}
        arrays = (arrays_of(sent[proxy.cid].parameters), arrays_of(result.parameters))
        count = len(results)
        self.keep(Exchange(_run(proxy), round, f"sum of {count} clients", *arrays, reported, summed=count))

    def _safely(self, who: str, act: Callable[..., Result], *arguments: Any) -> Result | None:
        """Call a function and return its result. On an error, log the error, return ``None`` and let training go on.

        Args:
            who: The client whose message the function handles.
            act: The function.
            arguments: The arguments of the function.
        """
        try:
            return act(*arguments)
        except Exception as problem:
            text = str(problem) if isinstance(problem, InvalidInput) else repr(problem)
            self.warn(f"{who}: {text}", f"{who}: {printable(text)}")
            return None


def _has(strategy: object, *names: str) -> bool:
    return all(callable(getattr(strategy, name, None)) for name in names)


def _node(proxy: ClientProxy) -> int:
    return int(getattr(proxy, "node_id", 0)) or (int(proxy.cid) if proxy.cid.isdecimal() else 0)


def _run(proxy: ClientProxy) -> int:
    return int(getattr(proxy, "run_id", 0))
