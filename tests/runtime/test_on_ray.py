"""A Ray cluster gives the same results, survives the same losses, and ends with the sweep."""

import contextlib
import gc
import http.client
import io
import os
import re
import signal
import socket
import stat
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

from leakgauge.core.errors import LeakgaugeError, TasksFailed
from leakgauge.runtime import Task, on_ray, run_tasks
from tests.runtime.work import (
    PYTHONPATH,
    TASKS,
    Noted,
    alive,
    eventually,
    exits,
    fails,
    family,
    mistaken,
    not_the_first_time,
    unpicklable,
)

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks for processes in /proc")


@pytest.fixture(scope="module", autouse=True)
def ray():
    """Return Ray, which is not installed everywhere and takes long to import."""
    return pytest.importorskip("ray")


LOSSES = {
    "killed": "its worker died",
    "exits": "its worker died",
    "hangs": "the task reported nothing for 2 seconds",
    "memory": "MemoryError",
    "disk": "OSError: the disk is away",
}
LIMITS = {"hangs": 2}
FAILURES = {
    "broken": "^ValueError: task went wrong$",
    "exiting": "^the work was ended by an exit with code 0 .* so it was not measured",
    "mistaken": "^there is no thing 'x' ",
    "unpicklable": "the result cannot be sent to the driver",
    "local": "the task 'local' cannot be sent to another process",
}


#: A service of each process of Ray, with a call that does no harm.
CALLS = (
    "InternalKVGcsService/InternalKVKeys", "NodeManagerService/GetNodeStats", "CoreWorkerService/GetCoreWorkerStats",
    "ObjectManagerService/FreeObjects",
)  # fmt: skip


class Looking(Noted):
    """Records, when the first task begins, the new processes, where they listen, and whom they let in."""

    processes: frozenset[int] = frozenset()
    addresses: frozenset[str] = frozenset()

    def __init__(self):
        super().__init__()
        self.before = frozenset(family(os.getpid()))  # other tests may have left processes that stay

    def began(self, task):
        super().began(task)
        if not self.processes:
            self.processes = frozenset(family(os.getpid())) - self.before
            places = listening(self.processes)
            self.addresses = frozenset(address for address, _ in places)
            [folder] = folders(os.getpid())
            self.modes = [stat.S_IMODE(path.stat().st_mode) for path in (folder, folder / "token")]
            ports = sorted({int(port, 16) for _, port in places})
            strangers = {port: answers(port) for port in ports}
            friends = {port: answers(port, (folder / "token").read_text()) for port in ports}
            still = {int(port, 16) for _, port in listening(self.processes)}  # Ray ends some of its processes early
            self.strangers = {port: found for port, found in strangers.items() if port in still}
            self.friends = {port: found for port, found in friends.items() if port in still}


def listening(processes):
    """The addresses and ports at which processes wait for connections, as the kernel writes them."""
    sockets = {}
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            parts = line.split()
            if parts[3] == "0A":
                sockets[f"socket:[{parts[9]}]"] = tuple(parts[1].split(":"))
    links = (link for process in processes for link in Path(f"/proc/{process}/fd").glob("*"))
    return [sockets[name] for name in map(_read, links) if name in sockets]


def answers(port, token=None):
    """How a port answers calls with or without a token. HTTP is tried where nobody speaks gRPC."""
    import grpc  # type: ignore[import-untyped]

    found = set()
    metadata = () if token is None else (("authorization", f"Bearer {token}"),)
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        for call in CALLS:
            try:
                channel.unary_unary(f"/ray.rpc.{call}")(b"", timeout=60, metadata=metadata)
                found.add("OK")
            except grpc.RpcError as problem:
                found.add(problem.code().name)
    if found == {"UNAVAILABLE"}:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        try:
            connection.request("GET", "/", headers=dict(metadata))
            found = {connection.getresponse().status}
        except ConnectionError:
            found = {"NO ANSWER"}
        finally:
            connection.close()
    return found - {"UNIMPLEMENTED"}


def _read(link):
    try:
        return os.readlink(link)
    except OSError:
        return ""


def folders(process):
    return list(Path("/tmp").glob(f"leakgauge-ray-{process}-*"))


