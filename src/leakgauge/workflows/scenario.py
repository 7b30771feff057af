"""A set-up to be tried out, from a TOML document: the model, the data, the clients' recipe, the attacker.

======================  ===========================================================================================
table                   keys
======================  ===========================================================================================
``[model]``             ``name`` (one of ours, or ``module:factory``), ``options``, ``trained_rounds`` for which ten
                        undefended clients have trained the model before (default 0: it is untrained)
``[data]``              one of ``name`` (a dataset), ``images`` (a folder), ``npz``, ``csv`` (a file), ``factory``
                        (``module:function`` that returns a ``Dataset``); ``options`` for it
``[training]``          ``sends`` (``"weights"`` or ``"gradient"``), ``samples`` a client, ``lr``, ``epochs``,
                        ``batch_size``, ``momentum``, ``weight_decay``, ``mode``, ``loss``
``[attacker]``          ``granted`` (labels), ``hidden`` (of the recipe), ``knows_defence`` (default true)
======================  ===========================================================================================

A mistake is named with its table and key before any work starts.
"""

from __future__ import annotations

import hashlib
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from leakgauge import models
from leakgauge.core.errors import FileError, InvalidInput, LeakgaugeError, UnknownName
from leakgauge.core.observation import Observation
from leakgauge.core.seeding import derive, generator
from leakgauge.core.truth import Truth
from leakgauge.data import Dataset, from_csv, from_images, from_npz, load
from leakgauge.federation import defences
from leakgauge.federation.aggregation import aggregate
from leakgauge.federation.client import fedavg, fedsgd
from leakgauge.federation.defence import Defence, ServerDefence, check_defences, clients_in_a_sum
from leakgauge.federation.exposure import GRANTS, HIDEABLE
from leakgauge.federation.rounds import run_federation
from leakgauge.models.factories import current_directory_importable, find_factory

Kinds = Mapping[str, tuple[type, ...]]
NUMBER = (int, float)
TABLES: dict[str, Kinds] = {
    "model": {"name": (str,), "options": (dict,), "trained_rounds": (int,)},
    "data": {**dict.fromkeys(("name", "images", "npz", "csv", "factory"), (str,)), "options": (dict,)},
    "training": {
        "sends": (str,), "samples": (int,), "lr": NUMBER, "epochs": (int,), "batch_size": (int,), "momentum": NUMBER,
        "weight_decay": NUMBER, "mode": (str,), "loss": (str,),
    },
    "attacker": {"granted": (list,), "hidden": (list,), "knows_defence": (bool,)},
}  # fmt: skip
DEFENCE: Kinds = {"title": (str,), "chain": (list,)}


def _from_factory(name: str, **options: Any) -> Any:
    with current_directory_importable():
        return find_factory(name)(**options)


#: Where data may come from, by the key in ``[data]``.
SOURCES: dict[str, Callable[..., Any]] = {
    "name": load,
    "images": from_images,
    "npz": from_npz,
    "csv": from_csv,
    "factory": _from_factory,
}


