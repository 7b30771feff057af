"""What an honest-but-curious server sees of one client in one round: the input of every attack.

The fields *are* the threat model. What the attacker does not know is ``None``; what it is granted beyond
the exchanged tensors (labels, which defences the client uses) is a field with a name, which reports print.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Literal

import torch
from torch import Tensor, nn

from leakgauge.core.errors import InvalidInput, MissingKnowledge, UnknownName
from leakgauge.core.params import Params, buffers_of, scale, subtract, to

Mode = Literal["train", "eval"]


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def _is_finite(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) <= sys.float_info.max


@dataclass(frozen=True)
class DataSpec:
    """What one sample looks like, and how the model wants it.

    Samples are kept as a person sees them: pixels in [0, 1] (``bounded``), or table values in their own
    units. ``mean`` and ``std`` (one number, or one per channel or column) lead to the model's side of the
    boundary: ``(sample - mean) / std``. ``classes`` is ``None`` for a regression.
    """

    shape: tuple[int, ...]
    classes: int | None
    mean: tuple[float, ...] = (0.0,)
    std: tuple[float, ...] = (1.0,)
    bounded: bool = True
    columns: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name in ("shape", "mean", "std", "columns"):
            values = getattr(self, name)
            if not isinstance(values, (tuple, list)):
                raise InvalidInput(f"{name} must be a tuple, not {values!r}")
            object.__setattr__(self, name, tuple(values))
        if not self.shape or not all(_is_whole(size) for size in self.shape):
            raise InvalidInput(f"a sample's shape must be positive whole numbers, not {self.shape!r}")
        if self.classes is not None and not _is_whole(self.classes):
            raise InvalidInput(
                f"classes must be a whole number of at least 1, or None for a regression; not {self.classes!r}"
            )
        if not isinstance(self.bounded, bool):
            raise InvalidInput(f"bounded must be True or False, not {self.bounded!r}")
        for name, values in (("mean", self.mean), ("std", self.std)):
            if len(values) not in (1, self.shape[0]):
                raise InvalidInput(
                    f"{name} has {len(values)} values; give one, or one for each of the {self.shape[0]} "
                    f"{'channels' if self.is_image else 'columns'}"
                )
            if not all(_is_finite(value) for value in values):
                raise InvalidInput(f"{name} must be finite numbers, not {values}")
        if any(value <= 0 for value in self.std):
            raise InvalidInput(f"std must be positive, not {self.std}; use 1 for a constant column")
        if self.columns and len(self.columns) != self.shape[0]:
            raise InvalidInput(f"{len(self.columns)} column names for {self.shape[0]} columns")
        if not all(isinstance(column, str) for column in self.columns):
            raise InvalidInput(f"column names must be texts, not {self.columns}")

    @property
    def is_image(self) -> bool:
        """Whether a sample is (channels, height, width)."""
        return len(self.shape) == 3

    @property
    def one_hot_groups(self) -> dict[str, list[int]]:
        """The columns named ``feature=value``, by feature.

        >>> DataSpec((3,), 2, bounded=False, columns=("age", "sex=f", "sex=m")).one_hot_groups
        {'sex': [1, 2]}
        """
        groups: dict[str, list[int]] = {}
        for column, name in enumerate(self.columns):
            feature, separator, _ = name.partition("=")
            if separator:
                groups.setdefault(feature, []).append(column)
        return groups

    def _statistics(self, like: Tensor) -> tuple[Tensor, Tensor]:
        shape = (-1,) + (1,) * (len(self.shape) - 1)
        return like.new_tensor(self.mean).reshape(shape), like.new_tensor(self.std).reshape(shape)

    def normalise(self, samples: Tensor) -> Tensor:
        """From what a person sees to what the model takes."""
        mean, std = self._statistics(samples)
        return (samples - mean) / std

    def denormalise(self, inputs: Tensor) -> Tensor:
        """From what the model takes to what a person sees."""
        mean, std = self._statistics(inputs)
        return inputs * std + mean


@dataclass(frozen=True)
class LocalTraining:
    """What is known of a client's recipe: plain SGD over ``epochs`` passes in batches. ``None`` = unknown.

    ``loss`` is a name in :data:`leakgauge.federation.training.LOSSES`; ``mode`` says whether the client's
    model was in train mode (batch statistics, dropout) or eval mode.
    """

    lr: float | None = None
    epochs: int | None = None
    batch_size: int | None = None
    samples: int | None = None
    momentum: float | None = 0.0
    weight_decay: float | None = 0.0
    loss: str = "cross_entropy"
    mode: Mode = "train"

    def __post_init__(self) -> None:
        for name in ("epochs", "batch_size", "samples"):
            value = getattr(self, name)
            if value is not None and not _is_whole(value):
                raise InvalidInput(f"{name} must be a whole number of at least 1, not {value!r}")
        for name in ("lr", "momentum", "weight_decay"):
            value = getattr(self, name)
            if value is not None and not _is_finite(value):
                raise InvalidInput(f"{name} must be a finite number, not {value!r}")
        if self.lr is not None and self.lr <= 0:
            raise InvalidInput(f"lr must be above 0, not {self.lr}")
        if self.momentum is not None and not 0 <= self.momentum < 1:
            raise InvalidInput(f"momentum must lie in [0, 1), not {self.momentum}")
        if self.weight_decay is not None and self.weight_decay < 0:
            raise InvalidInput(f"weight_decay must not be negative, but is {self.weight_decay}")
        if not isinstance(self.loss, str):
            raise InvalidInput(f"loss must be the name of a loss, not {self.loss!r}")
        if self.mode not in ("train", "eval"):
            raise InvalidInput(f"mode must be 'train' or 'eval', not {self.mode!r}")

    @property
    def batch_sizes(self) -> tuple[int, ...]:
        """The sizes of one epoch's batches, the last one ragged."""
        samples, size = self.need("samples"), self.need("batch_size")
        full, rest = divmod(int(samples), int(size))
        return (int(size),) * full + ((rest,) if rest else ())

    @property
    def steps(self) -> int:
        """The number of local steps."""
        return len(self.batch_sizes) * int(self.need("epochs"))

    @property
    def applied_gradients(self) -> float:
        """How often the client applies a gradient in all: its steps, and with momentum more.

        A velocity applies the gradients of earlier steps again: that of ``s`` steps before the last counts
        ``1 + m + ... + m^s``.
        """
        keep, steps = float(self.momentum or 0.0), self.steps
        return sum((1 - keep ** (steps - step)) / (1 - keep) for step in range(steps)) if keep else steps

    def need(self, name: str) -> float:
        """The value of a field, or an error that names it when it is unknown."""
        value = getattr(self, name)
        if value is None:
            raise MissingKnowledge(
                f"this attack needs the client's {name}, which this observation does not have; "
                f"supply it with observation.knowing({name}=...), or --know {name}=... on the command line"
            )
        return float(value) if isinstance(value, float) else int(value)


