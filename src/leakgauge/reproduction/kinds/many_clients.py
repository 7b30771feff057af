"""Rows whose clients are attacked together, and rows that compare rules for stopping (EPAFL's tables).

=============  ======================================================================================================
``together``   every method attacks all clients at once; its seconds are the processor's, in one thread
``stopping``   one run to the last step is recorded, and each method's rule is read off it: when would it have
               stopped, with what? All rules then see the same attacks, and a table costs one run. Its seconds are the
               evaluations up to the stop, at the recorded run's mean cost
=============  ======================================================================================================

EPAFL reports the mean squared error, the SSIM and the iterations of *successful* samples, and its times fit these alone
too (21 failures of 300 iterations would not fit into the 371 seconds of table 1). Figures of that kind end in
``_of_recovered``. Its SSIM was computed with a data range of 0: ``ssim_range0`` is that figure, ``asr_range0`` the rate
by it; ``asr`` and ``ssim`` have the true range.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from leakgauge import attacks
from leakgauge.attacks import Attack, Inversion, Reconstruction
from leakgauge.attacks.inversion.solve import Trace
from leakgauge.attacks.inversion.stopping import MaxSteps
from leakgauge.core.container import output_folder, write_atomically
from leakgauge.core.errors import CorruptFile, InvalidInput
from leakgauge.core.observation import Observation
from leakgauge.core.progress import Report
from leakgauge.core.truth import Truth
from leakgauge.evaluation import Interval, Ruler, blind_guesses, mean_interval, wilson_interval
from leakgauge.evaluation.chance import other_samples
from leakgauge.evaluation.metrics.pixels import ssim
from leakgauge.reports import iterates_of, loss_curves, progress_strip, to_png
from leakgauge.reproduction.one_by_one import OneByOne
from leakgauge.reproduction.rows import Method
from leakgauge.reproduction.setting import client_of

#: EPAFL, section 5.2: an attack succeeded if the SSIM lies above this.
SUCCESS = 0.9

#: What one method of a row gave: the fields of a :class:`leakgauge.reproduction.runner.Figure`.
Found = dict[str, Any]


def attack_together(
    setting: dict[str, Any], method: Method, clients: int, steps: int | None, seed: int, report: Report
) -> Found:
    """Attack all clients at once, and measure what came back and what it cost."""
    observations, truths = _clients(json.dumps(setting), clients, seed)
    attack = attack_of(method, steps)
    results, seconds = _attacked(attack, observations, seed, report)
    return measure(results, truths, seconds) | {"chance": _chance(json.dumps(setting), clients, seed)}


def read_stop(
    setting: dict[str, Any],
    method: Method,
    clients: int,
    steps: int | None,
    seed: int,
    report: Report,
    pictures: Path | None = None,
) -> Found:
    """Read a rule's stop off the recorded attack on all clients; draw its course into a folder, if there is one."""
    attack = attack_of(method, steps)
    if not isinstance(attack, Inversion):
        raise CorruptFile(f"a row about stopping needs an inversion, not {method.attack!r}")
    recorded = attack.with_settings(stop=MaxSteps(attack.stop.max_steps or 1), snapshot_every=1)
    results, truths, seconds = _recorded(json.dumps(setting), recorded, clients, seed, report)
    each = seconds / sum(int(_trace(result).evaluations[-1]) for result in results)
    stopped = [stopped_by(attack, result, truth) for result, truth in zip(results, truths, strict=True)]
    if pictures is not None:
        draw(pictures, f"{setting['data']}-{method.name}", results, stopped, truths)
    spent = each * sum(int(_trace(result).evaluations[-1]) for result in stopped)
    return measure(stopped, truths, spent) | {"chance": _chance(json.dumps(setting), clients, seed)}


