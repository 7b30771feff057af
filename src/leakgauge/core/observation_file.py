"""Save and load observations.

The architecture is stored as the recipe that :func:`leakgauge.models.build` made it by. A file never decides
which code is imported: a model of the user's own has to be passed to :func:`load` again.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, fields
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from leakgauge.core.container import SUFFIX, Location, read_container, write_container
from leakgauge.core.errors import CorruptFile, FileError, InvalidInput, LeakgaugeError, UnknownName
from leakgauge.core.observation import DataSpec, LocalTraining, Observation
from leakgauge.core.seeding import seeded
from leakgauge.models import MODELS, build, recipe_of

KIND = "observation"
VERSION = 2  # 1: without label batches and defences
_TREES = ("sent", "gradient", "returned", "buffers", "returned_buffers")
_TENSORS = ("labels", "label_counts", "label_batches")
_LONGEST_RECIPE = 10_000  # characters: no network of ours has thousands of layers, which even unallocated take time
_COPIES = 3  # of a model's weights and statistics in a file: those sent, those returned, and one to spare
_BESIDES = 64 * 2**20  # bytes in a file beside them: the header, and labels of millions of samples
_MOST_OWN = 512 * 2**20  # bytes of an architecture that only the file names; bigger ones must be passed
_DOCUMENT = {"model", "frozen", "data", "training", "client", "round", "kind", "defences"}


def save(observation: Observation, path: Location) -> Path:
    """Save one observation to a ``.safetensors`` file, atomically; return its path."""
    recipe = recipe_of(observation.model)
    document = {
        "model": None if recipe is None else asdict(recipe),
        "frozen": [name for name, value in observation.model.named_parameters() if not value.requires_grad],
        "data": asdict(observation.data),
        "training": asdict(observation.training),
        "client": observation.client,
        "round": observation.round,
        "kind": observation.kind,
        "defences": observation.defences,
    }
    tensors: dict[str, Tensor] = {}
    for tree in _TREES:
        for name, value in (getattr(observation, tree) or {}).items():
            tensors[f"{tree}/{name}"] = value
    tensors |= {name: getattr(observation, name) for name in _TENSORS if getattr(observation, name) is not None}
    return write_container(path, KIND, VERSION, document, tensors)


def load(path: Location, model: nn.Module | None = None) -> Observation:
    """Load one observation. ``model`` is needed where the architecture is not one of Leakgauge's own.

    Anything wrong with the file (cut short, altered, foreign, of a newer version, tensors that do not fit the
    model, NaN) raises an error that says which file, what is wrong and what was expected.
    """
    document, tensors = read_container(path, KIND, VERSION, most=partial(_most_bytes, Path(path), model))
    try:
        return _assemble(Path(path), document, tensors, model)
    except FileError:
        raise
    except InvalidInput as problem:
        raise CorruptFile(f"{path}: {problem}") from problem
    except (KeyError, TypeError, ValueError, AttributeError, ArithmeticError, RuntimeError) as problem:
        raise CorruptFile(f"{path}: its description is not that of an observation ({problem!r})") from problem


def save_all(observations: Iterable[Observation], folder: Location) -> list[Path]:
    """Save many observations into a folder, one file each, named by client and round."""
    paths: list[Path] = []
    for observation in observations:
        path = Path(folder) / f"{stem(observation)}{SUFFIX}"
        number = 1
        while path in paths:
            number += 1
            path = Path(folder) / f"{stem(observation)}_{number}{SUFFIX}"
        paths.append(save(observation, path))
    return paths


def stem(observation: Observation) -> str:
    """The name of an observation's file, without its suffix: its client and its round."""
    return f"{plain(observation.client)}_round-{observation.round:06d}"


def load_all(folder: Location, model: nn.Module | None = None) -> list[Observation]:
    """Load every observation of a folder (or a single file), in the order of the file names."""
    return [load(path, model) for path in observation_files(folder)]


def load_rounds(folder: Location, client: str, model: nn.Module | None = None) -> list[Observation]:
    """Load every round of one client from a folder of observations, in their order, for attacks on many rounds."""
    files = observation_files(folder)
    own = [path for path in files if path.name.startswith(f"{plain(client)}_round-")]
    rounds = [one for one in (load(path, model) for path in own) if one.client == client]
    if not rounds:
        known = sorted({path.name.rpartition("_round-")[0] or path.stem for path in files})
        raise UnknownName(f"client in {folder} called", client, known[:20])
    return sorted(rounds, key=lambda one: one.round)


def observation_files(location: Location) -> list[Path]:
    """The files that a folder, or a single file, stands for; of a folder with a single recorded run, that run's."""
    place = Path(location)
    if place.is_dir():
        runs = sorted(path for path in place.glob("run-*") if path.is_dir() and not path.is_symlink())
        files = _files_in(place)
        if not files and len(runs) == 1:
            files = _files_in(runs[0])
        elif not files and runs:
            names = ", ".join(path.name for path in runs[:5])
            raise FileError(f"{place}: holds {len(runs)} runs ({names}{', ...' if len(runs) > 5 else ''}); give one")
        if not files:
            raise FileError(f"{place}: there are no {SUFFIX} files in this folder")
        return files
    if not place.exists():
        raise FileError(f"{place}: there is no such file or folder")
    return [place]


