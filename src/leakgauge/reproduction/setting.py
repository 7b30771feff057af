"""The set-up of a benchmark row, which describes the data, the network, the training and the defences.

The TOML file of a benchmark row has the tables and keys of an audit (:mod:`leakgauge.workflows.scenario`), and the
following further keys:

=================  ================================================================================================
table              keys
=================  ================================================================================================
``[model]``        ``trained_samples`` (the number of samples of each client that trains the network during
                   ``trained_rounds``, by default as many as an attacked client has)
``[data]``         ``normalise`` (whether inputs are normalised, by default true), ``distinct_labels`` (whether only
                   clients whose samples all have different labels are used), ``standardise_targets`` (whether the
                   targets of a regression are standardised), ``partition`` (a name in
                   :data:`leakgauge.reproduction.federations.PARTITIONS`), ``partition_options``
``[training]``     no further keys. If a partition gives clients different numbers of samples, ``samples`` is the
                   largest number
``[[defence]]``    no further keys. There is at most one such table, because all methods of a row attack the same
                   clients
``[federation]``   ``clients``, ``clients_per_round``, ``duplicates`` (the number of clients that appear a second
                   time), ``rounds``, ``every`` (n, if the server records every n-th round), ``steered_rounds`` (the
                   number of rounds of a malicious server after the end, for methods that need one, by default 50),
                   ``weighting`` (the weight of a client in the average, ``"samples"`` or ``"uniform"``)
``[updates]``      ``per_update`` (the number of samples in one update), ``epochs_seen`` (the number of epochs),
                   ``same_batches`` (whether samples have the same order in every epoch), ``server_lr`` (the server's
                   learning rate for gradients)
``[linear]``       ``size`` (the number of parameters, including the bias), ``noise`` (the standard deviation of the
                   noise on targets), ``observed`` (the number of rounds that an attack uses), ``skip_rounds`` (the
                   number of recorded rounds to leave out first), ``longest`` (the smallest number of rounds to record)
=================  ================================================================================================

The meaning of ``trained_rounds`` differs from that in an audit. Here, up to 20 clients train the network, and they use
the same defences as the attacked clients.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cached_property, lru_cache
from typing import Any

from torch import nn

from leakgauge import models
from leakgauge.core.errors import InvalidInput
from leakgauge.core.observation import DataSpec
from leakgauge.data import Dataset
from leakgauge.federation.defence import Defence
from leakgauge.models.factories import find_factory
from leakgauge.runtime.cache import source_digest
from leakgauge.runtime.values import value_digest
from leakgauge.workflows.data_sources import SOURCES
from leakgauge.workflows.documents import DEFENCE, NUMBER, TABLES, Keys, check_table
from leakgauge.workflows.scenario import further_settings
from leakgauge.workflows.scenario_document import read_chain

#: The keys of each set-up table, with the valid types of each value.
SETTING: dict[str, Keys] = {
    "model": {**TABLES["model"], "trained_samples": (int,)},
    "data": {
        **TABLES["data"],
        **dict.fromkeys(("normalise", "distinct_labels", "standardise_targets"), (bool,)),
        "partition": (str,),
        "partition_options": (dict,),
    },
    "training": TABLES["training"],
    "attacker": TABLES["attacker"],
    "federation": {
        **dict.fromkeys(("clients", "clients_per_round", "duplicates", "rounds", "every", "steered_rounds"), (int,)),
        "weighting": (str,),
    },
    "updates": {"per_update": (int,), "epochs_seen": (int,), "same_batches": (bool,), "server_lr": NUMBER},
    "linear": {"size": (int,), "noise": NUMBER, "observed": (int,), "skip_rounds": (int,), "longest": (int,)},
}
#: The keys of ``[training]`` that describe a client's local steps.
LOCAL_STEPS = ("lr", "epochs", "batch_size", "momentum", "weight_decay")


@dataclass(frozen=True, eq=False)
class Setting:
    """The set-up of a benchmark row, with one dictionary for each table of the TOML file.

    Settings with equal tables are equal and have equal hashes.

    Args:
        model: The network.
        data: The dataset, and how it is divided among clients.
        training: The clients' local training.
        attacker: The knowledge of the attacker.
        federation: The federation that the server records.
        updates: The updates that one client sends over several epochs.
        linear: The number of parameters, the noise and the recorded rounds of a linear regression.
        defence: The clients' defences in the order in which they are applied, with one dictionary for each defence.
    """

    model: dict[str, Any] = field(default_factory=dict)
    data: dict[str, Any] = field(default_factory=dict)
    training: dict[str, Any] = field(default_factory=dict)
    attacker: dict[str, Any] = field(default_factory=dict)
    federation: dict[str, Any] = field(default_factory=dict)
    updates: dict[str, Any] = field(default_factory=dict)
    linear: dict[str, Any] = field(default_factory=dict)
    defence: list[dict[str, Any]] = field(default_factory=list)

    @property
    def tables(self) -> dict[str, Any]:
        """The tables of the set-up that are not empty, as plain dictionaries."""
        named = {table.name: getattr(self, table.name) for table in fields(self)}
        return {name: table for name, table in named.items() if table}

    @cached_property
    def _key(self) -> str:
        return json.dumps(self.tables, sort_keys=True)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Setting) and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)

    def changed(self, changes: Mapping[str, Mapping[str, Any]]) -> Setting:
        """Return a copy of the setting with some keys changed. Nested tables are merged key by key.

        Args:
            changes: The tables with their changed keys, such as ``{"federation": {"rounds": 3}}``.
        """
        merged: dict[str, Any] = {name: _merged(getattr(self, name), table) for name, table in changes.items()}
        return replace(self, **merged)

    @property
    def source(self) -> str:
        """The key in ``[data]`` that names the data: ``name``, ``images``, ``npz``, ``csv`` or ``factory``."""
        return next(key for key in SOURCES if key in self.data)

    @property
    def data_name(self) -> str:
        """The name or the path of the dataset."""
        return str(self.data[self.source])

    def load(self) -> Dataset:
        """Load the whole dataset, before it is divided among clients."""
        dataset: Dataset = SOURCES[self.source](self.data_name, **self.data.get("options", {}))
        return dataset

    @property
    def fingerprint(self) -> str:
        """A digest of the data, of an untrained network, and of the user's own source code."""
        if not self.data:
            return ""
        return _fingerprint(Setting(model=self.model, data=self.data, training=self.training))

    def network(self, spec: DataSpec, seed: int) -> nn.Module:
        """Build a new untrained network.

        Args:
            spec: The description of the data. The network gets ``shape`` and ``classes`` from the description, unless
                the options in ``[model]`` set them.
            seed: The seed of the initial weights.
        """
        name = self.model["name"]
        fitting = {"shape": list(spec.shape), "classes": spec.outputs}
        taken = {key: value for key, value in fitting.items() if key in models.parameters(name)}
        return models.build(name, **({"seed": seed} | taken | self.model.get("options", {})))

    @property
    def chain(self) -> tuple[Defence, ...]:
        """The clients' defences, in the order in which they are applied."""
        return read_chain(self.defence, "[[defence]] chain")

    @property
    def recipe(self) -> dict[str, Any]:
        """The settings of the clients' local training, as keyword arguments of :func:`leakgauge.fedavg`."""
        own = {key: self.training[key] for key in LOCAL_STEPS if key in self.training}
        further = further_settings(self.training)
        return own if further is None else {**own, "recipe": further}

    @property
    def exposure(self) -> dict[str, Any]:
        """The model's mode, the loss and the attacker's knowledge, as keyword arguments of :func:`leakgauge.fedavg`."""
        chosen: dict[str, Any] = {key: self.training[key] for key in ("mode", "loss") if key in self.training}
        chosen |= {key: self.attacker[key] for key in ("granted", "hidden") if key in self.attacker}
        return chosen | {"knows_defence": bool(self.defence) and self.attacker.get("knows_defence", True)}

    @property
    def sends_gradient(self) -> bool:
        """Whether clients send one gradient instead of trained weights."""
        return bool(self.training.get("sends", "weights") == "gradient")