def draw(
    folder: Path,
    name: str,
    recorded: Sequence[Reconstruction],
    stopped: Sequence[Reconstruction],
    truths: Sequence[Truth],
) -> None:
    """EPAFL's figures: successes (1, 5) and failures (4) as iterates side by side, and the losses of both (2)."""
    values = _values(torch.cat([result.samples for result in stopped]), torch.cat([truth.inputs for truth in truths]))
    kinds = {"recovered": (values["asr"] > 0).nonzero().flatten(), "failed": (values["asr"] == 0).nonzero().flatten()}
    for kind, found in kinds.items():
        rows = {f"client {row}": row for row in found[:4].tolist()}
        if not rows:
            continue
        ends = {title: stopped[row].outcome.step for title, row in rows.items()}
        courses = {
            title: [one for one in iterates_of(recorded[row], truths[row].data) if one[0] <= ends[title] + 1]
            for title, row in rows.items()
        }
        strip = progress_strip(courses, {title: truths[row].inputs[0] for title, row in rows.items()})
        curves = loss_curves({title: _trace(recorded[row]).losses for title, row in rows.items()}, ends, title=kind)
        for what, image in (("progress", strip), ("losses", curves)):
            write_atomically(output_folder(folder) / f"{name}-{kind}-{what}.png", to_png(image))


TOGETHER: dict[str, Callable[..., Found]] = {"together": attack_together, "stopping": read_stop}


def attack_of(method: Method, steps: int | None = None) -> Attack:
    """The attack of a method; ``one_by_one`` is the reference for time, which is no attack of the package."""
    options = method.options if steps is None else {**method.options, "steps": steps}
    return OneByOne(**options) if method.attack == "one_by_one" else attacks.build(method.attack, **options)


@lru_cache(maxsize=1)  # the methods of a row follow each other
def _clients(text: str, clients: int, seed: int) -> tuple[list[Observation], list[Truth]]:
    setting = json.loads(text)
    if setting["samples"] != 1:
        raise CorruptFile(f"clients attacked together have one sample each here, not {setting['samples']}")
    pairs = [client_of(setting, index, seed) for index in range(clients)]
    return [observation for observation, _ in pairs], [truth for _, truth in pairs]


def _attacked(
    attack: Attack, observations: Sequence[Observation], seed: int, report: Report
) -> tuple[list[Reconstruction], float]:
    """What came of all clients, and the processor's seconds; an interrupt goes on, for half an attack is no figure."""
    began = time.process_time()
    results = attack.each(observations, seed=seed, progress=report)
    if any(result.outcome.kind == "interrupted" for result in results):
        raise KeyboardInterrupt
    return results, time.process_time() - began


_KEPT: dict[tuple[Any, ...], tuple[list[Reconstruction], list[Truth], float]] = {}


def _recorded(
    text: str, attack: Inversion, clients: int, seed: int, report: Report
) -> tuple[list[Reconstruction], list[Truth], float]:
    """The recorded attack, made once for all rules that are read off it."""
    key = (text, repr(attack), clients, seed)
    if key not in _KEPT:
        while len(_KEPT) > 1:  # one a dataset, and they are large
            del _KEPT[next(iter(_KEPT))]
        observations, truths = _clients(text, clients, seed)
        results, seconds = _attacked(attack, observations, seed, report)
        _KEPT[key] = results, truths, seconds
    return _KEPT[key]


def stopped_by(attack: Inversion, recorded: Reconstruction, truth: Truth) -> Reconstruction:
    """What the attack's own rule would have made of a recorded run: the best iterate by the end of its last step."""
    trace = _trace(recorded)
    watcher = attack.stop.begin(1)
    for step, loss in enumerate(trace.losses):
        (outcome,) = watcher.check(step, loss.reshape(1))
        if outcome is not None:
            break
    else:
        step, outcome = len(trace.losses) - 1, recorded.outcome
    seen = trace.losses[: step + 2].nan_to_num(math.inf)
    best = int(seen.argmin())
    inputs = trace.snapshots[best][1]["inputs"]
    samples = truth.data.denormalise(inputs)
    return replace(
        recorded,
        samples=samples.clamp(0, 1) if truth.data.bounded else samples,
        outcome=outcome,
        loss=float(seen[best]),
        trace=Trace(trace.losses[: step + 1], {}, evaluations=trace.evaluations[: step + 1]),
    )


