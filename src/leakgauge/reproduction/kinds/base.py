"""The classes that all kinds of benchmark rows use.

A benchmark row is one setting of a paper's table. The kind of the row decides what is measured, such as reconstructions
or wrong labels. A job measures one method of a row and returns an outcome.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from leakgauge.core.measure import Measure
from leakgauge.core.progress import Report
from leakgauge.evaluation import Score
from leakgauge.reproduction.clients import clients_of
from leakgauge.reproduction.metrics import single
from leakgauge.reproduction.rows import Method, Row
from leakgauge.reproduction.setting import Setting


@dataclass(frozen=True)
class Job:
    """A task that measures one method of a benchmark row on one client, or on all clients together.

    Args:
        row: The benchmark row. If the user chose the short setting, the row already has that setting.
        method: The method, which names the attack and its options.
        seed: The seed of the run.
        steps: The number of attack steps. With ``None``, the number in the method's options is used.
        index: The index of the attacked client, if the job attacks a single client.
        clients: The number of attacked clients, if the job attacks clients together.
        pictures: The folder for pictures. If it is ``None``, nothing is drawn.
    """

    row: Row
    method: Method
    seed: int = 0
    steps: int | None = None
    index: int = 0
    clients: int = 1
    pictures: Path | None = None

    @property
    def setting(self) -> Setting:
        """The data, the network, the training and the defences of the benchmark row."""
        return self.row.setting

    @property
    def options(self) -> dict[str, Any]:
        """The options of the attack. The option ``steps`` is replaced by the job's number of steps, if it has one."""
        return dict(self.method.options) | ({} if self.steps is None else {"steps": self.steps})

    @property
    def definition(self) -> dict[str, Any]:
        """Everything that the outcome depends on, as a plain dictionary."""
        return {
            "kind": self.row.kind,
            "setting": self.setting.tables,
            "content": self.setting.fingerprint,
            "measuring": self.row.measuring,
            "attack": self.method.attack,
            "options": self.method.options,
            "seed": self.seed,
            "steps": self.steps,
            "index": self.index,
            "clients": self.clients,
        }


@dataclass(frozen=True)
class Outcome:
    """The measures and the cost of one job.

    Args:
        measures: A dictionary from the name of each metric to its measure.
        steps: The number of attack steps.
        seconds: The time per client in seconds.
        clients: The number of attacked clients.
        extra: A dictionary of other named values, which are added to the JSON output.
    """

    measures: dict[str, Measure]
    steps: int
    seconds: float
    clients: int = 1
    extra: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Kind:
    """One kind of benchmark row, with the function that measures rows of this kind.

    Args:
        run: The function that runs one job and returns its outcome.
        tables: The names of the set-up tables that rows of this kind may have. Any other set-up table is an error.
        together: Whether one job attacks all clients together. Otherwise, there is one job for each client.
        check: The function that raises an error if a job cannot run, for example because there are too few clients. It
            is called before any job runs.
        drawn: The function that returns the files that a job with a folder for pictures may write.
    """

    run: Callable[[Job, Report], Outcome]
    tables: frozenset[str]
    together: bool = False
    check: Callable[[Job], object] = lambda job: None
    drawn: Callable[[Job], Iterable[Path]] = lambda job: ()


def check_client(job: Job) -> None:
    """Raise an error if the data has no such client.

    Args:
        job: The job, which attacks a single client.
    """
    clients_of(job.setting, job.seed, job.index)


#: The set-up tables of a kind whose clients send one message each.
ONE_MESSAGE = frozenset({"model", "data", "training", "attacker", "defence"})


def measures_of(score: Score) -> dict[str, Measure]:
    """Convert the score of one client to measures that have a value and a chance level, but no interval."""
    return {name: single(name, score[name].value, chance=score[name].chance) for name in score}