@dataclass(frozen=True, eq=False)
class Observation:
    """One client's message of one round, as the server sees it.

    ``model`` is the architecture; the weights sent to the client are in ``sent``. Exactly one of
    ``gradient`` (FedSGD) and ``returned`` (FedAvg: the weights after local training) came back.
    ``buffers`` and ``returned_buffers`` are batch-norm statistics before and after; ``None`` = withheld.
    ``labels``, ``label_counts``, ``label_batches`` (epochs, samples: the labels in the order in which the client
    trained on them) and ``defences`` (their reprs, in order; none is ``()``) are knowledge granted to the attacker.
    """

    model: nn.Module = field(repr=False)
    data: DataSpec
    sent: Params = field(repr=False)
    training: LocalTraining = LocalTraining()
    gradient: Params | None = field(default=None, repr=False)
    returned: Params | None = field(default=None, repr=False)
    buffers: Params | None = field(default=None, repr=False)
    returned_buffers: Params | None = field(default=None, repr=False)
    labels: Tensor | None = None
    label_counts: Tensor | None = None
    label_batches: Tensor | None = None
    defences: tuple[str, ...] | None = None
    client: str = "client"
    round: int = 0

    def __post_init__(self) -> None:
        if (self.gradient is None) == (self.returned is None):
            raise InvalidInput("an observation holds either a gradient (FedSGD) or returned weights (FedAvg)")
        parameters, statistics = dict(self.model.named_parameters()), dict(self.model.named_buffers())
        for name in ("sent", "gradient", "returned", "buffers", "returned_buffers"):
            value, expected = getattr(self, name), statistics if "buffers" in name else parameters
            if value is not None:
                _check_tensors(name, value, expected)
                # In the model's order, whatever the order in which they arrived: attacks count layers by it.
                object.__setattr__(self, name, {key: value[key] for key in expected})
        self._check_labels()
        if self.label_batches is not None:
            self._check_label_batches(self.label_batches)
        if self.defences is not None:
            if not isinstance(self.defences, (tuple, list)) or not all(isinstance(one, str) for one in self.defences):
                raise InvalidInput(f"defences must be a tuple of texts, their reprs; not {self.defences!r}")
            object.__setattr__(self, "defences", tuple(self.defences))

    def _check_labels(self) -> None:
        samples, classes = self.training.samples, self.data.classes
        if self.labels is not None:
            if self.labels.ndim != 1 and (classes is not None or self.labels.ndim == 0):
                raise InvalidInput(f"labels must be one a sample, not a tensor of shape {tuple(self.labels.shape)}")
            if samples is not None and len(self.labels) != samples:
                raise InvalidInput(f"{len(self.labels)} labels are granted for {samples} samples")
            if classes is not None:
                _check_whole("labels", self.labels, below=classes)
            elif not bool(torch.isfinite(self.labels).all()):
                raise InvalidInput("labels hold NaN or Inf; clean or impute the client's targets first")
        if self.label_counts is not None:
            if classes is None:
                raise InvalidInput("label counts exist only for classification; this data is a regression")
            if tuple(self.label_counts.shape) != (classes,):
                raise InvalidInput(
                    f"label_counts has shape {tuple(self.label_counts.shape)}; "
                    f"expected one count for each of the {classes} classes"
                )
            _check_whole("label_counts", self.label_counts)
            if samples is not None and int(self.label_counts.sum()) != samples:
                raise InvalidInput(
                    f"label_counts add up to {int(self.label_counts.sum())}, but the client has {samples} samples"
                )

    def _check_label_batches(self, batches: Tensor) -> None:
        classes, training = self.data.classes, self.training
        if classes is None:
            raise InvalidInput("label_batches exist only for classification; this data is a regression")
        if batches.ndim != 2 or not batches.numel():
            raise InvalidInput(f"label_batches must be (epochs, samples), not of shape {tuple(batches.shape)}")
        _check_whole("label_batches", batches, below=classes)
        if self.kind == "weights":
            for name in ("epochs", "batch_size", "samples"):
                if getattr(training, name) is None:
                    raise InvalidInput(
                        f"label_batches tell which labels are in which batch, but the {name} are unknown here; "
                        f"supply them too: observation.knowing({name}=..., label_batches=...)"
                    )
        expected = (training.epochs if self.kind == "weights" else 1, training.samples or batches.shape[1])
        if tuple(batches.shape) != expected:
            raise InvalidInput(
                f"label_batches has shape {tuple(batches.shape)}; expected {expected}, one label for each sample of "
                "each epoch"
            )
        ordered = batches.sort(1).values
        if bool((ordered != ordered[0]).any()):
            raise InvalidInput("label_batches must hold the same labels in every epoch, in whatever order")
        if self.labels is not None and not torch.equal(self.labels.sort().values, ordered[0].to(self.labels)):
            raise InvalidInput("label_batches and labels do not hold the same labels; grant what agrees")
        if self.label_counts is not None:
            counts = torch.bincount(ordered[0].long(), minlength=classes)
            if not torch.equal(counts, self.label_counts.to(counts)):
                raise InvalidInput("label_batches and label_counts do not hold the same labels; grant what agrees")

    @property
    def kind(self) -> Literal["gradient", "weights"]:
        """Whether a gradient or trained weights came back."""
        return "gradient" if self.gradient is not None else "weights"

    @property
    def device(self) -> torch.device:
        """Where the tensors are."""
        return next(iter(self.sent.values())).device

    def difference(self) -> Params:
        """``sent - returned`` (FedAvg) or the gradient: the direction in which the client pulls, unscaled."""
        if self.gradient is not None:
            return self.gradient
        assert self.returned is not None
        return subtract(self.sent, self.returned)

    def summed_gradient(self) -> Params:
        """The sum of the client's gradients over its local steps: ``(sent - returned) / lr``, or the gradient.

        This is the scale on which update models and observations are compared. Exact for plain SGD, a
        first-order reading with momentum or weight decay.
        """
        if self.gradient is not None:
            return self.gradient
        return scale(self.difference(), 1 / self.training.need("lr"))

    def model_buffers(self) -> Params:
        """The buffers to run the model with: those sent, or the architecture's own where withheld."""
        return {**to(buffers_of(self.model), self.device), **(self.buffers or {})}

    def knowing(self, **known: object) -> Observation:
        """A copy in which more of the recipe, or a granted field such as ``labels``, is known."""
        recipe = {item.name for item in fields(LocalTraining)}
        training = replace(self.training, **{k: v for k, v in known.items() if k in recipe})  # type: ignore[arg-type]
        rest = {key: value for key, value in known.items() if key not in recipe}
        own = {item.name for item in fields(self)}
        for name in rest:
            if name not in own:
                raise UnknownName("field of an observation called", name, own | recipe)
        return replace(self, **{"training": training, **rest})  # type: ignore[arg-type]

    def to(self, device: torch.device | str) -> Observation:
        """A copy on another device."""

        def move(tree: Params | None) -> Params | None:
            return None if tree is None else to(tree, device)

        return replace(
            self,
            model=copy.deepcopy(self.model).to(device),
            sent=to(self.sent, device),
            gradient=move(self.gradient),
            returned=move(self.returned),
            buffers=move(self.buffers),
            returned_buffers=move(self.returned_buffers),
            labels=None if self.labels is None else self.labels.to(device),
            label_counts=None if self.label_counts is None else self.label_counts.to(device),
            label_batches=None if self.label_batches is None else self.label_batches.to(device),
        )

    def threat_model(self) -> list[str]:
        """What this attacker sees, knows, does not know and is granted, in sentences."""
        what = {"gradient": "the gradient of one batch", "weights": "the weights after local training"}[self.kind]
        recipe = [item.name for item in fields(LocalTraining)]
        if self.kind == "gradient":  # one step on one batch: the rest of the recipe plays no part
            recipe = ["samples", "loss", "mode"]
        known = [
            f"{name} {getattr(self.training, name)}" for name in recipe if getattr(self.training, name) is not None
        ]
        unknown = [name for name in recipe if getattr(self.training, name) is None]
        names = {"labels": "labels", "label_counts": "label counts", "label_batches": "labels of every batch"}
        granted = [words for name, words in names.items() if getattr(self, name) is not None]
        if self.defences is not None:
            granted.append(f"defences ({', '.join(self.defences) or 'none'})")
        sentences = [
            f"The attacker is an honest-but-curious server: it sees the model, the weights it sent, and {what}.",
            f"It knows of the client's recipe: {', '.join(known)}.",
        ]
        if unknown:
            sentences.append(f"It does not know: {', '.join(unknown)}.")
        if any(True for _ in self.model.buffers()):
            withheld = self.buffers is None and self.returned_buffers is None
            sentences.append(f"Batch-norm statistics are {'withheld from' if withheld else 'shared with'} it.")
        sentences.append(
            f"It is granted the client's {' and '.join(granted)}." if granted else "It is granted nothing else."
        )
        return sentences


