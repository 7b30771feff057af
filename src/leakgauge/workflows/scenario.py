"""A federated set-up, which is read from a TOML document and simulated.

======================  ===========================================================================================
table                   keys
======================  ===========================================================================================
``[model]``             ``name`` (a model of Leakgauge, or ``module:factory``), ``options``, ``trained_rounds`` (the
                        number of rounds in which up to ten clients without defences train the model first, by default
                        0 for an untrained model), ``trained_samples`` (the number of samples of each of these clients,
                        by default 100, or as many as an attacked client has if that is more)
``[data]``              one source, which is ``name`` (of a dataset), ``images`` (a folder), ``npz`` (a file), ``csv``
                        (a file) or ``factory`` (a ``module:function`` that returns a ``Dataset``), and ``options`` (of
                        the source)
``[training]``          ``sends`` (``"weights"`` or ``"gradient"``), ``samples`` (the number of samples of a client),
                        ``lr``, ``epochs``, ``batch_size``, ``momentum``, ``weight_decay``, ``mode``, ``loss`` (a name
                        or ``module:function``), ``optimiser``, ``nesterov``, ``dampening``, ``betas``, ``eps``,
                        ``schedule``, ``clip_norm``, ``proximal``, ``label_smoothing``, ``accumulation``,
                        ``local_steps``
                        (:class:`leakgauge.LocalTraining`)
``[attacker]``          ``granted`` (labels, label_counts or label_batches that the attacker is given), ``hidden``
                        (parts of the recipe that the attacker does not know), ``knows_defence`` (whether there is also
                        an attacker who knows the defence, by default true), ``public`` (public data of the same kind
                        that the attacker has, as a number of samples of the data, as the name or the path of other
                        data, or ``"none"``. :mod:`leakgauge.workflows.public_samples`)
``[[defence]]``         ``title``, ``chain`` (a list of defences, each of which is a table with a name and settings)
======================  ===========================================================================================

A mistake in the document is reported before any work starts. The error message names the table and the key.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from leakgauge import models
from leakgauge.attacks import registry
from leakgauge.attacks.analytic.named_words import named_by
from leakgauge.core.errors import InvalidInput, LeakgaugeError
from leakgauge.core.observation import LocalTraining, Observation
from leakgauge.core.seeding import derive, generator
from leakgauge.core.truth import Truth
from leakgauge.data import Dataset
from leakgauge.federation.aggregation import aggregate
from leakgauge.federation.client import fedavg, fedsgd
from leakgauge.federation.defence import Defence, ServerDefence, clients_in_a_sum
from leakgauge.federation.exposure import GRANTS
from leakgauge.federation.losses import named_loss
from leakgauge.federation.model_check import check_differentiable, check_progress, prepared
from leakgauge.federation.rounds import Federation, run_federation
from leakgauge.models.factories import find_factory
from leakgauge.runtime.cache import source_digest
from leakgauge.runtime.values import value_digest
from leakgauge.workflows.data_sources import load_data
from leakgauge.workflows.public_samples import granted, samples_of, shuffled
from leakgauge.workflows.scorable import check_scorable

#: The settings of the recipe that a client gets as a ``LocalTraining``.
FURTHER = (
    "optimiser", "nesterov", "dampening", "betas", "eps", "schedule", "clip_norm", "proximal", "label_smoothing",
    "accumulation", "local_steps",
)  # fmt: skip
#: The clients that train a model first: how many there are at most, and how many samples each has by default.
TRAINERS, TRAINED_SAMPLES = 10, 100
#: The largest number of samples with which a trained model is tested.
TESTED = 500


@dataclass(frozen=True)
class Scenario:
    """A federated set-up, which can simulate the messages of its clients.

    Args:
        model: The table ``[model]``.
        data: The table ``[data]``.
        training: The table ``[training]``.
        attacker: The table ``[attacker]``.
        seed: The seed of all random draws.
    """

    model: dict[str, Any]
    data: dict[str, Any]
    training: dict[str, Any] = field(default_factory=dict)
    attacker: dict[str, Any] = field(default_factory=dict)
    seed: int = 0

    @cached_property
    def dataset(self) -> Dataset:
        """The whole dataset, from which the samples of all clients are taken."""
        (source,) = self.data.keys() - {"options"}
        return load_data(source, self.data[source], self.data.get("options", {}))

    @cached_property
    def public(self) -> Dataset | None:
        """The public data of the attacker, or ``None`` (:mod:`leakgauge.workflows.public_samples`)."""
        return samples_of(self)

    @cached_property
    def order(self) -> Tensor:
        """The random order of the dataset's samples, in which clients get theirs."""
        return torch.randperm(len(self.dataset), generator=generator(self.seed, "clients"))

    @property
    def document(self) -> dict[str, Any]:
        """The set-up as a plain dictionary."""
        return {item.name: getattr(self, item.name) for item in fields(self)}

    @cached_property
    def fingerprint(self) -> str:
        """A digest of the data, the network, the message of the first client, and the user's own source code.

        The message covers whatever the code reads while it runs, such as a constant in another file.
        """
        network = self.network()
        factories = [find_factory(name) for name in self._user_factories()]
        try:
            message, _ = self.observe(0)
        except LeakgaugeError:  # only some defences can be simulated, and they have their own definition
            message = None
        return f"{source_digest(network, *factories)} {value_digest(network, self.dataset, message)}"

    def _user_factories(self) -> list[str]:
        if "loss" in self.training:
            named_loss(self.training["loss"])
        names = [self.model["name"], self.data.get("factory", ""), self.training.get("loss", "")]
        return [name for name in names if ":" in name]

    def version(
        self, *, granted: Sequence[str] | None = None, public: int | str | None = None, **training: Any
    ) -> Scenario:
        """Return a copy of this set-up with other training settings or another attacker, and the same data and model.

        Args:
            granted: The knowledge that the attacker is given. By default, it stays as it is.
            public: The public data of the attacker. By default, they stay as they are.
            training: The changed keys of the table ``[training]``.
        """
        given = {"granted": None if granted is None else list(granted), "public": public}
        attacker = self.attacker | {key: value for key, value in given.items() if value is not None}
        changed = replace(self, training={**self.training, **training}, attacker=attacker)
        shared: dict[str, Any] = {"dataset": self.dataset, "order": self.order}
        if public is None and "public" in vars(self):
            shared["public"] = self.public
        if self.model.get("trained_rounds"):
            shared["_trained"] = self._trained
        vars(changed).update(shared)  # the values of cached properties
        return changed

    @property
    def samples(self) -> int:
        """The number of samples of each attacked client."""
        return int(self.training.get("samples", 10))

    @property
    def labels_granted(self) -> bool:
        """Whether the attacker is given labels in any form."""
        return bool(set(GRANTS) & set(self.attacker.get("granted", [])))

    @property
    def targets_unknown(self) -> bool:
        """Whether the attacker has to find targets that are no classes."""
        return self.dataset.spec.classes is None and not self.labels_granted

    def share(self, index: int, size: int | None = None, *, first: int = 0) -> Dataset:
        """Return the samples of one client, which are drawn at random from the dataset.

        Args:
            index: The index of the client. Clients with different indices have different samples.
            size: The number of samples. The default is the number of samples of an attacked client.
            first: The number of samples to leave out at the beginning of the random order.
        """
        size = size or self.samples
        rows = self.order[first + index * size : first + (index + 1) * size]
        if len(rows) < size:
            raise InvalidInput(
                f"{self.dataset.name} has {len(self.dataset)} samples, too few for client {index} with {size} after "
                f"the first {first}. Use fewer clients, or fewer samples per client"
            )
        return self.dataset.share(rows, f"client {index}")

    def check_size(self, clients: int, chains: Iterable[Sequence[Defence]] = (), *, others: int = 0) -> None:
        """Raise an error if the dataset is too small for all clients. No client is simulated.

        Args:
            clients: The number of attacked clients.
            chains: The chains of defences, which may combine the messages of several clients.
            others: The number of further samples that are needed, such as for a test.
        """
        together = max(map(clients_in_a_sum, chains), default=1)
        needed = clients * together * self.samples + others
        if needed > len(self.dataset):
            each = f"{together:,} x " if together > 1 else ""
            rest = f" and {others:,} other samples" if others else ""
            raise InvalidInput(
                f"{self.dataset.name} has {len(self.dataset):,} samples, too few for {each}{clients:,} clients with "
                f"{self.samples:,} each{rest}. Use fewer clients, or fewer samples per client"
            )

    def network(self, index: int = 0) -> nn.Module:
        """Build a network for one client.

        Each client has its own initial weights. If ``trained_rounds`` is set, the network is trained first and is the
        same for all clients. If the factory has the arguments ``shape`` and ``classes``, it gets the shape and the
        classes of the data, unless the options set them.
        """
        spec, name = self.dataset.spec, self.model["name"]
        fitting = {"shape": list(spec.shape), "classes": spec.outputs}
        taken = {key: value for key, value in fitting.items() if key in models.parameters(name)}
        seed = {"seed": derive(self.seed, "network", 0 if self.model.get("trained_rounds") else index) % 2**31}
        network = models.build(name, **(seed | taken | self.model.get("options", {})))
        if self.model.get("trained_rounds"):
            self._trained.load_into(network)
        return network

    @property
    def _trainers(self) -> tuple[int, int]:
        """The number of clients that train the model first, and the number of samples of each."""
        most = max(1, len(self.dataset) // 2)
        size = min(self.model.get("trained_samples", max(TRAINED_SAMPLES, self.samples)), most)
        return min(TRAINERS, most // size), size

    @property
    def trained_samples(self) -> int:
        """The number of samples, at the end of the random order, with which the model is trained first."""
        return math.prod(self._trainers) if self.model.get("trained_rounds") else 0

    @cached_property
    def _trained(self) -> Federation:
        """The federation that trains the model for ``trained_rounds`` rounds.

        All samples are put into a random order. The training clients hold the last samples of this order, at most half
        of all samples. The model is tested on the samples just before them in the order.
        """
        untrained = replace(self, model={**self.model, "trained_rounds": 0})
        number, size = self._trainers
        first = len(self.dataset) - number * size
        tested = min(TESTED, max(1, first // 2))
        federation = run_federation(
            untrained.network(),
            [self.share(index, size, first=first) for index in range(number)],
            rounds=self.model["trained_rounds"],
            test=self.share(0, tested, first=first - tested),
            test_every=self.model["trained_rounds"],
            seed=derive(self.seed, "trained"),
            **self.recipe,
            **self.loss_and_mode,
        )
        if federation.interrupted:
            raise KeyboardInterrupt
        return federation

    @property
    def model_state(self) -> str:
        """A sentence about the training of the model before the attacked round, with its test score."""
        rounds = self.model.get("trained_rounds")
        if not rounds and ":" in self.model["name"]:
            return "The model has the weights that its factory returns."
        if not rounds:
            return "The model has random weights. It was not trained before this round."
        score = self._trained.history[-1][1]
        spec = self.dataset.spec
        kind = "mean squared error" if spec.classes is None and spec.target_values is None else "accuracy"
        return f"The model was trained for {rounds} rounds before this one. Its {kind} on other samples is {score:.3g}."

    def observe(
        self,
        index: int,
        chain: Sequence[Defence] = (),
        *,
        knows_defence: bool = False,
        participations: int = 1,
        start: int | None = None,
        model: nn.Module | None = None,
    ) -> tuple[Observation, Truth]:
        """Simulate a client. Return the server's observation of the client, and the client's own samples.

        With secure aggregation, the observation is the sum of the messages of several clients.

        Args:
            index: The index of the client. With secure aggregation, it is the index of the group of clients.
            chain: The defences of the client.
            knows_defence: Whether the attacker knows these defences.
            participations: The number of rounds in which a client takes part, for defences with a budget.
            start: The index of the initial weights. By default, each client has its own. Clients of one round have the
                same.
            model: The model that the server sends. By default, the network of the set-up.
        """
        on_client = [defence for defence in chain if not isinstance(defence, ServerDefence)]
        number = clients_in_a_sum(chain)
        if model is None:
            model = self.network(index if start is None else start)
        exposure = {"knows_defence": knows_defence, "participations": participations, "defences": on_client}
        parts = [self._message(model, number * index + offset, exposure) for offset in range(number)]
        observation, truth = aggregate(parts) if number > 1 else parts[0]
        known = chain if knows_defence else ()
        return granted(self, observation, truth, known, participations), truth

    def shuffled(
        self, observation: Observation, chain: Sequence[Defence], index: int, participations: int = 1
    ) -> Observation | None:
        """Return the observation with the message of another client, or ``None`` if the attacker has no public data.

        Args:
            observation: The message of the client.
            chain: The client's defences.
            index: The index of the client.
            participations: The number of rounds in which a client takes part.
        """
        return shuffled(self, observation, chain, participations, derive(self.seed, "shuffled", index))

    def first_message(self) -> Observation:
        """Return the message of the first client without a defence.

        Raise an error if its training diverges, or if a result of an attack on it could not be scored.
        """
        message, truth = self.observe(0)
        if any(value.dtype == torch.bfloat16 for value in message.sent.values()):
            raise InvalidInput("the model holds bfloat16, which is too rough for attacks. Return model.float() instead")
        if message.returned is not None:
            samples = prepared(self.share(0), message.sent)
            check_progress(message.model, samples, message.training, message.sent, message.returned)
        check_scorable(truth, named_by(message))
        return message

    def check_attackable(self, message: Observation, attacks: Iterable[str]) -> None:
        """Raise an error if an attack differentiates the model, but the model does not allow that.

        Args:
            message: The message of the first client.
            attacks: The names of the attacks.
        """
        specs = [registry.ATTACKS[name] for name in attacks]
        if any(spec.recovers == "samples" and not spec.exact for spec in specs):
            samples = prepared(self.share(0), message.sent)
            check_differentiable(message.model, samples, message.training, message.sent)

    def _message(self, model: nn.Module, index: int, exposure: Mapping[str, Any]) -> tuple[Observation, Truth]:
        options: dict[str, Any] = {
            **exposure,
            "granted": self.attacker.get("granted", []),
            "hidden": self.attacker.get("hidden", []),
            "seed": derive(self.seed, "client", index),
            **self.loss_and_mode,
        }
        if self.training.get("sends", "weights") == "gradient":
            return fedsgd(model, self.share(index), **options)
        return fedavg(model, self.share(index), **options, **self.recipe)

    @property
    def recipe(self) -> dict[str, Any]:
        """The settings of the client's local training, as arguments of :func:`leakgauge.fedavg`."""
        keys = ("epochs", "batch_size", "momentum", "weight_decay")
        return {"lr": self.training.get("lr", 0.01)} | {key: self.training[key] for key in keys if key in self.training}

    @property
    def loss_and_mode(self) -> dict[str, Any]:
        """The loss, the mode of the model and further training settings, if the document sets them."""
        own: dict[str, Any] = {key: self.training[key] for key in ("mode", "loss") if key in self.training}
        further = further_settings(self.training)
        return own if further is None else {**own, "recipe": further}


def further_settings(training: Mapping[str, Any]) -> LocalTraining | None:
    """Return the settings of ``[training]`` that have no argument of their own in :func:`leakgauge.fedavg`.

    Args:
        training: The table ``[training]``.
    """
    settings = {key: value for key, value in training.items() if key in FURTHER}
    momentum = {"momentum": training["momentum"]} if training.get("nesterov") and "momentum" in training else {}
    return LocalTraining(**settings, **momentum) if settings else None
