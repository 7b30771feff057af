"""Changes of a recipe that are usual mistakes, for :mod:`leakgauge.evaluation.recipe_check`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from torch import nn

from leakgauge.core.data_spec import DataSpec
from leakgauge.core.errors import LeakgaugeError
from leakgauge.core.local_training import LocalTraining
from leakgauge.core.observation import Observation
from leakgauge.core.truth import Truth

#: Normalisations that people use for pictures: ImageNet's, CIFAR-10's, a symmetric one, MNIST's, and none.
NORMALISATIONS = (
    ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
    ((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)),
    ((0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)),
    ((0.5,), (0.5,)),
    ((0.1307,), (0.3081,)),
    ((0.2860,), (0.3530,)),
    ((0.0,), (1.0,)),
)
#: The values of settings that are tried, in the order in which they are tried.
VALUES: dict[str, tuple[Any, ...]] = {
    "momentum": (0.9, 0.0, 0.5, 0.95, 0.99),
    "optimiser": ("adam", "adamw", "sgd"),
    "weight_decay": (0.0, 5e-4, 1e-2, 1e-4, 1e-3, 5e-3, 5e-2, 0.1),
    "schedule": (
        "constant", "cosine", "step(factor=0.1, per='epoch')", "step(factor=0.5, per='epoch')",
        "step(every=2, factor=0.1, per='epoch')", "step(factor=0.5)", "exponential(factor=0.9)",
        "exponential(factor=0.9, per='epoch')", "linear(start=1.0, end=0.0)",
    ),
    "proximal": (0.0, 0.1, 0.01, 1.0, 0.001),
    "clip_norm": (0.0, 1.0, 5.0, 0.5, 0.1, 10.0),
    "label_smoothing": (0.0, 0.1),
}  # fmt: skip
#: What each of these settings is called in a sentence.
WORDS = {
    "momentum": "momentum {}",
    "optimiser": "the optimiser {}",
    "weight_decay": "weight decay {}",
    "schedule": "the learning-rate schedule {}",
    "proximal": "a proximal term of {}, as in FedProx",
    "clip_norm": "gradients that are clipped to the norm {}",
    "label_smoothing": "label smoothing {}",
}
#: A setting that is 0 or constant has words of its own.
WITHOUT = {
    "momentum": "no momentum",
    "weight_decay": "no weight decay",
    "schedule": "a constant learning rate",
    "proximal": "no proximal term",
    "clip_norm": "no clipping",
    "label_smoothing": "no label smoothing",
}


@dataclass(frozen=True)
class Change:
    """One change of a client as it is replayed.

    Args:
        part: The part of the client that changes.
        words: The changed part in words.
        changed: The changed fields of a :class:`~leakgauge.evaluation.recipe_replays.Case`.
    """

    part: str
    words: str
    changed: Mapping[str, Any]


def changes(
    training: LocalTraining,
    data: DataSpec,
    truth: Truth,
    length: float,
    observation: Observation,
    others: Mapping[str, Truth],
) -> Iterator[Change]:
    """Yield changes of a client that may explain its message, the likeliest first.

    Args:
        training: The settings of the training.
        data: The description of the samples.
        truth: The samples.
        length: The length of the update along a replay with this recipe, as a multiple of the replay's length.
        observation: The message of the client.
        others: The samples of other clients, by name.
    """
    if observation.kind == "weights":
        yield from _rates(training, length)
    yield from _normalisations(data, truth)
    for name, other in others.items():
        if other is not truth and other.data.shape == truth.data.shape:
            yield Change("samples", f"the samples of {name!r}", {"truth": other, **_sized(training, other)})
    yield from _settings(training, gradient=observation.kind == "gradient")
    yield from _modes(training, observation.model)
    if observation.kind == "weights":
        yield from _batches(training, int(training.need("samples")))
        yield from kept_batches(training, truth)


def _sized(training: LocalTraining, truth: Truth) -> dict[str, LocalTraining]:
    """Return the training for another number of samples."""
    count = len(truth)
    whole = training.batch_size is None or training.batch_size == training.samples
    size = count if whole else min(count, int(training.need("batch_size")))
    return {"training": replace(training, samples=count, batch_size=size)}


def _rates(training: LocalTraining, length: float) -> Iterator[Change]:
    """Yield other learning rates, and first the rate that the length of the update shows."""
    lr = training.need("lr")
    shown = [length] if 1e-4 < length < 1e4 and abs(length - 1) > 0.02 else []
    for factor in (*shown, 0.5, 2.0, 0.1, 10.0):
        rate = float(f"{lr * factor:.3g}")
        if rate != lr:
            yield Change("lr", f"the learning rate {rate:g}", {"training": replace(training, lr=rate)})


def _normalisations(data: DataSpec, truth: Truth) -> Iterator[Change]:
    """Yield other normalisations, among them that by the mean and the standard deviation of the samples."""
    axes = [axis for axis in range(truth.inputs.dim()) if axis != 1] if data.is_image else [0]
    own = truth.inputs.float()
    mean, std = own.mean(axes), own.std(axes).clamp_min(1e-6)
    measured = (tuple(map(float, mean.flatten())), tuple(map(float, std.flatten())))
    usual = NORMALISATIONS if data.is_image else NORMALISATIONS[-1:]
    for means, stds in (*usual, measured):
        if (means, stds) == (data.mean, data.std) or len(means) not in (1, data.channels):
            continue
        plain = means == (0.0,) and stds == (1.0,)
        shown = f"mean {_list(means)} and std {_list(stds)}"
        words = "inputs without normalisation" if plain else f"inputs normalised with {shown}"
        if (means, stds) == measured:
            words = f"inputs normalised with their own statistics, about {shown}"
        yield Change("data", words, {"data": replace(data, mean=means, std=stds)})


def _list(values: tuple[float, ...]) -> str:
    rounded = [f"{value:.3g}" for value in values[:3]]
    return ", ".join(rounded) + (", ..." if len(values) > 3 else "")


def _settings(training: LocalTraining, *, gradient: bool) -> Iterator[Change]:
    """Yield other values of single settings of the training."""
    usual = {"label_smoothing", "clip_norm"} if gradient else set(VALUES)
    if not training.is_sgd:
        usual.discard("momentum")
    for name, values in VALUES.items():
        for value in values:
            if name not in usual or value == getattr(training, name):
                continue
            settings: dict[str, Any] = {name: value}
            if name == "optimiser" and value != "sgd":
                settings |= {"momentum": 0.0, "nesterov": False, "dampening": 0.0}
            if name == "optimiser" and value == "adamw" and not training.weight_decay:
                settings["weight_decay"] = 0.01
            if name == "momentum" and not value:
                settings["nesterov"] = False
            words = WITHOUT[name] if value in (0.0, "constant") else WORDS[name].format(value)
            yield from _if_valid(name, words, training, settings)
    if not gradient and training.is_sgd:
        momentum = training.momentum or 0.9
        nesterov = {"nesterov": not training.nesterov, "momentum": momentum, "dampening": 0.0}
        words = "no Nesterov momentum" if training.nesterov else f"Nesterov's momentum {momentum:g}"
        yield from _if_valid("momentum", words, training, nesterov)


def _modes(training: LocalTraining, model: nn.Module) -> Iterator[Change]:
    """Yield the other mode of the model, if the mode matters."""
    layers = (nn.modules.batchnorm._NormBase, nn.modules.dropout._DropoutNd)
    if any(isinstance(module, layers) for module in model.modules()):
        mode = "eval" if training.mode == "train" else "train"
        yield from _if_valid("mode", f"a model in {mode} mode", training, {"mode": mode})


def _batches(training: LocalTraining, samples: int) -> Iterator[Change]:
    """Yield other numbers of epochs and sizes of batches."""
    epochs = int(training.need("epochs"))
    for number in dict.fromkeys((1, epochs + 1, epochs - 1, 2, 3, 5, 2 * epochs, 10)):
        if number >= 1 and number != epochs:
            settings = {"epochs": number, "local_steps": None}
            yield from _if_valid("epochs", f"{number} local epoch{'s' * (number > 1)}", training, settings)
    full, rest = divmod(samples, int(training.need("batch_size")))
    if rest and epochs == 1 and training.local_steps is None:
        yield from _if_valid("epochs", "a last batch that is left out", training, {"local_steps": full})
    for size in dict.fromkeys((samples, 32, 16, 64, 8, 128, 10, 20, 50, 4, 1)):
        if size <= samples and size != training.batch_size:
            yield from _if_valid("batch_size", f"batches of {size}", training, {"batch_size": size})


def kept_batches(training: LocalTraining, truth: Truth) -> Iterator[Change]:
    """Yield the batches that the client trained on, if their order is known and the recipe has others.

    Args:
        training: The settings of the training.
        truth: The samples.
    """
    sizes = [len(rows) for rows in truth.order]
    if not sizes or not training.samples:
        return
    expected = list(training.batch_sizes * int(training.need("epochs")))[: training.local_steps]
    matches = sizes[: training.local_steps] == expected
    if matches and training.local_steps is not None:
        return
    settings = {"batch_size": max(sizes), "epochs": max(1, -(-sum(sizes) // training.samples))}
    fewer = len(sizes) - 1  # the last batch may have been fetched and left out
    for steps in (fewer,) if matches else (None, len(sizes), fewer):
        if steps == 0:
            continue
        count = steps or len(sizes)
        epochs = {} if steps is None else {"epochs": -(-sum(sizes[:steps]) // training.samples)}
        words = f"{count} batch{'es' * (count > 1)} of {max(sizes)}, as the client trained on them"
        part = "epochs" if max(sizes) == training.batch_size else "batch_size"
        for change in _if_valid(part, words, training, {**settings, **epochs, "local_steps": steps}):
            changed = change.changed["training"]
            if list(changed.batch_sizes * int(changed.epochs))[:steps] == sizes[:steps] and changed != training:
                yield change


def _if_valid(part: str, words: str, training: LocalTraining, settings: Mapping[str, Any]) -> Iterator[Change]:
    """Yield the change of the training, if the changed settings can be combined."""
    try:
        changed = replace(training, **settings)
    except LeakgaugeError:
        return
    yield Change(part, words, {"training": changed})
