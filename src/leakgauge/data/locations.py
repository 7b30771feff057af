"""Functions that find the files of a dataset in the user's data folder, in the cache of downloads, or on a server.

The data folder is the ``folder`` argument of a loader. Without this argument, the data folder is the value of the
environment variable ``LEAKGAUGE_DATA``. The data folder has one subfolder for each dataset. If the ``folder`` argument
is given, files are read only from there.

Files are downloaded by pooch. The cache is the folder in the environment variable ``LEAKGAUGE_CACHE``. If this variable
is not set, the cache is the folder that pooch uses for caches. A downloaded file is used only if its checksum is right.
``LEAKGAUGE_OFFLINE=1`` forbids downloads.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from pathlib import Path

from leakgauge.core.errors import CorruptFile, DataNotFound
from leakgauge.data.dataset_source import Remote, Source

Folder = str | os.PathLike[str] | None


def root(folder: Folder = None) -> Path | None:
    """Return the user's data folder.

    If the argument ``folder`` is given, return that folder. Otherwise, return the folder in the environment variable
    ``LEAKGAUGE_DATA``. If this variable is not set, return ``None``.
    """
    chosen = folder if folder is not None else os.environ.get("LEAKGAUGE_DATA") or None
    return None if chosen is None else Path(chosen).expanduser()


def cache() -> Path:
    """Return the folder that holds downloaded files."""
    override = os.environ.get("LEAKGAUGE_CACHE")
    if override:
        return Path(override).expanduser()
    import pooch

    return Path(pooch.os_cache("leakgauge"))


def offline() -> bool:
    """Return whether the environment variable ``LEAKGAUGE_OFFLINE`` forbids downloads."""
    return os.environ.get("LEAKGAUGE_OFFLINE", "").strip().lower() not in ("", "0", "false", "no")


def find(dataset: str, patterns: Sequence[str], folder: Folder = None) -> list[Path]:
    """Return the paths of a dataset's files in the user's data folder, or an empty list if there are none.

    Args:
        dataset: The name of the dataset, which is also the name of its subfolder in the data folder.
        patterns: The glob patterns to try, in this order. Only the first pattern that matches a file is used.
        folder: The data folder. The default is the folder in the environment variable ``LEAKGAUGE_DATA``.
    """
    base = root(folder)
    if base is None:
        return []
    for pattern in patterns:
        matches = sorted((base / dataset).glob(pattern))
        if matches:
            return matches
    return []


def obtain(
    source: Source,
    folder: Folder = None,
    download: bool = True,
    *,
    patterns: Sequence[str] = (),
    remote: str | None = None,
    also: Sequence[str] = (),
) -> list[Path]:
    """Return the paths of a dataset's files in the data folder, or else the path of a cached or downloaded file.

    Args:
        source: The dataset.
        folder: The data folder, which has one subfolder for each dataset. If it is given, files are read only from
            there.
        download: Whether missing files may be downloaded.
        patterns: Glob patterns for the files in the data folder. The default is the patterns in ``source``.
        remote: The name of the file to download. The default is the first file in ``source.remotes``.
        also: Sentences about other places that were searched without success. They are added to the error message.
    """
    patterns = patterns or source.files
    files = find(source.name, patterns, folder)
    if files:
        return files
    if folder is None:
        file_name = remote or next(iter(source.remotes))
        target = cache() / source.name / file_name
        if is_intact(target, source.remotes[file_name].checksum):
            return [target]
        if download and not offline():
            return [_fetch(source.name, source.remotes[file_name], target)]
    raise _not_found(source.name, patterns, folder, also)


def is_intact(path: Path, checksum: str) -> bool:
    """Return whether a file exists and has the checksum, which is written as ``"algorithm:hex digits"``."""
    algorithm, _, expected = checksum.partition(":")
    if not path.is_file():
        return False
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, algorithm).hexdigest() == expected


def _not_found(dataset: str, patterns: Sequence[str], folder: Folder, also: Sequence[str]) -> DataNotFound:
    base = root(folder)
    if base is None:
        reasons = ["LEAKGAUGE_DATA is not set"]
    elif not base.is_dir():
        reasons = [f"the folder {base} does not exist"]
    else:
        reasons = [f"{base / dataset} does not hold it"]
    reasons += also
    remedies = [f"set LEAKGAUGE_DATA to a folder that holds it in {dataset}/"]
    if folder is not None:
        reasons.append("no other place was tried, because a folder was given")
        remedies = [f"put it into {Path(folder) / dataset}, or leave the folder out"]
    else:
        reasons.append(f"the cache {cache() / dataset} has no intact copy")
        reasons.append("LEAKGAUGE_OFFLINE forbids the download" if offline() else "download=False was given")
        remedies.append("unset LEAKGAUGE_OFFLINE" if offline() else "allow the download with download=True")
    return DataNotFound(
        f"{dataset} ({' or '.join(patterns)}) was not found: {', '.join(reasons)}. To get it, {', or '.join(remedies)}."
    )


def _fetch(dataset: str, remote: Remote, target: Path) -> Path:
    import pooch
    import requests

    advice = f"Try again later, or put {target.name} into the folder {dataset}/ of LEAKGAUGE_DATA yourself."
    try:
        path = pooch.retrieve(
            remote.url,
            known_hash=remote.checksum,
            fname=target.name,
            path=target.parent,
            downloader=pooch.HTTPDownloader(chunk_size=1 << 20, timeout=30),
        )
    except requests.HTTPError as error:
        status = "an error" if error.response is None else f"status {error.response.status_code}"
        raise DataNotFound(
            f"{dataset} could not be downloaded: {remote.url} answered with {status}. {advice}"
        ) from error
    except requests.RequestException as error:
        raise DataNotFound(
            f"{dataset} could not be downloaded: the transfer from {remote.url} failed "
            f"({type(error).__name__}). Check the network. {advice}"
        ) from error
    except ValueError as error:
        raise CorruptFile(
            f"{dataset}: the file from {remote.url} does not have the checksum {remote.checksum} and was deleted. "
            f"The transfer was cut, or the file on the server has changed. {advice}"
        ) from error
    except OSError as error:
        raise DataNotFound(
            f"{dataset} could not be stored in the cache {target.parent} ({error}). "
            "Set LEAKGAUGE_CACHE to a folder that can be written to."
        ) from error
    return Path(path)
