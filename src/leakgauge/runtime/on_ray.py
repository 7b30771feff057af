"""The engine ``ray``, which runs tasks on a Ray cluster. It uses a running cluster, or starts one on this machine.

A cluster that is started here listens on the loopback address only, has no dashboard, sends no usage statistics, and
ends when the tasks are done. It refuses everybody who does not have its token. Each cluster gets a new token, which
lies with all other files of the cluster in a folder that only this user can enter.

Ray runs each task on a machine that has a free core. If the memory that the task needs is known, the machine also has
enough memory. The driver, which is the process that sends the tasks, decides which tasks are restarted.
"""

from __future__ import annotations

import contextlib
import logging
import os
import pickle
import secrets
import shutil
import socket
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from typing import Any

from leakgauge.core.container import create_file
from leakgauge.core.errors import EngineUnavailable, InvalidInput
from leakgauge.core.exits import no_exit
from leakgauge.runtime import memory
from leakgauge.runtime.driver import Event
from leakgauge.runtime.processes import pickled, usable_cores
from leakgauge.runtime.tasks import Task, execute, portable

#: The number of times that a local cluster is started. On a busy machine, Ray gives up after half a minute.
STARTS = 3
#: The environment variables while a local cluster starts. With them, the cluster listens on the loopback address only,
#: sends no usage statistics, prints no advice on devices that do not exist, and gives workers the priority of this
#: process. With Ray's default niceness of 15, a busy machine takes minutes to start workers. The driver does not wait
#: for the first workers, because it would wait forever if one of them died.
SETTINGS = {
    "RAY_AUTH_MODE": "token",
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # Ray then binds to 127.0.0.1
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_worker_niceness": "0",
    "RAY_prestart_worker_first_driver": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}
#: The memory in bytes for results. Twice the size of the shared arguments is added. Results that do not fit go to disk.
OBJECTS = 100 * 2**20
#: The step in bytes to which memory needs are rounded up. Ray reuses a worker only for tasks with the same need.
STEP = 256 * 2**20
#: The seconds between two reports of a worker, and between two fetches of reports. Both are calls between processes.
NEWS = 1.0
LOCAL, FOLDER = "local", "leakgauge-ray-"
#: The seconds to wait for an answer of the address of a cluster.
PATIENCE = 5.0
#: The folder that Ray itself uses by default. Its path is short, because the names of sockets must be short.
PARENT = Path("/tmp")


