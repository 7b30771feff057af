"""The requirements of an attack, which are checked before the attack starts.

A capture may hold any number of samples, any shape and any number of epochs, because a client sets them. Three things
are checked. The model must accept samples of this shape. The simulated local steps must be few enough. The memory that
the attack needs must be available. The estimate of the memory is rough, and rather low, so that an attack that fits
into the memory is not refused:

.. math:: \\text{numbers} = 8\\,v + 3\\,g\\,a + 3\\,s\\,w

Here :math:`v` are the values of all dummy samples, :math:`g` is the number of samples whose graphs are held at the same
time, :math:`a` are the values that a forward pass of one sample keeps for its gradient, :math:`s` is the number of
copies of the weights and :math:`w` is the number of weights.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import isqrt, prod

import torch
from torch import Tensor
from torch.func import functional_call
from torch.nn.modules.batchnorm import _BatchNorm

from leakgauge.core.errors import InvalidInput
from leakgauge.core.local_training import LocalTraining, Mode
from leakgauge.core.observation import LABEL_FIELDS, Observation
from leakgauge.federation.losses import loss_of, takes_model
from leakgauge.federation.training import in_mode
from leakgauge.runtime import memory

#: The largest number of local batches that an attack simulates in one prediction. Even for a small model, such a
#: prediction takes several seconds.
MOST_SIMULATED = 10_000
#: The number of tensors of the size of all dummy samples, such as their gradient, two moments and the best samples.
_OF_VARIABLES = 8
#: The number of tensors of the size of a forward pass that its graph, its gradient and the gradient's graph hold.
_OF_GRAPH = 3
#: The number of tensors of the size of the weights in each simulated step.
_OF_WEIGHTS = 3
#: Samples of up to this many values are passed through the model itself. Larger samples are only traced.
_SMALL = 10**6
#: The same, if torch cannot trace the model.
_LARGEST_REAL = 10**7
#: The losses that compare each value of the output with one value of the target.
_VALUE_BY_VALUE = ("mse", "l1", "huber", "binary_cross_entropy")


@dataclass(frozen=True)
class Simulation:
    """The size of an attacker's prediction of one update.

    Args:
        batches: The number of simulated batches.
        copies: The number of copies of the client's samples that are optimised, such as one for each epoch.
        graphs: The number of samples whose graphs are held at the same time.
        states: The number of copies of the weights that are held at the same time.
    """

    batches: int = 1
    copies: int = 1
    graphs: int = 1
    states: int = 1


@dataclass(frozen=True)
class Workload:
    """The size of an attack's computation.

    Args:
        samples: The number of the client's samples.
        values: The number of samples of the client's shape that are optimised or returned.
        simulation: The size of one prediction of an update.
        dummies: The number of dummy inputs that are held at a time when labels are inferred.
        passing: The number of dummy inputs that pass through the model at a time.
        parallel: The number of predictions that are computed at the same time.
        others: The number of other values that are held, such as the predicted labels at each local step.
    """

    samples: int
    values: int
    simulation: Simulation = Simulation()
    dummies: int = 0
    passing: int = 0
    parallel: int = 1
    others: int = 0

    @property
    def graphs(self) -> int:
        """The number of samples whose graphs are held at the same time."""
        return max(self.parallel * self.simulation.graphs, self.passing // _OF_GRAPH)


def simulation_of(training: LocalTraining, weights: int, *, copies: bool, graph_limit: int) -> Simulation:
    """Return the size of a simulation of all local steps.

    Args:
        training: The settings of the client's training. ``samples``, ``batch_size`` and ``epochs`` must be known.
        weights: The number of weights of the model.
        copies: Whether every epoch has its own copy of the samples.
        graph_limit: The largest number of weights, counted over all batches, for which the graph of all is held.
    """
    samples, epochs = int(training.need("samples")), int(training.need("epochs"))
    size = min(samples, int(training.need("batch_size")))
    batches = epochs * -(-samples // size)
    own = epochs if copies else 1
    if batches * weights <= graph_limit:
        return Simulation(batches, own, epochs * samples, batches)
    return Simulation(batches, own, size, 2 * isqrt(batches) + 1)


def size_of_prediction(update_model: object, observation: Observation) -> Simulation:
    """Return the size of one prediction of a client's update.

    An update model without a method ``simulation`` passes all samples through the model once. So does every update
    model if the message is one gradient, or if the number of local steps is unknown.

    Args:
        update_model: The rule that predicts the update (:mod:`leakgauge.attacks.inversion.update_models`).
        observation: The client's message (gradient or weights), as the server sees it.
    """
    training, simulation = observation.training, getattr(update_model, "simulation", None)
    unknown = None in (training.samples, training.batch_size, training.epochs)
    if simulation is None or unknown or observation.kind == "gradient":
        return Simulation(graphs=samples_in(observation) or 1)
    size: Simulation = simulation(training, sum(value.numel() for value in observation.sent.values()))
    return size


def samples_in(observation: Observation) -> int | None:
    """Return the number of the client's samples, from the recipe or from the labels, or ``None`` if it is unknown.

    Args:
        observation: The client's message (gradient or weights), as the server sees it.
    """
    if observation.training.samples is not None:
        return observation.training.samples
    if observation.labels is not None:
        return len(observation.labels)
    if observation.label_counts is not None:
        return int(observation.label_counts.sum())
    return None if observation.label_batches is None else observation.label_batches.shape[1]


def check_requirements(observation: Observation, workload: Workload) -> None:
    """Raise an error if an attack on a message cannot run on this machine.

    Args:
        observation: The client's message (gradient or weights), as the server sees it.
        workload: The size of the attack's computation.
    """
    if workload.simulation.batches > MOST_SIMULATED:
        raise InvalidInput(
            f"{observation.client} trained on {workload.simulation.batches:,} batches, and an attack simulates up to "
            f"{MOST_SIMULATED:,}. Use an attack that takes all local steps as one, such as agic, or correct the recipe "
            "with --know epochs=... (observation.knowing in Python)."
        )
    like = next(iter(observation.sent.values()))
    values, weights = prod(observation.data.shape), sum(value.numel() for value in observation.sent.values())
    samples = _OF_VARIABLES * workload.values * values + workload.dummies * values + _OF_GRAPH * workload.others
    states = _OF_WEIGHTS * workload.simulation.states * workload.parallel * weights
    _check_memory(observation, workload, like.element_size() * (samples + states))
    graph = _OF_GRAPH * workload.graphs * kept_by_forward_pass(observation)
    _check_memory(observation, workload, like.element_size() * (samples + states + graph))
    _check_smallest_batch(observation)


def _check_smallest_batch(observation: Observation) -> None:
    """Raise an error if the recipe has a batch of one sample, on which the model cannot be trained."""
    training = observation.training
    known = None not in (training.samples, training.batch_size)
    sizes = training.batch_sizes if known and observation.kind == "weights" else (samples_in(observation),)
    normalises = any(isinstance(module, _BatchNorm) for module in observation.model.modules())
    if training.mode != "train" or 1 not in sizes or not normalises:
        return
    try:
        _forward(observation, torch.device("meta"), "train")
    except Exception as problem:  # the model may be the user's own code, which torch cannot trace
        if "more than 1 value per channel" in str(problem):
            raise InvalidInput(
                f"{observation.client} cannot have trained as its recipe says, because batch norm in train mode cannot "
                "train on a batch of one sample. Correct the recipe, for example with --know mode=eval or "
                "--know batch_size=... (observation.knowing in Python)."
            ) from problem


def _check_memory(observation: Observation, workload: Workload, needed: int) -> None:
    available = _available(observation.device)
    if needed > available:
        raise InvalidInput(
            f"an attack on {observation.client} needs about {_size(needed)} of memory for {workload.samples:,} samples "
            f"of shape {observation.data.shape}, and {_size(available)} are available. Use fewer restarts or a larger "
            "machine, or correct the recipe with --know samples=... (observation.knowing in Python)."
        )


def _available(device: torch.device) -> int:
    """Return the available memory of a device in bytes."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    return memory.available()


