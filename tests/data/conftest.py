from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from leakgauge.data import DATASETS
from leakgauge.data.dataset_source import Remote


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Keep the user's folder, the user's cache and the network out of every test."""
    monkeypatch.delenv("LEAKGAUGE_DATA", raising=False)
    monkeypatch.setenv("LEAKGAUGE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("LEAKGAUGE_OFFLINE", "1")


class _QuietHandler(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def online(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LEAKGAUGE_OFFLINE")
    for name in ("http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


@pytest.fixture
def server(tmp_path: Path, online: None) -> Iterator[tuple[str, Path]]:
    """The address of a loopback server, and the folder that it serves."""
    served = tmp_path / "served"
    served.mkdir()
    httpd = ThreadingHTTPServer(("127.0.0.1", 0), partial(_QuietHandler, directory=str(served)))
    thread = threading.Thread(target=httpd.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield f"http://127.0.0.1:{httpd.server_port}/", served
    httpd.shutdown()
    thread.join()
    httpd.server_close()


@pytest.fixture
def offer(server: tuple[str, Path], monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str, bytes], None]:
    """Return a function that serves a file as the remote file of a dataset, with a checksum of the same kind."""
    address, served = server

    def offer(dataset: str, name: str, content: bytes) -> None:
        (served / name).write_bytes(content)
        kind = DATASETS[dataset].remotes[name].checksum.partition(":")[0]
        remote = Remote(address + name, f"{kind}:{hashlib.new(kind, content).hexdigest()}")
        monkeypatch.setitem(DATASETS[dataset].remotes, name, remote)

    return offer
