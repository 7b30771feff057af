"""The workflow that infers facts about clients from many rounds of captures (saved observations).

The workflow rebuilds each client's own model, infers a hidden column of the records, and finds the owners of records.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import nn

from leakgauge.attacks import registry
from leakgauge.attacks.local_model import LocalModelAttack
from leakgauge.core.container import Location
from leakgauge.core.errors import UnknownName
from leakgauge.core.own_files import check_output
from leakgauge.evaluation.gate import read_condition
from leakgauge.runtime import Watch
from leakgauge.workflows.captures import Captures, TruthSource
from leakgauge.workflows.infer_captures.questions import Inference
from leakgauge.workflows.infer_captures.run import AUTO, InferenceTask, InferredCaptures, run_inference
from leakgauge.workflows.kept_data import source_of_truths
from leakgauge.workflows.result import Running, conclude, measuring

__all__ = ["Inference", "InferenceTask", "InferredCaptures", "infer", "run_inference"]


@measuring()
def infer(  # noqa: PLR0913
    captures: Location | Captures,
    method: str | LocalModelAttack = AUTO,
    output: Location = "inferred",
    *,
    options: Mapping[str, Any] | None = None,
    model: nn.Module | str | None = None,
    model_options: Mapping[str, Any] | None = None,
    know: Mapping[str, Any] | None = None,
    client: str | None = None,
    data: Location | TruthSource | None = None,
    key: Location | None = None,
    sensitive: str | None = None,
    seed: int = 0,
    fail_if: Sequence[str] = (),
    junit: Location | None = None,
    engine: str = "auto",
    jobs: int | None = None,
    device: str | None = None,
    watch: Watch | None = None,
    command: str = "",
) -> InferredCaptures:
    """Rebuild clients' models from many rounds, and infer facts about records.

    The command ``leakgauge infer`` calls this function. The owners of records are inferred if the data of at least two
    clients is given.

    Args:
        captures: A folder of captures (saved observations), with many rounds of at least one client.
        method: The attack that rebuilds local models, or the name of the attack. ``"auto"`` is the attack of the
            malicious server if the captures hold rounds of one, and ``"lmra"`` otherwise.
        output: The folder for the report page and the cache.
        options: The options of the method, if the method is a name.
        model: Your own model, or ``module:factory``. It is not needed for models of Leakgauge.
        model_options: The options of the factory.
        know: Settings of the clients' training that are not in the captures, such as ``{"lr": 0.1}``.
        client: The name of the only client to read. The default is all clients.
        data: The clients' records (:class:`~leakgauge.workflows.captures.ClientData`). By default, those that keepers
            stored beside the captures, if there are any.
        key: The file of the private key, if the kept samples are encrypted.
        sensitive: The name of the column or category that is hidden from the attacker and inferred.
        seed: The seed of the attacks.
        fail_if: The conditions under which the command fails, such as ``"attribute_accuracy > 0.8"``
            (:mod:`leakgauge.evaluation.gate`).
        junit: The file to which the results of these conditions are written as JUnit XML.
        engine: The engine that rebuilds models (:mod:`leakgauge.runtime.engines`).
        jobs: The number of models that are rebuilt at a time. By default, one per core.
        device: The device of the attacks, such as ``"cuda"``.
        watch: The listener that receives the progress of the tasks.
        command: The command line, which the report page shows.
    """
    from leakgauge.reports.inference import write_inference

    check_output(output, ("inferred.html", "inferred.json"), junit)
    running = Running(engine, jobs, device, watch)
    _check(method, options or {})
    names = [spec.name for spec in registry.specs(reads="rounds") if spec.recovers in ("attribute", "source")]
    conditions = [read_condition(text, names) for text in fail_if]
    if not isinstance(captures, Captures):
        captures = Captures.find(captures, model, model_options, know=know, client=client)
    truths = source_of_truths(data, captures, key)
    task = InferenceTask(captures, method, options or {}, truths, sensitive, seed)
    result = run_inference(task, output, running)
    return conclude(result, conditions, junit, lambda one: write_inference(one, Path(output), command))


def _check(method: str | LocalModelAttack, options: Mapping[str, Any]) -> None:
    """Raise an error if the method or its options do not exist, before any capture is read."""
    if isinstance(method, LocalModelAttack):
        return
    names = [spec.name for spec in registry.specs(recovers="model")]
    if method not in (AUTO, *names):
        raise UnknownName("way to rebuild a local model called", method, [AUTO, *names])
    if method != AUTO:
        registry.build(method, **options)