def _check_tensors(what: str, tensors: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> None:
    missing, extra = sorted(expected.keys() - tensors.keys()), sorted(tensors.keys() - expected.keys())
    if missing or extra:
        parts = [f"lacks {name!r}" for name in missing[:1]] + [f"has {name!r}" for name in extra[:1]]
        raise InvalidInput(f"{what} does not fit the model: it {' and '.join(parts)}; is this the right model?")
    for name, tensor in tensors.items():
        if tensor.shape != expected[name].shape:
            raise InvalidInput(
                f"{what}[{name!r}] has shape {tuple(tensor.shape)}, "
                f"but the model's is {tuple(expected[name].shape)}; is this the right model?"
            )
        if tensor.is_floating_point() != expected[name].is_floating_point():
            raise InvalidInput(f"{what}[{name!r}] has type {tensor.dtype}, the model's is {expected[name].dtype}")
        if not bool(torch.isfinite(tensor).all()):
            raise InvalidInput(
                f"{what}[{name!r}] holds NaN or Inf; the client's training probably diverged (a smaller lr helps)"
            )


def _check_whole(what: str, values: Tensor, below: int | None = None) -> None:
    if values.is_floating_point() or values.is_complex():
        raise InvalidInput(f"{what} must be whole numbers, not {values.dtype}")
    if values.numel() and (int(values.min()) < 0 or (below is not None and int(values.max()) >= below)):
        limit = "" if below is None else f" and below {below}"
        raise InvalidInput(f"{what} must be at least 0{limit}; found {int(values.min())} to {int(values.max())}")
