"""The attacks that the benchmark rows of LMRA (Driouich et al.) compare on the clients of one federation.

Most methods rebuild the models of clients (:func:`leakgauge.attacks.local_model.build`) and infer attributes, sources
and pictures from these models. The following methods are different:

=============  ======================================================================================================
method         inference
=============  ======================================================================================================
``optimal``    attributes, sources and pictures from the model that each client trains alone. This is the upper bound
``ceiling``    the same from a model that each client trains alone from another random start. No attack can be expected
               to come nearer to a client's own model than this second model does
``gradient``   attributes by equation 2, sources by the vote over rounds, and pictures by equation 4, without a model
``equations``  attributes and sources by the equations of the gradients, without a model
``inputs``     sources by the mean of the inputs, without a model
``columns``    attributes by the other columns (:func:`leakgauge.evaluation.imputed`). The prediction is learned from
               the records of the other clients, without any message
=============  ======================================================================================================
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from leakgauge.attacks import attribute, class_samples, local_model, source
from leakgauge.attacks.attribute import PublicRecords
from leakgauge.attacks.local_model import ActiveServer, LocalModel
from leakgauge.attacks.source import Sources
from leakgauge.core.errors import InvalidInput
from leakgauge.core.observation import Observation
from leakgauge.core.progress import Report
from leakgauge.core.seeding import derive
from leakgauge.data import Dataset
from leakgauge.evaluation import imputed
from leakgauge.reproduction.federations import WatchedFederation, has_batch_norm
from leakgauge.reproduction.rows import Method

#: The frequencies of the two values of a sensitive attribute among all clients.
Prior = tuple[float, float]


@dataclass(frozen=True, eq=False)
class Attacked:
    """The attacked clients of a federation, with the models that a method rebuilt.

    Args:
        federation: The recorded federation.
        chosen: The indices of the attacked clients.
        models: The rebuilt model of each attacked client. The list is empty for a method without models.
        options: The options of the method's attack.
        seed: The seed of the run.
        shares: For each attack and size of groups, the share of each client's groups of records whose owner the attack
            found. The shares are stored here because several measures use them.
    """

    federation: WatchedFederation
    chosen: Sequence[int]
    models: Sequence[LocalModel] = ()
    options: dict[str, Any] = field(default_factory=dict)
    seed: int = 0
    shares: dict[tuple[str, int], Tensor] = field(default_factory=dict)

    @property
    def clients(self) -> list[Dataset]:
        """The data of the attacked clients."""
        return [self.federation.clients[index] for index in self.chosen]

    @property
    def rounds(self) -> list[list[Observation]]:
        """The messages of each attacked client, one for each recorded round."""
        return [self.federation.observations[index] for index in self.chosen]


@dataclass(frozen=True)
class Inference:
    """The attacks of one method, as functions. ``None`` stands for an attack that the method does not have.

    Args:
        attribute: The function that infers the sensitive values of one client's records. Its arguments are the attacked
            clients, the index of the client and a prior.
        source: The function that infers the owner of each record. Its arguments are the attacked clients, and the
            inputs and targets of all clients' records together.
        pictures: The function that rebuilds samples of some classes of a client, and returns the samples with their
            labels. Its arguments are the attacked clients, the index of the client and the classes.
        takes_prior: Whether the attribute attack can use a prior.
        with_batch_norm: Whether the source attack works on networks with batch norm.
        common_rounds: Whether the source attack needs rounds in which all attacked clients took part.
    """

    attribute: Callable[[Attacked, int, Prior | None], Tensor] | None = None
    source: Callable[[Attacked, Tensor, Tensor], Sources] | None = None
    pictures: Callable[[Attacked, int, Sequence[int]], tuple[Tensor, Tensor]] | None = None
    takes_prior: bool = True
    with_batch_norm: bool = True
    common_rounds: bool = False

    def finds_sources(self, attacked: Attacked) -> bool:
        """Return whether the method has a source attack that applies to these clients.

        A source attack needs at least two clients. Some source attacks do not work on networks with batch norm, and
        some need rounds in which all clients took part.
        """
        suitable = self.with_batch_norm or not has_batch_norm(attacked.federation.setting)
        if self.source is None or not suitable or len(attacked.chosen) < 2:
            return False
        numbers = ({message.round for message in messages} for messages in attacked.rounds)
        return not self.common_rounds or bool(set.intersection(*numbers))


def secret(client: Dataset) -> Tensor:
    """Return the sensitive values of a client's records."""
    return client.inputs[:, client.spec.columns.index(_sensitive(client))].long()


def _sensitive(client: Dataset) -> str:
    if client.sensitive is None:
        raise InvalidInput(f"{client.name} has no sensitive column. Measure zest or sia instead.")
    return client.sensitive


def _records(client: Dataset) -> PublicRecords:
    return PublicRecords.hiding(client.inputs, client.targets, client.spec, _sensitive(client))