def _size(count: int) -> str:
    """Return a number of bytes in words, such as ``1.5 GiB``."""
    for unit, size in (("TiB", 2**40), ("GiB", 2**30)):
        if count >= size:
            return f"{count / size:,.1f} {unit}"
    return f"{count / 2**20:,.0f} MiB"


def kept_by_forward_pass(observation: Observation) -> int:
    """Return the number of values that the forward pass of one sample keeps for its gradient.

    A large sample is passed through the model on torch's meta device, where tensors have shapes and no memory.

    Args:
        observation: The client's message (gradient or weights), as the server sees it.

    Raises:
        InvalidInput: If the model does not accept the sample, or the loss does not accept the output of the model.
    """
    values, problem = prod(observation.data.shape), None
    devices = [torch.device("meta"), observation.device][values <= _SMALL :]
    for device in devices if values <= _LARGEST_REAL else devices[:1]:
        try:
            return _forward(observation, device)
        except InvalidInput:
            raise
        except Exception as raised:  # the model may be the user's own code
            problem = raised
    reason = (str(problem).splitlines() or [type(problem).__name__])[0]
    raise InvalidInput(
        f"the model does not accept the samples of {observation.client}, which have the shape {observation.data.shape} "
        f"({reason[:200]}). Is this the right model?"
    ) from problem


