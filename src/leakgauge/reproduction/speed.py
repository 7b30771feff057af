"""Functions that compare the time of an attack step with the time of a client's training (``leakgauge bench speed``).

The measured programs are the client's training and one step of each of several attacks. Every measurement runs in a
separate process on one thread. In each turn, all programs are measured one after another, so that a busy machine slows
all programs equally. Times are CPU seconds per run of a program, after one run to warm up. The preparation that an
attack does once for each client is not included. A ratio of two times is computed in each turn, and the result is the
median of the ratios. The memory is the maximum over the turns.
"""

from __future__ import annotations

import math
import multiprocessing
import statistics
import sys
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import functional_call

from leakgauge.attacks.inversion.objectives import L2, Cosine, Objective, layers_of
from leakgauge.attacks.inversion.update_models import FullSimulation, Surrogate, UpdateModel
from leakgauge.core.errors import InvalidInput
from leakgauge.core.observation import DataSpec, Observation
from leakgauge.data import Dataset
from leakgauge.federation.client import fedavg
from leakgauge.federation.training import local_sgd
from leakgauge.models import build
from leakgauge.runtime.processes import prepare_worker

DECAY = math.exp(-1)

#: The figures, with the meaning of each.
FIGURES = {
    "step_over_training": "a step of the simulated attack over the client's training (the aim is at most 3)",
    "step_over_plain": "the same step over a plain loop that keeps autograd's graph",
    "surrogate_over_simulated": "a step of the surrogate over one of the simulation (the aim is 1/15 = 0.067)",
    "adjoint_500_peak_mib": "MiB by which a step through 500 local steps of one sample grows the process (adjoint)",
}


@dataclass(frozen=True)
class Setting:
    """The data, the network and the training of the client that is attacked.

    The network has the structure of the networks in the paper DLF (Dimitrov et al.). The default values are the paper's
    FEMNIST setting with 100 local steps.

    Args:
        side: The height and width of a picture.
        channels: The number of channels of each convolution.
        dense: The width of the dense layer.
        classes: The number of classes.
        samples: The number of samples of the client.
        epochs: The number of local epochs.
        batch_size: The batch size.
        lr: The client's learning rate.
        seconds: The minimum duration of a measurement in CPU seconds. Shorter runs are repeated.
    """

    side: int = 28
    channels: tuple[int, ...] = (32, 64)
    dense: int = 100
    classes: int = 62
    samples: int = 50
    epochs: int = 10
    batch_size: int = 5
    lr: float = 0.004
    seconds: float = 1.0


DLF = Setting()


@dataclass(frozen=True)
class Case:
    """One client's data, the server's observation of this client, and the attacker's dummy samples.

    Args:
        observation: The server's observation.
        inputs: The client's samples.
        targets: The client's labels.
        dummies: The attacker's dummy samples, with one set for each epoch.
    """

    observation: Observation
    inputs: Tensor
    targets: Tensor
    dummies: Tensor

    @classmethod
    def of(cls, setting: Setting) -> Case:
        """Create the client that a setting describes. Every call with the same setting gives the same client."""
        shape = (1, setting.side, setting.side)
        random = torch.Generator().manual_seed(0)
        inputs = torch.rand(setting.samples, *shape, generator=random)
        targets = torch.randint(setting.classes, (setting.samples,), generator=random)
        model = build(
            "dlf_femnist",
            shape=shape,
            classes=setting.classes,
            channels=setting.channels,
            dense=setting.dense,
            seed=0,
        )
        observation, _ = fedavg(
            model,
            Dataset(inputs, targets, DataSpec(shape, setting.classes)),
            lr=setting.lr,
            epochs=setting.epochs,
            batch_size=setting.batch_size,
        )
        return cls(observation, inputs, targets, torch.rand(setting.epochs, *inputs.shape, generator=random))


#: A function that runs a measured program once. The returned tensor is used to check the program.
Run = Callable[[], Tensor]


def _training(case: Case) -> Run:
    """Return a function that runs the client's local training once."""
    observation, size = case.observation, int(case.observation.training.need("batch_size"))
    batches = list(zip(case.inputs.split(size), case.targets.split(size), strict=True))
    epochs = int(observation.training.need("epochs"))

    def run() -> Tensor:
        weights, _ = local_sgd(observation.model, observation.sent, batches * epochs, observation.training)
        return next(iter(weights.values()))

    return run


def _attack_step(case: Case, update_model: UpdateModel, objective: Objective) -> Run:
    """Return a function that runs one attack step.

    The step predicts the update, and compares the prediction with the observed update. Then it computes the gradient of
    their distance with respect to the samples and the other variables.
    """
    observation = case.observation
    client = update_model.begin(observation, functional=False)
    observed = observation.difference() if objective.scale_free else observation.summed_gradient()
    distance = objective.begin(observation.model)
    inputs = case.dummies[: client.copies].flatten(0, 1).requires_grad_()
    extra = {name: value.clone().requires_grad_() for name, value in client.extra.items()}

    def run() -> Tensor:
        loss = distance(client(inputs, case.targets, **extra), observed)
        return torch.autograd.grad(loss, [inputs, *extra.values()])[0]

    return run


def _simulated_step(case: Case) -> Run:
    return _attack_step(case, FullSimulation(per_epoch=True), L2(DECAY))


def _adjoint_step(case: Case) -> Run:
    return _attack_step(case, FullSimulation(per_epoch=True, gradients="adjoint"), L2(DECAY))


def _surrogate_step(case: Case) -> Run:
    return _attack_step(case, Surrogate(), Cosine())


