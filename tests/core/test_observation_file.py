"""save() and load(): every kind of observation is restored, and every other file is refused."""

import copy
import json
import random
import subprocess
import sys
from dataclasses import asdict, fields
from typing import Any

import pytest
import torch
from torch import nn

from leakgauge import DataSpec, fedavg, fedsgd, load, load_all, models, save, save_all
from leakgauge.core import container
from leakgauge.core.errors import CorruptFile, FileError, FutureVersion, LeakgaugeError
from leakgauge.core.observation_file import VERSION, observation_files
from leakgauge.data import Dataset
from leakgauge.federation.defences import GaussianNoise, RandomPruning
from leakgauge.federation.model_check import prepared
from leakgauge.federation.training import local_sgd
from tests.assault.mutators import DAMAGES, opened, sealed, structure_changed
from tests.federation.networks import Tied, client, same, table

TREES = ("sent", "gradient", "returned", "buffers", "returned_buffers")
TENSORS = ("labels", "label_counts", "label_batches")


def mlp(shape=(1, 4, 4), classes=3, **options):
    return models.build("mlp", shape=shape, classes=classes, hidden=(4,), seed=0, **options)


def frozen():
    model = mlp()
    model.get_parameter("head.weight").requires_grad_(False)
    return model


AVG: dict[str, Any] = {"lr": 0.1, "epochs": 2, "batch_size": 3}
NOISE = (RandomPruning(0.2), GaussianNoise(0.01))
KINDS = {
    "gradient": lambda: fedsgd(mlp(), client(6)),
    "weights": lambda: fedavg(mlp(), client(6), **AVG, client="Zoë", round=12),
    "statistics": lambda: fedavg(mlp(batch_norm=True), client(6), **AVG),
    "withheld statistics": lambda: fedavg(mlp(batch_norm=True), client(6), **AVG, share_statistics=False),
    "labels": lambda: fedavg(mlp(), client(6), **AVG, granted=["labels", "label_counts"]),
    "label batches": lambda: fedavg(mlp(), client(7), **AVG, granted=["label_batches"]),
    "defences": lambda: fedavg(mlp(), client(6), **AVG, defences=NOISE, knows_defence=True),
    "no defences": lambda: fedsgd(mlp(), client(6), knows_defence=True),
    "hidden recipe": lambda: fedavg(mlp(), client(6), **AVG, hidden=["lr", "epochs", "samples", "momentum"]),
    "regression": lambda: fedsgd(mlp((6,), 1), table(5), granted=["labels"]),
    "float64": lambda: fedavg(mlp(batch_norm=True).double(), client(6), **AVG),
    "float64 withheld": lambda: fedavg(mlp(batch_norm=True).double(), client(6), **AVG, share_statistics=False),
    "bfloat16": lambda: fedavg(mlp().bfloat16(), client(6), **AVG),
    "frozen": lambda: fedavg(frozen(), client(6), **AVG),
    "convolutions": lambda: fedsgd(models.build("lenet", shape=(1, 4, 4), classes=3), client(3)),
}


def assert_equal(first, second):
    for item in fields(first):
        one, other = getattr(first, item.name), getattr(second, item.name)
        if item.name in TREES and one is not None:
            assert list(one) == list(other)
            assert all(torch.equal(one[name], other[name]) for name in one)
            assert all(one[name].dtype == other[name].dtype for name in one)
        elif item.name in TENSORS and one is not None:
            assert torch.equal(one, other)
            assert one.dtype == other.dtype
        elif item.name != "model":
            assert one == other, item.name


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_observation_comes_back(kind, tmp_path):
    observation, _ = KINDS[kind]()
    before = torch.get_rng_state()
    found = load(save(observation, tmp_path / "x.safetensors"))
    assert torch.equal(before, torch.get_rng_state())
    assert_equal(found, observation)
    assert found.threat_model() == observation.threat_model()
    described = [
        [(name, value.shape, value.dtype, value.requires_grad) for name, value in seen.model.named_parameters()]
        for seen in (found, observation)
    ]
    assert described[0] == described[1]
    if observation.buffers is not None or kind == "float64 withheld":
        assert same(found.model_buffers(), observation.model_buffers())
    assert_equal(load(save(found, tmp_path / "again.safetensors")), observation)


