"""Benchmark rows whose methods attack all clients at once (EPAFL by Tabassum et al., table 5).

Seconds are CPU seconds of one thread.

EPAFL reports the mean squared error, the SSIM and the iterations of *successful* samples only. The times in EPAFL seem
to be those of successful samples too. Table 1 reports 371 seconds, which is too short for 21 failures of 300 iterations
each. The names of metrics over successful samples end in ``_of_recovered``.

EPAFL computed the SSIM with a data range of 0. The metric ``ssim_range0`` is this SSIM, and ``asr_range0`` is the
success rate with this SSIM. The metrics ``ssim`` and ``asr`` use the true data range.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import lru_cache

import torch
from torch import Tensor

from leakgauge import attacks
from leakgauge.attacks import Attack, Reconstruction
from leakgauge.attacks.inversion.solve import Trace
from leakgauge.core.errors import InvalidInput
from leakgauge.core.measure import Measure
from leakgauge.core.observation import Observation
from leakgauge.core.progress import Report
from leakgauge.core.truth import Truth
from leakgauge.evaluation import Ruler, blind_guesses
from leakgauge.evaluation.chance import other_samples
from leakgauge.evaluation.metrics.pixels import ssim
from leakgauge.reproduction.clients import client_of, clients_of
from leakgauge.reproduction.kinds.base import ONE_MESSAGE, Job, Kind, Outcome
from leakgauge.reproduction.metrics import mean_of, share_of, single
from leakgauge.reproduction.one_by_one import OneByOne
from leakgauge.reproduction.rows import Method
from leakgauge.reproduction.setting import Setting

#: An attack is successful if the SSIM is above this value (EPAFL, section 5.2).
SUCCESS = 0.9


def attack_together(job: Job, report: Report) -> Outcome:
    """Attack all clients at once with one method, and measure the quality and the cost of the attack."""
    observations, truths = clients_together(job.setting, job.clients, job.seed)
    results, seconds = attack_all(attack_of(job.method, job.steps), observations, job.seed, report)
    return measure_all(results, truths, seconds, chance_levels(job.setting, job.clients, job.seed))


def attack_of(method: Method, steps: int | None = None) -> Attack:
    """Build the attack of a method.

    The attack ``one_by_one`` is not in the registry of attacks, because it is only a reference for time. This function
    builds it too.

    Args:
        method: The method, which names the attack and its options.
        steps: The number of attack steps. With ``None``, the number in the method's options is used.
    """
    options = method.options if steps is None else {**method.options, "steps": steps}
    return OneByOne(**options) if method.attack == "one_by_one" else attacks.build(method.attack, **options)


@lru_cache(maxsize=1)  # the methods of a row attack the same clients one after another
def clients_together(setting: Setting, clients: int, seed: int) -> tuple[list[Observation], list[Truth]]:
    """Return the observations and the truths of all clients.

    Args:
        setting: The data, the network, the training and the defences of the benchmark row, with one sample for each
            client.
        clients: The number of clients.
        seed: The seed of the run.
    """
    _check_samples(setting)
    pairs = [client_of(setting, index, seed) for index in range(clients)]
    return [observation for observation, _ in pairs], [truth for _, truth in pairs]


def _check_samples(setting: Setting) -> None:
    if setting.training["samples"] != 1:
        raise InvalidInput(
            f"Clients that are attacked together have one sample each here, not {setting.training['samples']}. "
            "Set [training] samples = 1."
        )


def check_together(job: Job) -> None:
    """Raise an error if there are fewer clients than a job attacks, or if they have several samples each.

    Args:
        job: The job, which attacks clients together.
    """
    _check_samples(job.setting)
    clients_of(job.setting, job.seed, job.clients - 1)


def attack_all(
    attack: Attack, observations: Sequence[Observation], seed: int, report: Report
) -> tuple[list[Reconstruction], float]:
    """Return the reconstructions of all clients, and the CPU seconds.

    An interrupted run raises ``KeyboardInterrupt``.

    Args:
        attack: The attack that runs on all clients at once.
        observations: The observations of the clients.
        seed: The seed of the run.
        report: The function that is called after each step.
    """
    began = time.process_time()
    results = attack.each(observations, seed=seed, progress=report)
    if any(result.outcome.kind == "interrupted" for result in results):
        raise KeyboardInterrupt
    return results, time.process_time() - began


def measure_all(
    results: Sequence[Reconstruction], truths: Sequence[Truth], seconds: float, chance: dict[str, float]
) -> Outcome:
    """Measure the quality, the iterations and the cost of one method.

    Args:
        results: The reconstructions, one for each client.
        truths: The clients' samples.
        seconds: The CPU seconds of all clients together.
        chance: A dictionary from metrics to chance levels.
    """
    values = values_of(torch.cat([result.samples for result in results]), torch.cat([truth.inputs for truth in truths]))
    traces = [trace_of(result) for result in results]
    iterations = torch.tensor([float(len(trace.losses)) for trace in traces])
    evaluations = torch.tensor([float(trace.evaluations[-1]) for trace in traces])
    recovered, recovered_range0 = values["asr"] > 0, values["asr_range0"] > 0
    labels = [result.labels[0] for result in results if result.labels is not None]
    values["label_accuracy"] = (torch.stack(labels) == torch.cat([truth.targets for truth in truths])).double()
    columns = {
        **values,
        "mse_of_recovered": values["mse"][recovered],
        "ssim_of_recovered": values["ssim"][recovered],
        "ssim_range0_of_recovered": values["ssim_range0"][recovered_range0],
        "iterations_of_recovered": iterations[recovered],
        "iterations": iterations,
        "evaluations": evaluations,
    }
    measures = {name: _measure(name, column, chance.get(name)) for name, column in columns.items() if len(column)}
    measures["seconds_in_all"] = single("seconds_in_all", seconds, len(results))
    measures |= _extremes(iterations[recovered]) | _noticed(results, ~recovered)
    return Outcome(measures, int(iterations.max()), seconds / len(results), len(results))


def _measure(name: str, column: Tensor, chance: float | None) -> Measure:
    if name.startswith(("asr", "label_accuracy")):
        return share_of(name, float(column.sum()), len(column), chance)
    return mean_of(name, column, chance)


def _extremes(iterations: Tensor) -> dict[str, Measure]:
    """Return the smallest, the largest and the standard deviation of the numbers of iterations per recovered sample."""
    if not len(iterations):
        return {}
    deviation = iterations.std() if len(iterations) > 1 else iterations.new_zeros(())
    extremes = {"max": iterations.max(), "min": iterations.min(), "sd": deviation}
    named = {f"iterations_{extreme}_of_recovered": float(value) for extreme, value in extremes.items()}
    return {name: single(name, value, len(iterations)) for name, value in named.items()}


def _noticed(results: Sequence[Reconstruction], failed: Tensor) -> dict[str, Measure]:
    """Return the share of failed attacks whose failure the attacker notices, because they did not converge."""
    if not bool(failed.any()):
        return {}
    unconverged = torch.tensor([result.outcome.kind != "converged" for result in results])
    noticed = share_of("failures_noticed", int((unconverged & failed).sum()), int(failed.sum()))
    return {"failures_noticed": noticed}


def values_of(samples: Tensor, originals: Tensor) -> dict[str, Tensor]:
    """Return the value of each metric for each client.

    NaN in a reconstruction counts as 0. Other values are clipped to [0, 1].

    Args:
        samples: The reconstructions, one for each client.
        originals: The clients' samples, in the same order.
    """
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
    """Return the SSIM of 8-bit pictures with a data range of 0, as EPAFL computes it.

    A data range of 0 removes the constants that stabilise the SSIM. Where both pictures are flat, a factor of the SSIM
    is then 0 / 0. Here, this factor counts as 1.

    Args:
        samples: The reconstructions.
        originals: The clients' samples, in the same order.
    """
    return ssim(*((pictures * 255).round() / 255 for pictures in (samples, originals)), data_range=1e-9)


@lru_cache(maxsize=4)
def chance_levels(setting: Setting, clients: int, seed: int) -> dict[str, float]:
    """Return the chance level of each metric.

    A blind guess is a guess without any message. Each metric is averaged over all clients, separately for each of
    several blind guesses. The chance level is the average that is best for the attacker. The chance level of labels is
    the share of the most frequent label.

    Args:
        setting: The data, the network, the training and the defences of the benchmark row.
        clients: The number of clients.
        seed: The seed of the run.
    """
    _, truths = clients_together(setting, clients, seed)
    levels: dict[str, dict[str, list[float]]] = {}
    for truth in truths:
        reference, _ = other_samples(truth)
        for guess in blind_guesses(Ruler(truth.inputs, truth.data), reference):
            qualities = [quality.values for quality in guess.qualities]
            for name in ("ssim", "mse"):
                each = [float(quality[name].mean()) for quality in qualities]
                levels.setdefault(name, {}).setdefault(guess.source, []).append(sum(each) / len(each))
            lucky = [float((quality["ssim"] > SUCCESS).double().mean()) for quality in qualities]
            levels.setdefault("asr", {}).setdefault(guess.source, []).append(sum(lucky) / len(lucky))
    means = {name: [sum(values) / len(values) for values in kinds.values()] for name, kinds in levels.items()}
    labels = torch.cat([truth.targets for truth in truths])
    means["label_accuracy"] = [float(torch.bincount(labels).max()) / len(labels)]
    return {name: (min if name == "mse" else max)(values) for name, values in means.items()}


def trace_of(result: Reconstruction) -> Trace:
    """Return the record of the optimisation of a reconstruction, or raise an error if there is none."""
    if result.trace is None:
        raise InvalidInput(f"{result.attack} records no trace, so its iterations cannot be counted.")
    return result.trace


TOGETHER = Kind(attack_together, ONE_MESSAGE, together=True, check=check_together)
