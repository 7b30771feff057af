"""Workers of a Ray cluster: one that is started here for the sweep, or one that runs (extra ``ray``).

A cluster that is started here listens on the loopback address only, has no dashboard, sends no statistics, and ends
with the sweep. Ray decides on which machine a task runs, by cores (one a task) and by memory (what the task needs, as
far as that is known). What is tried again is decided by the driver, as for every other engine.
"""

from __future__ import annotations

import contextlib
import logging
import os
import pickle
import shutil
import tempfile
import time
import warnings
from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch

from leakgauge.core.errors import InvalidInput, LeakgaugeError
from leakgauge.runtime import memory
from leakgauge.runtime.driver import Event
from leakgauge.runtime.processes import dump, usable_cores
from leakgauge.runtime.tasks import Task, carry_out, portable

#: While a local cluster starts: loopback only, no statistics sent home, no advice on devices that are not there; and
#: workers of the same rank as this process, for at Ray's own of 15 a busy machine takes minutes to start them.
SETTINGS = {
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # without clusters of several machines, Ray binds to 127.0.0.1
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_worker_niceness": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}
#: Room for what all tasks share and for results, beside twice the former; more goes to disk.
OBJECTS = 100 * 2**20
#: Needs are rounded up to this: Ray hands a worker from task to task only where both ask for the same.
STEP = 256 * 2**20
#: Seconds between two reports of a worker, and between two questions for them: each is a call from process to process.
NEWS = 1.0
LOCAL, FOLDER = "local", "leakgauge-ray-"
#: Where Ray itself keeps such things: the names of sockets must be short.
PARENT = Path("/tmp")


class OnRay:
    """A cluster's workers; leaving ends what runs there and, if it was started here, the cluster."""

    def __init__(self, address: str, jobs: int | None, common: Mapping[str, Any]) -> None:
        self._address, self._jobs = address or LOCAL, jobs
        self._packed = dump(common, "what all tasks share")
        self._attempts: dict[Any, int] = {}
        self._unheard: list[Event] = []
        self._asked = 0.0
        self._ending = contextlib.ExitStack()

    def __enter__(self) -> OnRay:
        with contextlib.ExitStack() as ending:
            cores = self._jobs or usable_cores()
            self._ray = ending.enter_context(_connected(self._address, cores, len(self._packed)))
            self._common = self._ray.put(self._packed)
            self._news = _news(self._ray)
            self._work = self._ray.remote(work)
            ending.callback(self._cancel)
            self._ending = ending.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._ending.close()

    def _cancel(self) -> None:
        for reference in self._attempts:
            self._ray.cancel(reference, force=True)
        self._ray.kill(self._news)

    def slots(self) -> int:
        """As many as wanted or, since clusters may grow with what waits for them, twice the cores."""
        if self._jobs is not None and self._address != LOCAL:
            return self._jobs
        return 2 * max(1, int(self._ray.cluster_resources().get("CPU", 1)))

    def free(self) -> None:
        """Ray starts what fits."""

    def largest(self) -> int:
        """What the largest machine offers."""
        return max((int(node["Resources"].get("memory", 0)) for node in self._ray.nodes() if node["Alive"]), default=0)

    def start(self, attempt: int, task: Task, need: int | None) -> None:
        """Hand a task to the cluster."""
        try:
            message = dump(task, f"the task {task.name!r}")
        except InvalidInput as problem:
            self._unheard.append(Event(attempt, "failed", (problem, False)))
            return
        options = {} if need is None else {"memory": min(-(-need // STEP) * STEP, self.largest())}
        reference = self._work.options(num_cpus=1, max_retries=0, name=task.name, **options).remote(
            attempt,
            message,
            [self._common],
            self._news,  # in a list, it is a reference that a worker may know
        )
        self._attempts[reference] = attempt

    def events(self, timeout: float) -> list[Event]:
        """What tasks reported, which are done, and which were lost."""
        found, self._unheard = self._unheard, []
        running = list(self._attempts)
        done: list[Any] = []
        if running:
            self._ray.wait(running, num_returns=1, timeout=0 if found else timeout)
            done, _ = self._ray.wait(running, num_returns=len(running), timeout=0)
        if done or time.monotonic() - self._asked > NEWS:
            self._asked = time.monotonic()
            with contextlib.suppress(self._ray.exceptions.RayError):  # they come from a process that may die as well
                found += [Event(*one) for one in self._ray.get(self._news.take.remote())]
        for reference in done:
            attempt = self._attempts.pop(reference)
            try:
                what, *values = self._ray.get(reference)
                found.append(Event(attempt, what, tuple(values)))
            except self._ray.exceptions.RayError as problem:
                found.append(Event(attempt, "lost", (_how(problem),)))
        return found

    def stop(self, attempt: int) -> None:
        """Kill the worker that has this attempt."""
        for reference in [one for one, number in self._attempts.items() if number == attempt]:
            del self._attempts[reference]
            self._ray.cancel(reference, force=True)


def work(attempt: int, message: bytes, common: list[Any], news: Any) -> tuple[Any, ...]:
    """Do one task in a worker of the cluster."""
    torch.set_num_threads(1)
    memory.reuse()

    def send(what: str, *values: Any) -> None:
        news.add.remote(attempt, what, values)

    try:
        shared, task = _shared(common[0]), pickle.loads(message)
    except Exception as problem:  # a module that this machine does not have
        return "failed", portable(problem), False
    send("begun")
    return carry_out(task, shared, send, pace=NEWS)


@lru_cache(maxsize=1)
def _shared(reference: Any) -> Any:
    """What all tasks share, fetched and unpacked once in a worker."""
    import ray

    return pickle.loads(ray.get(reference))


def _news(ray: Any) -> Any:
    """A process of the cluster that keeps what tasks report until the driver asks."""

    class News:  # within the function, so that Ray sends it whole: its process need not load torch
        def __init__(self) -> None:
            self.all: list[tuple[int, str, tuple[Any, ...]]] = []

        def add(self, attempt: int, what: str, values: tuple[Any, ...]) -> None:
            self.all.append((attempt, what, values))

        def take(self) -> list[tuple[int, str, tuple[Any, ...]]]:
            found, self.all = self.all, []
            return found

    return ray.remote(News).options(num_cpus=0, max_restarts=-1).remote()


def _how(problem: Exception) -> str:
    name = type(problem).__name__
    if name == "OutOfMemoryError":
        return "its machine ran out of memory, and Ray ended its worker"
    words = {"WorkerCrashedError": "died", "NodeDiedError": "died with its machine", "TaskCancelledError": "was ended"}
    return f"its worker {words[name]}" if name in words else f"Ray lost it ({name})"


@contextlib.contextmanager
def _connected(address: str, cores: int, shared: int) -> Iterator[Any]:
    """Ray, connected; what was started here is ended and removed, what was there before is left as it was."""
    import ray

    if ray.is_initialized():
        yield ray
        return
    folder = _folder() if address == LOCAL else None
    try:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                if folder is None:
                    ray.init(address, log_to_driver=False, logging_level=logging.ERROR)
                else:
                    _start(ray, cores, shared, folder)
        except Exception as problem:
            where = "a local Ray cluster cannot be started" if folder else f"there is no Ray cluster at {address!r}"
            words = str(problem).partition("\n")[0]
            raise LeakgaugeError(f"{where} ({words}); the engine processes works without one") from problem
        with _silent(ray):
            yield ray
    finally:
        ray.shutdown()
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def _silent(ray: Any) -> Iterator[None]:
    """Keep Ray from writing to standard output, among results, of each worker that dies: the driver is told anyhow."""
    module = ray._private.worker
    before = getattr(module, "print_to_stdstream", None)
    module.print_to_stdstream = lambda *_, **__: None
    try:
        yield
    finally:
        module.print_to_stdstream = before


def _start(ray: Any, cores: int, shared: int, folder: Path) -> None:
    constants = ray._private.ray_constants  # read from the environment when Ray is loaded, which may be long ago
    before, was = {name: os.environ.get(name) for name in SETTINGS}, constants.ENABLE_RAY_CLUSTER
    os.environ.update(SETTINGS)
    constants.ENABLE_RAY_CLUSTER = False
    try:
        ray.init(
            LOCAL,
            num_cpus=cores,
            object_store_memory=OBJECTS + 2 * shared,
            include_dashboard=False,
            log_to_driver=False,
            logging_level=logging.ERROR,
            _temp_dir=str(folder),
        )
    finally:
        constants.ENABLE_RAY_CLUSTER = was
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})


def _folder() -> Path:
    """A new folder for a cluster; those of drivers that were killed are removed."""
    for path in PARENT.glob(f"{FOLDER}*-*"):
        pid = path.name.removeprefix(FOLDER).partition("-")[0]
        if pid.isdigit() and not os.path.exists(f"/proc/{pid}") and os.path.isdir("/proc"):
            shutil.rmtree(path, ignore_errors=True)
    return Path(tempfile.mkdtemp(prefix=f"{FOLDER}{os.getpid()}-", dir=PARENT))
