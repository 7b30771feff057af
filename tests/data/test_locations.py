from __future__ import annotations

import hashlib
import socket
from pathlib import Path

import pytest

from leakgauge.core.errors import CorruptFile, DataNotFound
from leakgauge.data import DATASETS, Remote, Source, locations

CONTENT = b"a dataset"
CHECKSUM = "md5:" + hashlib.md5(CONTENT).hexdigest()
TOY = Source("toy", "a toy", "folder or download", lambda: pytest.fail("loaded"), files=("toy.bin",), remotes={})


@pytest.fixture
def remote(server: tuple[str, Path], monkeypatch: pytest.MonkeyPatch) -> Path:
    address, served = server
    monkeypatch.setitem(TOY.remotes, "toy.bin", Remote(address + "toy.bin", CHECKSUM))
    (served / "toy.bin").write_bytes(CONTENT)
    return served / "toy.bin"


def obtain(**arguments: object) -> list[Path]:
    return locations.obtain(TOY, **arguments)  # type: ignore[arg-type]


def test_download_is_kept_in_the_cache(remote: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    [path] = obtain()
    assert path == tmp_path / "cache" / "toy" / "toy.bin"
    assert path.read_bytes() == CONTENT
    remote.unlink()
    monkeypatch.setenv("LEAKGAUGE_OFFLINE", "1")
    assert obtain() == [path]
    assert obtain(download=False) == [path]


def test_altered_cache_is_fetched_again(remote: Path) -> None:
    [path] = obtain()
    path.write_bytes(b"something else")
    assert obtain()[0].read_bytes() == CONTENT


def test_altered_cache_is_not_used_offline(remote: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    [path] = obtain()
    path.write_bytes(b"something else")
    monkeypatch.setenv("LEAKGAUGE_OFFLINE", "1")
    with pytest.raises(DataNotFound, match="no intact copy"):
        obtain()


def test_wrong_checksum(remote: Path, tmp_path: Path) -> None:
    remote.write_bytes(b"tampered with")
    with pytest.raises(CorruptFile, match=r"does not have the checksum md5:.*put toy\.bin into the folder toy/"):
        obtain()
    assert not (tmp_path / "cache" / "toy" / "toy.bin").exists()


def test_missing_on_the_server(remote: Path) -> None:
    remote.unlink()
    with pytest.raises(DataNotFound, match=r"answered with status 404. Try again later"):
        obtain()


def test_refused_connection(online: None, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{unused.getsockname()[1]}/toy.bin"
    monkeypatch.setitem(TOY.remotes, "toy.bin", Remote(address, CHECKSUM))
    with pytest.raises(DataNotFound, match=r"failed \(ConnectionError\)\. Check the network"):
        obtain()


def test_unwritable_cache(remote: Path, tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file where the cache should be")
    with pytest.raises(DataNotFound, match=r"could not be stored.*Set LEAKGAUGE_CACHE"):
        obtain()


def test_downloads_can_be_forbidden(remote: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DataNotFound, match=r"download=False was given.*allow the download"):
        obtain(download=False)
    monkeypatch.setenv("LEAKGAUGE_OFFLINE", "1")
    with pytest.raises(DataNotFound, match=r"LEAKGAUGE_OFFLINE forbids.*unset LEAKGAUGE_OFFLINE"):
        obtain()


@pytest.mark.parametrize(("value", "expected"), [("1", True), ("yes", True), ("0", False), ("", False)])
def test_offline_values(value: str, expected: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LEAKGAUGE_OFFLINE", value)
    assert locations.offline() is expected


def test_folder_comes_first(remote: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine" / "toy").mkdir(parents=True)
    (tmp_path / "mine" / "toy" / "toy.bin").write_bytes(b"my own")
    monkeypatch.setenv("LEAKGAUGE_DATA", str(tmp_path / "mine"))
    assert obtain()[0].read_bytes() == b"my own"


def test_explicit_folder_is_the_only_place(remote: Path, tmp_path: Path) -> None:
    with pytest.raises(DataNotFound, match=r"does not hold it, no other place was tried.*leave the folder out"):
        obtain(folder=tmp_path)
    with pytest.raises(DataNotFound, match="does not exist"):
        obtain(folder=tmp_path / "nowhere")


def test_error_names_every_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DataNotFound) as caught:
        locations.obtain(DATASETS["mnist"], patterns=["a.gz", "a"])
    text = str(caught.value)
    for part in (
        "a.gz or a",
        "LEAKGAUGE_DATA is not set",
        str(tmp_path / "cache" / "mnist"),
        "unset LEAKGAUGE_OFFLINE",
    ):
        assert part in text


def test_every_checksum_has_the_length_of_its_kind() -> None:
    for source in DATASETS.values():
        for name, remote in source.remotes.items():
            algorithm, _, digits = remote.checksum.partition(":")
            assert len(bytes.fromhex(digits)) == hashlib.new(algorithm).digest_size
            assert name.split("?")[0] in remote.url


def test_default_cache_is_pooch_s(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LEAKGAUGE_CACHE")
    assert locations.cache().name == "leakgauge"