class OnRay:
    """The workers of a Ray cluster.

    This is a context manager. At the end of the ``with`` block, unfinished tasks are stopped. The cluster is stopped
    too if it was started here.

    Args:
        address: The address of a running cluster, or ``auto`` for the running cluster that this machine belongs to. An
            empty text starts a cluster on this machine.
        jobs: The number of tasks that run at a time. ``None`` means one per core.
        common: The keyword arguments that are passed to every task.
    """

    def __init__(self, address: str, jobs: int | None, common: Mapping[str, Any]) -> None:
        self._address, self._jobs = address or LOCAL, jobs
        self._packed = pickled(common, "the arguments that all tasks share")
        self._attempts: dict[Any, int] = {}
        self._pending: list[Event] = []
        self._fetched = 0.0
        self._ending = contextlib.ExitStack()

    def __enter__(self) -> OnRay:
        with contextlib.ExitStack() as ending:
            cores = self._jobs or usable_cores()
            self._ray = ending.enter_context(_connected(self._address, cores, len(self._packed)))
            self._common = self._ray.put(self._packed)
            self._mailbox = _mailbox(self._ray)
            self._work = self._ray.remote(run_task)
            ending.callback(self._cancel)
            self._ending = ending.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._ending.close()

    def _cancel(self) -> None:
        for reference in self._attempts:
            self._ray.cancel(reference, force=True)
        self._ray.kill(self._mailbox)

    def slots(self) -> int:
        """Return the number of tasks that may be sent to the cluster at a time.

        This is ``jobs`` if ``jobs`` is given for a running cluster. Otherwise it is twice the number of cores, so that
        tasks wait in the queue of the cluster. Some clusters grow when their queue is long.
        """
        if self._jobs is not None and self._address != LOCAL:
            return self._jobs
        return 2 * max(1, int(self._ray.cluster_resources().get("CPU", 1)))

    def free(self) -> None:
        """Return the free memory, which is ``None`` here, because Ray itself starts only tasks that fit into memory."""

    def largest(self) -> int:
        """Return the memory in bytes of the largest machine of the cluster."""
        return max((int(node["Resources"].get("memory", 0)) for node in self._ray.nodes() if node["Alive"]), default=0)

    def start(self, attempt: int, task: Task, need: int | None) -> None:
        """Send a task to the cluster."""
        try:
            message = pickled(task, f"the task {task.name!r}")
        except InvalidInput as problem:
            self._pending.append(Event(attempt, "failed", (problem, False)))
            return
        options = {} if need is None else {"memory": min(-(-need // STEP) * STEP, self.largest())}
        reference = self._work.options(num_cpus=1, max_retries=0, name=task.name, **options).remote(
            attempt,
            message,
            [self._common],  # in a list, Ray passes the reference and does not fetch the value
            self._mailbox,
        )
        self._attempts[reference] = attempt

    def events(self, timeout: float) -> list[Event]:
        """Return the new messages of workers, and one message for each task that is done or whose worker died."""
        events, self._pending = self._pending, []
        running = list(self._attempts)
        done: list[Any] = []
        if running:
            self._ray.wait(running, num_returns=1, timeout=0 if events else timeout)
            done, _ = self._ray.wait(running, num_returns=len(running), timeout=0)
        if done or time.monotonic() - self._fetched > NEWS:
            self._fetched = time.monotonic()
            with contextlib.suppress(self._ray.exceptions.RayError):  # the process of the mailbox may have died too
                events += [Event(*message) for message in self._ray.get(self._mailbox.take.remote())]
        for reference in done:
            attempt = self._attempts.pop(reference)
            try:
                kind, *values = self._ray.get(reference)
                events.append(Event(attempt, kind, tuple(values)))
            except self._ray.exceptions.RayError as problem:
                events.append(Event(attempt, "lost", (_reason(problem),)))
        return events

    def stop(self, attempt: int) -> None:
        """Kill the worker that runs a task. ``attempt`` is the index with which the task was started."""
        for reference in [reference for reference, number in self._attempts.items() if number == attempt]:
            del self._attempts[reference]
            self._ray.cancel(reference, force=True)

    def interrupt(self) -> bool:
        """Return that tasks on a cluster cannot end at their next report."""
        return False


def run_task(attempt: int, message: bytes, common: list[Any], mailbox: Any) -> tuple[Any, ...]:
    """Run one task in a worker of the cluster.

    Args:
        attempt: The index of this attempt to run the task.
        message: The pickled task.
        common: A list of one item, which is Ray's reference to the keyword arguments of every task.
        mailbox: The process on the cluster that collects messages for the driver.

    Returns:
        The last message about the task, as :func:`leakgauge.runtime.tasks.execute` returns it.
    """
    import torch  # not at the top, so that the command line starts quickly

    torch.set_num_threads(1)
    memory.reuse()

    def send(kind: str, *values: Any) -> None:
        mailbox.add.remote(attempt, kind, values)

    try:
        with no_exit():
            shared, task = _shared(common[0]), pickle.loads(message)
    except Exception as problem:  # such as a module that this machine does not have
        return "failed", portable(problem), False
    send("begun")
    return execute(task, shared, send, pace=NEWS)


@lru_cache(maxsize=1)
def _shared(reference: Any) -> Any:
    """Return the keyword arguments of every task. Each worker fetches and unpickles them only once."""
    import ray

    return pickle.loads(ray.get(reference))


def _mailbox(ray: Any) -> Any:
    """Start a process on the cluster that collects the messages of workers for the driver, and return it."""

    class Mailbox:  # inside the function, so that Ray sends the code and the process need not import this module
        def __init__(self) -> None:
            self.messages: list[tuple[int, str, tuple[Any, ...]]] = []

        def add(self, attempt: int, kind: str, values: tuple[Any, ...]) -> None:
            self.messages.append((attempt, kind, values))

        def take(self) -> list[tuple[int, str, tuple[Any, ...]]]:
            messages, self.messages = self.messages, []
            return messages

    return ray.remote(Mailbox).options(num_cpus=0, max_restarts=-1).remote()


def _reason(problem: Exception) -> str:
    """Return a text that explains why Ray lost a task."""
    name = type(problem).__name__
    if name == "OutOfMemoryError":
        return "its machine ran out of memory, and Ray killed its worker"
    words = {
        "WorkerCrashedError": "died",
        "NodeDiedError": "died with its machine",
        "TaskCancelledError": "was stopped",
    }
    return f"its worker {words[name]}" if name in words else f"Ray lost the task ({name})"


@contextlib.contextmanager
def _connected(address: str, cores: int, shared: int) -> Iterator[Any]:
    """Connect to a Ray cluster or start one. At the end of the ``with`` block, stop a cluster that was started here."""
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
                    _join(ray, address)
                else:
                    _start(ray, cores, shared, folder)
        except Exception as problem:
            failure = "a local Ray cluster cannot be started"
            if folder is None:
                failure = f"there is no Ray cluster at {address!r}, or it needs a token that this process does not have"
            reason = str(problem).strip().partition("\n")[0] or type(problem).__name__
            raise EngineUnavailable(f"{failure} ({reason}). The engine processes needs no cluster") from problem
        with _silent(ray):
            yield ray
    finally:
        ray.shutdown()
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)
            _read_settings()  # those of this process again, so that it can join other clusters


@contextlib.contextmanager
def _silent(ray: Any) -> Iterator[None]:
    """Keep Ray from printing messages about dead workers. Such messages would mix with results on standard output."""
    module = ray._private.worker
    before = getattr(module, "print_to_stdstream", None)
    module.print_to_stdstream = lambda *_, **__: None
    try:
        yield
    finally:
        module.print_to_stdstream = before


def _join(ray: Any, address: str) -> None:
    """Connect to a running cluster. Raise an error within a minute if there is none, or if it refuses this process."""
    constants, services = ray._private.ray_constants, ray._private.services
    place = None if "://" in address else services.canonicalize_bootstrap_address(address)
    if place is not None:
        host, _, port = place.rpartition(":")
        socket.create_connection((host.strip("[]"), int(port)), timeout=PATIENCE).close()
    before = constants.NUM_REDIS_GET_RETRIES
    constants.NUM_REDIS_GET_RETRIES = 1  # of twenty, each of which takes half a minute
    try:
        ray.init(address, log_to_driver=False, logging_level=logging.ERROR)
    finally:
        constants.NUM_REDIS_GET_RETRIES = before


def _start(ray: Any, cores: int, shared: int, folder: Path) -> None:
    """Start a cluster on this machine. Ray's environment variables are set during the start and then restored.

    Ray opens its own folder to everybody, so this folder lies within one that is private.
    """
    token = folder / "token"
    create_file(token)
    token.write_text(secrets.token_hex(32))
    settings = {**SETTINGS, "RAY_AUTH_TOKEN_PATH": str(token), "RAY_AUTH_TOKEN": None}
    constants = ray._private.ray_constants  # Ray reads this setting from the environment at import only
    before, enabled = {name: os.environ.get(name) for name in settings}, constants.ENABLE_RAY_CLUSTER
    _set(settings)
    constants.ENABLE_RAY_CLUSTER = False
    try:
        _read_settings()
        _start_again(
            lambda number: ray.init(
                LOCAL,
                num_cpus=cores,
                object_store_memory=OBJECTS + 2 * shared,
                include_dashboard=False,
                log_to_driver=False,
                logging_level=logging.ERROR,
                _temp_dir=str(folder / f"r{number}"),  # a short name, because the names of sockets must be short
            ),
            ray.shutdown,
        )
    finally:
        constants.ENABLE_RAY_CLUSTER = enabled
        _set(before)


def _start_again(start: Callable[[int], object], stop: Callable[[], object]) -> None:
    """Start a cluster, and start it again if Ray gave up because the machine was busy.

    Args:
        start: The function that starts the cluster, given the number of the try.
        stop: The function that stops what has started.
    """
    for number in range(1, STARTS + 1):
        try:
            start(number)
            return
        except Exception as problem:
            if number == STARTS or "timed out" not in str(problem):
                raise
            stop()


def _set(variables: Mapping[str, str | None]) -> None:
    """Set environment variables, and remove those without a value."""
    for name, value in variables.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


def _read_settings() -> None:
    """Let Ray read the token and its other settings from the environment again. It reads them at import only."""
    raylet: Any = import_module("ray._raylet")
    if not hasattr(raylet, "AuthenticationTokenLoader"):
        raise EngineUnavailable("this version of Ray has no tokens, so other users could enter the cluster")
    raylet.Config.initialize("")
    raylet.AuthenticationTokenLoader.instance().reset_cache()


def _folder() -> Path:
    """Create a folder for the files of a cluster, and return it. Remove the folders of drivers that were killed."""
    for path in PARENT.glob(f"{FOLDER}*-*"):
        pid = path.name.removeprefix(FOLDER).partition("-")[0]
        if pid.isdigit() and not os.path.exists(f"/proc/{pid}") and os.path.isdir("/proc"):
            shutil.rmtree(path, ignore_errors=True)
    return Path(tempfile.mkdtemp(prefix=f"{FOLDER}{os.getpid()}-", dir=PARENT))