@dataclass(frozen=True)
class Scenario:
    """A model, data, a recipe and an attacker, of which clients can be made."""

    model: dict[str, Any]
    data: dict[str, Any]
    training: dict[str, Any] = field(default_factory=dict)
    attacker: dict[str, Any] = field(default_factory=dict)
    seed: int = 0

    @cached_property
    def dataset(self) -> Dataset:
        """All the samples there are."""
        (source,) = self.data.keys() - {"options"}
        try:
            found = SOURCES[source](self.data[source], **self.data.get("options", {}))
        except TypeError as problem:
            raise InvalidInput(f"[data] options do not fit {source} = {self.data[source]!r}: {problem}") from problem
        if not isinstance(found, Dataset):
            raise InvalidInput(f"{self.data[source]} must return a leakgauge.data.Dataset, not {type(found).__name__}")
        return found

    @property
    def document(self) -> dict[str, Any]:
        """The set-up as plain values."""
        return {one.name: getattr(self, one.name) for one in fields(self)}

    @cached_property
    def fingerprint(self) -> str:
        """A digest of the samples and of the network: a changed file or a changed model is another set-up."""
        found = hashlib.sha256()
        network = self.network()
        found.update(str(network).encode())
        weights = [value.detach() for value in network.state_dict().values()]
        for value in (self.dataset.inputs, self.dataset.targets, *weights):
            found.update(str((tuple(value.shape), value.dtype)).encode())
            found.update(value.cpu().contiguous().flatten().numpy().tobytes())
        return found.hexdigest()[:32]

    @property
    def samples(self) -> int:
        """The samples of a client."""
        return int(self.training.get("samples", 10))

    def share(self, index: int, size: int | None = None, *, first: int = 0) -> Dataset:
        """The samples of client ``index``: a random share of ``size``, after the ``first`` so many samples."""
        size = size or self.samples
        order = torch.randperm(len(self.dataset), generator=generator(self.seed, "clients"))
        rows = order[first + index * size : first + (index + 1) * size]
        if len(rows) < size:
            raise InvalidInput(
                f"{self.dataset.name} has {len(self.dataset)} samples, too few for client {index} with {size} after "
                f"the first {first}; ask for fewer clients, or for fewer samples a client"
            )
        return self.dataset.share(rows, f"client {index}")

    def network(self, index: int = 0) -> nn.Module:
        """A new network, of a seed of its own for each client.

        After some ``rounds`` of training it is the same for all. A factory that takes ``shape`` and ``classes`` is
        given those of the data, unless the options say otherwise.
        """
        spec, name = self.dataset.spec, self.model["name"]
        fitting = {"shape": list(spec.shape), "classes": spec.classes or 1}
        taken = {key: value for key, value in fitting.items() if key in models.parameters(name)}
        seed = {"seed": derive(self.seed, "network", 0 if self.model.get("trained_rounds") else index) % 2**31}
        network = models.build(name, **(seed | taken | self.model.get("options", {})))
        if self.model.get("trained_rounds"):
            network.load_state_dict(self._trained)
        return network

    @cached_property
    def _trained(self) -> dict[str, Tensor]:
        """The state of a network that clients from the end of the data have trained for some rounds."""
        untrained = replace(self, model={**self.model, "trained_rounds": 0})
        number = min(10, len(self.dataset) // self.samples)
        first = len(self.dataset) - number * self.samples
        network = untrained.network()
        trained = run_federation(
            network,
            [self.share(index, first=first) for index in range(number)],
            rounds=self.model["trained_rounds"],
            seed=derive(self.seed, "trained"),
            **self.recipe,
            **{key: self.training[key] for key in ("mode", "loss") if key in self.training},
        )
        if trained.interrupted:
            raise KeyboardInterrupt
        trained.load_into(network)
        return network.state_dict()

    def observe(
        self, index: int, chain: Sequence[Defence] = (), *, knows_defence: bool = False, participations: int = 1
    ) -> tuple[Observation, Truth]:
        """What the server sees of client ``index`` with these defences, and the truth.

        ``knows_defence`` tells the attacker the defences. Where the server sees only sums, of this client and
        of those after it; ``participations`` is how often a client takes part in all.
        """
        own = [one for one in chain if not isinstance(one, ServerDefence)]
        number = clients_in_a_sum(chain)
        model = self.network(index)
        parts = [self._message(model, number * index + k, own, knows_defence, participations) for k in range(number)]
        return aggregate(parts) if number > 1 else parts[0]

    def _message(
        self, model: nn.Module, index: int, chain: Sequence[Defence], knows_defence: bool, participations: int
    ) -> tuple[Observation, Truth]:
        common: dict[str, Any] = {
            "granted": self.attacker.get("granted", []),
            "knows_defence": knows_defence,
            "hidden": self.attacker.get("hidden", []),
            "seed": derive(self.seed, "client", index),
            "defences": chain,
            "participations": participations,
            **{key: self.training[key] for key in ("mode", "loss") if key in self.training},
        }
        if self.training.get("sends", "weights") == "gradient":
            return fedsgd(model, self.share(index), **common)
        return fedavg(model, self.share(index), **common, **self.recipe)

    @property
    def recipe(self) -> dict[str, Any]:
        """The client's local training, as :func:`leakgauge.fedavg` takes it."""
        keys = ("epochs", "batch_size", "momentum", "weight_decay")
        return {"lr": self.training.get("lr", 0.01)} | {key: self.training[key] for key in keys if key in self.training}


def read_scenario(document: Mapping[str, Any], where: str, more: Mapping[str, Kinds] = {}) -> Scenario:
    """The set-up in a document; ``more`` are the tables that others read from it."""
    tables = {**TABLES, **more}
    for name, table in document.items():
        if name == "seed":
            continue
        if name not in tables:
            raise UnknownName(f"table in {where} called", name, [*tables, "defence", "seed"])
        check_table(table, tables[name], f"{where}: [{name}]")
    if "name" not in document.get("model", {}):
        raise InvalidInput(f'{where}: [model] needs a name: add [model] with name = "..."')
    sources = document.get("data", {}).keys() - {"options"}
    if len(sources) != 1:
        raise InvalidInput(
            f"{where}: [data] needs one of {', '.join(SOURCES)}, not {' and '.join(sorted(sources)) or 'none'}"
        )
    seed = document.get("seed", 0)
    if not isinstance(seed, int) or isinstance(seed, bool):
        raise InvalidInput(f"{where}: seed must be a whole number, not {seed!r}")
    sends = document.get("training", {}).get("sends", "weights")
    if sends not in ("weights", "gradient"):
        raise UnknownName(f"message ({where}: [training] sends)", sends, ("weights", "gradient"))
    for table, key, least in (
        ("training", "samples", 1),
        ("training", "epochs", 1),
        ("training", "batch_size", 1),
        ("model", "trained_rounds", 0),
    ):
        if (value := document.get(table, {}).get(key, least)) < least:
            raise InvalidInput(f"{where}: [{table}] {key} must be at least {least}, not {value}")
    for key, valid in (("granted", GRANTS), ("hidden", HIDEABLE)):
        for one in document.get("attacker", {}).get(key, []):
            if one not in valid:
                raise UnknownName(f"thing for {where}: [attacker] {key}", one, valid)
    return Scenario(**{name: dict(document.get(name, {})) for name in TABLES}, seed=seed)


def load_parts(scenario: Scenario, where: str) -> None:
    """Load the data and build a network; what is wrong with them is said with the table that it stands in."""
    for table, load_part in (("data", lambda: scenario.dataset), ("model", scenario.network)):
        try:
            load_part()
        except (InvalidInput, UnknownName) as problem:
            raise InvalidInput(f"{where}: [{table}] {problem}") from problem


def check_table(table: object, kinds: Kinds, where: str) -> None:
    """Refuse what is no table of these keys and kinds of values."""
    if not isinstance(table, dict):
        raise InvalidInput(f"{where} must be a table, not {table!r}")
    for key, value in table.items():
        if key not in kinds:
            raise UnknownName(f"key in {where} called", key, kinds)
        if not isinstance(value, kinds[key]) or (isinstance(value, bool) and bool not in kinds[key]):
            names = " or ".join(kind.__name__ for kind in kinds[key])
            raise InvalidInput(f"{where} {key} must be of type {names}, not {value!r}")


def read_chain(items: object, where: str) -> tuple[Defence, ...]:
    """A chain of defences: ``[{ name = "gaussian_noise", sigma = 0.01 }, ...]``."""
    if not isinstance(items, list) or not all(isinstance(one, dict) and "name" in one for one in items):
        raise InvalidInput(f"{where} must be a list of tables, each with the name of a defence, not {items!r}")
    chain = []
    for one in items:
        try:
            chain.append(defences.build(**one))
        except LeakgaugeError as problem:
            raise InvalidInput(f"{where}: {problem}") from problem
    return tuple(chain)


def read_chains(listed: object, scenario: Scenario, where: str) -> dict[str, tuple[Defence, ...]]:
    """The defences of a document, ``[[defence]]``, by title; those that this model cannot use are refused."""
    if not isinstance(listed, list):
        raise InvalidInput(f"{where}: defences are written [[defence]], one table each, not {listed!r}")
    chains: dict[str, tuple[Defence, ...]] = {}
    for number, one in enumerate(listed, 1):
        place = f"{where}: [[defence]] {number}"
        check_table(one, DEFENCE, place)
        chain = read_chain(one.get("chain", []), f"{place} chain")
        title = one.get("title") or ", ".join(map(repr, chain)) or "no defence"
        if title in chains:
            raise InvalidInput(f"{place}: the title {title!r} is taken; titles must differ")
        check_defences(chain, scenario.network(), scenario.training.get("mode", "train"), server=True)
        chains[title] = chain
    return chains


def read_toml(path: Path) -> dict[str, Any]:
    """A TOML document."""
    try:
        return tomllib.loads(path.read_text())
    except (OSError, UnicodeDecodeError) as problem:
        raise FileError(f"{path}: cannot be read ({problem})") from problem
    except tomllib.TOMLDecodeError as problem:
        raise InvalidInput(f"{path}: this is no TOML ({problem})") from problem
