"""The mistakes of users: command lines and documents that must be refused in one sentence, before any work.

Many are generated: every key of every table and every option of every factory gets values that it cannot take.
"""

import datetime
import inspect
import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from tests.assault import workplace

#: Values that fit into a list of a table with each kind of key, and are wrong.
NOT_TEXT = (3, True, 1.5, math.nan, [], {}, datetime.date(2024, 1, 1), datetime.time(7, 30))
WRONG_TEXT = ("", " ", "no such", "\0", "a\nb", "\x1b[31mred", "x" * 100_000, "../" * 50, "\u202egnp")
NOT_NUMBER = ("1", "", True, False, [], [1], {}, datetime.date(2024, 1, 1), math.nan, math.inf, -math.inf)
NOT_WHOLE = (*NOT_NUMBER, 1.5, 1e308)
NOT_LIST = (3, True, "labels", 1.5, {}, datetime.date(2024, 1, 1))
NOT_BOOL = (0, 1, 3, "no", "true", 1.0, [], {})
ENDLESS = (10**9, 10**18, 10**30)

RAW = Mapping[str, Any]


@dataclass(frozen=True)
class Mistake:
    """A wrong input.

    Args:
        name: The name of the test.
        words: The words of the command line.
        document: The TOML file ``wrong.toml`` that the command reads, or nothing.
        mentions: Words that the refusal must contain.
    """

    name: str
    words: tuple[object, ...]
    document: str = ""
    mentions: tuple[str, ...] = ()