def _forward(observation: Observation, device: torch.device, mode: Mode = "eval") -> int:
    """Pass one sample through the model and the loss on a device, and count the values that are kept."""
    sent = {name: _on(device, value).requires_grad_() for name, value in observation.sent.items()}
    state = sent | {name: _on(device, value) for name, value in observation.model_buffers().items()}
    inputs = torch.zeros(1, *observation.data.shape, device=device, dtype=next(iter(sent.values())).dtype)
    stored, kept = {_storage(value) for value in (*state.values(), inputs)}, inputs.numel()

    def pack(value: Tensor) -> Tensor:
        nonlocal kept
        kept += 0 if _storage(value) in stored else value.numel()
        stored.add(_storage(value))
        return value

    hooks = torch.autograd.graph.saved_tensors_hooks(pack, lambda value: value)
    with torch.enable_grad(), in_mode(observation.model, mode), hooks:
        outputs = functional_call(observation.model, state, (inputs,))
        _check_output(observation, outputs)
    return kept


def _on(device: torch.device, value: Tensor) -> Tensor:
    """Return a tensor of the same shape and type on the meta device, or the tensor itself on any other device."""
    return torch.empty_like(value, device=device) if device.type == "meta" else value.detach()


def _storage(value: Tensor) -> int:
    """Return a number that views of the same tensor share."""
    return int(value.untyped_storage()._cdata)


def _check_output(observation: Observation, outputs: object) -> None:
    """Raise an error if the loss of the client does not fit the output of the model for one sample."""
    training, classes, labels = observation.training, observation.data.classes, observation.labels
    loss = loss_of(training)
    if takes_model(loss) or not isinstance(outputs, Tensor):
        return
    shape = tuple(outputs.shape[1:])
    if training.loss == "cross_entropy" and classes is not None and (not shape or shape[0] < classes):
        raise InvalidInput(
            f"the data of {observation.client} has {classes:,} classes, and the model returns values of shape {shape} "
            "for each sample. Is this the right model?"
        )
    described = observation.data.target_shape
    granted = bool(described) or any(getattr(observation, name) is not None for name in LABEL_FIELDS)
    target = tuple(labels.shape[1:]) if labels is not None and classes is None else described
    if training.loss in _VALUE_BY_VALUE and granted and prod(shape) != prod(target):
        raise InvalidInput(
            f"the loss {training.loss!r} of {observation.client} compares values of shape {shape}, which the model "
            f"returns for each sample, with targets of shape {target}. Is this the right model or loss?"
        )