@pytest.mark.parametrize("kind", ["weights", "statistics", "withheld statistics", "float64 withheld", "frozen"])
def test_a_loaded_observation_replays_the_clients_training(kind, tmp_path):
    observation, truth = KINDS[kind]()
    found = load(save(observation, tmp_path / "x.safetensors"))
    inputs, targets = prepared(client(6), found.sent)
    batches = [(inputs[rows], targets[rows]) for rows in truth.order]
    returned, _ = local_sgd(found.model, found.sent, batches, found.training, buffers=found.model_buffers())
    assert same(returned, observation.returned)


def test_a_model_of_the_users_own_has_to_be_passed_again(tmp_path):
    observation, _ = fedavg(Tied(), client(6), **AVG)
    path = save(observation, tmp_path / "x.safetensors")
    with pytest.raises(FileError, match=r"x\.safetensors: the model is not one of Leakgauge's.*model=\.\.\."):
        load(path)
    mine = Tied()
    found = load(path, model=mine)
    assert found.model is mine
    assert_equal(found, observation)
    with pytest.raises(CorruptFile, match=r"does not fit the model.*is this the right model"):
        load(path, model=nn.Linear(2, 2))
    [same] = load_all(tmp_path, model=mine)
    assert_equal(same, observation)


def test_a_file_does_not_get_to_import(tmp_path, monkeypatch):
    (tmp_path / "users_trap.py").write_text(
        "from torch import nn\ndef factory(): return nn.Sequential(nn.Flatten(), nn.Linear(16, 3))\n", encoding="utf-8"
    )
    monkeypatch.chdir(tmp_path)
    path = save(fedsgd(models.build("users_trap:factory"), client(3))[0], tmp_path / "x.safetensors")
    del sys.modules["users_trap"]
    with pytest.raises(FileError, match=r"made by 'users_trap:factory'.*must not decide which code is run"):
        load(path)
    assert "users_trap" not in sys.modules


def test_a_newer_version_asks_for_an_upgrade(tmp_path):
    path = container.write_container(tmp_path / "x.safetensors", "observation", VERSION + 1, {}, {})
    with pytest.raises(FutureVersion, match=r"x\.safetensors.*Upgrade"):
        load(path)


def test_a_file_of_the_first_version_is_read_as_it_was(tmp_path):
    observation, _ = KINDS["labels"]()
    path = save(observation, tmp_path / "x.safetensors")
    document, tensors = container.read_container(path, "observation", VERSION)
    del document["defences"]
    path = container.write_container(tmp_path / "old.safetensors", "observation", 1, document, tensors)
    assert_equal(load(path), observation)


def test_a_failing_save_leaves_the_old_file(tmp_path, monkeypatch):
    observation, _ = KINDS["weights"]()
    path = save(observation, tmp_path / "x.safetensors")
    before = path.read_bytes()

    def full(*arguments):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(FileError, match=r"No space left on device\)\. Nothing was changed"):
        save(KINDS["gradient"]()[0], path)
    assert path.read_bytes() == before
    assert [item.name for item in tmp_path.iterdir()] == ["x.safetensors"]


def test_names_of_clients_never_lead_out_of_the_folder(tmp_path):
    observation, _ = KINDS["gradient"]()
    names = [
        "../../x",
        "/etc/passwd",
        "",
        ".",
        "..",
        "a\0b",
        "x" * 1000,
        "字" * 300,
        "🦊" * 300,
        "C:\\x",
        "a b\nc",
        "~",
    ]
    folder = tmp_path / "inner" / "folder"
    paths = save_all([observation.knowing(client=name) for name in names], folder)
    assert all(path.parent == folder and path.exists() for path in paths)
    assert len(set(paths)) == len(names) == len(list(folder.iterdir()))
    assert [load(path).client for path in paths] == names
    assert sorted(item.name for item in tmp_path.rglob("*")) == sorted(["inner", "folder", *(p.name for p in paths)])


def test_equal_names_do_not_overwrite_each_other(tmp_path):
    observation, _ = KINDS["gradient"]()
    seen = [observation.knowing(client="a/b", lr=0.1 * number) for number in (1, 2, 3)]
    seen += [observation.knowing(client="a-b", round=1), observation.knowing(client="a:b")]
    paths = save_all(iter(seen), tmp_path)
    assert len(set(paths)) == 5
    for path, expected in zip(paths, seen, strict=True):
        assert_equal(load(path), expected)


