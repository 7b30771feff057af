"""The workflow that follows a running federation, and keeps one page about which clients leak, from which round on.

Whenever there are new captures, they are attacked, and the page is written anew. Finished attacks are cached.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from leakgauge.attacks import registry
from leakgauge.attacks.base import Attack
from leakgauge.core.container import SUFFIX, Location
from leakgauge.core.errors import FileError, InvalidInput, LeakgaugeError, printable
from leakgauge.core.kept_samples import FOLDER
from leakgauge.core.observation_file import observation_files
from leakgauge.evaluation.gate import read_condition
from leakgauge.evaluation.verdict import Verdict, judge, worst_of
from leakgauge.runtime import Watch
from leakgauge.workflows.attack_captures import CaptureAttack, attack
from leakgauge.workflows.capture_results import AttackedCapture
from leakgauge.workflows.recipe_checks import is_unexplained

#: The name of the page.
PAGE = "watch.html"


@dataclass(frozen=True, eq=False)
class ClientState:
    """The state of one client in a running federation.

    Args:
        client: The name of the client.
        verdicts: The verdict on each captured round. It is ``None`` if the client's samples are not at hand.
    """

    client: str
    verdicts: Mapping[int, Verdict | None]

    @property
    def leaks_from(self) -> int | None:
        """The first round whose message leaks, or ``None`` if no message was found to leak."""
        leaking = [number for number, verdict in self.verdicts.items() if verdict is not None and verdict.leaks]
        return min(leaking, default=None)

    @property
    def worst(self) -> Verdict | None:
        """The verdict with the most leakage, or ``None`` if no round has a verdict."""
        known = [verdict for verdict in self.verdicts.values() if verdict is not None]
        return worst_of(known) if known else None


@dataclass(frozen=True, eq=False)
class State:
    """The state of a running federation.

    Args:
        clients: The state of each client, sorted by name.
        result: The result of the attack on all captures so far.
        page: The page, which each state replaces.
    """

    clients: tuple[ClientState, ...]
    result: CaptureAttack
    page: Path

    @property
    def sentence(self) -> str:
        """The state as a sentence."""
        return sentence_of(self.clients)


def watch(  # noqa: PLR0913
    captures: Location,
    method: str | Attack = "inverting_gradients",
    output: Location = "watched",
    *,
    options: Mapping[str, Any] | None = None,
    model: nn.Module | str | None = None,
    model_options: Mapping[str, Any] | None = None,
    know: Mapping[str, Any] | None = None,
    data: Location | None = None,
    key: Location | None = None,
    seed: int = 0,
    fail_if: Sequence[str] = (),
    every: float = 5.0,
    idle: float | None = None,
    engine: str = "auto",
    jobs: int | None = None,
    device: str | None = None,
    progress: Watch | None = None,
    command: str = "",
    note: Callable[[str], None] = lambda _: None,
) -> Iterator[State]:
    """Follow a folder of captures, and yield the state of the federation whenever there are new captures.

    Args:
        captures: The folder of one run. It need not exist yet.
        method: The attack, or the name of the attack.
        output: The folder for the page and the cache.
        options: The options of the attack.
        model: Your own model, or ``module:factory``.
        model_options: The options of the factory.
        know: Settings of the clients' training that are not in the captures.
        data: The clients' own samples. By default, those that keepers stored beside the captures, if there are any.
        key: The file of the private key, if the kept samples are encrypted.
        seed: The seed of the attack.
        fail_if: The conditions under which a limit is broken (:mod:`leakgauge.evaluation.gate`). It is then an error
            if the watch ends before there was a capture.
        every: The seconds between two looks at the folder.
        idle: The seconds without new captures after which the watch ends. By default, it ends with Ctrl-C.
        engine: The engine that runs the attacks (:mod:`leakgauge.runtime.engines`).
        jobs: The number of attacks that run at a time. By default, one per core.
        device: The device of the attacks.
        progress: The listener that receives the progress of the attacks.
        command: The command line, which the page shows.
        note: A function that gets sentences about waiting, and about looks that failed, such as a capture without its
            samples.
    """
    if every <= 0 or (idle is not None and idle <= 0):
        raise InvalidInput("the seconds between two looks, and those without new captures, must be above 0")
    name = method if isinstance(method, str) else type(method).__name__
    for text in fail_if:  # mistakes are errors now, and not at the first capture
        read_condition(text, [name])
    if isinstance(method, str):
        registry.build(method, **(options or {}))
    seen: tuple[Path, ...] = ()
    problem: LeakgaugeError | None = None
    states = 0
    if not _files(Path(captures)):
        note(f"waiting for captures in {printable(str(captures))}")
    last = time.monotonic()
    while idle is None or time.monotonic() - last < idle:
        files = _files(Path(captures))
        if not files or files == seen:
            time.sleep(every)
            continue
        seen = files
        try:
            result = attack(
                captures, method, output, options=options, model=model, model_options=model_options, know=know,
                data=data, key=key, seed=seed, fail_if=fail_if, engine=engine, jobs=jobs, device=device,
                watch=progress, command=command,
            )  # fmt: skip
        except LeakgaugeError as found:  # such as samples that are not there yet
            problem = found
            note(printable(str(found), longest=1000))
        else:
            problem, states = None, states + 1
            yield _state(result, Path(output))
        last = time.monotonic()
    if problem is not None:
        raise problem
    if not states and fail_if:
        raise LeakgaugeError(
            f"{printable(str(captures))}: no capture appeared within {idle:g} seconds, so no limit was measured"
        )


def _files(place: Path) -> tuple[Path, ...]:
    """Return the captures of a folder and the kept samples beside them, or nothing if there are no captures yet."""
    if not any(place.rglob(f"*_round-*{SUFFIX}")):
        return ()
    try:
        files = observation_files(place)
    except FileError:
        if any(path.is_dir() and path.name.startswith("run-") for path in place.glob("*")):
            raise  # several runs
        return ()
    kept = [path for folder in {file.parent for file in files} for path in (folder / FOLDER).glob(f"*{SUFFIX}")]
    return (*files, *sorted(kept))


def _state(result: CaptureAttack, output: Path) -> State:
    from leakgauge.reports.watched import write_watched

    verdicts: dict[str, dict[int, Verdict | None]] = {}
    for one in result.attacked:
        verdicts.setdefault(one.capture.client, {})[one.reconstruction.round] = verdict_on(one)
    clients = tuple(ClientState(name, dict(sorted(rounds.items()))) for name, rounds in sorted(verdicts.items()))
    rows = [
        (one.client, one.leaks_from, one.worst, tuple(one.verdicts), sum(v is not None for v in one.verdicts.values()))
        for one in clients
    ]
    return State(clients, result, write_watched(result, rows, sentence_of(clients), output / PAGE))


def verdict_on(one: AttackedCapture) -> Verdict | None:
    """Return the verdict on one attacked capture, or ``None`` if the client's samples are not at hand.

    Without positive controls, an attack that found nothing shows nothing.

    Args:
        one: The attacked capture.
    """
    if is_unexplained(one):
        return Verdict.UNEXPLAINED
    if one.score is None:
        return Verdict.UNEXPLAINED if one.capture.check is not None and one.capture.check.explained is False else None
    verdict = judge([one.telling], labels_granted=one.capture.labels_granted)
    return Verdict.INCONCLUSIVE if verdict is Verdict.NOTHING_ABOVE_CHANCE else verdict


def sentence_of(clients: Sequence[ClientState]) -> str:
    """Return a sentence about which clients leak, from which round on.

    Args:
        clients: The state of each client.
    """
    leaking = [f"{one.client} (from round {one.leaks_from})" for one in clients if one.leaks_from is not None]
    unknown = [one.client for one in clients if one.worst is None]
    count = f"{len(clients)} client{'s' * (len(clients) != 1)}"
    if not leaking and len(unknown) == len(clients):
        return f"{count} seen. Whether they leak is unknown without their samples."
    found = f"{len(leaking)} of {count} leak: {', '.join(leaking)}." if leaking else f"Of {count}, none leaks so far."
    return f"{found} {len(unknown)} have no samples for a score." if unknown else found
