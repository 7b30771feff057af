"""Rows about the search for AWA's weights (its table 3 and figure 1): what a search finds, beside equal weights."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from leakgauge import attacks
from leakgauge.attacks.papers.awa import RecAttack
from leakgauge.core.container import output_folder, write_atomically
from leakgauge.core.progress import Report
from leakgauge.evaluation import score
from leakgauge.reports import running_minimum, to_png
from leakgauge.reproduction.rows import Method
from leakgauge.reproduction.setting import client_of
from leakgauge.runtime import Task, Watch

#: What a method may say of the search itself; the rest goes to the attack.
OPTIONS = ("trials", "random", "log", "cut")


def search_weights(
    setting: dict[str, Any],
    method: Method,
    index: int,
    steps: int | None,
    seed: int,
    report: Report,
    pictures: Path | None = None,
) -> dict[str, Any]:
    """Search weights for one client, attack with the best (or with those given), and score it.

    ``unexplained`` is f (33), in shares of the update's own squared norm. With ``pictures`` the trials are kept there,
    where an interrupted search goes on, and the running minimum is drawn.
    """
    observation, truth = client_of(setting, index, seed)
    options = dict(method.options) | ({} if steps is None else {"steps": steps})
    chosen = {name: options.pop(name) for name in OPTIONS if name in options}
    numbers = options.pop("Q", {})
    began = time.perf_counter()
    if "trials" in chosen:
        stem = None if pictures is None else output_folder(pictures) / _name(setting, method, index)
        found = attacks.search_awa(
            observation,
            seed=seed + index,
            path=None if pictures is None else pictures / "cache",
            watch=_Passing(report),
            **chosen,
            **options,
        )
        numbers = found.best.numbers
        if stem is not None:
            image = running_minimum({f"client {index}": found.running_minimum}, guided=found.random)
            write_atomically(Path(f"{stem}.png"), to_png(image))
    trial = RecAttack(observation, attacks.awa(Q={}, **options), seed + index)
    result, unexplained = trial.attempt(numbers, lambda step, value: None, report)
    scored = score(result, truth, threshold=setting["threshold"])
    values = {name: (scored[name].value, scored[name].chance) for name in scored}
    whole = sum(float(value.square().sum()) for value in observation.summed_gradient().values())
    values["unexplained"] = (unexplained / whole, 1.0)
    return {"values": values, "steps": trial.attack.stop.max_steps or 0, "seconds": time.perf_counter() - began}


class _Passing(Watch):
    """The steps of a search's trials are those of its task."""

    def __init__(self, report: Report) -> None:
        self._report = report

    def step(self, task: Task, step: int, total: int | None, loss: float) -> None:
        """Pass it on."""
        self._report(step, total, loss)


def _name(setting: dict[str, Any], method: Method, index: int) -> str:
    """A name for the files of one search: which client, how it trains, what is searched."""
    training = f"{setting['epochs']}x{setting['batch_size']}x{setting['samples']}"
    return f"{setting['data']}-{setting['model']}-{training}-{method.name}-client{index}"
