"""The workflow that attacks captures, which are saved messages of a real federation.

If a client's own data is given, the results are scored.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from leakgauge.attacks import registry
from leakgauge.attacks.analytic.named_words import named_by
from leakgauge.attacks.base import Attack
from leakgauge.attacks.reconstruction_file import from_parts, to_parts
from leakgauge.attacks.unknown_rate import threat_model
from leakgauge.core.container import Location, output_folder
from leakgauge.core.errors import InvalidInput, LeakgaugeError, TasksFailed, printable
from leakgauge.core.observation import Observation
from leakgauge.core.own_files import check_output
from leakgauge.core.progress import Report
from leakgauge.core.truth import Truth
from leakgauge.evaluation.gate import read_condition
from leakgauge.evaluation.support import Evidence, with_support
from leakgauge.evaluation.verdict import Finding, Verdict, judge, over_clients
from leakgauge.runtime import Task, Watch, run_tasks
from leakgauge.runtime.cache import Cache, Entry
from leakgauge.workflows.capture_controls import controls_of
from leakgauge.workflows.capture_results import (
    AttackedCapture,
    Capture,
    file_name,
    saved_capture,
    score_to_plain,
    scored_capture,
    stored_capture,
)
from leakgauge.workflows.captures import Captures, TruthSource, truths_of
from leakgauge.workflows.determined import capture_determines
from leakgauge.workflows.forget import forget_files
from leakgauge.workflows.kept_data import source_of_truths
from leakgauge.workflows.recipe_checks import is_unexplained, with_checks, with_unexplained
from leakgauge.workflows.recipe_knowledge import knowledge_sentences, unknown_settings, weakness
from leakgauge.workflows.result import (
    Redact,
    Running,
    WorkflowResult,
    check_measured,
    check_redact,
    conclude,
    measuring,
)
from leakgauge.workflows.scorable import not_scorable

#: The names of the tensors in the cache that hold a client's samples and labels.
SAMPLES = ("samples", "labels")


@dataclass(frozen=True, eq=False, kw_only=True)
class CaptureAttack(WorkflowResult):
    """The result of one attack on many captures.

    Args:
        attack: The attack with its settings.
        attacked: The attacked captures, sorted by file.
        controls: The results on the positive controls, which are simulated messages of fewer samples.
        notes: Sentences about captures that are not scored although data is given.
    """

    attack: Attack
    attacked: tuple[AttackedCapture, ...]
    controls: tuple[Finding, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def clients(self) -> dict[str, int]:
        """A dictionary from the title of the finding to the number of captures that were attacked."""
        return {finding.setup: len(self.attacked) for finding in self.findings}

    @property
    def knowledge(self) -> list[str]:
        """Sentences about what of the clients' recipes is unknown."""
        return knowledge_sentences(self.attacked)


