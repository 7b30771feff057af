"""The common protocol of the kinds of rows: a job, its outcome, and the function between them."""

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
    """One method of a row, to be measured on one client or on all clients together.

    Args:
        row: The row, in its short setting where that was chosen.
        method: The method.
        seed: The seed of the run.
        steps: The attack steps instead of the method's. ``None`` keeps the method's.
        index: The attacked client, for kinds that attack one client at a time.
        clients: The number of attacked clients, for kinds that attack clients together.
        pictures: The folder for pictures. ``None`` draws none.
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
        """The set-up of the clients."""
        return self.row.setting

    @property
    def options(self) -> dict[str, Any]:
        """The options of the attack, with the chosen steps."""
        return dict(self.method.options) | ({} if self.steps is None else {"steps": self.steps})

    @property
    def definition(self) -> dict[str, Any]:
        """Everything that the outcome depends on, as plain values."""
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
        measures: The measures by metric.
        steps: The attack steps that were taken.
        seconds: The seconds per client.
        clients: The number of attacked clients.
        extra: Other numbers for the record.
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
        tables: The set-up tables that the kind reads. Other tables in a row are refused.
        together: Whether one job attacks all clients. Otherwise each client is one job.
    """

    run: Callable[[Job, Report], Outcome]
    tables: frozenset[str]
    together: bool = False


#: The tables of a kind whose clients send one message each.
ONE_MESSAGE = frozenset({"model", "data", "training", "attacker", "defence"})


def measures_of(score: Score) -> dict[str, Measure]:
    """Return the measures of one client's score: the value over its samples beside its chance level."""
    return {name: single(name, score[name].value, chance=score[name].chance) for name in score}
