"""The message of one client in one round, as the server sees it. It is the input of attacks.

The fields state the threat model. A field that the attacker does not know is ``None``. Labels and other knowledge
beyond the exchanged tensors have fields of their own. Reports list all such knowledge that the attacker is given.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal

import torch
from torch import Tensor, nn

from leakgauge.core.data_spec import DataSpec
from leakgauge.core.errors import InvalidInput, UnknownName, shown
from leakgauge.core.limits import COUNT, LONGEST_NAME, MOST_DEFENCES, ROUND, check_text
from leakgauge.core.local_training import LocalTraining, Mode
from leakgauge.core.params import Params, buffers_of, scale, subtract, to
from leakgauge.core.public_data import PublicData

__all__ = ["DataSpec", "LocalTraining", "Mode", "Observation"]

#: The fields that map the names of the model's parameters or buffers to tensors.
TENSOR_TREES = ("sent", "gradient", "returned", "buffers", "returned_buffers")
#: The number types of labels of classes. Torch computes with these.
WHOLE = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)
#: The fields with labels that may be granted, and their names in the threat model.
LABEL_FIELDS = {"labels": "labels", "label_counts": "label counts", "label_batches": "labels of every batch"}


@dataclass(frozen=True, eq=False)
class Observation:
    """The message of one client in one round, as the server sees it.

    Exactly one of ``gradient`` and ``returned`` is given.

    Args:
        model: The architecture. Its weights are not used.
        data: The description of the client's samples.
        sent: The weights that the server sent to the client.
        training: The known settings of the client's local training.
        gradient: The gradient that the client returned (FedSGD).
        returned: The weights that the client returned after local training (FedAvg).
        buffers: The batch-norm statistics before training, or ``None`` if they are withheld.
        returned_buffers: The batch-norm statistics after training, or ``None`` if they are withheld.
        labels: The label of each sample, if the attacker is given the labels.
        label_counts: The number of samples in each class, if the attacker is given these counts.
        label_batches: The labels in the order in which the client trained on them, if the attacker is given this order.
            The shape is (epochs, samples).
        defences: The ``repr`` of each defence, in the order in which the defences are applied, if the attacker knows
            the defences. ``()`` means no defence.
        client: The name of the client.
        round: The index of the round.
        steered: The name of the rule by which a malicious server chose the weights that it sent to this client, such as
            ``"active_adam"``. It is empty if the server sent the same weights to all clients.
        public: Public data of the same kind as the client's, if the attacker is given such data
            (:func:`leakgauge.public_data`). It is no part of a capture.
    """

    model: nn.Module = field(repr=False)
    data: DataSpec
    sent: Params = field(repr=False)
    training: LocalTraining = field(default_factory=LocalTraining)
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
    steered: str = ""
    public: PublicData | None = None

    def __post_init__(self) -> None:
        if (self.gradient is None) == (self.returned is None):
            raise InvalidInput("an observation holds either a gradient (FedSGD) or returned weights (FedAvg)")
        parameters, statistics = dict(self.model.named_parameters()), dict(self.model.named_buffers())
        for name in TENSOR_TREES:
            tensors, expected = getattr(self, name), statistics if "buffers" in name else parameters
            if tensors is not None:
                tensors = _in_type_of(self.sent, tensors) if name in ("gradient", "returned") else tensors
                _check_tensors(name, tensors, expected)
                # Attacks count layers, so the tensors are put into the order of the model.
                object.__setattr__(self, name, {key: tensors[key] for key in expected})
        if self.labels is not None:
            self._check_labels(self.labels)
        if self.label_counts is not None:
            self._check_label_counts(self.label_counts)
        if self.label_batches is not None:
            self._check_label_batches(self.label_batches)
        self._check_names()

    def _check_names(self) -> None:
        """Check the fields that are no tensors."""
        object.__setattr__(self, "round", int(ROUND.checked("round", self.round)))
        if not isinstance(self.client, str):
            raise InvalidInput(f"client must be a text, not {shown(self.client)}")
        check_text("the name of a client", self.client, LONGEST_NAME)
        check_text("the rule of a malicious server", self.steered, LONGEST_NAME)
        if self.defences is None:
            return
        defences = self.defences
        if not isinstance(defences, (tuple, list)) or not all(isinstance(defence, str) for defence in defences):
            raise InvalidInput(f"defences must be a tuple of texts, the reprs of the defences, not {shown(defences)}")
        if len(defences) > MOST_DEFENCES:
            raise InvalidInput(f"a client may have up to {MOST_DEFENCES} defences, not {len(defences)}")
        for defence in defences:
            check_text("a defence", defence)
        object.__setattr__(self, "defences", tuple(defences))

    def _check_labels(self, labels: Tensor) -> None:
        samples, classes = self.training.samples, self.data.classes
        if labels.ndim != 1 and (classes is not None or labels.ndim == 0):
            raise InvalidInput(f"labels must be one for each sample, not a tensor of shape {tuple(labels.shape)}")
        if samples is not None and len(labels) != samples:
            raise InvalidInput(f"{len(labels)} labels are granted for {samples} samples")
        if classes is not None:
            _check_whole("labels", labels, below=classes)
        elif not labels.is_floating_point() and labels.dtype not in WHOLE:
            raise InvalidInput(f"labels must be numbers, not {labels.dtype}")
        elif not bool(torch.isfinite(labels).all()):
            raise InvalidInput("labels hold NaN or Inf. Clean or impute the client's targets first.")

    def _check_label_counts(self, counts: Tensor) -> None:
        samples, classes = self.training.samples, self.data.classes
        if classes is None:
            raise InvalidInput("label counts exist only for classification, but this data is a regression")
        if tuple(counts.shape) != (classes,):
            raise InvalidInput(
                f"label_counts has shape {tuple(counts.shape)}, expected one count for each of the {classes} classes"
            )
        _check_whole("label_counts", counts)
        total = sum(counts.tolist())  # as Python's integers, because sums of 64 bits wrap around
        COUNT.checked("the sum of label_counts", total)
        if samples is not None and total != samples:
            raise InvalidInput(f"label_counts add up to {total}, but the client has {samples} samples")

    def _check_label_batches(self, batches: Tensor) -> None:
        classes, training = self.data.classes, self.training
        if classes is None:
            raise InvalidInput("label_batches exist only for classification, but this data is a regression")
        if batches.ndim != 2 or not batches.numel():
            raise InvalidInput(f"label_batches must be (epochs, samples), not of shape {tuple(batches.shape)}")
        _check_whole("label_batches", batches, below=classes)
        if self.kind == "weights":
            for name in ("epochs", "batch_size", "samples"):
                if getattr(training, name) is None:
                    raise InvalidInput(
                        f"label_batches assign labels to batches, but {name} is unknown here. "
                        f"Supply both: observation.knowing({name}=..., label_batches=...)"
                    )
        expected = (training.epochs if self.kind == "weights" else 1, training.samples or batches.shape[1])
        if tuple(batches.shape) != expected:
            raise InvalidInput(
                f"label_batches has shape {tuple(batches.shape)}, expected {expected}, one label for each sample of "
                "each epoch"
            )
        self._check_labels_agree(batches.sort(1).values)

    def _check_labels_agree(self, ordered: Tensor) -> None:
        """Raise an error if the labels that the attacker is given contradict each other between fields or epochs.

        Args:
            ordered: The sorted labels of each epoch.
        """
        if bool((ordered != ordered[0]).any()):
            raise InvalidInput("label_batches must hold the same labels in every epoch, in any order")
        if self.labels is not None and not torch.equal(self.labels.sort().values, ordered[0].to(self.labels)):
            raise InvalidInput("label_batches and labels do not hold the same labels. Grant labels that agree.")
        if self.label_counts is not None:
            counts = torch.bincount(ordered[0].long(), minlength=len(self.label_counts))
            if not torch.equal(counts, self.label_counts.to(counts)):
                raise InvalidInput(
                    "label_batches and label_counts do not hold the same labels. Grant labels that agree."
                )

    @property
    def kind(self) -> Literal["gradient", "weights"]:
        """The kind of the message: a gradient, or weights after local training."""
        return "gradient" if self.gradient is not None else "weights"

    @property
    def device(self) -> torch.device:
        """The device of the tensors."""
        return next(iter(self.sent.values())).device

    def difference(self) -> Params:
        """Return the unscaled update, which is ``sent - returned`` for FedAvg and the gradient for FedSGD."""
        if self.gradient is not None:
            return self.gradient
        assert self.returned is not None
        return subtract(self.sent, self.returned)

    def summed_gradient(self) -> Params:
        """Return the sum of the client's gradients over its local steps.

        This is ``(sent - returned) / lr`` for FedAvg, and the gradient for FedSGD. Attacks compare an observation with
        a simulated update on this scale. The sum is exact for plain SGD. With momentum, weight decay or a schedule, it
        is a first-order approximation. With Adam, it is a sum of normalised gradients, as in the simulated update.
        """
        if self.gradient is not None:
            return self.gradient
        return scale(self.difference(), 1 / self.training.need("lr"))

    def model_buffers(self) -> Params:
        """Return the buffers for a forward pass. Buffers that the server does not see come from the architecture."""
        return {**to(buffers_of(self.model), self.device), **(self.buffers or {})}

    def knowing(self, **known: object) -> Observation:
        """Return a copy of the observation in which the attacker has additional knowledge.

        Args:
            known: The added values. Each is a setting of the local training, such as ``lr``, or a field of the
                observation, such as ``labels``.
        """
        settings = {item.name for item in fields(LocalTraining)}
        training = replace(self.training, **{k: v for k, v in known.items() if k in settings})  # type: ignore[arg-type]
        other = {key: value for key, value in known.items() if key not in settings}
        names = {item.name for item in fields(self)}
        for name in other:
            if name not in names:
                raise UnknownName("field of an observation called", name, names | settings)
        return replace(self, **{"training": training, **other})  # type: ignore[arg-type]

    def to(self, device: torch.device | str) -> Observation:
        """Return a copy of the observation on another device."""
        trees = {name: getattr(self, name) for name in TENSOR_TREES}
        labels = {name: getattr(self, name) for name in LABEL_FIELDS}
        moved: dict[str, Any] = {name: None if tree is None else to(tree, device) for name, tree in trees.items()}
        moved |= {name: None if tensor is None else tensor.to(device) for name, tensor in labels.items()}
        public = None if self.public is None else self.public.to(device)
        return replace(self, model=copy.deepcopy(self.model).to(device), public=public, **moved)

    def threat_model(self) -> list[str]:
        """Return sentences that state what the attacker sees, knows, does not know, and is given in addition."""
        message = {"gradient": "the gradient of one batch", "weights": "the weights after local training"}[self.kind]
        settings = self.training.listed(one_gradient=self.kind == "gradient")
        known = [f"{name} {value}" for name, value in settings.items() if value is not None]
        unknown = [name for name, value in settings.items() if value is None]
        granted = [words for name, words in LABEL_FIELDS.items() if getattr(self, name) is not None]
        if self.defences is not None:
            granted.append(f"defences ({', '.join(self.defences) or 'none'})")
        server = "an honest-but-curious server"
        if self.steered:
            server = f"a malicious server, which sends this client weights of its own making ({self.steered})"
        sentences = [
            f"The attacker is {server}. It sees the model, the weights it sent, and {message}.",
            f"It knows these settings of the client's training: {', '.join(known)}.",
        ]
        if unknown:
            sentences.append(f"It does not know: {', '.join(unknown)}.")
        if any(True for _ in self.model.buffers()):
            withheld = self.buffers is None and self.returned_buffers is None
            sentences.append(f"Batch-norm statistics are {'withheld from' if withheld else 'shared with'} it.")
        if self.training.mode == "train" and any(draws_masks(module) for module in self.model.modules()):
            sentences.append("It does not know the masks of dropout layers.")
        if self.data.classes is None and self.labels is None:
            sentences.append("It does not know the client's targets.")
        if self.public is not None:
            sentences.append(
                f"It has public data of the same kind: {self.public.description}. No sample of a client is among them."
            )
        else:
            sentences.append("It has no public data of the same kind.")
        given = f"It is granted the client's {' and '.join(granted)}." if granted else "It is granted nothing else."
        sentences.append(given)
        return sentences


def draws_masks(module: nn.Module) -> bool:
    """Return whether a layer draws random dropout masks in train mode."""
    if isinstance(module, nn.MultiheadAttention):
        return bool(module.dropout > 0)
    return isinstance(module, nn.modules.dropout._DropoutNd) and module.p > 0


def _check_tensors(field_name: str, tensors: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> None:
    missing, extra = sorted(expected.keys() - tensors.keys()), sorted(tensors.keys() - expected.keys())
    if missing or extra:
        parts = [f"lacks {name!r}" for name in missing[:1]] + [f"has {name!r}" for name in extra[:1]]
        raise InvalidInput(f"{field_name} does not fit the model: it {' and '.join(parts)} (is this the right model?)")
    for name, tensor in tensors.items():
        if tensor.shape != expected[name].shape:
            raise InvalidInput(
                f"{field_name}[{name!r}] has shape {tuple(tensor.shape)}, "
                f"but the model's is {tuple(expected[name].shape)} (is this the right model?)"
            )
        if _kind_of(tensor) != _kind_of(expected[name]):
            raise InvalidInput(f"{field_name}[{name!r}] has type {tensor.dtype}, the model's is {expected[name].dtype}")
        if not bool(torch.isfinite(tensor).all()):
            raise InvalidInput(
                f"{field_name}[{name!r}] holds NaN or Inf. The client's training probably diverged, "
                "and a smaller lr helps."
            )


def _kind_of(tensor: Tensor) -> tuple[bool, bool, bool]:
    """Return which kind of numbers a tensor holds. Torch computes with kinds of its own, and not with others."""
    return tensor.is_floating_point(), tensor.is_complex(), tensor.dtype is torch.bool


def _in_type_of(sent: Mapping[str, Tensor], answer: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return an answer in the number types of the weights that were sent. A client may answer in half precision."""
    return {
        name: value.to(sent[name].dtype)
        if name in sent and value.is_floating_point() and sent[name].is_floating_point()
        else value
        for name, value in answer.items()
    }


def _check_whole(field_name: str, values: Tensor, below: int | None = None) -> None:
    if values.dtype not in WHOLE:
        raise InvalidInput(f"{field_name} must be whole numbers, not {values.dtype}")
    if values.numel() and (int(values.min()) < 0 or (below is not None and int(values.max()) >= below)):
        limit = "" if below is None else f" and below {below}"
        raise InvalidInput(
            f"{field_name} must be at least 0{limit}, but they run from {int(values.min())} to {int(values.max())}"
        )