def _attribute_by_model(attacked: Attacked, place: int, prior: Prior | None) -> Tensor:
    records = _records(attacked.clients[place])
    return attribute.by_model(attacked.models[place], records, prior=prior).choice.cpu()


def _attribute_by_gradient(attacked: Attacked, place: int, prior: Prior | None) -> Tensor:
    records, messages = _records(attacked.clients[place]), attacked.rounds[place]
    return attribute.by_gradient(messages, records, prior=prior, **attacked.options).choice.cpu()


def _attribute_by_equations(attacked: Attacked, place: int, prior: Prior | None) -> Tensor:
    records, messages = _records(attacked.clients[place]), attacked.rounds[place]
    return attribute.by_equations(messages, records, prior=prior, **attacked.options).choice.cpu()


def _attribute_by_columns(attacked: Attacked, place: int, prior: Prior | None) -> Tensor:
    clients, index = attacked.federation.clients, attacked.chosen[place]
    others = [client for number, client in enumerate(clients) if number != index]
    known = [_records(client).known() for client in (clients[index], *others)]
    return imputed(known[0], torch.cat(known[1:]), torch.cat([secret(client) for client in others]))


def _source_by_loss(attacked: Attacked, inputs: Tensor, targets: Tensor) -> Sources:
    return source.by_loss(attacked.models, inputs, targets)


def _source_by_vote(attacked: Attacked, inputs: Tensor, targets: Tensor) -> Sources:
    return source.by_vote(attacked.rounds, inputs, targets)


def _source_by_equations(attacked: Attacked, inputs: Tensor, targets: Tensor) -> Sources:
    return source.by_equations(attacked.rounds, inputs, targets)


def _source_by_inputs(attacked: Attacked, inputs: Tensor, targets: Tensor) -> Sources:
    return source.by_inputs(attacked.rounds, inputs)


def _pictures_by_model(attacked: Attacked, place: int, classes: Sequence[int]) -> tuple[Tensor, Tensor]:
    made = class_samples.by_model(attacked.models[place], classes)
    return made.samples.cpu(), made.labels.cpu()


def _pictures_by_gradient(attacked: Attacked, place: int, classes: Sequence[int]) -> tuple[Tensor, Tensor]:
    labels = attacked.clients[place].targets
    last = attacked.rounds[place][-1].knowing(labels=labels)
    return class_samples.by_gradient(last, seed=attacked.seed, **attacked.options).samples, labels


_BY_MODEL = Inference(_attribute_by_model, _source_by_loss, _pictures_by_model)
#: The methods that infer without a model.
WITHOUT_MODEL = {
    "gradient": Inference(_attribute_by_gradient, _source_by_vote, _pictures_by_gradient, common_rounds=True),
    "equations": Inference(_attribute_by_equations, _source_by_equations, with_batch_norm=False, common_rounds=True),
    "inputs": Inference(source=_source_by_inputs),
    "columns": Inference(_attribute_by_columns, takes_prior=False),
}
#: The methods whose model is the same for all clients. The loss of such a model cannot tell clients apart.
_SAME_MODEL = {"global": Inference(_attribute_by_model, None, _pictures_by_model)}


def inference_of(attack: str) -> Inference:
    """Return the attacks of a method.

    Args:
        attack: The name of the attack in the TOML table of the method.
    """
    return (WITHOUT_MODEL | _SAME_MODEL).get(attack, _BY_MODEL)


#: The methods that are no attacks but models that a client trains alone, by the number of the start.
OWN_MODELS = ("optimal", "ceiling")
#: The option that holds the number of steps, for each method that optimises.
_STEPS = {"lmra": "steps", "distilled": "steps", "learned": "epochs"}


def rebuild(
    federation: WatchedFederation,
    chosen: Sequence[int],
    method: Method,
    steps: int | None,
    report: Report,
    reference: str = "converged",
) -> list[LocalModel]:
    """Rebuild the models of some clients with one method. For a method without models, return an empty list.

    Args:
        federation: The recorded federation.
        chosen: The indices of the attacked clients.
        method: The method, which names the attack and its options.
        steps: The number of optimisation steps, for attacks that optimise. With ``None``, the number in the method's
            options is used.
        report: The function that is called after each step.
        reference: How a client's own model is trained, a name in
            :data:`leakgauge.reproduction.federations.REFERENCES`.
    """
    if method.attack in WITHOUT_MODEL:
        return []
    if method.attack in OWN_MODELS:
        start = OWN_MODELS.index(method.attack)
        return [federation.reference(index, reference, start) for index in chosen]
    options = dict(method.options)
    if steps is not None and method.attack in _STEPS:
        options[_STEPS[method.attack]] = steps
    attack = local_model.build(method.attack, **options)
    rounds = dict(enumerate(federation.observations))
    if isinstance(attack, ActiveServer):
        rounds = federation.steered(attack, chosen)
    return [attack(rounds[index], seed=derive(federation.seed, index), progress=report) for index in chosen]
