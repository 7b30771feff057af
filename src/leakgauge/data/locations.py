"""Where a dataset's files lie: a folder of the user's, a cache, or a server.

The folder is the ``folder`` argument of a loader, or else the environment variable ``LEAKGAUGE_DATA``; it
holds one folder a dataset. Downloads go through pooch into its cache (or ``LEAKGAUGE_CACHE``) and are only
used when their checksum is right. ``LEAKGAUGE_OFFLINE=1`` forbids them. An explicit ``folder`` is a promise:
when it lacks the data, nothing else is tried.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from leakgauge.core.errors import CorruptFile, DataNotFound

Folder = str | os.PathLike[str] | None


@dataclass(frozen=True)
class Remote:
    """A file on a server: its address and its checksum, ``"algorithm:hex digits"``."""

    url: str
    checksum: str


_MNIST = "https://ossci-datasets.s3.amazonaws.com/mnist/"
_QMNIST = "https://raw.githubusercontent.com/facebookresearch/qmnist/master/"
_CIFAR = "https://www.cs.toronto.edu/~kriz/"
_ADULT = "https://archive.ics.uci.edu/ml/machine-learning-databases/adult/"

REMOTES: dict[str, dict[str, Remote]] = {
    "mnist": {
        "train-images-idx3-ubyte.gz": Remote(
            _MNIST + "train-images-idx3-ubyte.gz", "md5:f68b3c2dcbeaaa9fbdd348bbdeb94873"
        ),
        "train-labels-idx1-ubyte.gz": Remote(
            _MNIST + "train-labels-idx1-ubyte.gz", "md5:d53e105ee54ea40749a09fcbcd1e9432"
        ),
        "t10k-images-idx3-ubyte.gz": Remote(
            _MNIST + "t10k-images-idx3-ubyte.gz", "md5:9fb629c4189551a2d022fa330f9573f3"
        ),
        "t10k-labels-idx1-ubyte.gz": Remote(
            _MNIST + "t10k-labels-idx1-ubyte.gz", "md5:ec29112dd5afa0611ce80d1b7f02629c"
        ),
        "qmnist-train-labels-idx2-int.gz": Remote(
            _QMNIST + "qmnist-train-labels-idx2-int.gz", "md5:0058f8dd561b90ffdd0f734c6a30e5e4"
        ),
        "qmnist-test-labels-idx2-int.gz": Remote(
            _QMNIST + "qmnist-test-labels-idx2-int.gz", "md5:5b5b05890a5e13444e108efe57b788aa"
        ),
    },
    "cifar10": {
        "cifar-10-binary.tar.gz": Remote(_CIFAR + "cifar-10-binary.tar.gz", "md5:c32a1d4ab5d03f1284b67883e8d87530"),
    },
    "cifar100": {
        "cifar-100-binary.tar.gz": Remote(_CIFAR + "cifar-100-binary.tar.gz", "md5:03b5dce01913d631647c71ecec9e9cb8"),
    },
    "orl_faces": {
        "att_faces.zip": Remote(
            "http://www.idiap.ch/software/bob/data/bob/att_faces.zip", "md5:6efb25cb0d40755e9492b9c012e3348d"
        ),
    },
    "adult": {
        "adult.data": Remote(
            _ADULT + "adult.data", "sha256:5b00264637dbfec36bdeaab5676b0b309ff9eb788d63554ca0a249491c86603d"
        ),
        "adult.test": Remote(
            _ADULT + "adult.test", "sha256:a2a9044bc167a35b2361efbabec64e89d69ce82d9790d2980119aac5fd7e9c05"
        ),
    },
    "pneumoniamnist": {
        "pneumoniamnist.npz": Remote(
            "https://zenodo.org/records/10519652/files/pneumoniamnist.npz?download=1",
            "md5:28209eda62fecd6e6a2d98b1501bb15f",
        ),
    },
    "femnist": {
        "fed_emnist.tar.bz2": Remote(
            "https://files.googleapis.com/tff-datasets-public/fed_emnist.tar.bz2",
            "sha256:fe1ed5a502cea3a952eb105920bff8cffb32836b5173cb18a57a32c3606f3ea0",
        ),
    },
}
"""The files that can be downloaded, by dataset."""


def root(folder: Folder = None) -> Path | None:
    """The user's data folder: the argument, else ``LEAKGAUGE_DATA``, else ``None``."""
    chosen = folder if folder is not None else os.environ.get("LEAKGAUGE_DATA") or None
    return None if chosen is None else Path(chosen).expanduser()


