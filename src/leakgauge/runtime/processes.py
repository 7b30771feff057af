"""Workers of our own: one single-threaded process each, with a pipe to the driver.

On a CPU, attacks are many small operations: two single-threaded processes do twice the work of one, while two
threads in one process mostly wait for each other.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import multiprocessing.connection
import os
import pickle
import signal
import threading
from collections.abc import Mapping
from functools import partial
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from typing import Any

import torch

from leakgauge.core.errors import InvalidInput, LeakgaugeError
from leakgauge.runtime import memory
from leakgauge.runtime.driver import Event
from leakgauge.runtime.tasks import Task, carry_out, portable

#: After so many workers in a row that ended before they could work, there will be none.
STILLBORN = 2


class Processes:
    """``jobs`` processes, replaced when they die; leaving ends them."""

    def __init__(self, jobs: int, common: Mapping[str, Any]) -> None:
        self._jobs = jobs
        self._common = dump(common, "what all tasks share")
        self._workers: list[_Worker] = []
        self._unheard: list[Event] = []
        self._stillborn = 0

    def __enter__(self) -> Processes:
        self._workers = [_Worker(self._common) for _ in range(self._jobs)]  # they start while the first tasks are sent
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self._workers:
            worker.end(at_once=True)

    def slots(self) -> int:
        """One a worker."""
        return self._jobs

    def free(self) -> int:
        """What the machine can give now."""
        return memory.available()

    def largest(self) -> int:
        """What the machine has."""
        return memory.total()

    def start(self, attempt: int, task: Task, need: int | None) -> None:
        """Hand a task to a worker that has none, or to a new one."""
        try:
            message = pickle.dumps((attempt, dump(task, f"the task {task.name!r}")))
        except InvalidInput as problem:
            self._unheard.append(Event(attempt, "failed", (problem, False)))
            return
        idle = [worker for worker in self._workers if worker.attempt is None]
        worker = idle[0] if idle else _Worker(self._common)
        if not idle:
            self._workers.append(worker)
        worker.give(attempt, message)

    def events(self, timeout: float) -> list[Event]:
        """What workers said, and which of them ended without a word."""
        found, self._unheard = self._unheard, []
        by_connection: dict[Any, _Worker] = {worker.connection: worker for worker in self._workers}
        for ready in multiprocessing.connection.wait(list(by_connection), 0 if found else timeout):
            worker = by_connection[ready]
            try:
                found += worker.read()
            except (EOFError, OSError):
                self._workers.remove(worker)
                attempt, why = worker.attempt, worker.end()
                self._check_start(worker, why)
                if attempt is not None:
                    found.append(Event(attempt, "lost", (f"its worker {why}",)))
        return found

    def stop(self, attempt: int) -> None:
        """Kill the worker that has this attempt."""
        for worker in [one for one in self._workers if one.attempt == attempt]:
            self._workers.remove(worker)
            worker.end(at_once=True)

    def _check_start(self, worker: _Worker, why: str) -> None:
        """Give up when one worker after the other ends by itself before it can work."""
        self._stillborn = 0 if worker.ready or "killed" in why else self._stillborn + 1
        if self._stillborn == STILLBORN:
            raise LeakgaugeError(
                f"processes cannot be started: each {why} before it could work. A script that uses several must begin "
                "its work under if __name__ == '__main__'; or use the engine in-process"
            )


class _Worker:
    """The driver's side of a process."""

    def __init__(self, common: bytes) -> None:
        context = multiprocessing.get_context("spawn")
        self.connection, theirs = context.Pipe()
        self.process: SpawnProcess = context.Process(target=work, args=(theirs,), daemon=True)
        self.process.start()
        theirs.close()  # so that the end of the process is the end of the pipe
        self.ready = False
        self.attempt: int | None = None
        self._unsent = [common]  # until it reads: starting takes seconds, in which the driver would wait

    def give(self, attempt: int, message: bytes) -> None:
        self.attempt = attempt
        self._unsent.append(message)
        if self.ready:
            self._send()

    def _send(self) -> None:
        with contextlib.suppress(OSError):  # it has died, which the next read tells
            for message in self._unsent:
                self.connection.send_bytes(message)
        self._unsent = []

    def read(self) -> list[Event]:
        """The next message."""
        attempt, what, values = pickle.loads(self.connection.recv_bytes())
        if what == "ready":
            self.ready = True
            self._send()
            return []
        if attempt != self.attempt:
            return []
        if what in ("done", "failed"):
            self.attempt = None
        return [Event(attempt, what, values)]

    def end(self, *, at_once: bool = False) -> str:
        """Make sure of its end, and say in words how it came."""
        self.process.join(0 if at_once else 5)  # one that broke off has an exit code in a moment
        self.process.kill()
        self.process.join()
        code = self.process.exitcode or 0
        self.connection.close()
        self.process.close()
        if code == -signal.SIGKILL:
            return "was killed (SIGKILL), as a machine does that runs out of memory"
        return f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"


def work(connection: Connection) -> None:
    """What a worker does: one task after another, until the driver ends it."""
    prepare_worker()
    lock = threading.Lock()

    def send(attempt: int, what: str, *values: Any) -> None:
        with lock:
            connection.send_bytes(pickle.dumps((attempt, what, values)))

    send(-1, "ready")
    packed, common = connection.recv_bytes(), None
    while True:
        attempt, message = pickle.loads(connection.recv_bytes())
        try:
            common = pickle.loads(packed) if common is None else common
            task = pickle.loads(message)
        except Exception as problem:  # a module that this process does not find
            send(attempt, "failed", portable(problem), False)
        else:
            send(attempt, "begun")
            send(attempt, *carry_out(task, common, partial(send, attempt)))


def usable_cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def prepare_worker() -> None:
    """Make a process that was started for work one of a single thread, which ends with its driver."""
    torch.set_num_threads(1)
    memory.reuse()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the driver decides what an interrupt means
    threading.Thread(target=_end_with_the_driver, daemon=True).start()


def _end_with_the_driver() -> None:
    """A driver that is killed cannot end its workers: each watches for that itself."""
    driver = multiprocessing.parent_process()
    if driver is not None:
        multiprocessing.connection.wait([driver.sentinel])
        os._exit(1)


def dump(value: Any, what: str) -> bytes:
    """Pickled by value: tensors that lie in shared memory would end with the worker that made them."""
    try:
        return pickle.dumps(value)
    except Exception as problem:
        raise InvalidInput(
            f"{what} cannot go to another process ({problem}); use functions of a module, or the engine in-process"
        ) from problem
