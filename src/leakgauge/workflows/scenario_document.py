"""The parts of a scenario, read from a TOML document with the tables of :mod:`leakgauge.workflows.scenario`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from leakgauge.core.errors import InvalidInput, LeakgaugeError, UnknownName, shown
from leakgauge.core.limits import SEED
from leakgauge.core.observation import LocalTraining
from leakgauge.federation import defences
from leakgauge.federation.defence import Defence, check_defences
from leakgauge.federation.exposure import GRANTS, HIDEABLE
from leakgauge.workflows.data_sources import SOURCES
from leakgauge.workflows.documents import DEFENCE, TABLES, Keys, check_table
from leakgauge.workflows.scenario import Scenario


def read_scenario(document: Mapping[str, Any], where: str, more: Mapping[str, Keys] = {}) -> Scenario:
    """Read the set-up from a document.

    Args:
        document: The document, without its defences.
        where: The name of the document for error messages.
        more: The valid keys of further tables in the document, which the caller reads.
    """
    tables = {**TABLES, **more}
    for name, table in document.items():
        if name == "seed":
            continue
        if name not in tables:
            raise UnknownName(f"table in {where} called", name, [*tables, "defence", "seed"])
        check_table(table, tables[name], f"{where}: [{name}]")
    _check_sources(document, where)
    _check_values(document, where)
    return Scenario(**{name: dict(document.get(name, {})) for name in TABLES}, seed=document.get("seed", 0))


def _check_sources(document: Mapping[str, Any], where: str) -> None:
    if "name" not in document.get("model", {}):
        raise InvalidInput(f'{where}: [model] needs a name. Add [model] with name = "..."')
    sources = document.get("data", {}).keys() - {"options"}
    if len(sources) != 1:
        raise InvalidInput(
            f"{where}: [data] needs one of {', '.join(SOURCES)}, not {' and '.join(sorted(sources)) or 'none'}"
        )


def _check_values(document: Mapping[str, Any], where: str) -> None:
    recipe = {key: value for key, value in document.get("training", {}).items() if key != "sends"}
    try:
        LocalTraining(**recipe)
    except InvalidInput as problem:
        raise InvalidInput(f"{where}: [training] {problem}") from problem
    SEED.checked(f"{where}: seed", document.get("seed", 0))
    sends = document.get("training", {}).get("sends", "weights")
    if sends not in ("weights", "gradient"):
        raise UnknownName(f"message ({where}: [training] sends)", sends, ("weights", "gradient"))
    for key, valid in (("granted", GRANTS), ("hidden", HIDEABLE)):
        names = document.get("attacker", {}).get(key, [])
        for name in names:
            if name not in valid:
                raise UnknownName(f"thing for {where}: [attacker] {key}", name, valid)
            if names.count(name) > 1:
                raise InvalidInput(f"{where}: [attacker] {key} lists {name!r} twice. List it once")


def load_parts(scenario: Scenario, where: str) -> None:
    """Load the data and build a network, to find mistakes in the set-up. An error names the table with the mistake."""
    for table, load_part in (("data", lambda: scenario.dataset), ("model", scenario.network)):
        try:
            load_part()
        except InvalidInput as problem:
            raise InvalidInput(f"{where}: [{table}] {problem}") from problem
    try:
        scenario.public  # noqa: B018  # loads the public data
    except InvalidInput as problem:
        raise InvalidInput(f"{where}: [attacker] {problem}") from problem


def read_chain(items: object, where: str) -> tuple[Defence, ...]:
    """Build the defences of a client from a list such as ``[{ name = "gaussian_noise", sigma = 0.01 }]``.

    Args:
        items: The list of tables, one for each defence.
        where: The place of the list for error messages.
    """
    if not isinstance(items, list) or not all(isinstance(item, dict) and _is_named(item) for item in items):
        raise InvalidInput(f"{where} must be a list of tables, each with the name of a defence, not {shown(items)}")
    chain = []
    for item in items:
        try:
            chain.append(defences.build(**item))
        except LeakgaugeError as problem:
            raise InvalidInput(f"{where}: {problem}") from problem
    return tuple(chain)


def _is_named(item: Mapping[str, Any]) -> bool:
    return isinstance(item.get("name"), str)


def read_chains(
    tables: object, scenario: Scenario, where: str, more: Mapping[str, Any] = {}
) -> dict[str, tuple[Defence, ...]]:
    """Return a dictionary from titles to the defences that a client applies one after another.

    Raise an error if the model cannot use one of the defences.

    Args:
        tables: The tables ``[[defence]]``.
        scenario: The set-up that the defences are used in.
        where: The name of the document for error messages.
        more: The valid further keys of these tables, which the caller reads. Tables that differ in one of them may have
            the same chain.
    """
    if not isinstance(tables, list):
        raise InvalidInput(f"{where}: defences are written [[defence]], one table each, not {shown(tables)}")
    chains: dict[str, tuple[Defence, ...]] = {}
    settings: dict[str, Any] = {}
    for number, table in enumerate(tables, 1):
        place = f"{where}: [[defence]] {number}"
        check_table(table, {**DEFENCE, **more}, place)
        chain = read_chain(table.get("chain", []), f"{place} chain")
        title = table.get("title") or ", ".join(map(repr, chain)) or "no defence"
        if title in chains:
            raise InvalidInput(f"{place}: the title {shown(title)} is taken. Titles must differ")
        setting = (chain, {key: table[key] for key in more if key in table})
        same = next((other for other, earlier in settings.items() if earlier == setting), None)
        if same is not None:
            raise InvalidInput(f"{place} has the same chain as {shown(same)}. Remove one of the two")
        check_defences(chain, scenario.network(), scenario.training.get("mode", "train"), server=True)
        chains[title], settings[title] = chain, setting
    return chains