def _files_in(folder: Path) -> list[Path]:
    return sorted(path for path in folder.glob(f"*{SUFFIX}") if not path.name.startswith("."))


def _assemble(
    path: Path, document: Mapping[str, Any], tensors: Mapping[str, Tensor], model: nn.Module | None
) -> Observation:
    trees: dict[str, dict[str, Tensor]] = {}
    for key, value in tensors.items():
        if key not in _TENSORS:
            tree, _, name = key.partition("/")
            if tree not in _TREES or not name:
                raise CorruptFile(f"{path}: unexpected tensor {key!r}")
            trees.setdefault(tree, {})[name] = value
    if "sent" not in trees:
        raise CorruptFile(f"{path}: the weights that were sent to the client are missing")
    document = {"defences": None, **document}  # version 1 has none
    wrong = sorted(document.keys() ^ _DOCUMENT)
    if wrong:
        problem = "has an unknown" if wrong[0] in document else "lacks the"
        raise CorruptFile(f"{path}: its description {problem} {wrong[0]!r}")
    round_number, client, frozen = document["round"], document["client"], document["frozen"]
    if type(round_number) is not int or not isinstance(client, str) or not isinstance(frozen, list):
        raise CorruptFile(f"{path}: client, round and frozen must be a text, a number and a list")
    observation = Observation(
        model=model if model is not None else _rebuild(path, document["model"], frozen, trees["sent"]),
        data=_from_json(DataSpec, document["data"]),
        training=_from_json(LocalTraining, document["training"]),
        client=client,
        round=round_number,
        labels=tensors.get("labels"),
        label_counts=tensors.get("label_counts"),
        label_batches=tensors.get("label_batches"),
        defences=document["defences"],
        **{"gradient": None, "returned": None, **trees},  # type: ignore[arg-type]
    )
    if observation.kind != document["kind"]:
        raise CorruptFile(f"{path}: it is described as {document['kind']!r}, but holds {observation.kind}")
    return observation


def _from_json(kind: type, values: Mapping[str, Any]) -> Any:
    known = {item.name for item in fields(kind)}
    if set(values) - known:
        raise InvalidInput(f"{kind.__name__} has no {sorted(set(values) - known)[0]!r}")
    return kind(**{name: tuple(value) if isinstance(value, list) else value for name, value in values.items()})


def _most_bytes(path: Path, model: nn.Module | None, document: Mapping[str, Any]) -> int:
    """How many bytes an observation may have: some copies of the model's tensors, and less where a file names it."""
    if model is not None:
        return _COPIES * 8 * _numbers(model) + _BESIDES
    try:
        return min(_COPIES * 8 * _numbers(_outline(path, document["model"])), _MOST_OWN) + _BESIDES
    except (
        LeakgaugeError,
        KeyError,
        TypeError,
        ValueError,
        AttributeError,
    ):  # what is wrong is said after the checksum
        return _BESIDES


def _numbers(model: nn.Module) -> int:
    return sum(value.numel() for value in (*model.parameters(), *model.buffers()))


def _outline(path: Path, recipe: Mapping[str, Any] | None) -> nn.Module:
    """The architecture that a file names, if it is one of ours: on the meta device, where nothing is allocated."""
    if recipe is None or recipe["name"] not in MODELS:
        made = "" if recipe is None else f" (it was made by {recipe['name']!r})"
        raise FileError(
            f"{path}: the model is not one of Leakgauge's own{made}, and a file does not get to say what code is "
            "run; pass it: load(path, model=...), or --model module:factory on the command line"
        )
    if len(json.dumps(recipe)) > _LONGEST_RECIPE:
        raise CorruptFile(f"{path}: the model {recipe['name']!r} has too many options to be one of Leakgauge's own")
    try:
        with torch.device("meta"):
            return build(recipe["name"], **recipe["options"])
    except (LeakgaugeError, RuntimeError, ArithmeticError, MemoryError) as problem:
        raise CorruptFile(f"{path}: the model {recipe['name']!r} cannot be built: {problem}") from problem


def _rebuild(
    path: Path, recipe: Mapping[str, Any] | None, frozen: Sequence[str], sent: Mapping[str, Tensor]
) -> nn.Module:
    """Build the architecture that a file names, if it is one of ours and fits the weights in the file."""
    outline = _outline(path, recipe)
    assert recipe is not None
    expected = {name: tuple(value.shape) for name, value in outline.named_parameters()}
    if expected != {name: tuple(value.shape) for name, value in sent.items()}:
        raise CorruptFile(f"{path}: the weights do not have the shapes of the model {recipe['name']!r}")
    with seeded(0):  # the weights are of no use, and drawing them must not disturb the caller's random numbers
        model = build(recipe["name"], **recipe["options"])
        types = {value.dtype for value in sent.values()}
        if len(types) == 1 and (only := types.pop()).is_floating_point:  # others are refused with their names
            model = model.to(only)
    for name in frozen:
        model.get_parameter(name).requires_grad_(False)
    return model


def plain(text: str) -> str:
    """A client's name as part of a file name: nothing that could lead to another folder."""
    kept = "".join(character if character.isalnum() or character in "-_" else "-" for character in text)
    return kept[:40] or "client"  # a character may take four bytes, a file name 255
