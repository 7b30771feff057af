"""A wrapper of a recorded strategy of Flower, which ends the training when a limit is broken.

::

    from leakgauge.workflows.flower_guard import guarded

    strategy = recorder.strategy(FedAvg())
    strategy = guarded(strategy, recorder, fail_if=["worst(recovered) > 0.05"])

After each recorded round, the captures of the run are attacked. If a limit is broken, no client is asked to train any
more, and the strategy returns the weights of the last round. A limit can only be measured where the clients' samples
are at hand, as those of keepers in the same folder or in ``data``.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from leakgauge.core.container import Location
from leakgauge.core.errors import InvalidInput, printable
from leakgauge.evaluation.gate import read_condition
from leakgauge.federation.recording.recorder import Captures as RecordedFolder
from leakgauge.workflows.attack_captures import attack

log = logging.getLogger("leakgauge")
AnyStrategy = TypeVar("AnyStrategy")


def guarded(
    strategy: AnyStrategy,
    recorder: RecordedFolder,
    *,
    fail_if: Sequence[str],
    method: str = "inverting_gradients",
    output: Location = "guarded",
    every: int = 1,
    **options: Any,
) -> AnyStrategy:
    """Return a copy of a strategy of Flower's message API that stops to train when a limit is broken.

    Args:
        strategy: The strategy, as ``recorder.strategy()`` returns it.
        recorder: The recorder.
        fail_if: The limits, such as ``"worst(recovered) > 0.05"`` (:mod:`leakgauge.evaluation.gate`).
        method: The name of the attack.
        output: The folder for the page and the cache of the attacks.
        every: The interval between checked rounds.
        options: Further arguments of :func:`leakgauge.attack`, such as ``data``, ``key``, ``know`` and ``options``.
    """
    if not callable(getattr(strategy, "aggregate_train", None)) or isinstance(strategy, type):
        raise InvalidInput("guarded() needs a strategy of flwr.serverapp, as recorder.strategy() returns it")
    if not fail_if:
        raise InvalidInput('guarded() needs a limit, such as fail_if=["worst(recovered) > 0.05"]')
    for text in fail_if:
        read_condition(text, [method])
    guard = _Guard(recorder, {"fail_if": fail_if, "engine": "in-process", **options}, method, output, every)
    copied: Any = copy.copy(strategy)
    configure, evaluate, aggregate = copied.configure_train, copied.configure_evaluate, copied.aggregate_train

    def configure_train(*arguments: Any, **named: Any) -> Iterable[Any]:
        return [] if guard.broken else configure(*arguments, **named)

    def configure_evaluate(*arguments: Any, **named: Any) -> Iterable[Any]:
        return [] if guard.broken else evaluate(*arguments, **named)

    def aggregate_train(server_round: int, replies: Iterable[Any]) -> Any:
        answers = list(replies)
        result = aggregate(server_round, answers)
        guard.check(server_round, answers)
        return result

    copied.configure_train, copied.configure_evaluate = configure_train, configure_evaluate
    copied.aggregate_train = aggregate_train
    return copied  # type: ignore[no-any-return]


class _Guard:
    """The attacks on a running federation, and whether one of them broke a limit."""

    def __init__(
        self, recorder: RecordedFolder, options: Mapping[str, Any], method: str, output: Location, every: int
    ) -> None:
        self.recorder, self.options, self.method = recorder, dict(options), method
        self.output, self.every = Path(output), every
        self.broken = ""
        self._told: set[str] = set()

    def check(self, number: int, answers: Sequence[Any]) -> None:
        """Attack the captures of the run. A problem costs one sentence in the log, and never the training."""
        if self.broken or not answers or (number - 1) % self.every:
            return
        try:
            folder = Path(self.recorder.folder) / f"run-{answers[0].metadata.run_id}"
            result = attack(folder, self.method, self.output, model=self.recorder.model, **self.options)
            broken = [one.sentence() for one in result.checks if one.broken]
            if broken:
                self.broken = broken[0]
                log.warning("Leakgauge ends the training after round %d, because %s", number, printable(self.broken))
            elif any(one.failed for one in result.checks):
                self._tell("the limits could not be measured. Are the clients' samples at hand?")
        except Exception as problem:
            self._tell(str(problem))

    def _tell(self, reason: str) -> None:
        if reason not in self._told:
            self._told.add(reason)
            log.warning("Leakgauge could not check the limits: %s", printable(reason, longest=1000))
