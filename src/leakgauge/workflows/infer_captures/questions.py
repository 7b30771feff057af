"""Functions that infer a hidden column and the owners of records, with every attack that applies."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from leakgauge.attacks import registry
from leakgauge.attacks.attribute import Attributes
from leakgauge.attacks.local_model import LocalModel
from leakgauge.attacks.local_model.messages import steps_in
from leakgauge.attacks.record_shares import ROOM
from leakgauge.attacks.source import Sources
from leakgauge.attacks.spec import AttackSpec
from leakgauge.core.errors import LeakgaugeError
from leakgauge.core.measure import Measure
from leakgauge.core.observation import Observation
from leakgauge.core.progress import progress_bar
from leakgauge.core.seeding import generator
from leakgauge.core.truth import Truth
from leakgauge.evaluation.chance import Chance
from leakgauge.evaluation.inferred import (
    OTHER_COLUMNS,
    WHOLE,
    HiddenColumn,
    attribute_chance_among,
    groups_of,
    share_measure,
)
from leakgauge.evaluation.verdict import Finding, Verdict, judge_share

#: The largest number of records whose owner is inferred. Each client contributes the same number of records.
RECORDS = 2000
#: What is inferred about owners, with the number of records that the attacker knows to belong to one client.
OWNERS = {"owner": 1, "owner of 10 records": 10, "owner of all records": WHOLE}
SEVERAL_STEPS = "Clients take several steps a round, which is noise to the gradients' equations."


@dataclass(frozen=True, eq=False)
class Federation:
    """The messages of several clients, the rebuilt models of these clients, and the records of some of these clients.

    Args:
        rounds: The observations of each client.
        models: The rebuilt model of each client.
        truths: The records of each client whose data is given.
    """

    rounds: Mapping[str, Sequence[Observation]]
    models: Mapping[str, LocalModel]
    truths: Mapping[str, Truth]


@dataclass(frozen=True, eq=False)
class Inference:
    """The result of one attack that infers a hidden column or the owners of records.

    Args:
        about: The name of the hidden column, or a name in :data:`OWNERS`.
        attack: The name of the attack.
        measure: The share of records for which the attack is right, with its chance level.
        verdict: The verdict on this share.
        shares: A dictionary from each client to the share of its records for which the attack is right.
    """

    about: str
    attack: str
    measure: Measure
    verdict: Verdict
    shares: dict[str, float]

    @classmethod
    def of(cls, about: str, attack: str, right: Mapping[str, Tensor], chance: Chance) -> Inference:
        """Compute the share of records for which an attack is right, and the verdict on this share.

        Args:
            about: The name of the hidden column, or a name in :data:`OWNERS`.
            attack: The name of the attack.
            right: A dictionary from each client to a tensor that is true for each record about which the attack is
                right.
            chance: The share of records for which the best guess without any message is right.
        """
        metric = "source_accuracy" if about in OWNERS else "attribute_accuracy"
        parts = list(right.values())
        shares = {name: float(part.double().mean()) for name, part in right.items()}
        return cls(about, attack, share_measure(metric, parts, chance), judge_share(parts, chance.value), shares)

    def finding(self) -> Finding:
        """Return the result as a finding, which is the form in which all commands report the results of attacks."""
        return Finding(self.attack, self.about, {self.measure.name: self.measure}, self.verdict)


@dataclass(eq=False)
class Answers:
    """The results of all attacks on a hidden column, or on the owners of records, and notes for the reader."""

    inferences: list[Inference] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def infer_column(federation: Federation, column: str, values: Sequence[float]) -> Answers:
    """Infer a hidden column of the clients' records with every attack that applies.

    Args:
        federation: The messages, the models and the records.
        column: The name of the column or category that is hidden from the attacker.
        values: The values of the column, as :func:`~leakgauge.evaluation.inferred.column_values` returns them.
    """
    hidden = {name: HiddenColumn.of(truth, column, values) for name, truth in federation.truths.items()}
    chance = attribute_chance_among(hidden)
    answers = Answers(notes=list(_column_notes(federation, column, chance)))
    for spec in _fitting("attribute", federation, answers):
        right, guarantees = {}, []
        with progress_bar(f"{column} by {spec.name}") as report:
            for number, (name, client) in enumerate(hidden.items()):
                rounds, model = federation.rounds[name], federation.models[name]
                try:
                    attributes: Attributes = spec.factory()(rounds, client.records, model=model)
                except LeakgaugeError as problem:  # the other clients are still attacked
                    answers.notes.append(f"{spec.name} could not run on {name}: {problem}.")
                    continue
                right[name] = attributes.choice.cpu() == client.values
                if attributes.coefficient is not None:
                    guarantees.append(_guarantee(attributes, model, federation.truths[name]))
                report(number + 1, len(hidden), math.nan)
        if right:
            answers.inferences.append(Inference.of(column, spec.name, right, chance))
        if guarantees:
            answers.notes.append(_guarantee_note(column, min(guarantees), max(guarantees)))
    return answers


def _fitting(recovers: str, federation: Federation, answers: Answers) -> Iterator[AttackSpec]:
    """Yield the attacks that apply to the messages.

    For every other attack, add a note to ``answers`` that explains why the attack does not apply.
    """
    observation = next(iter(federation.rounds.values()))[-1]
    for spec in registry.specs(recovers=recovers, reads="rounds"):  # type: ignore[arg-type]
        fit = spec.fits(observation)
        if fit.applies:
            yield spec
        else:
            answers.notes.append(f"{spec.name} does not apply: {fit.reason}.")


def _column_notes(federation: Federation, column: str, chance: Chance) -> Iterator[str]:
    yield f"Chance for {column} is {chance.source}, which is right for {chance.value:.0%} of the records."
    if len(federation.truths) < 2:
        yield f"{OTHER_COLUMNS.capitalize()} cannot be learned from one client's records."
    for name, truth in federation.truths.items():
        trained = federation.rounds[name][-1].training.samples
        if trained is not None and trained != len(truth.inputs):
            yield (
                f"{name} trained on {trained} records, and --data holds {len(truth.inputs)}. Attacks on gradients find "
                "more where all records are known."
            )


def _guarantee(attributes: Attributes, model: LocalModel, truth: Truth) -> float:
    with torch.no_grad():
        error = float(model.losses(truth.inputs, truth.targets).mean())
    return attributes.guarantee(error) or 0.0


def _guarantee_note(column: str, least: float, most: float) -> str:
    if most == 0:
        return (
            f"Proposition 4 of LMRA guarantees nothing about {column}, because the models' errors are too large "
            "beside its effect."
        )
    return (
        f"The models are linear. By proposition 4 of LMRA, the rebuilt model must be right about {column} for at least "
        f"{least:.0%} (the client with the least) to {most:.0%} (the client with the most) of the records."
    )


def infer_owners(federation: Federation, seed: int) -> Answers:
    """Infer which of the captured clients each record belongs to, with every attack that applies.

    Args:
        federation: The messages, the models and the records.
        seed: The seed of the random choice of records.
    """
    inputs, targets, sizes = _some_records(federation, seed)
    answers = Answers(notes=list(_owner_notes(federation, len(inputs))))
    names = list(federation.rounds)
    messages, models = list(federation.rounds.values()), [federation.models[name] for name in names]
    for spec in _fitting("source", federation, answers):
        with progress_bar(f"owners by {spec.name}") as report:
            try:
                sources: Sources = spec.factory()(messages, inputs, targets, models=models, report=report)
            except LeakgaugeError as problem:
                answers.notes.append(f"{spec.name} could not run: {problem}.")
                continue
        for about, group in OWNERS.items():
            groups, owners = groups_of(list(sizes.values()), group)
            choice = sources.of_groups(groups).choice
            places = enumerate(sizes)
            right = {name: choice[owners == place] == names.index(name) for place, name in places}
            most = float(torch.bincount(owners).max()) / len(owners)
            chance = Chance(most, "the client with the most of these records")
            answers.inferences.append(Inference.of(about, spec.name, right, chance))
    return answers


def _some_records(federation: Federation, seed: int) -> tuple[Tensor, Tensor, dict[str, int]]:
    """Return the inputs and targets of random records, and the number of records of each client.

    The number of records is limited, because the gradients of all returned records must fit into memory.
    """
    truths = federation.truths
    weights = sum(value.numel() for value in next(iter(federation.rounds.values()))[0].sent.values())
    room = min(RECORDS, max(10 * len(truths), 8 * ROOM // weights))  # at most eight blocks of gradients
    inputs, targets = [], []
    for name, truth in truths.items():
        order = torch.randperm(len(truth.inputs), generator=generator(seed, "sources", name))
        rows = order[: max(1, room // len(truths))]
        inputs.append(truth.inputs[rows])
        targets.append(truth.targets[rows])
    sizes = {name: len(part) for name, part in zip(truths, inputs, strict=True)}
    return torch.cat(inputs), torch.cat(targets), sizes


def _owner_notes(federation: Federation, count: int) -> Iterator[str]:
    given = sum(len(truth.inputs) for truth in federation.truths.values())
    yield (
        f"Owners are inferred for {count} of the {given} records in --data, all at once. The equations find fewer "
        "where the attacker knows fewer of a client's records."
    )
    if any((steps_in(rounds[-1]) or 1) > 1 for rounds in federation.rounds.values()):
        yield SEVERAL_STEPS
