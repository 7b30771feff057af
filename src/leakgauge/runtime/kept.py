"""A sweep whose results are kept as they come, so that one that was ended goes on, on any engine."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import leakgauge
from leakgauge.core.container import Location
from leakgauge.evaluation import Interval
from leakgauge.runtime import Task, run_tasks
from leakgauge.runtime.store import Store, key_of


def run_kept(
    tasks: Sequence[Task], defined_by: Mapping[str, Any], folder: Location | None, **options: Any
) -> Iterator[tuple[Task, Any]]:
    """Yield each task with its result, those first that are in the store in ``folder``; the others run, and are kept.

    ``defined_by`` holds, by the task's name, plain values: all that its result depends on. A result is of plain values
    and intervals; what a dataclass holds comes back as a dictionary. Without a folder, nothing is kept. ``options`` are
    those of :func:`leakgauge.runtime.run_tasks`.
    """
    if folder is None:
        yield from run_tasks(tasks, **options)
        return
    store = Store(folder)
    whole = {task.name: {"version": leakgauge.__version__, "task": defined_by[task.name]} for task in tasks}
    missing = []
    for task in tasks:
        found = store.get(key_of(whole[task.name]))
        if found is None:
            missing.append(task)
        else:
            yield task, json.loads(found[0]["result"], object_hook=_intervals)
    for task, result in run_tasks(missing, **options):
        document = {"result": json.dumps(result, default=asdict)}  # as a text, in which numbers may be infinite
        store.put(key_of(whole[task.name]), whole[task.name], document, {})
        yield task, json.loads(document["result"], object_hook=_intervals)


def _intervals(found: dict[str, Any]) -> Any:
    return Interval(**found) if found.keys() == {"mean", "low", "high"} else found
