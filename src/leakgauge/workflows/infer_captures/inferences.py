"""How much of the records each attack has right, beside what is known of them without any message."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from leakgauge.attacks import attribute, source
from leakgauge.attacks.attribute import PublicRecords
from leakgauge.attacks.local_model import LocalModel
from leakgauge.attacks.local_model.messages import Messages, gradients_of, steps_in
from leakgauge.core.errors import InvalidInput, LeakgaugeError
from leakgauge.core.observation import Observation
from leakgauge.core.progress import progress_bar
from leakgauge.core.seeding import generator
from leakgauge.core.truth import Truth
from leakgauge.evaluation import Interval, imputed, wilson_interval

#: Sources are asked for at most so many records in all, as many of each client.
RECORDS = 2000
#: A sensitive column has at most so many values.
VALUES = 20
#: What is "above a guess" is so with this confidence: several attacks are tried, and one of them always does best.
CONFIDENCE = 0.999
#: What the attacks' names mean.
WORDS = {
    "other columns": "no message at all: a logistic regression on the other clients' records (imputation).",
    "rebuilt model": "the value with which the rebuilt model explains the target best (LMRA, equation 3).",
    "gradients": "the values whose gradients point where the client went (LMRA, equation 2).",
    "equations": "a mean gradient is linear in which value each record has, and in which records it is of; solved.",
    "losses": "the client whose rebuilt model has the least loss on the record (Hu et al. 2021).",
    "vote": "the same on the models returned in each round, by majority (LMRA, appendix C.2).",
    "inputs": "the client whose mean input, as its first layer's gradients tell it, lies nearest.",
}
SEVERAL_STEPS = "Clients take several steps a round, which is noise to the gradients' equations."


@dataclass(frozen=True)
class Figure:
    """What share of the records one attack has right, from which client to which, and what a guess has."""

    what: str
    attack: str
    right: Interval
    least: float
    most: float
    chance: float
    surely: float
    clients: int
    records: int

    @classmethod
    def of(cls, what: str, attack: str, right: Sequence[Tensor], chance: float) -> Figure:
        """From whether each record of each client is right."""
        count, shares = sum(len(one) for one in right), [float(one.double().mean()) for one in right]
        total = float(sum(one.sum() for one in right))
        low = wilson_interval(total, count, CONFIDENCE).low
        assert low is not None  # a share has limits
        return cls(
            what, attack, wilson_interval(total, count), min(shares), max(shares), chance, low, len(right), count
        )

    @property
    def above_chance(self) -> bool:
        """Whether it is clearly above what is known without messages."""
        return self.attack != "other columns" and self.surely > self.chance

    def to_row(self) -> list[str]:
        """As a row of a table."""
        return [
            self.what, self.attack, f"{self.right.mean:.2f}", f"{self.right.low:.2f} to {self.right.high:.2f}",
            f"{self.chance:.2f}", f"{self.least:.2f} to {self.most:.2f}", str(self.clients), str(self.records),
        ]  # fmt: skip


#: The first five say the most.
HEAD = ["what", "attack", "right", "95% interval", "guess", "client to client", "clients", "records"]


def values_of(truths: Iterable[Truth], sensitive: str) -> Sequence[float]:
    """The values that a sensitive column has among all clients; those of a category are its one-hot columns."""
    every = list(truths)
    data = every[0].data
    if not data.columns:
        raise InvalidInput(
            f"there is no column {sensitive!r}: these captures name none, and pictures have none; record those of a "
            "table with DataSpec(columns=...)"
        )
    PublicRecords.hiding(every[0].inputs, every[0].targets, data, sensitive)  # says so if that cannot be hidden
    if sensitive in data.one_hot_groups:
        return ()
    place = data.columns.index(sensitive)
    values: list[float] = torch.cat([one.inputs[:, place] for one in every]).unique().tolist()
    if not 2 <= len(values) <= VALUES:
        raise InvalidInput(f"the column {sensitive!r} has {len(values)} values; one with 2 to {VALUES} can be inferred")
    return values


def attributes(
    models: Mapping[str, LocalModel],
    rounds: Mapping[str, Sequence[Observation]],
    known: Mapping[str, Truth],
    sensitive: str,
    values: Sequence[float],
) -> tuple[list[Figure], list[str]]:
    """How many values of the hidden column each attack has right, and what is to be said about it."""
    hidden = {name: _hidden(truth, sensitive, values) for name, truth in known.items()}
    scaled = all(gradients_of(Messages.read(rounds[name]))[1] for name in known)
    attacks: dict[str, Callable[[str, PublicRecords], attribute.Attributes]] = {
        "rebuilt model": lambda name, records: attribute.by_model(models[name], records),
        "gradients": lambda name, records: attribute.by_gradient(rounds[name], records),
    }
    notes = [
        f"A guess of {sensitive}: the better of each client's most frequent value and what the other columns tell."
    ]
    if scaled:
        attacks["equations"] = lambda name, records: attribute.by_equations(rounds[name], records)
    else:
        notes.append("The gradients' equations want the clients' lr, epochs, batch size and samples: give --know.")
    for name, truth in known.items():
        trained = rounds[name][-1].training.samples
        if trained is not None and trained != len(truth.inputs):
            notes.append(
                f"{name} trained on {trained} records, and {len(truth.inputs)} are given: attacks on gradients find "
                "more where all are known."
            )
    every = torch.cat([secret for _, secret in hidden.values()])
    frequent = sum(float(torch.bincount(secret).max()) for _, secret in hidden.values()) / len(every)
    figures, chance = [], frequent
    if len(hidden) > 1:
        right = [_imputed(hidden, known, name) == secret for name, (_, secret) in hidden.items()]
        figures.append(Figure.of(sensitive, "other columns", right, frequent))
        chance = max(frequent, figures[0].right.mean)
    else:
        notes.append("What the other columns tell by themselves cannot be learned from one client's records.")
    for attack, ask in attacks.items():
        right, promised = [], []
        with progress_bar(f"{sensitive} by {attack}") as report:
            for number, (name, (records, secret)) in enumerate(hidden.items()):
                found = ask(name, records)
                right.append(found.choice.cpu() == secret)
                if found.coefficient is not None:
                    with torch.no_grad():
                        error = float(models[name].losses(known[name].inputs, known[name].targets).mean())
                    promised.append(found.guarantee(error) or 0.0)
                report(number + 1, len(hidden), math.nan)
        figures.append(Figure.of(sensitive, attack, right, chance))
        if promised:
            notes.append(_promise(sensitive, min(promised), max(promised)))
    return figures, notes


def _promise(sensitive: str, least: float, most: float) -> str:
    if most == 0:
        return f"Proposition 4 of LMRA promises nothing of {sensitive}: models err by too much beside its effect."
    return (
        f"The models are linear: by proposition 4 of LMRA at least {least:.0%} (client with the least) to {most:.0%} "
        f"(with the most) of {sensitive} must be right by the rebuilt model."
    )


def _hidden(truth: Truth, sensitive: str, values: Sequence[float]) -> tuple[PublicRecords, Tensor]:
    """A client's records without the sensitive column, and which of its values each has."""
    if sensitive in truth.data.one_hot_groups:
        records = PublicRecords.hiding(truth.inputs, truth.targets, truth.data, sensitive)
        return records, truth.inputs[:, records.columns].argmax(1)
    records = PublicRecords.hiding(truth.inputs, truth.targets, truth.data, sensitive, values)
    column = truth.inputs[:, records.columns[0]]
    return records, (column.unsqueeze(1) == torch.tensor(list(values)).to(column)).long().argmax(1)