@lru_cache(maxsize=8)
def _fingerprint(setting: Setting) -> str:
    dataset = setting.load()
    network = setting.network(dataset.spec, 0) if setting.model else None
    names = [setting.model.get("name", ""), setting.data.get("factory", ""), setting.training.get("loss", "")]
    factories = [find_factory(name) for name in names if ":" in name]
    return f"{source_digest(network, *factories)} {value_digest(network, dataset)}"


def read_setting(document: Mapping[str, Any], where: str) -> Setting:
    """Read the setting from the content of a TOML file, or raise an error if a table or key is unknown.

    Args:
        document: The content of the file as a dictionary.
        where: The path of the file, for error messages.
    """
    for name in SETTING:
        check_table(document.get(name, {}), SETTING[name], f"{where}: [{name}]")
    sources = [key for key in SOURCES if key in document.get("data", {})]
    if len(sources) != 1 and "linear" not in document:
        raise InvalidInput(f"{where}: [data] needs one of {', '.join(SOURCES)}, not {' and '.join(sources) or 'none'}")
    if "name" not in document.get("model", {}) and "linear" not in document:
        raise InvalidInput(f'{where}: [model] needs a name. Add [model] with name = "..."')
    tables = {name: dict(document.get(name, {})) for name in SETTING}
    return Setting(**tables, defence=_read_defence(document.get("defence", []), where))


def _read_defence(listed: object, where: str) -> list[dict[str, Any]]:
    if not isinstance(listed, list) or len(listed) > 1:
        raise InvalidInput(f"{where}: a row has at most one [[defence]]. Put several defences into its chain.")
    for table in listed:
        check_table(table, DEFENCE, f"{where}: [[defence]]")
        read_chain(table.get("chain", []), f"{where}: [[defence]] chain")
    return list(listed[0].get("chain", [])) if listed else []


def _merged(table: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(table)
    for key, value in changes.items():
        merged[key] = _merged(merged.get(key, {}), value) if isinstance(value, dict) else value
    return merged
