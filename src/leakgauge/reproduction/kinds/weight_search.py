"""Benchmark rows that search for the weights of layers in an attack (AWA by Song et al., table 3 and figure 1).

The baseline is an attack in which all layers have equal weights.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

from leakgauge import attacks
from leakgauge.attacks.papers.awa import RecAttack
from leakgauge.core.container import output_folder
from leakgauge.core.own_files import write_own
from leakgauge.core.progress import Report
from leakgauge.evaluation import score
from leakgauge.reports import running_minimum, to_png
from leakgauge.reproduction.clients import client_of
from leakgauge.reproduction.kinds.base import ONE_MESSAGE, Job, Kind, Outcome, check_client, measures_of
from leakgauge.reproduction.metrics import single
from leakgauge.runtime import Task, Watch

#: The options of a method that configure the search. All other options configure the attack.
SEARCH_OPTIONS = ("trials", "random", "log", "cut")


def search_weights(job: Job, report: Report) -> Outcome:
    """Search for the layer weights that suit one client best, attack with these weights, and score the result.

    If the method has no option ``trials``, there is no search, and the attack uses the weights in the option ``Q``. The
    metric ``unexplained`` is the value of the search objective (equation 33) at the weights of the attack. It is
    divided by the squared norm of the client's summed gradient. If the job has a folder for pictures, the trials of the
    search are stored there, so that an interrupted search can continue. A curve of the lowest objective so far is drawn
    too.
    """
    observation, truth = client_of(job.setting, job.index, job.seed)
    seed, options = job.seed + job.index, job.options
    search = {name: options.pop(name) for name in SEARCH_OPTIONS if name in options}
    weights = options.pop("Q", {})
    began = time.perf_counter()
    if "trials" in search:
        if job.pictures is not None:
            output_folder(job.pictures)
        history = attacks.search_awa(
            observation,
            seed=seed,
            path=None if job.pictures is None else job.pictures / "cache",
            watch=_ForwardSteps(report),
            **search,
            **options,
        )
        weights = history.best.numbers
        for path in _drawn(job):
            image = running_minimum({f"client {job.index}": history.running_minimum}, guided=history.random)
            write_own(path, to_png(image))
    trial = RecAttack(observation, attacks.awa(Q={}, **options), seed)
    result, unexplained = trial.attempt(weights, lambda step, value: None, report)
    measures = measures_of(score(result, truth, threshold=job.row.measuring.get("threshold")))
    norm = sum(float(value.square().sum()) for value in observation.summed_gradient().values())
    measures["unexplained"] = single("unexplained", unexplained / norm, chance=1.0)
    return Outcome(measures, trial.attack.stop.max_steps or 0, time.perf_counter() - began)


class _ForwardSteps(Watch):
    """A listener that passes the progress of a search's trials on as the progress of the job."""

    def __init__(self, report: Report) -> None:
        self._report = report

    def step(self, task: Task, step: int, total: int | None, loss: float) -> None:
        """Report one step of a trial."""
        self._report(step, total, loss)


def _drawn(job: Job) -> Iterator[Path]:
    """Yield the picture of a search, if the job has a search and a folder for pictures."""
    if job.pictures is None or "trials" not in job.options:
        return
    training = job.setting.training
    recipe = f"{training['epochs']}x{training['batch_size']}x{training['samples']}"
    name = f"{job.setting.data_name}-{job.setting.model['name']}-{recipe}-{job.method.name}-client{job.index}"
    yield job.pictures / f"{name}.png"


SEARCH = Kind(search_weights, ONE_MESSAGE, check=check_client, drawn=_drawn)