def cache() -> Path:
    """The folder that downloads are kept in."""
    override = os.environ.get("LEAKGAUGE_CACHE")
    if override:
        return Path(override).expanduser()
    import pooch

    return Path(pooch.os_cache("leakgauge"))


def offline() -> bool:
    """Whether ``LEAKGAUGE_OFFLINE`` forbids downloads."""
    return os.environ.get("LEAKGAUGE_OFFLINE", "").strip().lower() not in ("", "0", "false", "no")


def find(dataset: str, patterns: Sequence[str], folder: Folder = None) -> list[Path]:
    """The files in the user's folder that match the first fruitful pattern; empty when there are none."""
    base = root(folder)
    if base is None:
        return []
    for pattern in patterns:
        matches = sorted((base / dataset).glob(pattern))
        if matches:
            return matches
    return []


def obtain(
    dataset: str,
    patterns: Sequence[str],
    remote: str,
    folder: Folder = None,
    download: bool = True,
    also: Sequence[str] = (),
) -> list[Path]:
    """The files of the user's folder, else the cached or downloaded file ``remote``.

    ``also`` says where else the caller has looked in vain, for the error.
    """
    found = find(dataset, patterns, folder)
    if found:
        return found
    if folder is None:
        source = REMOTES[dataset][remote]
        target = cache() / dataset / remote
        if is_intact(target, source.checksum):
            return [target]
        if download and not offline():
            return [_fetch(dataset, source, target)]
    raise _not_found(dataset, patterns, folder, also)


def is_intact(path: Path, checksum: str) -> bool:
    """Whether the file exists and has this checksum."""
    algorithm, _, expected = checksum.partition(":")
    if not path.is_file():
        return False
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, algorithm).hexdigest() == expected


def _not_found(dataset: str, patterns: Sequence[str], folder: Folder, also: Sequence[str]) -> DataNotFound:
    base, wanted = root(folder), " or ".join(patterns)
    if base is None:
        looked = ["LEAKGAUGE_DATA is not set"]
    elif not base.is_dir():
        looked = [f"the folder {base} does not exist"]
    else:
        looked = [f"{base / dataset} does not hold it"]
    looked += also
    remedies = [f"set LEAKGAUGE_DATA to a folder that holds it in {dataset}/"]
    if folder is not None:
        looked.append("nothing else was tried because a folder was given")
        remedies = [f"put it into {Path(folder) / dataset}, or leave the folder out"]
    else:
        looked.append(f"the cache {cache() / dataset} has no intact copy")
        looked.append("LEAKGAUGE_OFFLINE forbids the download" if offline() else "download=False was given")
        remedies.append("unset LEAKGAUGE_OFFLINE" if offline() else "allow the download with download=True")
    return DataNotFound(
        f"{dataset} ({wanted}) was not found: {'; '.join(looked)}. To get it, {', or '.join(remedies)}."
    )


def _fetch(dataset: str, source: Remote, target: Path) -> Path:
    import pooch
    import requests

    advice = f"try again later, or put {target.name} into the folder {dataset}/ of LEAKGAUGE_DATA yourself"
    try:
        path = pooch.retrieve(
            source.url,
            known_hash=source.checksum,
            fname=target.name,
            path=target.parent,
            downloader=pooch.HTTPDownloader(chunk_size=1 << 20, timeout=30),
        )
    except requests.HTTPError as error:
        status = "an error" if error.response is None else f"status {error.response.status_code}"
        raise DataNotFound(
            f"{dataset} could not be downloaded: {source.url} answered with {status}; {advice}"
        ) from error
    except requests.RequestException as error:
        raise DataNotFound(
            f"{dataset} could not be downloaded: the transfer from {source.url} failed "
            f"({type(error).__name__}); check the network, or {advice}"
        ) from error
    except ValueError as error:
        raise CorruptFile(
            f"{dataset}: what {source.url} sent does not have the checksum {source.checksum} and was thrown "
            f"away; the transfer was cut, or the file on the server has changed; {advice}"
        ) from error
    except OSError as error:
        raise DataNotFound(
            f"{dataset} could not be stored in the cache {target.parent} ({error}); "
            "set LEAKGAUGE_CACHE to a folder that can be written to"
        ) from error
    return Path(path)