def test_folders_and_files_of_observations(tmp_path):
    with pytest.raises(FileError, match=r"there are no \.safetensors files"):
        load_all(tmp_path)
    with pytest.raises(FileError, match="no such file or folder"):
        load_all(tmp_path / "absent")
    path = save(KINDS["gradient"]()[0], tmp_path / "b.safetensors")
    save(KINDS["weights"]()[0], tmp_path / "a.safetensors")
    (tmp_path / ".a.safetensors.tmp.safetensors").write_bytes(b"half")
    (tmp_path / "notes.txt").write_text("mine", encoding="utf-8")
    assert [found.kind for found in load_all(tmp_path)] == ["weights", "gradient"]
    assert observation_files(path) == [path]


def seal(path, document, tensors):
    """Write a file with any content and a correct checksum."""
    path.write_bytes(sealed(document, tensors))
    return path


GRANTS = ["labels", "label_counts", "label_batches"]


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A small observation, the bytes of its file, its document and its tensors."""
    pairs = Dataset(torch.rand(4, 2), torch.tensor([0, 1, 1, 0]), DataSpec((2,), 2, columns=("a", "b")), "Ada")
    model = models.build("mlp", shape=(2,), classes=2, hidden=(2,), batch_norm=True, seed=0)
    observation, _ = fedavg(model, pairs, lr=0.5, epochs=2, batch_size=2, granted=GRANTS, knows_defence=True)
    path = save(observation, tmp_path_factory.mktemp("saved") / "x.safetensors")
    return observation, path.read_bytes(), *container.read_container(path, "observation", VERSION)


def test_sealing_by_hand_is_sealing(saved, tmp_path):
    observation, _, document, tensors = saved
    assert_equal(load(seal(tmp_path / "x.safetensors", document, tensors)), observation)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"sent/head.bias": torch.tensor([0.0, float("nan")])}, r"sent\['head.bias'\] holds NaN"),
        ({"returned/head.bias": torch.tensor([0.0, float("inf")])}, r"returned\['head.bias'\] holds NaN or Inf"),
        ({"returned/head.bias": torch.zeros(3)}, r"returned\['head.bias'\] has shape \(3,\), but the model's is \(2,"),
        ({"sent/head.bias": torch.zeros(3)}, "the weights do not have the shapes of the model 'mlp'"),
        ({"returned/head.bias": None}, "returned does not fit the model: it lacks 'head.bias'"),
        ({"sent/head.bias": None}, "do not have the shapes"),
        ({"returned/more": torch.zeros(1)}, "it has 'more'"),
        ({"more": torch.zeros(1)}, "unexpected tensor 'more'"),
        ({"sent/": torch.zeros(1)}, "unexpected tensor 'sent/'"),
        ({"truth/inputs": torch.zeros(1)}, "unexpected tensor 'truth/inputs'"),
        ({"gradient/head.bias": torch.zeros(2)}, "either a gradient"),
        ({"labels": torch.tensor([0.0, 1.0, 1.0, 0.0])}, "labels must be whole numbers"),
        ({"labels": torch.tensor(3)}, "labels must be one for each sample"),
        ({"labels": torch.tensor([0, 1, 2, 0])}, "labels must be at least 0 and below 2"),
        ({"labels": torch.tensor([0, 1])}, "2 labels are granted for 4 samples"),
        ({"label_counts": torch.tensor([1, 1])}, "label_counts add up to 2"),
        ({"label_batches": torch.tensor([0, 1, 1, 0])}, r"label_batches must be \(epochs, samples\)"),
        ({"label_batches": torch.tensor([[0, 1, 1, 0]])}, r"expected \(2, 4\)"),
        ({"label_batches": torch.tensor([[0, 1, 1, 0], [1, 1, 1, 0]])}, "the same labels in every epoch"),
        ({"label_batches": torch.tensor([[1, 1, 1, 0]] * 2)}, "label_batches and labels do not hold the same"),
        ({"buffers/features.1.running_var": torch.full((2,), float("nan"))}, r"buffers\['features.1.running_var'\]"),
        ({"buffers/features.1.running_var": torch.zeros(2, dtype=torch.long)}, "has type torch.int64"),
        ({"sent/head.bias": torch.zeros(2).to(torch.float8_e4m3fn)}, r"x\.safetensors: "),
        ({"sent/head.bias": torch.zeros(2, dtype=torch.complex64)}, "has type torch.complex64"),
    ],
)
def test_sealed_tensors_that_cannot_be(saved, tmp_path, changes, words):
    _, _, document, tensors = saved
    altered = {name: value for name, value in {**tensors, **changes}.items() if value is not None}
    with pytest.raises(CorruptFile, match=rf"x\.safetensors: .*{words}" if "safetensors" not in words else words):
        load(seal(tmp_path / "x.safetensors", document, altered))


def test_a_file_without_any_weights(saved, tmp_path):
    _, _, document, tensors = saved
    rest = {name: value for name, value in tensors.items() if not name.startswith("sent/")}
    with pytest.raises(CorruptFile, match="weights that were sent to the client are missing"):
        load(seal(tmp_path / "x.safetensors", document, rest))
    rest = {name: value for name, value in tensors.items() if not name.startswith("returned/")}
    with pytest.raises(CorruptFile, match="either a gradient"):
        load(seal(tmp_path / "x.safetensors", document, rest))


REMOVED = object()


WRONG: dict[tuple[str, ...], list[Any]] = {
    ("data", "shape"): [REMOVED, None, [], [-1], [2.0], "ab", {"2": 1}, [True], [[2]]],
    ("data", "classes"): [0, 2.5, "2", [2], True, 10**30],
    ("data", "mean"): [None, 0.5, [], [None], [float("nan")], [10**400], ["0"], [1, 2, 3]],
    ("data", "std"): [[0], [-1.0], [float("inf")], {}],
    ("data", "columns"): ["ab", [1, 2], ["a"], None],
    ("data", "bounded"): [1],
    ("data", "colour"): [1],
    ("training", "lr"): [0, -1, float("nan"), 10**400, "0.1", [0.1], True],
    ("training", "epochs"): [0, -1, 1.5, True, "2"],
    ("training", "momentum"): [5],
    ("training", "mode"): [5],
    ("training", "loss"): [5],
    ("training", "samples"): [5],
    ("training", "optimiser"): ["lbfgs", 1, ""],
    ("training", "betas"): [[0.9], [0.9, 1.0], "betas", [0.9, None]],
    ("training", "schedule"): ["__import__('os')", "cosine(final=-1)", [-1.0], [], 3, "cosine(" * 100],
    ("training", "clip_norm"): [-1.0, "much"],
    ("training", "eps"): [0.0, True],
    ("training", "label_smoothing"): [1.0],
    ("training", "accumulation"): [0, 1.5],
    ("training", "nesterov"): [1, True],
    ("model",): [REMOVED],
    ("data",): [REMOVED, None, [], 5, "x", {}],
    ("training",): [REMOVED, None, [], 5, "x"],
    ("client",): [REMOVED, None, 5, ["Ada"], {}],
    ("round",): [REMOVED, None, "1", 1.5, True, []],
    ("kind",): [REMOVED, "gradient", None, "weight", []],
    ("frozen",): [REMOVED, None, "head.bias", {}, ["nothing"], [5], [None], [[]]],
    ("defences",): ["GaussianNoise(sigma=0.1)", 5, {}, [5], [None], [[]]],
    ("extra",): [1],
}


@pytest.mark.parametrize(("place", "value"), [(place, value) for place, values in WRONG.items() for value in values])
def test_sealed_descriptions_that_cannot_be(saved, tmp_path, place, value):
    _, _, document, tensors = saved
    altered = copy.deepcopy(document)
    where = altered
    for key in place[:-1]:
        where = where[key]
    if value is REMOVED:
        del where[place[-1]]
    else:
        where[place[-1]] = value
    with pytest.raises(CorruptFile, match=r"x\.safetensors: "):
        load(seal(tmp_path / "x.safetensors", altered, tensors))


HOSTILE = [
    {"name": "mlp", "options": {"shape": [2], "classes": 10**9}},
    {"name": "mlp", "options": {"shape": [2], "classes": 2, "hidden": [10**7, 10**7]}},
    {"name": "mlp", "options": {"shape": [2], "classes": 2, "hidden": [1] * 10**6}},
    {"name": "mlp", "options": {"shape": [10**30], "classes": 2}},
    {"name": "mlp", "options": {"shape": [-2], "classes": 2}},
    {"name": "mlp", "options": {"shape": [2], "classes": 2, "seed": 10**400}},
    {"name": "mlp", "options": {"shape": [2], "classes": 2, "seed": "x"}},
    {"name": "mlp", "options": {"shape": [2], "classes": 2, "name": "mlp"}},
    {"name": "mlp", "options": {"shape": [2], "colour": "red"}},
    {"name": "mlp", "options": {"__class__": 1}},
    {"name": "mlp", "options": []},
    {"name": "mlp", "options": None},
    {"name": "mlp"},
    {"options": {}},
    {"name": "lenet", "options": {"shape": [10**6, 10**6, 10**6], "classes": 10**6}},
    {"name": "resnet20", "options": {"width": 10**6}},
    {"name": "dlf_femnist", "options": {"channels": [10**6, 10**6], "dense": 10**8}},
    {"name": "dlf_femnist", "options": {"channels": [1] * 3000}},
    {"name": "os:system", "options": {"command": "exit 3"}},
    {"name": "antigravity:fly", "options": {}},
    {"name": ["mlp"], "options": {}},
    {"name": None, "options": {}},
    "mlp",
    ["mlp", {}],
    7,
]
HOSTILE_CODE = """
import json, resource, sys, pathlib
import leakgauge
from leakgauge.core.errors import LeakgaugeError
files = sorted(pathlib.Path(sys.argv[1]).iterdir())
before, modules = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, set(sys.modules)
for file in files:
    try:
        leakgauge.load(file)
    except LeakgaugeError as problem:
        assert str(file) in str(problem)
    else:
        raise SystemExit(f"{file} was loaded")
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before, *sorted(set(sys.modules) - modules))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="ru_maxrss is counted in kibibytes on Linux only")
def test_hostile_recipes_neither_allocate_nor_import(saved, tmp_path):
    _, _, document, tensors = saved
    for number, recipe in enumerate(HOSTILE):
        seal(tmp_path / f"{number}.safetensors", {**document, "model": recipe}, tensors)
    result = subprocess.run(
        [sys.executable, "-c", HOSTILE_CODE, str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr
    growth, *imported = result.stdout.split()
    assert int(growth) < 100 * 1024
    assert not {"antigravity", "webbrowser"} & set(imported)


def test_twice_the_same_key_in_a_sealed_description(saved, tmp_path):
    observation, _, document, tensors = saved
    text = json.dumps(document)
    assert text.endswith("}")
    found = load(seal(tmp_path / "x.safetensors", text[:-1] + ', "client": "Eve"}', tensors))
    assert_equal(found.knowing(client="Ada"), observation)


# Fuzzing. Every change is drawn from a seed, which a failure names.


def leave(raw, draw):
    pass


def attempt(path):
    """Return the observation in a file, or the LeakgaugeError. Any other exception is a failure."""
    try:
        return load(path)
    except LeakgaugeError as problem:
        return problem


@pytest.mark.parametrize("damage", [*DAMAGES, leave], ids=lambda damage: damage.__name__)
def test_a_damaged_file_is_the_original_or_an_error(saved, tmp_path, damage):
    observation, original, *_ = saved
    path = tmp_path / "x.safetensors"
    refused = 0
    for seed in range(950 if damage is not leave else 20):
        raw = bytearray(original)
        damage(raw, random.Random(f"{damage.__name__} {seed}"))
        path.write_bytes(raw)
        found = attempt(path)
        if isinstance(found, LeakgaugeError):
            assert "x.safetensors" in str(found), seed
            refused += 1
        else:
            assert_equal(found, observation)
    assert (refused == 0) == (damage is leave)


def test_a_file_that_was_changed_and_sealed_again_is_an_observation_or_an_error(saved, tmp_path):
    _, original, _, _ = saved
    path = tmp_path / "x.safetensors"
    loaded = 0
    for seed in range(700):
        path.write_bytes(structure_changed(original, seed))
        found = attempt(path)
        if isinstance(found, LeakgaugeError):
            assert "x.safetensors" in str(found), seed
        else:
            loaded += 1
            _, contents = opened(path.read_bytes())
            assert found.threat_model()
            assert json.dumps([asdict(found.data), asdict(found.training)], allow_nan=False)
            assert all(torch.isfinite(value).all() for value in found.sent.values())
            for tree in TREES:
                for name, value in (getattr(found, tree) or {}).items():
                    assert torch.equal(value, contents[f"{tree}/{name}"].to(value.dtype)), seed
    assert 0 < loaded < 470