@measuring()
def attack(  # noqa: PLR0913
    captures: Location | Captures,
    attack: str | Attack = "inverting_gradients",
    output: Location = "reconstructions",
    *,
    options: Mapping[str, Any] | None = None,
    model: nn.Module | str | None = None,
    model_options: Mapping[str, Any] | None = None,
    know: Mapping[str, Any] | None = None,
    client: str | None = None,
    data: Location | TruthSource | None = None,
    key: Location | None = None,
    seed: int = 0,
    fail_if: Sequence[str] = (),
    junit: Location | None = None,
    redact: Redact = "none",
    engine: str = "auto",
    jobs: int | None = None,
    device: str | None = None,
    watch: Watch | None = None,
    command: str = "",
) -> CaptureAttack:
    """Attack captures, and write the reconstructions and a report page.

    The command ``leakgauge attack`` calls this function.

    Captures that were attacked before are not attacked again.

    Args:
        captures: A saved observation, or a folder of saved observations.
        attack: The attack, or the name of the attack.
        output: The folder for the reconstructions, the report page and the cache.
        options: The options of the attack.
        model: Your own model, or ``module:factory``. It is not needed for models of Leakgauge.
        model_options: The options of the factory.
        know: Settings of the clients' training that are not in the captures, such as ``{"lr": 0.1}``.
        client: The name of the only client to attack. The default is all clients.
        data: The clients' own samples, for scoring (:class:`~leakgauge.workflows.captures.ClientData`). By default,
            those that keepers stored beside the captures, if there are any.
        key: The file of the private key, if the kept samples are encrypted.
        seed: The seed of the attack.
        fail_if: The conditions under which the command fails, such as ``"recovered > 0.05"``
            (:mod:`leakgauge.evaluation.gate`).
        junit: The file to which the results of these conditions are written as JUnit XML.
        redact: ``"none"`` shows clients' samples on the page. ``"omit"`` leaves them out, stores none of them, and
            removes those that earlier runs stored in the folder.
        engine: The engine that runs the attacks (:mod:`leakgauge.runtime.engines`).
        jobs: The number of attacks that run at a time. By default, one per core.
        device: The device of the attacks, such as ``"cuda"``.
        watch: The listener that receives the progress of the attacks.
        command: The command line, which the report page shows.
    """
    from leakgauge.reports.captures import write_captures  # also imports the drawing libraries

    check_redact(redact)
    check_output(output, ("captures.html", "captures.json"), junit)
    running = Running(engine, jobs, device, watch)
    attacker = _attacker(attack, options or {})
    conditions = [read_condition(text, [_name(attacker, attack)]) for text in fail_if]
    if not isinstance(captures, Captures):
        captures = Captures.find(captures, model, model_options, know=know, client=client)
    truths = source_of_truths(data, captures, key)
    names: dict[str, Any] = {"name": _name(attacker, attack), "samples": redact != "omit"}
    result = run_capture_attack(captures, attacker, output, truths, seed, running, **names)
    return conclude(
        result, conditions, junit, lambda one: write_captures(one, Path(output), command=command, redact=redact)
    )


def _attacker(attack: str | Attack, options: Mapping[str, Any]) -> Attack:
    built = registry.build(attack, **options) if isinstance(attack, str) else attack
    if not isinstance(built, Attack):
        names = [spec.name for spec in registry.specs(recovers="samples", reads="update")]
        raise InvalidInput(f"{attack} does not rebuild samples from one message. Use one of {', '.join(names)}")
    return built


def _name(attacker: Attack, attack: str | Attack) -> str:
    return attack if isinstance(attack, str) else type(attacker).__name__


def run_capture_attack(
    captures: Captures,
    attack: Attack,
    output: Location,
    data: TruthSource | None = None,
    seed: int = 0,
    running: Running | None = None,
    *,
    name: str = "attack",
    samples: bool = True,
) -> CaptureAttack:
    """Attack each capture, save the reconstructions, and return all results.

    Args:
        captures: The captures to attack.
        attack: The attack to run on each capture.
        output: The folder for the reconstructions and the cache.
        data: The clients' own samples, for scoring.
        seed: The seed of the attack.
        running: The engine, the device and the listener of the attacks.
        name: The name under which the attack is reported.
        samples: Whether clients' samples are stored. If it is false, those of earlier runs are removed.
    """
    running = running or Running()
    listed, refused = _listed(captures, attack, data)
    if not listed:
        raise captures.nothing_read(refused)
    cache = _cache(output, listed, samples)
    asked = {"attack": repr(attack), "seed": seed, "device": running.device}
    definitions = {one.file: {**captures.definition(one.file), **asked} for one in listed}
    common = {"captures": captures, "attack": attack, "seed": seed, "device": running.device}
    made: dict[Path, AttackedCapture] = {}
    failed, complete = None, True
    try:
        listed = with_checks(captures, listed, cache.folder, running)
        stored = {file: cache.get(one) for file, one in definitions.items()}
        made, missing = _done_before(listed, stored, samples, refused)
        by_file = {one.file: one for one in listed}
        tasks = [Task(f"{name}, {one.file.stem}", attack_file, {"file": one.file}) for one in missing]
        results = run_tasks(tasks, engine=running.engine, jobs=running.jobs, watch=running.watch, common=common)
        for task, result in results:
            file = task.arguments["file"]
            if (new := _scored(by_file[file], result, refused)) is not None:
                made[file] = new
                if new.reconstruction.outcome.kind == "interrupted":
                    raise KeyboardInterrupt
                cache.put(definitions[file], {**result[0], **score_to_plain(new)}, result[1], samples=SAMPLES)
    except TasksFailed as problem:
        failed, complete = problem, False
    except KeyboardInterrupt:
        complete = False
    if not made and failed is not None:
        raise failed
    attacked = tuple(saved_capture(made[one.file], Path(output), samples) for one in listed if one.file in made)
    if not attacked and refused:
        raise captures.nothing_read(refused)
    attacked, finding = _judged(attacked, name)
    controls: list[Finding] = []
    if complete and finding.measures and finding.verdict not in (Verdict.RECOVERS_DATA, Verdict.UNEXPLAINED):
        try:
            controls = controls_of(_truths(attacked), definitions, cache.folder, common, running, name)
        except KeyboardInterrupt:
            complete = False
        finding = with_support(finding, _evidence(attacked, controls))
    return CaptureAttack(
        attack=attack, attacked=attacked, controls=tuple(controls), findings=(finding,), refused=tuple(refused),
        failed=failed, complete=complete, notes=_not_scored(data, listed),
    )  # fmt: skip


