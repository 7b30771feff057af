"""The public data of an attacker in a scenario, which ``[attacker] public`` names.

====================  ================================================================================================
value                 public data
====================  ================================================================================================
a number              so many samples of the scenario's own data, which no attacked client and no training client holds
the name of a         the samples of this dataset
dataset, a path       (``.npz``, ``.csv``, or a folder of pictures), or a ``module:function``. The options of ``[data]``
                      are used too if they belong to a source of the same kind
``0`` or ``"none"``   the attacker has no public data
====================  ================================================================================================
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from leakgauge.attacks.learned.imaginary import FEWEST
from leakgauge.attacks.requirements import samples_in
from leakgauge.core.errors import InvalidInput, LeakgaugeError
from leakgauge.core.observation import Observation
from leakgauge.core.params import subtract
from leakgauge.core.public_data import PublicData
from leakgauge.core.seeding import derive, generator
from leakgauge.core.truth import Truth
from leakgauge.data import Dataset
from leakgauge.federation.defence import Defence, clients_in_a_sum
from leakgauge.federation.rehearsal import check_public, disjoint, public_data
from leakgauge.workflows.data_sources import load_data

if TYPE_CHECKING:
    from leakgauge.workflows.scenario import Scenario

#: The number of public samples that an audit grants by default.
DEFAULT = 500
#: The largest number of values of all public samples that an audit grants by default.
MOST_VALUES = 5e7
#: The word for no public data.
NONE = "none"


def read_public(value: object) -> int | str:
    """Return what an option such as ``--public`` means, which is a number of samples or the name of data.

    >>> read_public("500"), read_public("others.npz"), read_public("none")
    (500, 'others.npz', 0)

    Args:
        value: The value of the option.
    """
    if isinstance(value, str):
        text = value.strip()
        if text == NONE:
            return 0
        return int(text) if text.lstrip("-").isdigit() else text
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidInput(f"public must be a number of samples, the name or the path of data, or none, not {value!r}")
    return value


def with_public(config: tuple[Mapping[str, Any], str], public: object) -> tuple[Mapping[str, Any], str]:
    """Return a document in which ``[attacker] public`` has another value, and its name.

    Args:
        config: The document and its name.
        public: The value, or ``None`` to leave the document as it is.
    """
    document, where = config
    if public is None:
        return document, where
    return {**document, "attacker": {**document.get("attacker", {}), "public": read_public(public)}}, where


def default_public(scenario: Scenario, clients: int, chains: Iterable[Sequence[Defence]]) -> Scenario:
    """Return a scenario whose attacker has public data, unless the document says otherwise.

    The attacker gets a part of the samples that no client holds. It gets none if too few are left.

    Args:
        scenario: The scenario.
        clients: The number of attacked clients.
        chains: The chains of defences, which may combine the messages of several clients.
    """
    if "public" in scenario.attacker:
        return scenario
    together = max(map(clients_in_a_sum, chains), default=1)
    left = len(scenario.dataset) - clients * together * scenario.samples - scenario.trained_samples
    most = int(MOST_VALUES / max(1, math.prod(scenario.dataset.spec.shape)))
    number = min(DEFAULT, most, left // 2)
    return scenario.version(public=number if number >= max(FEWEST, 2 * scenario.samples) else 0)


def samples_of(scenario: Scenario) -> Dataset | None:
    """Return the public data of a scenario's attacker, or ``None`` if there is none.

    Args:
        scenario: The scenario.
    """
    value = read_public(scenario.attacker.get("public", 0))
    if not value:
        return None
    dataset = scenario.dataset
    if isinstance(value, str):
        return _named(scenario, value)
    if value < FEWEST:
        raise InvalidInput(f"public = {value} is too little to learn from. Grant at least {FEWEST} samples, or none")
    end = len(dataset) - scenario.trained_samples
    if value > end - scenario.samples:
        raise InvalidInput(
            f"public = {value:,}, but {dataset.name} has {max(0, end - scenario.samples):,} samples that no client "
            "holds. Grant fewer, or name other data"
        )
    return dataset.share(scenario.order[end - value : end], f"{value:,} samples of {dataset.name} that no client holds")


def reserved(scenario: Scenario) -> int:
    """Return the number of a dataset's samples that no attacked client may hold, because the attacker has them.

    Args:
        scenario: The scenario.
    """
    value = read_public(scenario.attacker.get("public", 0))
    return value + scenario.trained_samples if isinstance(value, int) and value else 0


def _named(scenario: Scenario, name: str) -> Dataset:
    """Load public data by its name or path."""
    source = "factory" if ":" in name else {".npz": "npz", ".csv": "csv"}.get(Path(name).suffix, "")
    source = source or ("images" if Path(name).is_dir() else "name")
    options = scenario.data.get("options", {}) if source in scenario.data else {}
    try:
        data = load_data(source, name, options)
    except LeakgaugeError as problem:
        raise InvalidInput(f"public: {problem}") from problem
    spec = scenario.dataset.spec
    check_public(data, spec)
    words = f"{len(data):,} samples of {data.name if data.name != 'data' else Path(name).name}"
    return Dataset(data.inputs, data.targets, replace(spec), words)


def granted(
    scenario: Scenario, observation: Observation, truth: Truth, chain: Sequence[Defence], participations: int
) -> Observation:
    """Return the observation of an attacker who has the public data of a scenario.

    Samples of the scenario's own data are left out if all of them are copies of the client's samples, as constant
    pictures are. The attacker then has no public data.

    Args:
        scenario: The scenario.
        observation: The message of the client.
        truth: The client's samples, of which no copy stays in the public data.
        chain: The client's defences, if the attacker knows them.
        participations: The number of rounds in which a client takes part.
    """
    public = scenario.public
    if public is None:
        return observation
    own = not isinstance(read_public(scenario.attacker["public"]), str)
    if own and not len(disjoint(public.inputs, truth.inputs, observation.data)):
        return observation
    options = {"defences": chain, "participations": participations, "truth": truth}
    return public_data(observation, public, **options, description=public.name)  # type: ignore[arg-type]


def shuffled(
    scenario: Scenario, observation: Observation, chain: Sequence[Defence], participations: int, seed: int
) -> Observation | None:
    """Return an observation with the message of a public client in place of the client's message.

    The public client has the client's defences, and the same labels as far as they are granted. The result is ``None``
    if the attacker has no public data.

    Args:
        scenario: The scenario.
        observation: The message of the client.
        chain: The client's defences.
        participations: The number of rounds in which a client takes part.
        seed: The seed of the draw.
    """
    public, samples = observation.public, samples_in(observation)
    if public is None or scenario.public is None or samples is None or public.obstacle:
        return None
    rows = rows_of_another(public, samples, observation.labels if observation.data.classes else None, seed)
    options = {"defences": tuple(chain), "participations": participations}
    client = public_data(observation, scenario.public, **options).public  # type: ignore[arg-type]
    assert client is not None
    message = client.rehearse(public.samples[rows], public.targets[rows], derive(seed, "message of another client"))
    if observation.gradient is not None:
        return replace(observation, gradient=message)
    return replace(observation, returned=subtract(observation.sent, message))


def rows_of_another(public: PublicData, samples: int, labels: Tensor | None, seed: int) -> Tensor:
    """Return the indices of the public samples of another client.

    Args:
        public: The public data.
        samples: The number of samples.
        labels: The labels of the samples, as far as they are known and there are public samples of this label.
        seed: The seed of the draw.
    """
    order = torch.randperm(len(public), generator=generator(seed, "message of another client"))
    if labels is None:
        return order[torch.arange(samples) % len(order)]
    own, used, rows = public.targets.cpu()[order], set[int](), []
    for label in labels.tolist():
        fitting = [int(row) for row in order[own == label] if int(row) not in used] or [int(order[0])]
        rows.append(fitting[0])
        used.add(fitting[0])
    return torch.tensor(rows)