def _imputed(hidden: Mapping[str, tuple[PublicRecords, Tensor]], known: Mapping[str, Truth], name: str) -> Tensor:
    """The values of one client's records as the other columns give them, by the records of the others."""
    public = {one: records.known() for one, (records, _) in hidden.items()}
    others = [one for one in known if one != name]
    return imputed(
        public[name], torch.cat([public[one] for one in others]), torch.cat([hidden[one][1] for one in others])
    )


def sources(
    models: Mapping[str, LocalModel], rounds: Mapping[str, Sequence[Observation]], known: Mapping[str, Truth], seed: int
) -> tuple[list[Figure], list[str]]:
    """For how many records each attack finds the client that holds them, among all that were captured."""
    weights = sum(value.numel() for value in next(iter(rounds.values()))[0].sent.values())
    room = min(RECORDS, max(10 * len(known), 8 * source.ROOM // weights))  # eight blocks of gradients at the most
    some = {}
    for name, truth in known.items():
        order = torch.randperm(len(truth.inputs), generator=generator(seed, "sources", name))
        rows = order[: max(1, room // len(known))]
        some[name] = truth.inputs[rows], truth.targets[rows]
    inputs, targets = (torch.cat([one[place] for one in some.values()]) for place in (0, 1))
    sizes, given = [len(one) for one, _ in some.values()], sum(len(truth.inputs) for truth in known.values())
    notes = [
        f"Sources are asked for {len(inputs)} of the {given} records given, all at once; the equations find fewer "
        "where the attacker knows fewer of a client's records. A guess: the client with the most of them."
    ]
    if any((steps_in(own[-1]) or 1) > 1 for own in rounds.values()):
        notes.append(SEVERAL_STEPS)
    names, messages = list(rounds), list(rounds.values())
    attacks: dict[str, Callable[[], source.Sources]] = {
        "losses": lambda: source.by_loss([models[name] for name in names], inputs, targets),
        "vote": lambda: source.by_vote(messages, inputs, targets),
        "inputs": lambda: source.by_inputs(messages, inputs),
    }
    figures = []

    def ask(attack: str, answer: Callable[[], source.Sources]) -> None:
        try:
            choice = answer().choice.cpu()
        except LeakgaugeError as problem:
            notes.append(f"Sources by {attack} could not be asked for: {problem}.")
            return
        right = [part == names.index(name) for name, part in zip(some, choice.split(sizes), strict=True)]
        figures.append(Figure.of("source", attack, right, max(sizes) / len(inputs)))

    for attack, answer in attacks.items():
        ask(attack, answer)
    with progress_bar("sources by equations") as report:
        ask("equations", lambda: source.by_equations(messages, inputs, targets, report=report))
    return figures, notes