def _not_scored(data: TruthSource | None, listed: Sequence[Capture]) -> tuple[str, ...]:
    """Return a sentence about captures without truth although data is given."""
    return () if data is None else data.not_scored([capture.client for capture in listed if capture.truth is None])


def _scored(
    capture: Capture, result: tuple[dict[str, Any], dict[str, Tensor]], refused: list[str]
) -> AttackedCapture | None:
    """Return a result with its score, or add the capture to ``refused`` if it cannot be attacked or scored."""
    document, tensors = result
    if "problem" in document:
        refused.append(printable(f"{capture.file}: {document['problem']}"))
        return None
    try:
        return scored_capture(capture, from_parts(document, tensors))
    except InvalidInput as problem:
        refused.append(printable(f"{capture.file}: {problem}"))
        return None


def _judged(attacked: tuple[AttackedCapture, ...], name: str) -> tuple[tuple[AttackedCapture, ...], Finding]:
    """Return the captures and the finding on them. Captures whose recipe does not explain them have no score."""
    unexplained = [one for one in attacked if is_unexplained(one)]
    trusted = tuple(replace(one, score=None) if one in unexplained else one for one in attacked)
    return trusted, with_unexplained(_finding(trusted, name), unexplained)


def _evidence(attacked: Sequence[AttackedCapture], controls: Sequence[Finding]) -> Evidence:
    """Return the evidence that an attack without success is strong enough to show the absence of leakage."""
    known = all(one.capture.labels_granted or _has_classes(one.capture) for one in attacked)
    scored = [one.capture for one in attacked if one.score is not None]
    return Evidence(
        {control.setup: control for control in controls},
        unknown_targets=not known,
        determined=next((capture.determined for capture in scored if capture.determined), ""),
        zero=all(capture.zero for capture in scored),
        unknown_recipe=weakness([one for one in attacked if one.score is not None]),
        failed=any(one.reconstruction.outcome.kind == "failed" for one in attacked),
    )


def _has_classes(capture: Capture) -> bool:
    return capture.truth is None or capture.truth.data.classes is not None


def _cache(output: Location, listed: Sequence[Capture], samples: bool) -> Cache:
    """Return the cache of an output folder. If samples are omitted, remove those that earlier runs stored in it.

    Raise an error if the results would replace files of others.
    """
    check_output(output, [name for one in listed for name in (f"{one.file.stem}.png", file_name(one))])
    cache = Cache(output_folder(output) / "cache", samples=samples)
    if not samples:
        forget_files(Path(output))
    return cache


