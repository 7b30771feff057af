"""One ``map`` over independent tasks, in this process or in several.

On a CPU, attacks are many small operations: two single-threaded processes do twice the work of one, while two
threads in one process mostly wait for each other.
"""

from __future__ import annotations

import multiprocessing
import multiprocessing.connection
import os
import queue
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass, field
from multiprocessing.managers import SyncManager
from typing import Any

import torch


@dataclass(frozen=True)
class Task:
    """A function of the module level with its arguments, and a name for the progress display.

    The function gets a keyword ``report(step, total, loss)`` beside ``arguments``.
    """

    name: str
    function: Callable[..., Any]
    arguments: dict[str, Any] = field(default_factory=dict)


#: ``watch(task name, step, total, loss)``, called in the driver.
Watch = Callable[[str, int, int | None, float], None]


def run_tasks(tasks: Sequence[Task], *, jobs: int = 1, watch: Watch | None = None) -> Iterator[tuple[Task, Any]]:
    """Yield each task with its result, as they finish. The results do not depend on ``jobs``.

    An exception in a task is raised here. Ctrl-C ends the workers; what was yielded before is the caller's.
    """
    if jobs <= 1 or len(tasks) <= 1:
        yield from _here(tasks, watch)
    else:
        yield from _processes(tasks, min(jobs, len(tasks)), watch)


def cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _here(tasks: Sequence[Task], watch: Watch | None) -> Iterator[tuple[Task, Any]]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # as in a worker: the number of threads may change the last bits
    try:
        for task in tasks:

            def report(step: int, total: int | None, loss: float, name: str = task.name) -> None:
                if watch is not None:
                    watch(name, step, total, loss)

            yield task, task.function(**task.arguments, report=report)
    finally:
        torch.set_num_threads(threads)


def _processes(tasks: Sequence[Task], jobs: int, watch: Watch | None) -> Iterator[tuple[Task, Any]]:
    context = multiprocessing.get_context("spawn")
    manager = SyncManager(ctx=context)
    manager.start(_follow_the_driver)
    with manager:
        messages: Any = manager.Queue()
        with ProcessPoolExecutor(jobs, context, initializer=prepare_worker) as pool:
            try:
                running: dict[Future[Any], Task] = {pool.submit(_run, task, messages): task for task in tasks}
                while running:
                    done, _ = wait(running, timeout=0.2, return_when=FIRST_COMPLETED)
                    _drain(messages, watch)
                    for future in done:
                        yield running.pop(future), future.result()
            except BaseException:
                # Before any shutdown(), which forgets the processes; leaving the pool waits for their end.
                for process in list((pool._processes or {}).values()):
                    process.terminate()
                raise


def prepare_worker() -> None:
    """Make a process that was started for work one of a single thread, which ends with its driver."""
    torch.set_num_threads(1)
    _follow_the_driver()


def _follow_the_driver() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the driver decides what an interrupt means
    threading.Thread(target=_end_with_the_driver, daemon=True).start()


def _end_with_the_driver() -> None:
    """A driver that is killed cannot end its workers: each watches for that itself."""
    driver = multiprocessing.parent_process()
    if driver is not None:
        multiprocessing.connection.wait([driver.sentinel])
        os._exit(1)


def _run(task: Task, messages: Any) -> Any:
    last = 0.0

    def report(step: int, total: int | None, loss: float) -> None:
        nonlocal last
        if time.monotonic() - last > 0.2:
            last = time.monotonic()
            messages.put((task.name, step, total, loss))

    return task.function(**task.arguments, report=report)


def _drain(messages: Any, watch: Watch | None) -> None:
    while True:
        try:
            message = messages.get_nowait()
        except queue.Empty:
            return
        if watch is not None:
            watch(*message)