def toml(value: Any) -> str:
    """Return a value as TOML writes it."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return json.dumps(value).replace("\x7f", "\\u007f")
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(toml, value)) + "]"
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{json.dumps(key)} = {toml(one)}" for key, one in value.items()) + " }"
    return value.isoformat() if hasattr(value, "isoformat") else repr(value)


BASE: dict[str, dict[str, Any]] = {
    "model": {"name": "mlp", "options": {"hidden": [4]}},
    "data": {"npz": "rows.npz"},
    "training": {"samples": 2, "batch_size": 1, "lr": 0.01},
}
AUDIT = {"audit": {"clients": 1, "attacks": [{"name": "inverting_gradients", "steps": 3}]}}
SMALL_FRONTIER = {"clients": 1, "federation": 2, "federation_samples": 5, "rounds": 1, "test": 10, "options": {"steps": 3}}


def document(*changes: tuple[str, str, Any], command: str = "audit", chains: Any = None, **top: Any) -> str:
    """Return a right document with some keys changed, or removed with the value ``None``."""
    tables = {name: dict(table) for name, table in BASE.items()}
    tables |= {"audit": dict(AUDIT["audit"])} if command == "audit" else {"frontier": dict(SMALL_FRONTIER)}
    for table, key, value in changes:
        tables.setdefault(table, {})[key] = value
    lines = [f"{json.dumps(key)} = {toml(value)}" for key, value in top.items()]
    for name, table in tables.items():
        lines += [f"[{name}]", *(f"{json.dumps(key)} = {toml(value)}" for key, value in table.items() if value is not None)]
    if chains is None:
        chains = [] if command == "audit" else [{"chain": []}]
    for chain in chains:
        lines += ["[[defence]]", *(f"{json.dumps(key)} = {toml(value)}" for key, value in chain.items())]
    return "\n".join(lines) + "\n"


def short(value: Any) -> str:
    """Return a value in few characters, for the name of a test."""
    text = repr(value).encode("unicode_escape").decode()
    return text if len(text) <= 24 else f"{text[:20]}...{len(text)}"


def wrong(name: str, text: str, *mentions: str, command: str = "audit") -> Mistake:
    """Return a mistake in a document."""
    return Mistake(f"{command}: {name}", (command, "wrong.toml", "-q"), text, mentions)


def of_keys() -> Iterator[Mistake]:
    """Every key of every table with values of a wrong type or outside all limits."""
    from leakgauge.workflows.audit.plan import AUDIT as OF_AUDIT
    from leakgauge.workflows.frontier import FRONTIER
    from leakgauge.workflows.scenario import TABLES

    tables = [(name, key, types, "audit") for name, keys in TABLES.items() for key, types in keys.items()]
    tables += [("audit", key, types, "audit") for key, types in OF_AUDIT.items()]
    tables += [("frontier", key, types, "frontier") for key, types in FRONTIER.items()]
    for table, key, types, command in tables:
        for value in wrong_values(table, key, types):
            changes = [(table, key, value)]
            if table == "data" and key not in ("npz", "options"):
                changes.append(("data", "npz", None))
            yield wrong(f"[{table}] {key} = {short(value)}", document(*changes, command=command), command=command)


#: Text that is valid, or that another group of mistakes covers.
VALID_TEXT = {("audit", "budget"): ()}


def wrong_values(table: str, key: str, types: Any) -> Iterator[Any]:
    """Yield values that a key cannot take, from the types or the limits of its valid values."""
    kinds: list[Any] = []
    if not isinstance(types, tuple):
        outside = [types.least - 1, *([0] if types.least > 0 else []), types.most * 10, *ENDLESS[1:], -(10**30)]
        yield from (*(NOT_WHOLE if types.whole else NOT_NUMBER), *outside)
        return
    if list not in types and dict not in types and str in types:
        kinds += [value for value in NOT_TEXT if float not in types or not isinstance(value, int | float) or isinstance(value, bool) or math.isnan(value)]
        kinds += list(WRONG_TEXT)
    elif str in types:  # a text or a list
        kinds += [3, True, {}, 1.5, *WRONG_TEXT, [], [math.nan], ["a"], [-1], [True], [[]]]
    elif list in types:
        kinds += [*NOT_LIST, *([] if (table, key) in EMPTY_IS_FINE else [[]]), [3], [True], [[]], [{}], ["no such"], [""], ["\0"], [math.nan], ["x" * 10_000]]
    elif dict in types:
        kinds += [3, True, "x", [], [{}], 1.5, {"no such": 1}, {"": 1}, {"x" * 10_000: 1}]
    elif types == (bool,):
        kinds += list(NOT_BOOL)
    elif float in types:
        kinds += [*NOT_NUMBER, *([] if (table, key) in NO_LEAST else [-1, -1e-9]), *([] if (table, key) in NO_MOST else [1e308, 10**400])]
    elif int in types:
        kinds += [*NOT_WHOLE, -1, -(10**30), *ENDLESS]
        kinds += [] if (table, key) in ZERO_IS_FINE else [0]
    yield from kinds


NO_LEAST: set[tuple[str, str]] = set()
#: A clip norm or a weight of a term that has no effect on one step may be as large as a float.
NO_MOST = {("training", "clip_norm"), ("training", "proximal"), ("training", "eps"), ("training", "dampening")}
ZERO_IS_FINE = {("model", "trained_rounds")}
EMPTY_IS_FINE = {("attacker", "granted"), ("attacker", "hidden")}


def of_factories() -> Iterator[Mistake]:
    """Every option of every attack, defence, dataset and network with values that its annotation excludes."""
    from leakgauge import data, models
    from leakgauge.attacks import registry
    from leakgauge.federation import defences

    for name, defence in defences.DEFENCES.items():
        for option, value in wrong_options(defence):
            chain = [{"name": name, **NEEDED.get(name, {}), option: value}]
            yield wrong(f"defence {name} {option} = {short(value)}", document(chains=[{"chain": chain}]), option)
    for spec in registry.specs(reads="update"):
        for option, value in wrong_options(spec.factory):
            attacks = [{"name": spec.name, option: value}]
            changes = [("audit", "attacks", attacks), ("data", "npz", None), ("data", "csv", "table.csv"), ("data", "options", {"target": "label", "sensitive": "sex"})]
            yield wrong(f"attack {spec.name} {option} = {short(value)}", document(*changes), option)
    for spec in registry.specs():
        if spec.recovers == "model":
            for option, value in wrong_options(spec.factory):
                words = ("infer", ".", "-q", "--method", spec.name, "--option", f"{option}={json.dumps(value)}")
                yield Mistake(f"infer: method {spec.name} {option} = {short(value)}", words, "", (option,))
    for name, network in models.MODELS.items():
        for option, value in wrong_options(network):
            options = {**NEEDED.get(name, {}), option: value}
            yield wrong(f"model {name} {option} = {short(value)}", document(("model", "name", name), ("model", "options", options)), option)
    for name, source in data.DATASETS.items():
        for option, value in wrong_options(source.loader):
            changes = [("data", "npz", None), ("data", "name", name), ("data", "options", {option: value})]
            yield wrong(f"dataset {name} {option} = {short(value)}", document(*changes), option)
    for key, loader, path in (("csv", data.from_csv, "table.csv"), ("npz", data.from_npz, "rows.npz"), ("images", data.from_images, "pictures")):
        for option, value in wrong_options(loader):
            options = {**({"target": "label"} if key == "csv" else {}), option: value}
            changes = [("data", "npz", None), ("data", key, path), ("data", "options", options)]
            yield wrong(f"{key} {option} = {short(value)}", document(*changes), option)


#: Options without which a factory cannot be called.
NEEDED: dict[str, dict[str, Any]] = {
    "clipping": {"norm": 1.0}, "dpsgd": {"noise": 1.0}, "gaussian_noise": {"sigma": 0.1}, "laplacian_noise": {"scale": 0.1},
    "local_work": {"epochs": 2}, "quantisation": {"bits": 4}, "random_pruning": {"probability": 0.5}, "top_k": {"keep": 0.5},
    "mlp": {"hidden": [4]},
}  # fmt: skip


def wrong_options(factory: Any) -> Iterator[tuple[str, Any]]:
    """Yield the options of a factory with values that their annotations exclude."""
    for option, parameter in inspect.signature(factory).parameters.items():
        kind = str(parameter.annotation)
        if option == "path" or (option == "folder" and parameter.default is parameter.empty):
            continue
        values: tuple[Any, ...]
        if "Sequence" in kind or "tuple" in kind or "Statistic" in kind:
            values = ("8", True, {}, [True], ["a"], [math.nan], [[]], [-1.5, -2], math.nan) if option != "mean" else ("8", True, {}, [True], ["a"], [math.nan])
        elif "bool" in kind:
            values = ("no", 1, 0.0, [])
        elif "int" in kind:
            values = ("3", True, 1.5, math.nan, -3, [2], 10**30)
        elif "float" in kind:
            values = ("3", True, math.nan, math.inf, [2], {}, *(() if option in ("threshold", "statistics") else (-1.0,)))
        else:
            values = ("no such", "", 3, True, [], {}, math.nan)
        for value in values:
            yield option, value


def of_data() -> Iterator[Mistake]:
    """Files of a user that hold no data."""
    for name in (
        "semicolon tabs decimal_comma cell_na cell_null cell_question cell_nan cell_infinite cell_too_large cell_single_overflow "
        "cell_word cell_unit cell_thousands cell_blank cell_nul target_nan target_infinite target_na target_huge target_large target_blank "
        "negative_classes one_class sparse_classes every_word_differs empty spaces header_only no_header one_row ragged "
        "too_wide only_target twice nameless latin1 utf16 binary nul_header open_quote long_field equals folder pipe loop nowhere"
    ).split():
        changes = [("data", "npz", None), ("data", "csv", f"{name}.csv"), ("data", "options", {"target": "label"})]
        yield wrong(f"csv {name}", document(*changes))
    for name in ("fake.csv.gz", "/dev/zero", "/dev/null", "/dev/urandom", "/proc/self/mem", "."):
        changes = [("data", "npz", None), ("data", "csv", name), ("data", "options", {"target": "label"})]
        yield wrong(f"csv {name}", document(*changes))
    for options in ({}, {"target": "no such"}, {"target": "label", "sensitive": "label"}, {"target": "label", "sensitive": "age"},
                    {"target": "label", "sensitive": "job"}, {"target": "label", "sensitive": "no such"}, {"target": "job", "regression": True},
                    {"target": "height", "regression": False}, {"target": "label", "mean": [1, 2]}, {"target": "label", "std": 0}, {"target": "label", "std": -1},
                    {"target": "label", "path": "x"}, {"target": "label", "no such": 1}, {"target": "sex", "regression": True}):  # fmt: skip
        changes = [("data", "npz", None), ("data", "csv", "table.csv"), ("data", "options", options)]
        yield wrong(f"csv options {options}", document(*changes))
    for name in (
        "x_nan x_infinite x_too_large y_nan y_infinite y_too_large x_bool x_complex x_objects x_words x_bytes x_dates x_record x_scalar x_vector "
        "x_five_axes x_no_samples x_no_columns x_no_pixels x_one_sample x_shorter x_longer y_negative y_huge y_billion y_unsigned y_words "
        "y_complex y_objects y_one_hot y_scalar y_one_class other_names no_arrays single empty text cut flipped bomb_header "
        "bomb_shape bomb_negative bomb_deep bomb_text pickle bomb_zeros folder pipe loop missing_target nowhere"
    ).split():
        yield wrong(f"npz {name}", document(("data", "npz", f"{name}.npz")))
    for name in ("/dev/zero", "/dev/null", "table.csv", "."):
        yield wrong(f"npz {name}", document(("data", "npz", name)))
    for options in ({"inputs": "no"}, {"targets": "no"}, {"inputs": "y"}, {"targets": "x"}, {"classes": 0}, {"classes": -1}, {"classes": 1}, {"classes": 2},
                    {"classes": 10**9}, {"mean": [1, 2]}, {"std": 0}, {"std": [1, 1, 1, 1, 0]}, {"std": 1e-300}, {"mean": 1e300}):  # fmt: skip
        yield wrong(f"npz options {options}", document(("data", "options", options)))
    for name in "empty text eps cut bomb large_bomb endless no_pixels text_bomb pipe socket loop dangling folder device sizes flat one_class empty_class none nothing".split():
        yield wrong(f"images {name}", document(("data", "npz", None), ("data", "images", f"pictures_{name}")))
    for options in ({"size": [8]}, {"size": [8, 8, 8]}, {"size": [0, 8]}, {"size": [-8, 8]}, {"size": [8.5, 8]}, {"size": ["8", "8"]}, {"size": 8}, {"size": []},
                    {"size": [10**6, 10**6]}, {"size": [10**30, 1]}, {"size": [True, True]}, {"mean": [1, 2]}, {"std": [1, 2]}, {"std": 0}, {"grey": "no"}, {"grey": 1}):  # fmt: skip
        yield wrong(f"images options {options}", document(("data", "npz", None), ("data", "images", "pictures"), ("data", "options", options)))
    for name in ("/", "/proc", "/dev", "pictures/cat/0.png", "nowhere"):
        yield wrong(f"images {name}", document(("data", "npz", None), ("data", "images", name)))


#: Names in the file of a user that work, so that an audit begins.
WORKING = {
    "data_good", "data_double", "data_half", "data_small_labels", "data_bool_labels", "data_with_gradient", "loss_good", "loss_half",
}  # fmt: skip


def of_own_code() -> Iterator[Mistake]:
    """Factories of a user that raise, that return something else, or whose result cannot be trained."""
    names = [line.split("(")[0].removeprefix("async ").removeprefix("def ").split(" =")[0] for line in workplace.OWN.splitlines()
             if line.startswith(("def ", "async def ")) or (" = " in line and line[0].isalpha() and not line.startswith("import"))]  # fmt: skip
    for name in names:
        if name in WORKING or name.startswith("_") or name in ("changed", "plain", "small"):
            continue
        place = f"own_factories:{name}"
        if name.startswith("data_"):
            text = document(("data", "npz", None), ("data", "factory", place))
        elif name.startswith("loss_"):
            text = document(("training", "loss", place))
        else:
            text = document(("model", "name", place), ("model", "options", None))
        yield wrong(place, text)
    for place in ("no_such_module:model", "own_factories:nothing", "broken_syntax:model", "imports_missing:model", "raises_at_import:model", ":", "a:", ":b", "a:b:c",
                  "own_factories.py:small", "own factories:small", "..own:small", "own_factories:Small.forward", "os:getcwd", "builtins:dict", "builtins:print", "builtins:breakpoint", "torch:nn",
                  "x" * 5000 + ":y", "os:" + "y" * 5000, "\0:\0", "torch.nn:Linear", "torch.nn:Identity", "builtins:int"):  # fmt: skip
        yield wrong(f"model {short(place)}", document(("model", "name", place), ("model", "options", None)))
        yield wrong(f"factory {short(place)}", document(("data", "npz", None), ("data", "factory", place)))
        if place not in ("torch.nn:Linear", "torch.nn:Identity"):
            yield wrong(f"loss {short(place)}", document(("training", "loss", place)))
    for options in ({"width": 3}, {"shape": "x"}, {"classes": 0}, {"classes": -1}, {"classes": 2}, {"classes": 10**12}, {"shape": [10**12]}, {"shape": [4]}, {"shape": []}, {"seed": "x"}, {"seed": 1.5}, {"seed": -1}, {"seed": 2**70}):
        yield wrong(f"own model options {options}", document(("model", "name", "own_factories:small"), ("model", "options", options)))
    for options in ({"hidden": [10**9]}, {"hidden": [0]}, {"hidden": [10**5] * 3}, {"classes": 10**9}, {"classes": 2}, {"shape": [4]}, {"shape": [10**12]}, {"hidden": [4] * 100_000}, {"hidden": [[4]]}, {"no such": 1}, {"hidden": []  , "seed": -1}):
        yield wrong(f"mlp options {short(options)}", document(("model", "options", options)))


def of_chains() -> Iterator[Mistake]:
    """Defences that do not exist, contradict each other or destroy the message."""
    noise = {"name": "gaussian_noise", "sigma": 0.1}
    for chain in (3, "clipping", {}, [3], ["clipping"], [[noise]], [{}], [{"sigma": 1}], [{"name": 3}], [{"name": []}], [{"name": ""}], [{"name": "no such"}], [{"name": "\0"}],
                  [{"name": "gaussian_noise"}], [{**noise, "no such": 1}], [{**noise, "on": "nowhere"}], [{**noise, "sigma": 1e308}], [{**noise, "sigma": 1e38, "on": "update"}],
                  [{"name": "laplacian_noise", "scale": 1e308}], [{"name": "clipping", "norm": 0}], [{"name": "clipping", "norm": -1}],
                  [{"name": "dpsgd"}], [{"name": "dpsgd", "noise": 1.0, "epsilon": 1.0}], [{"name": "dpsgd", "noise": 1.0}] * 2, [{"name": "dpsgd", "noise": 1.0}, noise],
                  [{"name": "dpsgd", "noise": 1e308}], [{"name": "dpsgd", "noise": 1.0, "clip": 1e308}], [{"name": "dpsgd", "noise": 1.0, "delta": 1}], [{"name": "dpsgd", "epsilon": 1e-300}], [{"name": "dpsgd", "epsilon": 1e-12}], [{"name": "dpsgd", "epsilon": 1.0, "delta": 1e-300}],
                  [{"name": "secure_aggregation", "clients": 1}], [{"name": "secure_aggregation", "clients": 10**9}], [{"name": "secure_aggregation", "clients": 100}],
                  [{"name": "local_work"}], [{"name": "local_work", "epochs": 0}], [{"name": "local_work", "epochs": 10**9}], [{"name": "local_work", "batch_size": 0}],
                  [{"name": "quantisation", "bits": 1}], [{"name": "quantisation", "bits": 64}], [{"name": "top_k", "keep": 0}], [{"name": "top_k", "keep": 2}],
                  [{"name": "random_pruning", "probability": 1}], [{"name": "mixup", "alpha": 0}], [{"name": "mixup", "share": 2}], [{"name": "mixup", "alpha": 1e308}]):  # fmt: skip
        for command in ("audit", "frontier"):
            yield wrong(f"chain {short(chain)} {hash(str(chain)) % 1000}" if False else f"chain {chain!r}"[:90], document(chains=[{"chain": chain}], command=command), command=command)
    for tables in ([{"title": "a", "chain": []}, {"title": "a", "chain": [noise]}], [{"chain": [noise]}, {"chain": [noise]}], [{"chain": []}, {"chain": []}],
                   [{"title": "no defence", "chain": [noise]}, {"chain": []}], [{"title": "a", "chain": [noise]}, {"title": "b", "chain": [noise]}], [{"no such": 1}], [{"title": 3}], [{"title": ["a"]}], [{"chain": [], "titel": "a"}], [{"title": "a\nb", "chain": [noise]}], [{"title": "x" * 10_000, "chain": [noise]}], [{"title": "\x1b[31m", "chain": [noise]}], [{"title": " ", "chain": [noise]}]):  # fmt: skip
        for command in ("audit", "frontier"):
            yield wrong(f"titles {tables!r}"[:110], document(chains=tables, command=command), command=command)
    for value in (3, "x", True, {"chain": []}, [3], ["x"], [[]], []):
        yield wrong(f"defence = {value!r}", document(defence=value, chains=[]))
        yield wrong(f"defence = {value!r}", document(defence=value, chains=[], command="frontier"), command="frontier")


def of_attacks() -> Iterator[Mistake]:
    """Attacks that do not exist, that do not fit, or that are listed twice."""
    for attacks in (["dlg", "dlg"], [{"name": "dlg", "steps": 3}, {"name": "dlg", "steps": 4}], ["dlg", {"name": "dlg"}], ["no such"], [""], ["dlgg"], [{"steps": 3}], [{"name": 3}], [{"name": []}], [{"name": {}}], [["dlg"]], [3], [True], [math.nan],
                    ["lmra"], ["source_by_loss"], ["attribute_inference"], ["agic_epochs"], [{"name": "dlg", "steps": 0}], [{"name": "dlg", "steps": -1}], [{"name": "dlg", "lr": 0}], [{"name": "dlg", "lr": -1}], [{"name": "dlg", "restarts": 0}],
                    [{"name": "dlg", "no such": 1}], [{"name": "dlg", "optimiser": "sgd"}], [{"name": "dlf", "preset": "no such"}], [{"name": "epafl", "line_search": "no"}], [{"name": "inverting_gradients", "tv": -1}], [{"name": "awa", "Q": {"x": "y"}}], [{"name": "awa", "Q": "no such"}], [{"name": "awa", "Q": {"head": math.nan}}],
                    [{"name": "dlg", "steps": 10**30}], [{"name": "dlg", "restarts": 10**30}], [{"name": "dlg", "restarts": 10**9}]):  # fmt: skip
        yield wrong(f"attacks {attacks!r}"[:90], document(("audit", "attacks", attacks)))
    for name in ("no such", "", "lmra", "attribute_inference", "dlg\0"):
        yield wrong(f"attack {name!r}", document(("frontier", "attack", name), command="frontier"), command="frontier")
    for options in ({"steps": -1}, {"steps": "3"}, {"no such": 1}, {"lr": math.nan}, {"restarts": 0}):
        yield wrong(f"options {options!r}", document(("frontier", "options", options), command="frontier"), command="frontier")


def of_numbers() -> Iterator[Mistake]:
    """Numbers with which training diverges or never ends, or for which there is not enough data."""
    long = [("training", "samples", 10), ("training", "epochs", 30)]
    for command in ("audit", "frontier"):
        for changes in ([("training", "lr", 1e9)], [("training", "lr", 1e9), *long], [("training", "lr", 1e38)], [("training", "lr", 10**30), *long], [("training", "lr", 1e-320)], [("training", "momentum", 0.999), ("training", "lr", 1e6), *long],
                        [("training", "weight_decay", 1e30), *long], [("training", "weight_decay", 1e6), *long], [("training", "optimiser", "adam"), ("training", "lr", 1e9), *long], [("training", "optimiser", "adamw"), ("training", "weight_decay", 1e9), *long],
                        [("training", "proximal", 1e30), *long], [("training", "schedule", [1, 1e38]), *long], [("training", "schedule", "exponential(factor=1000)"), *long], [("training", "epochs", 10**6), ("training", "samples", 10)],
                        [("model", "trained_rounds", 10**9)], [("model", "trained_rounds", 2), ("training", "lr", 1e9)], [("model", "trained_rounds", 1), ("model", "trained_samples", 10**9), ("training", "samples", 61)], [("training", "samples", 61)], [("training", "samples", 10**9)]):  # fmt: skip
            yield wrong(f"{changes}", document(*changes, command=command), command=command)
    for key, value in (("clients", 61), ("clients", 31), ("clients", 10**9), ("threshold", 1e9), ("threshold", -1e9), ("budget", "0s"), ("budget", 0), ("budget", -1), ("budget", "10 years"), ("budget", "1e999"), ("budget", "9" * 400), ("budget", 1e308), ("budget", "1m30s"), ("budget", "-1m")):
        yield wrong(f"[audit] {key} = {short(value)}", document(("audit", key, value)))
    for key, value in (("clients", 61), ("federation", 61), ("federation", 10**9), ("federation_samples", 61), ("rounds", 10**9), ("test", 61), ("test", 1000), ("federation_lr", 1e9), ("federation_lr", 0), ("threshold", -1e9), ("threshold", 1e9)):
        yield wrong(f"[frontier] {key} = {short(value)}", document(("frontier", key, value), command="frontier"), command="frontier")


def of_recipes() -> Iterator[Mistake]:
    """Keys whose values contradict each other."""
    for changes in ([("training", "nesterov", True)], [("training", "nesterov", True), ("training", "momentum", 0.9), ("training", "dampening", 0.1)], [("training", "optimiser", "adam"), ("training", "momentum", 0.9)],
                    [("training", "betas", [0.9])], [("training", "betas", [0.9, 1.0])], [("training", "betas", [0.9, -1])], [("training", "betas", ["a", "b"])], [("training", "betas", [0.9, 0.99, 0.999])], [("training", "betas", [math.nan, 0.9])],
                    [("training", "schedule", "step(every=0)")], [("training", "schedule", "step(")], [("training", "schedule", "__import__('os')")], [("training", "schedule", "cosine(final=nan)")], [("training", "schedule", "step(" * 60)], [("training", "schedule", "linear(steps=" + "9" * 150 + ")")], [("training", "schedule", [-1])], [("training", "schedule", ["a"])], [("training", "schedule", [math.inf])],
                    [("training", "label_smoothing", 1)], [("training", "label_smoothing", 0.1), ("training", "loss", "mse")], [("training", "loss", "mse")], [("training", "loss", "binary_cross_entropy")], [("training", "loss", "cross entropy")], [("training", "mode", "Train")], [("training", "sends", "weight")], [("training", "optimiser", "SGD")],
                    [("training", "momentum", 1)], [("training", "momentum", 1.5)], [("training", "dampening", 2)], [("training", "eps", 0)], [("training", "batch_size", 0)], [("training", "accumulation", 0)], [("training", "lr", 0)],
                    [("model", "options", {"hidden": [4], "batch_norm": True})], [("attacker", "granted", ["label_batches"]), ("attacker", "hidden", ["epochs"])], [("attacker", "granted", ["labels", "labels"])], [("attacker", "hidden", ["lr", "lr"])], [("attacker", "hidden", ["loss"])], [("attacker", "granted", ["label_counts"]), ("data", "npz", "real_targets.npz")],
                    [("data", "csv", "table.csv")], [("data", "npz", None)], [("data", "npz", None), ("data", "options", {"target": "x"})], [("model", "name", None)], [("no such", "key", 1)], [("trainnig", "lr", 1)], [("training", "learning_rate", 1)], [("frontier", "clients", 1)],
                    [("training", "samples", 3), ("training", "batch_size", 2), ("model", "options", {"hidden": [4], "batch_norm": True})]):  # fmt: skip
        yield wrong(f"{changes}"[:110], document(*changes))
    yield wrong("audit in frontier", document(("audit", "clients", 1), command="frontier"), command="frontier")
    for seed in ("x", True, 1.5, math.nan, [], {}, -1, 10**30, 2**64, -(2**63)):
        yield wrong(f"seed = {seed!r}", document(seed=seed))
    for table in ("model", "data", "training", "attacker", "audit"):
        for value in (3, "x", [], True):
            lines = [line for line in document().split("[") if not line.startswith(f"{table}]")]
            yield wrong(f"{table} = {value!r}", f"{table} = {toml(value)}\n" + "[".join(lines))
    yield wrong("[[model]]", document().replace("[model]", "[[model]]"))


def of_documents() -> Iterator[Mistake]:
    """Files that hold no configuration."""
    for name in ("empty comment binary latin1 utf16 nul deep deep_table deep_inline twice key_twice open json long_number folder pipe loop device nowhere").split():
        for command in ("audit", "frontier"):
            yield Mistake(f"{command}: file {name}", (command, f"{name}.toml", "-q"))
    for path in ("", "\udcff.toml", "x" * 5000, "a/b/c.toml", "/dev/zero", "rows.npz", "/proc/self/mem"):
        yield Mistake(f"audit: path {short(path)}", ("audit", path, "-q"))


def of_command_lines() -> Iterator[Mistake]:
    """Options and arguments of every command."""
    capture = "capture.safetensors"
    right = "right.toml"
    for words in (
        ("nonsense",), ("audit",), ("audit", right, "extra"), ("audit", right, "--no-such"), ("audit", right, "--engine", "gpu"), ("audit", right, "--engine", ""), ("audit", right, "--engine", "ray:"), ("audit", right, "--jobs", 0), ("audit", right, "--jobs", "x"), ("audit", right, "--jobs", 1.5), ("audit", right, "--jobs", -1),
        ("audit", right, "--device", "gpu"), ("audit", right, "--device", ""), ("audit", right, "--device", "meta"), ("audit", right, "--device", "cuda:99"), ("audit", right, "--device", "cpu:7"), ("audit", right, "--budget", "x"), ("audit", right, "--budget", "nan"), ("audit", right, "--budget", "inf"), ("audit", right, "--budget", "-1"), ("audit", right, "--budget", ""), ("audit", right, "--budget", "0"),
        ("audit", right, "--fail-if", "x"), ("audit", right, "--fail-if", ""), ("audit", right, "--fail-if", "psnr > nan"), ("audit", right, "--fail-if", "psnr > inf"), ("audit", right, "--fail-if", "psnr >"), ("audit", right, "--fail-if", "psnr > 1e999"), ("audit", right, "--fail-if", "dlg.psnr > 20"), ("audit", right, "--fail-if", "psnr == 20"), ("audit", right, "--redact", "blurr"),
        ("frontier",), ("frontier", right), ("frontier", "right_frontier.toml", "--fail-if", "x"), ("frontier", "right_frontier.toml", "--redact", "omit"), ("frontier", "right_frontier.toml", "--engine", "x"), ("frontier", "right_frontier.toml", "--device", "x"),
        ("init", right), ("init", "."), ("init", ""), ("init", "a/\0.toml"), ("init", "new.toml", "--sends", "x"), ("init", "new.toml", "--samples", 0), ("init", "new.toml", "--samples", 1.5), ("init", "new.toml", "--lr", "nan"), ("init", "new.toml", "--lr", "inf"), ("init", "new.toml", "--lr", 0), ("init", "new.toml", "--lr", -1), ("init", "new.toml", "--lr", "x"), ("init", "new.toml", "--epochs", 0), ("init", "new.toml", "--batch-size", 0), ("init", "new.toml", "--batch-size", -3),
        ("init", "new.toml", "--model", ""), ("init", "new.toml", "--model", "no such"), ("init", "new.toml", "--data", ""), ("init", "new.toml", "--data", "no such"), ("init", "rows.npz/new.toml"), ("init", "/proc/new.toml"), ("init", "x" * 300 + ".toml"), ("init", "new.toml", "--model", "a\nb"), ("init", "new.toml", "--data", "nowhere.csv"), ("init", "new.toml", "--epochs", 10**30), ("init", "new.toml", "--samples", 10**30), ("init", "new.toml", "--data", "\udcff.csv"), 
        ("demo", "--clients", 0), ("demo", "--clients", 101), ("demo", "--clients", 10**30), ("demo", "--clients", "x"), ("demo", "--seed", "x"), ("demo", "--seed", 1.5), ("demo", "--seed", 10**30), ("demo", "--redact", "x"), ("demo", "-o", right), ("demo", "-o", "/proc/x"), ("demo", "-o", "")  ,
        ("list", "x"), ("list", ""), ("list", "attacks", "x"), ("list", "\0"), ("data", "x"), ("data", ""), ("data", "digits", "--split", "x"), ("data", "digits", "--folder", "nowhere"), ("data", "mnist", "--folder", "nowhere", "--no-download"), ("data", "mnist", "--folder", right), ("data", "mnist", "--split", ""), ("data", "leaf_synthetic", "--split", "test"), ("data", "\x1b[31m"),
        ("bench", "x"), ("bench", "dlf", "--row", "x"), ("bench", "dlf", "--row", ""), ("bench", "dlf", "--method", "x"), ("bench", "dlf", "--clients", 0), ("bench", "dlf", "--clients", 10**9), ("bench", "dlf", "--skip", -1), ("bench", "dlf", "--skip", 10**9), ("bench", "dlf", "--steps", 0), ("bench", "dlf", "--engine", "x"), ("bench", "dlf", "--jobs", 0), ("bench", "dlf", "--repeats", 3), ("bench", "speed", "--row", "x"), ("bench", "speed", "--repeats", 0), ("bench", "speed", "--clients", 3), ("bench", "speed", "--repeats", "x"), ("bench",), ("bench", ""), ("bench", "dlf", "--seed", "x"), ("bench", "dlf", "--row", "[", "--no-save"), ("bench", "dlf", "--cache", right, "--no-save"), ("bench", "dlf", "--pictures", right, "--no-save"), 
        ("attack",), ("attack", "nowhere"), ("attack", "pictures"), ("attack", right), ("attack", "."  , "--client", "nobody"), ("attack", capture, "--attack", "x"), ("attack", capture, "--attack", ""), ("attack", capture, "--attack", "lmra"), ("attack", capture, "--attack", "attribute_inference"), ("attack", capture, "--option", "steps"), ("attack", capture, "--option", "=3"), ("attack", capture, "--option", "steps=-3"), ("attack", capture, "--option", "steps=x"), ("attack", capture, "--option", "steps=NaN"), ("attack", capture, "--option", "lr=Infinity"), ("attack", capture, "--option", "x=1"), ("attack", capture, "--option", "steps=1e999"), ("attack", capture, "--option", "steps=[" + "[" * 5000), ("attack", capture, "--option", "steps=3", "--option", "steps=4"),
        ("attack", capture, "--know", "x=1"), ("attack", capture, "--know", "lr"), ("attack", capture, "--know", "lr=x"), ("attack", capture, "--know", "lr=NaN"), ("attack", capture, "--know", "lr=-1"), ("attack", capture, "--know", "lr=0"), ("attack", capture, "--know", "epochs=0"), ("attack", capture, "--know", "epochs=1.5"), ("attack", capture, "--know", "epochs=true"), ("attack", capture, "--know", "samples=-1"), ("attack", capture, "--know", "loss="), ("attack", capture, "--know", "loss=x:y"), ("attack", capture, "--know", "loss=5"), ("attack", capture, "--know", "batch_size=[]"), ("attack", capture, "--know", "betas=[1,2]"),
        ("attack", capture, "--model", "x"), ("attack", capture, "--model", "own_factories:nothing"), ("attack", capture, "--model", "own_factories:raises_key"), ("attack", capture, "--model", "own_factories:returns_none"), ("attack", capture, "--model", "own_factories:small", "--model-option", "classes=7"), ("attack", capture, "--model", "own_factories:small", "--model-option", "x=7"), ("attack", capture, "--model-option", "classes=7"), ("attack", capture, "--model", "own_factories:lazy"), ("attack", capture, "--model", "own_factories:recurses"), ("attack", capture, "--model", "lenet"),
        ("attack", capture, "--data", "nowhere"), ("attack", capture, "--data", right), ("attack", capture, "--data", "text.npz"), ("attack", capture, "--data", "pictures.npz"), ("attack", capture, "--data", "pipe.npz"), ("attack", capture, "--data", "table.csv"), ("attack", capture, "--data", "bomb_header.npz"), ("attack", capture, "--data", "empty"), ("attack", capture, "--seed", "x"), ("attack", capture, "--seed", 1.5), ("attack", capture, "--device", "x"), ("attack", capture, "--engine", "x"), ("attack", capture, "--redact", "x"), ("attack", capture, "--fail-if", "x"), ("attack", capture, "--jobs", 0), ("attack", ""), ("attack", "\udcff"), ("attack", "pipe.npz"), ("attack", "/dev/zero"), ("attack", "rows.npz"), ("attack", capture, "-o", right), ("attack", capture, "-o", "/proc/x"),
        ("infer",), ("infer", "nowhere"), ("infer", capture, "--method", "x"), ("infer", capture, "--method", "dlg"), ("infer", capture, "--sensitive", "x"), ("infer", capture, "--sensitive", ""), ("infer", capture, "--option", "x=1"), ("infer", capture, "--option", "steps"), ("infer", capture, "--client", "nobody"), ("infer", capture, "--know", "x=1"), ("infer", capture, "--data", "nowhere"), ("infer", capture, "--seed", "x"), ("infer", capture, "--engine", "x"), ("infer", capture, "--device", "x"), ("infer", "pictures"), ("infer", capture, "--fail-if", "x"), ("infer", capture, "--jobs", 0),
    ):  # fmt: skip
        yield Mistake(" ".join(map(short, words)) if len(str(words)) > 60 else " ".join(map(str, words)).encode("unicode_escape").decode(), words)


GROUPS = (of_keys, of_factories, of_data, of_own_code, of_chains, of_attacks, of_numbers, of_recipes, of_documents, of_command_lines)


def every() -> list[Mistake]:
    """Return all mistakes. Names of equal mistakes get a number."""
    return [mistake for group in GROUPS for mistake in group()]