def measure(results: Sequence[Reconstruction], truths: Sequence[Truth], seconds: float) -> Found:
    """The figures of one method: quality, iterations, cost."""
    values = _values(torch.cat([result.samples for result in results]), torch.cat([truth.inputs for truth in truths]))
    traces = [_trace(result) for result in results]
    iterations = torch.tensor([float(len(trace.losses)) for trace in traces])
    back, back0 = values["asr"] > 0, values["asr_range0"] > 0
    labels = [result.labels[0] for result in results if result.labels is not None]
    values["label_accuracy"] = (torch.stack(labels) == torch.cat([truth.targets for truth in truths])).double()
    ours = {name: _interval(name, column) for name, column in values.items()}
    ours |= {
        "mse_of_recovered": _interval("mse", values["mse"][back]),
        "ssim_of_recovered": _interval("ssim", values["ssim"][back]),
        "ssim_range0_of_recovered": _interval("ssim", values["ssim_range0"][back0]),
        "iterations_of_recovered": _interval("iterations", iterations[back]),
        "iterations": _interval("iterations", iterations),
        "evaluations": _interval("evaluations", torch.tensor([float(trace.evaluations[-1]) for trace in traces])),
        "seconds_in_all": Interval(seconds, None, None),
    }
    if bool(back.any()):
        kept = iterations[back]
        extremes = {"max": kept.max(), "min": kept.min(), "sd": kept.std() if len(kept) > 1 else kept.new_zeros(())}
        ours |= {
            f"iterations_{name}_of_recovered": Interval(float(value), None, None) for name, value in extremes.items()
        }
    failed = ~back
    if bool(failed.any()):
        seen = torch.tensor([result.outcome.kind != "converged" for result in results])
        ours["failures_noticed"] = wilson_interval(int((seen & failed).sum()), int(failed.sum()))
    return {
        "clients": len(results),
        "steps": int(iterations.max()),
        "ours": {name: value for name, value in ours.items() if value is not None},
        "seconds": seconds / len(results),
    }


def _values(samples: Tensor, originals: Tensor) -> dict[str, Tensor]:
    """One value a client and metric; reconstructions that are no numbers have failed."""
    samples, originals = samples.double().nan_to_num(0.0).clamp(0, 1), originals.double()
    true, zero = ssim(samples, originals), ssim_range0(samples, originals)
    return {
        "asr": (true > SUCCESS).double(),
        "ssim": true,
        "mse": (samples - originals).square().flatten(1).mean(1),
        "asr_range0": (zero > SUCCESS).double(),
        "ssim_range0": zero,
    }


def ssim_range0(samples: Tensor, originals: Tensor) -> Tensor:
    """SSIM as EPAFL has it, with a data range of 0, so without the constants that steady it; of 8-bit pictures.

    In a window where both pictures are flat it is then 0 / 0, which counts as equal here.
    """
    return ssim(*((pictures * 255).round() / 255 for pictures in (samples, originals)), data_range=1e-9)


def _interval(name: str, column: Tensor) -> Interval | None:
    if not len(column):
        return None
    if name.startswith(("asr", "label_accuracy")):
        return wilson_interval(float(column.sum()), len(column))
    limits = (-1.0, 1.0) if name.startswith("ssim") else (0.0, math.inf)
    return mean_interval(column, limits=limits)


@lru_cache(maxsize=4)
def _chance(text: str, clients: int, seed: int) -> dict[str, float]:
    """What the best kind of blind guess reaches, over all clients."""
    _, truths = _clients(text, clients, seed)
    sums: dict[str, dict[str, list[float]]] = {}
    for truth in truths:
        reference, _ = other_samples(truth)
        for guess in blind_guesses(Ruler(truth.inputs, truth.data), reference):
            qualities = [quality.values for quality in guess.qualities]
            for name in ("ssim", "mse"):
                each = [float(quality[name].mean()) for quality in qualities]
                sums.setdefault(name, {}).setdefault(guess.source, []).append(sum(each) / len(each))
            lucky = [float((quality["ssim"] > SUCCESS).double().mean()) for quality in qualities]
            sums.setdefault("asr", {}).setdefault(guess.source, []).append(sum(lucky) / len(lucky))
    means = {name: [sum(values) / len(values) for values in kinds.values()] for name, kinds in sums.items()}
    labels = torch.cat([truth.targets for truth in truths])
    means["label_accuracy"] = [float(torch.bincount(labels).max()) / len(labels)]
    return {name: (min if name == "mse" else max)(levels) for name, levels in means.items()}


def _trace(result: Reconstruction) -> Trace:
    if result.trace is None:
        raise InvalidInput(f"{result.attack} keeps no trace, so its iterations cannot be counted")
    return result.trace
