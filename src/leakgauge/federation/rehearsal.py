"""The messages of imaginary clients that hold public samples. An attacker with public data learns from them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from leakgauge.core.data_spec import DataSpec
from leakgauge.core.errors import InvalidInput
from leakgauge.core.observation import LocalTraining, Observation
from leakgauge.core.params import Params, subtract, weighted_mean
from leakgauge.core.public_data import PublicData, sample_digests
from leakgauge.core.seeding import derive
from leakgauge.core.truth import Truth
from leakgauge.data.dataset import Dataset
from leakgauge.federation.client import defended_gradient, train_client
from leakgauge.federation.defence import Defence, Protection, ServerDefence, Trained, clients_in_a_sum

#: The largest difference of two pixels of pictures that count as copies of each other.
GREY_LEVEL = 1 / 255


@dataclass(frozen=True, eq=False)
class Rehearsal:
    """A function that returns what a client with given samples would send in the round of an observed message.

    Args:
        model: The architecture.
        data: The description of a sample.
        start: The weights and the buffers that the server sent.
        training: The settings of a client's training, as far as the attacker knows them.
        sends_gradient: Whether clients send a gradient.
        defences: The defences of the clients.
        clients: The number of clients whose messages the server gets as one sum.
        participations: The number of rounds in which a client takes part overall.
    """

    model: nn.Module
    data: DataSpec
    start: Trained
    training: LocalTraining
    sends_gradient: bool
    defences: tuple[Defence, ...] = ()
    clients: int = 1
    participations: int = 1

    def __call__(self, samples: Tensor, targets: Tensor, seed: int) -> Params:
        """Return the message, as :meth:`leakgauge.Observation.difference`.

        Args:
            samples: The samples without normalisation. With a sum of clients, those of all clients.
            targets: The targets of the samples.
            seed: The seed of the client's random numbers.
        """
        if self.clients == 1:
            return self._message(samples, targets, seed)
        shares = zip(samples.chunk(self.clients), targets.chunk(self.clients), strict=True)
        parts = [self._message(*share, derive(seed, "client", number)) for number, share in enumerate(shares)]
        return weighted_mean(parts, [1.0] * len(parts))

    def _message(self, samples: Tensor, targets: Tensor, seed: int) -> Params:
        like = next(iter(self.start.weights.values()))
        inputs = self.data.normalise(samples.to(like.device, like.dtype))
        targets = targets.to(like.device)
        batch = inputs, targets.to(like.dtype) if targets.is_floating_point() else targets
        training = replace(self.training, samples=len(samples))
        protection = Protection(self.defences, seed, self.data.classes)
        settings = (self.model, batch, training, self.start, protection, self.participations, seed)
        if self.sends_gradient:
            return defended_gradient(*settings)[0]
        return subtract(self.start.weights, train_client(*settings).weights)


def public_data(
    observation: Observation,
    data: Dataset,
    *,
    defences: Defence | Iterable[Defence] = (),
    participations: int = 1,
    truth: Truth | None = None,
    description: str = "",
) -> Observation:
    """Grant an attacker data of the same kind as the client's. Return the observation of this attacker.

    The attacker can rehearse the round with clients that hold public samples. These clients use the settings that the
    attacker knows.

    Args:
        observation: The message of the client.
        data: The public samples. None of them may be a sample of the client.
        defences: The defences that the rehearsed clients use. Pass the client's own defences if the attacker knows
            them.
        participations: The number of rounds in which a client takes part overall.
        truth: The client's samples. Public samples that equal one of them are left out.
        description: The origin of the public samples, for people.
    """
    chain = (defences,) if isinstance(defences, Defence) else tuple(defences)
    check_public(data, observation.data)
    rows = torch.arange(len(data)) if truth is None else disjoint(data.inputs, truth.inputs, observation.data)
    if not len(rows):
        raise InvalidInput("every public sample is also a sample of the client. Grant other samples as public data")
    number = clients_in_a_sum(chain)
    training = observation.training
    if number > 1:
        names = ("samples", "batch_size")
        known = {name: value for name in names if (value := getattr(training, name)) is not None}
        training = replace(training, **{name: max(1, value // number) for name, value in known.items()})
    rehearsal = Rehearsal(
        observation.model,
        observation.data,
        Trained((), observation.sent, observation.model_buffers()),
        training,
        observation.gradient is not None,
        tuple(one for one in chain if not isinstance(one, ServerDefence)),
        number,
        participations,
    )
    words = description or f"{len(rows):,} samples of {data.name}"
    granted = PublicData(data.inputs[rows], data.targets[rows], rehearsal, words, _obstacle(observation))
    return replace(observation, public=granted)


def check_public(data: Dataset, spec: DataSpec) -> None:
    """Raise an error if public samples are not of the same kind as the client's samples.

    Args:
        data: The public samples.
        spec: The description of the client's samples.
    """
    for name, words in (("shape", "samples of shape"), ("classes", "classes"), ("target_shape", "targets of shape")):
        ours, theirs = getattr(spec, name), getattr(data.spec, name)
        if ours != theirs:
            raise InvalidInput(
                f"the public data {data.name!r} has {words} {theirs}, but the clients' data has {ours}. "
                "Grant public data of the same kind"
            )
    if spec.columns and data.spec.columns and spec.columns != data.spec.columns:
        raise InvalidInput(
            f"the public data {data.name!r} has other columns than the clients' data. Grant a table with the same "
            "columns in the same order"
        )


def disjoint(public: Tensor, own: Tensor, spec: DataSpec) -> Tensor:
    """Return the indices of the public samples that are no copies of a client's own samples.

    Samples are compared by their content. Pictures also count as copies if they differ by less than one of 256 grey
    levels in the root of the mean squared difference.

    Args:
        public: The public samples.
        own: The client's samples.
        spec: The description of the samples.
    """
    held = set(sample_digests(own))
    other = torch.tensor([digest not in held for digest in sample_digests(public)], dtype=torch.bool)
    if spec.is_image and len(own) and len(public):
        ours, theirs = own.flatten(1).float(), public.flatten(1).float()
        distance = torch.cdist(theirs, ours, compute_mode="donot_use_mm_for_euclid_dist").amin(1)
        other &= (distance / ours.shape[1] ** 0.5 > GREY_LEVEL).to(other.device)
    return other.nonzero().flatten()


def _obstacle(observation: Observation) -> str:
    """Return the reason why a round cannot be rehearsed, or an empty text."""
    training = observation.training
    if observation.gradient is not None:
        return ""
    needed = {"lr": "learning rate", "batch_size": "batch size"}
    missing = [words for name, words in needed.items() if getattr(training, name) is None]
    if training.epochs is None and training.local_steps is None:
        missing.append("number of epochs")
    return f"needs the client's {' and '.join(missing)}, which the attacker does not know" if missing else ""
