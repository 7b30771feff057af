"""The server's view of one client's round, which is the message and the server's further knowledge."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from leakgauge.core.errors import InvalidInput, UnknownName
from leakgauge.core.local_training import OPTIONS_OF
from leakgauge.core.observation import LocalTraining, Observation
from leakgauge.core.params import Params
from leakgauge.data.dataset import Dataset
from leakgauge.federation.defence import Defence
from leakgauge.models.factories import in_words

#: The knowledge about labels that an attacker can be granted.
GRANTS = ("labels", "label_counts", "label_batches")
#: The parts of the training recipe that can be hidden from an attacker.
HIDEABLE = (
    "lr", "epochs", "batch_size", "samples", "momentum", "weight_decay", "optimiser", "nesterov", "dampening", "betas",
    "eps", "schedule", "clip_norm", "proximal", "label_smoothing", "accumulation", "local_steps",
)  # fmt: skip


@dataclass(frozen=True)
class Exposure:
    """The attacker's knowledge about a client, apart from the exchanged weights.

    Args:
        granted: The knowledge about labels that the attacker is given, as names from :data:`GRANTS`.
        hidden: The settings of the client's training that the attacker does not know, as names from :data:`HIDEABLE`.
        knows_defence: Whether the attacker knows the client's defences.
        share_statistics: Whether the server gets batch-norm statistics.
    """

    granted: tuple[str, ...] = ()
    hidden: tuple[str, ...] = ()
    knows_defence: bool = False
    share_statistics: bool = True

    def __post_init__(self) -> None:
        for name in self.granted:
            if name not in GRANTS:
                raise UnknownName("grant", name, GRANTS)
        for name in self.hidden:
            if name not in HIDEABLE:
                raise UnknownName("part of the recipe to hide", name, HIDEABLE)
        for name in ("epochs", "batch_size", "samples"):
            if "label_batches" in self.granted and name in self.hidden:
                raise InvalidInput(
                    f"label_batches reveal the {name}. Remove label_batches from granted, or {name} from hidden."
                )

    @classmethod
    def of(cls, granted: Iterable[str], hidden: Iterable[str], knows_defence: bool, share_statistics: bool) -> Exposure:
        """Create an :class:`Exposure` from a user's arguments. A single name may be given as a plain string."""
        names = [(given,) if isinstance(given, str) else tuple(given) for given in (granted, hidden)]
        return cls(names[0], names[1], knows_defence, share_statistics)

    def check(self, data: Dataset) -> None:
        """Raise an error if the attacker is given label counts or label batches, but the data has no classes."""
        for name in ("label_counts", "label_batches"):
            if name in self.granted and data.spec.classes is None:
                raise InvalidInput(f"{name} cannot be granted, because this data is a regression and has no classes")

    def check_order(self, training_defence: Defence | None) -> None:
        """Raise an error if the attacker is given the labels of each batch, but batches have no fixed size.

        Args:
            training_defence: The defence that replaces the local training, if there is one. It draws batches of varying
                size.
        """
        if training_defence is not None and "label_batches" in self.granted:
            raise InvalidInput(
                f"label_batches cannot be granted, because {training_defence!r} draws batches of no fixed size"
            )


@dataclass(frozen=True, eq=False)
class Exchanged:
    """The tensors of one client's round, before anything is withheld from the server.

    Args:
        sent: The weights that the server sends.
        buffers: The batch-norm statistics before the round.
        returned_buffers: The batch-norm statistics after the round.
        gradient: The gradient that the client returns (FedSGD).
        returned: The weights that the client returns (FedAvg).
        order: For each local step, the indices of the samples in its batch.
    """

    sent: Params
    buffers: Params
    returned_buffers: Params
    gradient: Params | None = None
    returned: Params | None = None
    order: Sequence[Tensor] = ()


def observe(
    architecture: nn.Module,
    data: Dataset,
    training: LocalTraining,
    exchanged: Exchanged,
    exposure: Exposure,
    *,
    defences: Sequence[Defence] = (),
    client: str,
    round: int = 0,
) -> Observation:
    """Return the server's observation of one client's round.

    Args:
        architecture: The attacker's copy of the model, from :func:`architecture_of`.
        data: The client's samples. The observation holds their labels only if the attacker is given these labels.
        training: The settings of the client's training.
        exchanged: The tensors of the round.
        exposure: The attacker's knowledge.
        defences: The client's defences.
        client: The client's name.
        round: The index of the round.
    """
    exposure.check(data)
    granted, shared = exposure.granted, exposure.share_statistics
    label_counts, label_batches = None, None
    if "label_counts" in granted:
        label_counts = torch.bincount(data.targets, minlength=data.spec.classes or 0)
    if "label_batches" in granted:
        if not training.finishes_epochs:
            raise InvalidInput(
                "label_batches cannot be granted, because the client stops within an epoch after its local steps"
            )
        rows = torch.cat(tuple(exchanged.order)).to(data.targets.device)
        label_batches = data.targets[rows].reshape(-1, len(data))
    return Observation(
        model=architecture,
        data=data.spec,
        sent=exchanged.sent,
        training=hide(training, exposure.hidden),
        gradient=exchanged.gradient,
        returned=exchanged.returned,
        buffers=exchanged.buffers if shared and exchanged.buffers else None,
        returned_buffers=exchanged.returned_buffers if shared and exchanged.returned_buffers else None,
        labels=data.targets.clone() if "labels" in granted else None,
        label_counts=label_counts,
        label_batches=label_batches,
        defences=tuple(map(repr, defences)) if exposure.knows_defence else None,
        client=client,
        round=round,
    )


def hide(training: LocalTraining, hidden: Iterable[str]) -> LocalTraining:
    """Return the training settings that the attacker knows.

    If the optimiser is hidden, its settings are hidden too. The epochs and the local steps are hidden together, because
    each follows from the other.

    Args:
        training: All settings of the client's training.
        hidden: The names of the hidden settings.
    """
    names = set(hidden)
    if "optimiser" in names:
        names |= {name for options in OPTIONS_OF.values() for name in options}
    if names & {"epochs", "local_steps"}:
        names |= {"epochs", "local_steps"}
    return replace(training, **dict.fromkeys(names))  # type: ignore[arg-type]


def architecture_of(model: nn.Module, share_statistics: bool) -> nn.Module:
    """Return the attacker's copy of a model. If batch-norm statistics are not shared, they are reset in the copy."""
    try:
        architecture = copy.deepcopy(model)
    except Exception as problem:  # a user's model may hold anything, such as a lock
        raise InvalidInput(
            f"the model cannot be copied: {in_words(problem)}. Keep open files and locks out"
        ) from problem
    if not share_statistics:
        for module in architecture.modules():
            if isinstance(module, _NormBase):
                module.reset_running_stats()
    return architecture
