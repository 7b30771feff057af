"""The engine ``processes``, which runs tasks in worker processes. Each worker has a pipe to the process that starts it.

On a CPU, attacks consist of many small operations. Two single-threaded processes do twice the work of one process, but
two threads in one process mostly wait for each other. Therefore, every worker has only one thread.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import multiprocessing.connection
import os
import pickle
import signal
import threading
from collections.abc import Callable, Mapping
from functools import partial
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from multiprocessing.synchronize import Event as Flag
from typing import Any

from leakgauge.core.errors import InvalidInput, LeakgaugeError
from leakgauge.core.exits import end_process, no_exit
from leakgauge.runtime import memory
from leakgauge.runtime.driver import Event
from leakgauge.runtime.tasks import Task, execute, portable

#: The sweep is given up when this many workers in a row have ended before they were ready.
STILLBORN = 2
#: The number of times that a process is started if it ends before it has read what it shall do.
STARTS = 3


class Processes:
    """A pool of worker processes. Dead processes are replaced. The end of the ``with`` block ends all processes.

    Args:
        jobs: The number of processes.
        common: The keyword arguments that are passed to every task.
    """

    def __init__(self, jobs: int, common: Mapping[str, Any]) -> None:
        self._jobs = jobs
        self._common = pickled(common, "the arguments that all tasks share")
        self._workers: list[_Worker] = []
        self._pending: list[Event] = []
        self._stillborn = 0

    def __enter__(self) -> Processes:
        self._workers = [_Worker(self._common) for _ in range(self._jobs)]  # they start while the first tasks are sent
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self._workers:
            worker.end(at_once=True)

    def slots(self) -> int:
        """Return the number of workers."""
        return self._jobs

    def free(self) -> int:
        """Return the available memory of this machine in bytes."""
        return memory.available()

    def largest(self) -> int:
        """Return the total memory of this machine in bytes."""
        return memory.total()

    def start(self, attempt: int, task: Task, need: int | None) -> None:
        """Send a task to an idle worker, or to a new worker if none is idle."""
        try:
            message = pickle.dumps((attempt, pickled(task, f"the task {task.name!r}")))
        except InvalidInput as problem:
            self._pending.append(Event(attempt, "failed", (problem, False)))
            return
        idle = [worker for worker in self._workers if worker.attempt is None]
        worker = idle[0] if idle else _Worker(self._common)
        if not idle:
            self._workers.append(worker)
        worker.give(attempt, message)

    def events(self, timeout: float) -> list[Event]:
        """Return the new messages of the workers, and one message for each worker that died."""
        events, self._pending = self._pending, []
        by_connection: dict[Any, _Worker] = {worker.connection: worker for worker in self._workers}
        for ready in multiprocessing.connection.wait(list(by_connection), 0 if events else timeout):
            worker = by_connection[ready]
            try:
                events += worker.read()
            except (EOFError, OSError):
                self._workers.remove(worker)
                attempt, why = worker.attempt, worker.end()
                self._check_start(worker, why)
                if attempt is not None:
                    events.append(Event(attempt, "lost", (f"its worker {why}",)))
        return events

    def stop(self, attempt: int) -> None:
        """Kill the worker that runs a task. ``attempt`` is the index with which the task was started."""
        for worker in [worker for worker in self._workers if worker.attempt == attempt]:
            self._workers.remove(worker)
            worker.end(at_once=True)

    def interrupt(self) -> bool:
        """Let the task of each worker end at its next report."""
        for worker in self._workers:
            worker.ends.set()
        return True

    def _check_start(self, worker: _Worker, why: str) -> None:
        """Raise an error if several workers in a row have ended by themselves before they were ready for a task."""
        self._stillborn = 0 if worker.ready or "killed" in why else self._stillborn + 1
        if self._stillborn == STILLBORN:
            raise LeakgaugeError(
                f"worker processes cannot be started. Each {why} before it was ready. In a script that uses several "
                "processes, put the work under if __name__ == '__main__', or use the engine in-process"
            )


class _Worker:
    """A worker process, with its pipe and its current task. It is used in the process that started the worker."""

    def __init__(self, common: bytes) -> None:
        context = multiprocessing.get_context("spawn")
        self.connection, theirs = context.Pipe()
        self.ends = context.Event()
        self.process = _started(lambda: context.Process(target=worker_main, args=(theirs, self.ends), daemon=True))
        theirs.close()  # so that the pipe ends when the process ends
        self.ready = False
        self.attempt: int | None = None
        self._unsent = [common]  # held until the worker is ready, so that the driver never waits for its start

    def give(self, attempt: int, message: bytes) -> None:
        """Send a task to the worker. If the worker is not ready yet, send the task later."""
        self.attempt = attempt
        self._unsent.append(message)
        if self.ready:
            self._send()

    def _send(self) -> None:
        with contextlib.suppress(OSError):  # the worker has died, and the next read raises
            for message in self._unsent:
                self.connection.send_bytes(message)
        self._unsent = []

    def read(self) -> list[Event]:
        """Read one message. Return it in a list, which is empty if the message is not about the current task."""
        attempt, kind, values = pickle.loads(self.connection.recv_bytes())
        if kind == "ready":
            self.ready = True
            self._send()
            return []
        if attempt != self.attempt:
            return []
        if kind in ("done", "failed"):
            self.attempt = None
        return [Event(attempt, kind, values)]

    def end(self, *, at_once: bool = False) -> str:
        """End the process. Return how it ended as a text, such as "was killed by SIGTERM"."""
        self.process.join(0 if at_once else 5)  # a process that broke off gets its exit code in a moment
        self.process.kill()
        self.process.join()
        code = self.process.exitcode or 0
        self.connection.close()
        self.process.close()
        if code == -signal.SIGKILL:
            return "was killed (SIGKILL), perhaps because the machine ran out of memory"
        return f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"


def _started(create: Callable[[], SpawnProcess]) -> SpawnProcess:
    """Return a new process that is started. If it is killed before it has read what it shall do, start another one."""
    for tries in range(1, STARTS + 1):
        process = create()
        try:
            process.start()
        except BrokenPipeError as problem:
            if tries == STARTS:
                raise LeakgaugeError(f"worker processes cannot be started. Each of {STARTS} ended at once") from problem
        else:
            break
    return process


def worker_main(connection: Connection, ends: Flag) -> None:
    """Run one task after another in a worker process, until the process that started the worker ends it.

    Args:
        connection: The pipe to the process that started the worker.
        ends: The event after which a task ends at its next report.
    """
    prepare_worker()
    lock = threading.Lock()

    def send(attempt: int, kind: str, *values: Any) -> None:
        with lock:
            connection.send_bytes(pickle.dumps((attempt, kind, values)))

    send(-1, "ready")
    packed, common = connection.recv_bytes(), None
    while True:
        attempt, message = pickle.loads(connection.recv_bytes())
        try:
            with no_exit():
                common = pickle.loads(packed) if common is None else common
                task = pickle.loads(message)
        except Exception as problem:  # such as a module that this process cannot import
            send(attempt, "failed", portable(problem), False)
        else:
            send(attempt, "begun")
            send(attempt, *execute(task, common, partial(send, attempt), ends=ends.is_set))


def usable_cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def prepare_worker() -> None:
    """Limit a worker process to one thread, and make it end when the process that started it ends."""
    import torch  # not at the top, so that the command line starts quickly

    torch.set_num_threads(1)
    memory.reuse()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the driver handles interrupts
    threading.Thread(target=_end_with_the_driver, daemon=True).start()


def _end_with_the_driver() -> None:
    """Exit when the process that started this worker ends.

    Otherwise, this worker would keep running after the other process was killed.
    """
    driver = multiprocessing.parent_process()
    if driver is not None:
        multiprocessing.connection.wait([driver.sentinel])
        end_process(1)


def pickled(value: Any, name: str) -> bytes:
    """Pickle a value for another process.

    Tensors are copied into the bytes. Shared memory is not used, because it would vanish with the worker that made it.

    Args:
        value: The value to pickle.
        name: The name of the value, for the error message.
    """
    try:
        return pickle.dumps(value)
    except Exception as problem:
        raise InvalidInput(
            f"{name} cannot be sent to another process ({problem}). "
            "Use functions at the level of a module, or the engine in-process"
        ) from problem