def _done_before(
    listed: Sequence[Capture], entries: Mapping[Path, Entry | None], samples: bool, refused: list[str]
) -> tuple[dict[Path, AttackedCapture], list[Capture]]:
    """Return the results that the cache holds, and the captures that must be attacked.

    Args:
        listed: The captures.
        entries: The entry of the cache for each file, if there is one.
        samples: Whether samples are needed.
        refused: The list to which a capture is added that cannot be scored.
    """
    made: dict[Path, AttackedCapture] = {}
    missing = []
    for one in listed:
        with _refusing(one, refused):
            stored = stored_capture(one, entries[one.file], samples)
            if stored is None:
                missing.append(one)
            else:
                made[one.file] = stored
    return made, missing


def _listed(captures: Captures, attack: Attack, data: TruthSource | None) -> tuple[list[Capture], list[str]]:
    """Return the captures to attack, and sentences about the refused files.

    A capture is refused if this machine cannot attack it. Mistakes in the clients' data raise an error here, before any
    attack.
    """
    refused: list[str] = []
    known: dict[Path, Capture] = {}
    scored: dict[Path, Observation] = {}
    for file, observation in captures.read(attack.check):
        if isinstance(observation, LeakgaugeError):
            refused.append(printable(str(observation)))
            continue
        granted = observation.labels is not None or observation.label_counts is not None
        known[file] = Capture(
            file,
            observation.client,
            tuple(threat_model(observation)),
            granted,
            observation.data,
            named=named_by(observation) if data is not None else {},
            zero=not any(bool(value.any()) for value in observation.difference().values()),
            unknown=unknown_settings(observation),
        )
        if data is not None:
            data.check({capture.client: None for capture in known.values()})
            scored[file] = observation
    truths, problems = ({}, {}) if data is None else truths_of(data, scored, {file: (file,) for file in scored})
    problems |= not_scorable(truths, {file: known[file].named for file in truths})
    refused += [printable(f"{file}: {problem}") for file, problem in problems.items()]
    for file, truth in truths.items():
        known[file] = replace(known[file], truth=truth, determined=capture_determines(scored[file], len(truth)))
    return [capture for file, capture in known.items() if file not in problems], refused


def attack_file(
    captures: Captures, attack: Attack, file: Path, seed: int, report: Report, device: str | None = None
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Attack the observation in one file, and return the reconstruction as plain values and tensors.

    Args:
        captures: The captures that the file belongs to.
        attack: The attack to run.
        file: The file of the observation.
        seed: The seed of the attack.
        report: The function that is called after each step.
        device: The device of the attack.
    """
    observation = captures.load(file, captures.architecture())
    try:
        result = attack(observation, seed=seed, device=device, progress=report)
        check_measured(result)
        return to_parts(result)
    except LeakgaugeError as problem:  # the other captures are still attacked
        return {"problem": str(problem)}, {}


def _truths(attacked: Sequence[AttackedCapture]) -> dict[Path, Truth]:
    return {one.capture.file: one.capture.truth for one in attacked if one.capture.truth is not None}


@contextmanager
def _refusing(capture: Capture, refused: list[str]) -> Iterator[None]:
    """Add a capture that cannot be scored to ``refused``, and go on with the others."""
    try:
        yield
    except InvalidInput as problem:
        refused.append(printable(f"{capture.file}: {problem}"))


def _finding(attacked: Sequence[AttackedCapture], name: str) -> Finding:
    """Return the measures and the verdict for all scored captures together. Without scores, there are no measures."""
    scored = [one for one in attacked if one.score is not None]
    scores = [dict(one.score.metrics) for one in scored if one.score is not None]
    granted = any(one.capture.labels_granted for one in scored)
    title = f"{len(scored) or len(attacked)} captures" if len(attacked) > 1 else "1 capture"
    return Finding(name, title, over_clients(scores), judge([one.telling for one in scored], labels_granted=granted))
