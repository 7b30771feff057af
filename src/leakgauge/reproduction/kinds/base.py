"""The classes that all kinds of rows use. A kind is a function that runs a job and returns an outcome."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from leakgauge.core.measure import Measure
from leakgauge.core.progress import Report
from leakgauge.evaluation import Score
from leakgauge.reproduction.metrics import single
from leakgauge.reproduction.rows import Method, Row
from leakgauge.reproduction.setting import Setting


@dataclass(frozen=True)
class Job:
    """A task that measures one method of a row on one client, or on all clients together.

    Args:
        row: The row. If the user chose the short setting, the row has that setting.
        method: The method.
        seed: The seed of the run.
        steps: The number of attack steps. With ``None``, the number in the method is used.
        index: The index of the attacked client, for kinds that attack one client at a time.
        clients: The number of attacked clients, for kinds that attack clients together.
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
        """The set-up of the row."""
        return self.row.setting

    @property
    def options(self) -> dict[str, Any]:
        """The options of the attack. The number of steps of this job, if there is one, overrides that of the method."""
        return dict(self.method.options) | ({} if self.steps is None else {"steps": self.steps})

    @property
    def definition(self) -> dict[str, Any]:
        """A plain dictionary of everything that the outcome depends on."""
        return {
            "kind": self.row.kind,
            "setting": self.setting.tables,
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
    """The result of a job.

    Args:
        measures: A dictionary from metrics to measures.
        steps: The number of attack steps.
        seconds: The time per client in seconds.
        clients: The number of attacked clients.
        extra: Other values, which are added to the JSON output.
    """

    measures: dict[str, Measure]
    steps: int
    seconds: float
    clients: int = 1
    extra: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Kind:
    """One kind of row.

    Args:
        run: The function that measures one job.
        tables: The set-up tables that the kind reads. Any other set-up table in a row is an error.
        together: Whether one job attacks all clients. Otherwise, there is one job for each client.
    """

    run: Callable[[Job, Report], Outcome]
    tables: frozenset[str]
    together: bool = False


#: The set-up tables of a kind whose clients send one message each.
ONE_MESSAGE = frozenset({"model", "data", "training", "attacker", "defence"})


def measures_of(score: Score) -> dict[str, Measure]:
    """Return the measures of one client's score, without intervals. Each measure has a value and a chance level."""
    return {name: single(name, score[name].value, chance=score[name].chance) for name in score}