@pytest.fixture(scope="module")
def swept(tmp_path_factory):
    """One sweep with all kinds of failures, because starting a cluster takes long."""
    folder = tmp_path_factory.mktemp("ray")
    tasks = [
        *TASKS,
        *(
            Task(how, not_the_first_time, {"path": str(folder / how), "how": how}, limit=LIMITS.get(how), kind=how)
            for how in LOSSES
        ),
        Task("broken", fails),
        Task("exiting", exits),
        Task("mistaken", mistaken, {"name": "x"}),
        Task("unpicklable", unpicklable),
        Task("local", lambda report: 1),
    ]
    watch, results = Looking(), []
    with (
        pytest.MonkeyPatch.context() as environment,
        warnings.catch_warnings(),
        contextlib.redirect_stdout(io.StringIO()) as printed,
    ):
        environment.setenv("OMP_NUM_THREADS", "2")  # the number of threads that workers have before they limit it
        warnings.simplefilter("ignore")  # about Ray's own processes, for which it does not wait
        with pytest.raises(TasksFailed) as raised:
            results.extend(run_tasks(tasks, engine="ray", jobs=2, watch=watch))
        gc.collect()
    assert printed.getvalue() == ""  # results may go to standard output
    return [(task.name, value) for task, value in results], watch, raised.value


def test_the_results_are_those_of_this_process_each_once(swept):
    results, _, _ = swept
    assert len(results) == len(dict(results)) == len(TASKS) + len(LOSSES)
    for task, (value, _, _) in run_tasks(TASKS, engine="in-process"):
        there, threads, process = dict(results)[task.name]
        assert there == value
        assert threads == 1
        assert process != os.getpid()


def test_a_task_is_restarted_whatever_ended_its_worker(swept):
    results, watch, _ = swept
    why = dict(watch.of("again"))
    for how, words in LOSSES.items():
        assert dict(results)[how] == f"after {how}"
        assert why[how].startswith(words)


def test_a_task_that_always_fails_is_listed_with_its_error(swept):
    _, _, error = swept
    assert error.failures.keys() == FAILURES.keys()
    for name, words in FAILURES.items():
        assert re.search(words, error.failures[name])


def test_progress_is_live(swept):
    _, watch, _ = swept
    for task in TASKS:
        kinds = [kind for kind, name, *_ in watch.all[1:] if name == task.name]
        assert kinds[0] == "began"
        assert kinds[-1] == "done"
    assert ["seed 3", 1, 2, 3.0] in watch.of("step")


def test_the_cluster_listened_on_the_loopback_address_only_and_is_gone(swept):
    _, watch, _ = swept
    assert watch.addresses <= {"0100007F", "0000000000000000FFFF00000100007F"}
    assert watch.addresses
    assert eventually(lambda: not any(map(alive, watch.processes)))
    assert not folders(os.getpid())


def test_everybody_without_the_token_is_refused(swept):
    _, watch, _ = swept
    assert watch.modes == [0o700, 0o600]
    assert watch.strangers
    assert [found for found in watch.strangers.values() if found not in ({"UNAUTHENTICATED"}, {401})] == []
    assert any("OK" in found for found in watch.friends.values())  # so these calls are right
    assert not any(found & {"UNAUTHENTICATED", 401, "NO ANSWER"} for found in watch.friends.values())


def test_the_process_has_its_own_settings_again(swept):
    from ray._raylet import AuthenticationMode, get_authentication_mode

    assert get_authentication_mode() == AuthenticationMode.DISABLED
    assert not os.environ.keys() & {"RAY_AUTH_MODE", "RAY_AUTH_TOKEN_PATH"}


SCRIPT = """
import sys
from leakgauge.runtime import Task, run_tasks
from tests.runtime.work import say_and_sleep
if __name__ == "__main__":
    list(run_tasks([Task("0", say_and_sleep, {"path": sys.argv[1] + "/0"})], engine="ray", jobs=1))
"""


@pytest.mark.long  # each cluster starts slowly
@pytest.mark.parametrize("ending", [signal.SIGKILL, signal.SIGINT], ids=["SIGKILL", "SIGINT"])
def test_no_process_outlives_its_driver(tmp_path, ending):
    (tmp_path / "driver.py").write_text(SCRIPT)
    environment = {**os.environ, "PYTHONPATH": PYTHONPATH}
    command = [sys.executable, str(tmp_path / "driver.py"), str(tmp_path)]
    driver = subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL, start_new_session=True)
    try:
        assert eventually((tmp_path / "0").exists)
        # Two agents of Ray, which run no tasks, notice a kill only after a minute.
        processes = [pid for pid in family(driver.pid) if "Agent" not in Path(f"/proc/{pid}/cmdline").read_text()]
        assert int((tmp_path / "0").read_text()) in processes
        if ending == signal.SIGINT:
            os.killpg(driver.pid, ending)  # a terminal interrupts the whole group
        else:
            driver.kill()
        driver.wait()
    finally:
        driver.kill()
        driver.wait()
    assert eventually(lambda: not any(map(alive, processes)))
    if ending == signal.SIGINT:
        assert not folders(driver.pid)


