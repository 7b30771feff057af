"""Tasks at the level of a module, so that workers can import them."""

import ctypes
import os
import resource
import signal
import threading
import time
from pathlib import Path

import torch

from leakgauge.core.errors import InvalidInput, UnknownName
from leakgauge.runtime import Task, Watch

#: An hour, in seconds. It is longer than any test takes on a busy machine.
LONG = 3600


def noisy_sum(seed, report):
    """A result that depends on the seed alone, with the process that made it."""
    values = torch.randn(1000, generator=torch.Generator().manual_seed(seed))
    report(1, 2, float(seed))
    return (values.exp() @ values).item(), torch.get_num_threads(), os.getpid()


def slow_sum(seed, seconds, report):
    """The same, with slow steps."""
    for step in range(10):
        report(step, 10, 0.0)
        time.sleep(seconds / 10)
    return noisy_sum(seed, report)[0]


def fails(report, words="task went wrong"):
    raise ValueError(words)


def mistaken(report, name=None):
    raise InvalidInput("the clients are too few") if name is None else UnknownName("thing", name, ["other"])


def best_so_far(steps, report):
    """Take steps until Ctrl-C, and return the last step with the way in which the task ended."""
    step = 0
    try:
        for step in range(1, steps + 1):
            report(step, steps, 0.0)
    except KeyboardInterrupt:
        return step, "interrupted"
    return step, "done"


def sleeps(seconds, report):
    report(os.getpid(), None, 0.0)
    time.sleep(seconds)


def adds(first, second, report):
    return first + second


def not_the_first_time(path, how, report):
    """Fails once, in one of many ways. ``path`` marks the failure."""
    path = Path(path)
    if path.exists():
        return f"after {path.read_text()}"
    path.write_text(how)
    report(1, 2, 0.0)
    if how == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    elif how == "exits":  # as native code does, which the guard against exits cannot stop
        ctypes.CDLL(None)._exit(7)
    elif how == "hangs":
        time.sleep(LONG)
    elif how == "memory":
        raise MemoryError
    elif how == "limit":  # as on a machine that refuses more memory
        soft, hard = resource.getrlimit(resource.RLIMIT_AS)
        size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (size + 2**28, hard))
        try:
            torch.ones(2**30)
        finally:
            resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
    raise OSError("the disk is away")


def exits(report):
    os._exit(0)


def always_dies(report):
    os.kill(os.getpid(), signal.SIGKILL)


def takes(megabytes, seconds, report):
    """Hold memory for a while. Return when."""
    began = time.time()
    held = torch.ones(megabytes * 2**18)
    report(1, 2, 0.0)
    time.sleep(seconds)
    return began, time.time(), float(held[0])


def unpicklable(report):
    return threading.Lock()


class OneWay:
    """An object that can be pickled and cannot be unpickled."""

    def __reduce__(self):
        return _no, ()


def _no():
    raise RuntimeError("not here")


def one_way(report):
    return OneWay()


def say_and_sleep(path, report):
    partial = Path(f"{path}.part")
    partial.write_text(str(os.getpid()))
    partial.rename(path)
    time.sleep(LONG)


class Noted(Watch):
    """A watch that records all calls, as the kind and the name of the task."""

    def __init__(self):
        self.all = []

    def of(self, wanted):
        return [rest for kind, *rest in self.all if kind == wanted]

    def planned(self, tasks):
        self.all.append(("planned", len(tasks)))

    def began(self, task):
        self.all.append(("began", task.name))

    def step(self, task, step, total, loss):
        self.all.append(("step", task.name, step, total, loss))

    def again(self, task, why):
        self.all.append(("again", task.name, why))

    def done(self, task):
        self.all.append(("done", task.name))

    def failed(self, task, why):
        self.all.append(("failed", task.name, why))


#: The path for other processes, on which these tests and the package under test are found.
PYTHONPATH = os.pathsep.join([os.getcwd(), *filter(None, [os.environ.get("PYTHONPATH")])])
TASKS = [Task(f"seed {seed}", noisy_sum, {"seed": seed}) for seed in range(5)]


def eventually(condition):
    """Wait until a condition holds. A busy machine may take long, so only a wait of an hour is a failure."""
    deadline = time.monotonic() + LONG
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(0.1)
    return False


def status(process):
    try:
        return dict(line.split(":", 1) for line in Path(f"/proc/{process}/status").read_text().splitlines())
    except (FileNotFoundError, ProcessLookupError):
        return {}


def children(process):
    everything = [int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit()]
    return [pid for pid in everything if int(status(pid).get("PPid", -1)) == process]


def family(process):
    """Return the descendants of a process."""
    direct = children(process)
    return direct + [descendant for child in direct for descendant in family(child)]


def alive(process):
    return "zombie" not in status(process).get("State", "zombie")