def _plain_step(case: Case) -> Run:
    """Return a function that runs one attack step, written as a plain loop over epochs and batches."""
    observation, observed = case.observation, case.observation.summed_gradient()
    model, sent, layers = observation.model, observation.sent, layers_of(observation.sent)
    lr, size = float(observation.training.need("lr")), int(observation.training.need("batch_size"))
    dummies = case.dummies.clone().requires_grad_()

    def run() -> Tensor:
        weights = {name: value.detach().clone().requires_grad_() for name, value in sent.items()}
        for epoch in dummies:
            for start in range(0, len(epoch), size):
                outputs = functional_call(model, weights, (epoch[start : start + size],))
                loss = F.cross_entropy(outputs, case.targets[start : start + size])
                gradients = torch.autograd.grad(loss, list(weights.values()), create_graph=True)
                weights = {name: w - lr * g for (name, w), g in zip(weights.items(), gradients, strict=True)}
        distance = torch.zeros(())
        for name, value in weights.items():
            difference = (sent[name] - value) / lr - observed[name]
            distance = distance + DECAY ** layers[name] * difference.square().sum()
        return torch.autograd.grad(distance, dummies)[0]

    return run


WAYS: dict[str, Callable[[Case], Run]] = {
    "training": _training,
    "simulated": _simulated_step,
    "plain": _plain_step,
    "surrogate": _surrogate_step,
    "adjoint": _adjoint_step,
}


def time_of(way: str, setting: Setting) -> dict[str, float]:
    """Measure the CPU seconds of one run of a program in this process.

    The result also holds the norm of the tensor that the program returns. By this norm, two programs can be compared.

    Args:
        way: The name of the program in :data:`WAYS`.
        setting: The client that is attacked.
    """
    run = WAYS[way](Case.of(setting))
    norm = float(run().norm())
    runs, start = 0, time.process_time()
    while runs == 0 or time.process_time() - start < setting.seconds:
        run()
        runs += 1
    return {"seconds": (time.process_time() - start) / runs, "norm": norm}


def memory_of(way: str, setting: Setting) -> int:
    """Return the largest growth of this process's memory during one run of a program, in bytes.

    Args:
        way: The name of the program in :data:`WAYS`.
        setting: The client that is attacked.
    """
    run = WAYS[way](Case.of(setting))
    before = _memory("VmRSS")
    run()
    return _memory("VmHWM") - before


def _memory(field: str) -> int:
    """Return a number about the memory of this process, in bytes.

    Args:
        field: The name of a field of ``/proc/self/status`` on Linux, such as ``VmRSS``. On other systems, the peak
            memory is returned for every field.
    """
    status = Path("/proc/self/status")
    if status.exists():
        # ru_maxrss cannot be used here, because it starts from the memory of the parent process.
        line = next(line for line in status.read_text().splitlines() if line.startswith(f"{field}:"))
        return int(line.split()[1]) * 1024
    import resource  # not available on Windows

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


@dataclass(frozen=True)
class Speed:
    """The measured times and memory of attack steps.

    Args:
        step_over_training: The time of a step of the simulated attack divided by the time of the client's training.
        step_over_plain: The time of the same step divided by the time of the step as a plain loop.
        surrogate_over_simulated: The time of a step of the surrogate attack divided by that of the simulated attack.
        adjoint_500_peak_mib: The memory of an attack step with adjoint gradients over 500 local steps, in MiB.
        seconds: A dictionary from the name of each program to its median CPU seconds.
        repeats: The number of times that every program was measured.
    """

    step_over_training: float
    step_over_plain: float
    surrogate_over_simulated: float
    adjoint_500_peak_mib: float
    seconds: dict[str, float]
    repeats: int

    def to_json(self) -> dict[str, Any]:
        """Return the figures as a plain dictionary, which can be written as JSON."""
        return asdict(self)


def measure_speed(setting: Setting | None = None, *, repeats: int = 3) -> Speed:
    """Measure the times and the memory of attack steps.

    Args:
        setting: The client that is attacked. The default is :data:`DLF`.
        repeats: The number of times that every program is measured.
    """
    if repeats < 1:
        raise InvalidInput(f"repeats must be at least 1, not {repeats}")
    setting = DLF if setting is None else setting
    timed = ("training", "simulated", "plain", "surrogate")
    runs: dict[str, list[dict[str, float]]] = {way: [] for way in timed}
    peaks = []
    for _ in range(repeats):
        for way in timed:
            runs[way].append(_in_a_process(time_of, way, setting))
        peaks.append(_in_a_process(memory_of, "adjoint", replace(setting, batch_size=1)))
    check_same(runs["simulated"][0]["norm"], runs["plain"][0]["norm"])
    seconds = {way: [run["seconds"] for run in turns] for way, turns in runs.items()}

    def ratio(way: str, other: str) -> float:
        return statistics.median(a / b for a, b in zip(seconds[way], seconds[other], strict=True))

    return Speed(
        ratio("simulated", "training"),
        ratio("simulated", "plain"),
        ratio("surrogate", "simulated"),
        max(peaks) / 2**20,
        {way: statistics.median(turns) for way, turns in seconds.items()},
        repeats,
    )


def check_same(simulated: float, plain: float) -> None:
    """Raise an error if the simulated attack step and the plain attack step compute different gradients.

    Args:
        simulated: The norm of the simulated step's gradient.
        plain: The norm of the plain step's gradient.
    """
    if not math.isclose(simulated, plain, rel_tol=1e-2):
        raise RuntimeError(
            f"the simulated and the plain step differ, with gradients of norm {simulated:g} and {plain:g}"
        )


def _in_a_process(function: Callable[..., Any], *arguments: Any) -> Any:
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, context, initializer=prepare_worker) as pool:
        return pool.submit(function, *arguments).result()