CLUSTER = """
import time, ray
context = ray.init("local", num_cpus=2, include_dashboard=False, object_store_memory=10**8)
print(context.address_info["gcs_address"], flush=True)
time.sleep(3600)
"""


@contextlib.contextmanager
def a_cluster(environment):
    """A cluster that another program started. The value is its address."""
    owner = subprocess.Popen(
        [sys.executable, "-c", CLUSTER], env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    try:
        yield owner.stdout.readline().strip()
    finally:
        owner.send_signal(signal.SIGINT)
        owner.wait()
        owner.stdout.close()


def test_a_running_cluster_is_used_and_left_running():
    environment = {**os.environ, "RAY_USAGE_STATS_ENABLED": "0", "PYTHONPATH": PYTHONPATH}
    with a_cluster(environment) as address:
        for _ in range(2):  # the first sweep leaves it unchanged
            results = list(run_tasks(TASKS[:2], engine=f"ray:{address}"))
            assert len(results) == 2


@pytest.mark.parametrize(("words", "starts"), [("The current node timed out during startup.", 3), ("no memory", 1)])
def test_a_cluster_that_starts_too_slowly_is_started_again(words, starts):
    tried, stopped = [], []

    def start(number):
        tried.append(number)
        raise OSError(words)

    with pytest.raises(OSError, match=words):
        on_ray._start_again(start, lambda: stopped.append(len(tried)))
    assert tried == list(range(1, starts + 1))
    assert stopped == tried[:-1]
    on_ray._start_again(tried.append, pytest.fail)
    assert tried[-1] == 1


@pytest.mark.parametrize("address", ["127.0.0.1:1", "localhost", "127.0.0.1:99999", "nobody.invalid:6379", ":", "a:b"])
def test_a_missing_cluster_is_an_error_in_words(address):
    message = rf"^there is no Ray cluster at '{address}', or it needs a token .*The engine processes needs no cluster$"
    with pytest.raises(LeakgaugeError, match=message) as raised:
        list(run_tasks(TASKS, engine=f"ray:{address}"))
    assert "\n" not in str(raised.value)


@pytest.mark.long
def test_an_address_that_never_answers_ends_in_words():
    with socket.create_server(("", 0)) as silent, pytest.raises(LeakgaugeError, match="or it needs a token"):
        list(run_tasks(TASKS, engine=f"ray:127.0.0.1:{silent.getsockname()[1]}"))


@pytest.mark.long
def test_a_cluster_with_a_token_refuses_a_driver_without_it_in_words(tmp_path):
    (tmp_path / "token").write_text("a" * 64)
    settings = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(tmp_path / "token")}
    environment = {**os.environ, "RAY_USAGE_STATS_ENABLED": "0", "PYTHONPATH": PYTHONPATH}
    with a_cluster({**environment, **settings}) as address:
        with pytest.raises(LeakgaugeError, match="or it needs a token that this process does not have"):
            list(run_tasks(TASKS[:1], engine=f"ray:{address}"))
        program = f"""
from leakgauge.runtime import run_tasks
from tests.runtime.work import TASKS
if __name__ == "__main__":
    print(len(list(run_tasks(TASKS[:1], engine="ray:{address}"))))
"""
        (tmp_path / "driver.py").write_text(program)
        command = [sys.executable, str(tmp_path / "driver.py")]
        done = subprocess.run(command, env={**environment, **settings}, capture_output=True, text=True)
        assert done.stdout.strip() == "1", done.stderr[-500:]


def test_folders_of_drivers_that_were_killed_are_removed(tmp_path, monkeypatch):
    from leakgauge.runtime import on_ray

    monkeypatch.setattr(on_ray, "PARENT", tmp_path)
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    for name in (gone.pid, os.getpid()):
        (tmp_path / f"leakgauge-ray-{name}-abc").mkdir()
    made = on_ray._folder()
    assert {path.name for path in tmp_path.iterdir()} == {f"leakgauge-ray-{os.getpid()}-abc", made.name}
