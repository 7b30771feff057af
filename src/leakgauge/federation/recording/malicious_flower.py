"""A malicious server for one client of a Flower run, to audit one's own system.

::

    import leakgauge as lg
    from leakgauge.attacks.local_model import ActiveAdam
    from leakgauge.federation.recording.flower import Recorder
    from leakgauge.federation.recording.malicious_flower import MaliciousServer

    data = lg.DataSpec((3, 32, 32), classes=10, mean=(0.5,), std=(0.5,))  # as the app normalises
    recorder = Recorder("captures", model=Net(), data=data)
    server = MaliciousServer(recorder, ActiveAdam(), client=0, after=20)
    strategy = server.strategy(FedAvg())

After some honest rounds, the server sends the chosen client weights of its own making
(:mod:`leakgauge.federation.steering`). All other clients get what the strategy sends them. The answers of the chosen
client are left out of the average, so that the other clients notice nothing. The recorder records all rounds, and the
captures of the chosen client name the rule in ``steered``. ``leakgauge infer captures`` then shows what such a server
learns, and every page calls it malicious.

Use this only on a federation that is your own. Nobody else has agreed to it.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from leakgauge.core.errors import InvalidInput, MissingExtra, printable
from leakgauge.core.observation import Observation
from leakgauge.core.params import Params
from leakgauge.federation.recording.flower import Recorder
from leakgauge.federation.recording.flower_messages import read_arrays, reported_partition
from leakgauge.federation.recording.recorder import Exchange
from leakgauge.federation.steering import Rule

try:
    from flwr.app import ArrayRecord, Message, RecordDict
except ImportError as problem:
    raise MissingExtra("a malicious server in a Flower run", "flwr", "flower") from problem

AnyStrategy = TypeVar("AnyStrategy")

log = logging.getLogger("leakgauge")


@dataclass(eq=False)
class MaliciousServer:
    """A malicious server, which sends one chosen client of a Flower run weights of its own making.

    Args:
        recorder: The recorder of the run. It records all steered rounds, whatever its ``every`` and ``clients`` are.
        rule: The rule by which the server chooses the weights, such as
            :class:`leakgauge.attacks.local_model.ActiveAdam`.
        client: The chosen client, by its ``partition-id`` or by the id of its node. A ``partition-id`` is known from
            the client's first answer on, so the rounds before that are honest.
        after: The number of honest rounds before the first steered one.
    """

    recorder: Recorder
    rule: Rule
    client: int
    after: int = 0
    #: The chosen client's recorded messages of the steered rounds so far.
    observations: list[Observation] = field(default_factory=list, init=False, repr=False)
    _node: int | None = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        if not isinstance(self.recorder, Recorder):
            raise InvalidInput(f"recorder must be a Recorder of Flower, not {type(self.recorder).__name__}")
        if isinstance(self.client, bool) or not isinstance(self.client, int):
            raise InvalidInput(f"client must be the partition-id or the node id of one client, not {self.client!r}")
        if isinstance(self.after, bool) or not isinstance(self.after, int) or self.after < 0:
            raise InvalidInput(f"after must be a number of honest rounds, not {self.after!r}")

    def strategy(self, strategy: AnyStrategy) -> AnyStrategy:
        """Return a copy of a strategy that steers the chosen client, and whose rounds are recorded.

        Args:
            strategy: Any strategy of ``flwr.serverapp``.
        """
        if isinstance(strategy, type):
            raise InvalidInput(f"strategy() needs an object, not its class: {strategy.__name__}()")
        names = ("configure_train", "aggregate_train")
        if not all(callable(getattr(strategy, name, None)) for name in names):
            raise InvalidInput(
                f"{strategy!r} is no strategy of flwr.serverapp. A malicious server needs the message API of Flower."
            )
        log.warning(
            "This server is malicious to client %s after round %d: it sends weights of its own making (%s). "
            "Use this only to audit a federation that is your own.",
            self.client,
            self.after,
            self.rule.rule,
        )
        turned: Any = copy.copy(strategy)
        configure, aggregate = strategy.configure_train, strategy.aggregate_train  # type: ignore[attr-defined]
        sent: dict[int, tuple[int, RecordDict]] = {}

        def configure_train(server_round: int, *arguments: Any, **named: Any) -> Iterable[Message]:
            messages = list(configure(server_round, *arguments, **named))
            sent.clear()
            self.recorder.steered.clear()
            for message in messages if server_round > self.after else ():
                if message.metadata.dst_node_id in (self.client, self._node):
                    self._steer(message)
                    sent[message.metadata.dst_node_id] = (message.metadata.run_id, message.content)
            return messages

        def aggregate_train(server_round: int, replies: Iterable[Message]) -> Any:
            others = []
            for answer in replies:
                node = answer.metadata.src_node_id
                if node in self.recorder.steered and node in sent:
                    self._keep(server_round, answer, *sent[node])
                else:
                    others.append(answer)
            self._find_node(others)
            return aggregate(server_round, others)

        turned.configure_train, turned.aggregate_train = configure_train, aggregate_train
        return self.recorder.strategy(turned)  # type: ignore[no-any-return]

    def _steer(self, message: Message) -> None:
        """Replace the weights in a message to the chosen client. If this fails, the message stays honest."""
        try:
            arrays = read_arrays(message.content)
            current, _ = self.recorder.split("the weights sent", arrays)
            message.content = _with_weights(message.content, self.rule.next_weights(self.observations, current))
        except Exception as problem:  # the run must go on
            self.recorder.note(
                f"steering {self.client}", f"Leakgauge did not steer client {self.client}: {printable(str(problem))}"
            )
            return
        self.recorder.steered[message.metadata.dst_node_id] = self.rule.rule

    def _keep(self, round: int, answer: Message, run: int, content: RecordDict) -> None:
        """Keep the chosen client's answer for the rule. The recorder writes it to a file by itself."""
        if answer.has_error():
            return
        try:
            arrays = (read_arrays(content), read_arrays(answer.content))
            exchange = Exchange(run, round, f"client-{self.client}", *arrays, steered=self.rule.rule)
            self.observations.append(self.recorder.observation(exchange))
        except Exception as problem:  # the answer is the client's
            self.recorder.warn(f"steered {self.client}", f"client {self.client} in round {round}: {problem}")

    def _find_node(self, answers: Sequence[Message]) -> None:
        """Find the node of the chosen client by the ``partition-id`` in its answer, unless several nodes claim it."""
        if self._node is not None:
            return
        claiming = {answer.metadata.src_node_id for answer in answers if reported_partition(answer) == self.client}
        if len(claiming) == 1:
            [self._node] = claiming
        elif claiming:
            self.recorder.note(
                f"claims of {self.client}",
                f"Leakgauge steers no client yet, because {len(claiming)} nodes claim the partition-id {self.client}",
            )


def _with_weights(content: RecordDict, weights: Params) -> RecordDict:
    """Return a copy of a message's content with other weights. Statistics and settings stay as they are.

    Most strategies send all clients the same object, so the content itself must not be changed.
    """
    changed = RecordDict(dict(content.items()))
    if len(content.array_records) != 1:
        raise InvalidInput(f"a message holds {len(content.array_records)} ArrayRecords, and it can steer only one")
    [(name, arrays)] = content.array_records.items()
    state = arrays.to_torch_state_dict()
    changed[name] = ArrayRecord({**state, **{key: value.to(state[key]) for key, value in weights.items()}})
    return changed
