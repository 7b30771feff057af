"""Kinds of changes after which no earlier result may be returned."""

import csv
import json
import os
import sys
import tomllib
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image

from leakgauge.data import load
from leakgauge.federation.losses import LOSSES
from leakgauge.runtime.cache import Cache, key_of
from leakgauge.runtime.digests import source_digest
from leakgauge.workflows.audit import read_audit, run_audit
from leakgauge.workflows.audit import run as stages
from leakgauge.workflows.data_sources import SOURCES
from leakgauge.workflows.result import Running

MODEL = """
import json, os
import torch
from torch import nn
from leakgauge import DataSpec, Dataset
from pathlib import Path
import helper_of_stale

def read(name):
    return json.loads(Path(name).read_text())

AT_IMPORT = read("import.json")

class Net(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.layer = nn.Linear(64, 4)
        self.layer.load_state_dict(torch.load("weights.pt"))
        self.plain = read("plain.json")
        self.seldom = read("seldom.json")
        self.variable = float(os.environ.get("STALE_VARIABLE", "1"))
        self.register_buffer("hidden", torch.tensor(read("hidden.json")), persistent=False)

    def forward(self, x):
        scale = read("forward.json") * self.plain * AT_IMPORT * self.variable * self.hidden
        if len(x) > 10 ** 6:  # no client has so many samples
            scale = self.seldom
        return self.layer(helper_of_stale.squash(scale * x.flatten(1)))

def model(width=3):
    return Net(width)

def data(bright=1.0):
    noise = torch.Generator().manual_seed(read("noise.json"))
    samples = torch.rand(12, 1, 8, 8, generator=noise) * bright
    return Dataset(samples, torch.arange(12) % 4, DataSpec((1, 8, 8), 4, mean=(0.5,), std=(1.0,)))

def loss(outputs, targets):
    return nn.functional.cross_entropy(outputs, targets) * 1.0
"""
FILES = {
    "model_of_stale.py": MODEL,
    "helper_of_stale.py": "def squash(x):\n    from inner_of_stale import SHIFT\n    return (x + SHIFT).sigmoid()\n",
    "inner_of_stale.py": "SHIFT = 0.0\n",
    **{f"{name}.json": "1.0" for name in ("import", "plain", "seldom", "hidden", "forward")},
    "noise.json": "1",
}
OWN = """
[model]
name = "model_of_stale:model"
[data]
factory = "model_of_stale:data"
[training]
sends = "gradient"
samples = 1
loss = "model_of_stale:loss"
[attacker]
granted = ["labels"]
[audit]
attacks = [{ name = "idlg", steps = 3 }]
clients = 2
[[defence]]
title = "noise"
chain = [{ name = "gaussian_noise", sigma = 0.5 }]
"""
PLAIN = """
[model]
name = "mlp"
[data]
DATA
[training]
sends = "gradient"
samples = 1
[audit]
attacks = [{ name = "idlg", steps = 3 }]
clients = 2
"""


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A user's project, with a model that reads files, and with data in several forms."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("LEAKGAUGE_DATA", str(tmp_path / "datasets"))
    for name, content in FILES.items():
        (tmp_path / name).write_text(content)
    torch.manual_seed(0)
    torch.save(torch.nn.Linear(64, 4).state_dict(), "weights.pt")
    write_npz(0.0)
    write_csv("1.5")
    for name in "abcdef":
        write_image(name, 50)
    yield tmp_path
    forget_imports()


def forget_imports():
    """Forget what was imported, as a new process does."""
    for name in ("model_of_stale", "helper_of_stale", "inner_of_stale"):
        sys.modules.pop(name, None)
    LOSSES.pop("model_of_stale:loss", None)


def write_npz(shift, labels=(0, 1, 2)):
    inputs = np.linspace(0, 0.9, 6 * 64, dtype=np.float32).reshape(6, 1, 8, 8)
    np.savez("own.npz", x=np.clip(inputs + shift, 0, 1), y=np.array([*labels, *labels]))


def write_csv(first):
    with open("own.csv", "w", newline="") as file:
        rows = [[first, "2.0", "0"], *([str(n), str(n * n % 7), str(n % 2)] for n in range(9))]
        csv.writer(file).writerows([["age", "height", "target"], *rows])


def write_image(name, level):
    folder = "images/" + ("one" if name < "d" else "two")
    os.makedirs(folder, exist_ok=True)
    Image.fromarray(np.full((8, 8), level + ord(name), dtype=np.uint8)).save(f"{folder}/{name}.png")


def keys(text):
    """Return the keys of all results of an audit, as a new process works them out."""
    forget_imports()
    plan = read_audit(tomllib.loads(text), "audit.toml")
    return {key_of(plan.definition(work)) for work in plan.work}


def edit(name, old, new):
    def change():
        with open(name) as file:
            content = file.read()
        assert old in content
        with open(name, "w") as file:
            file.write(content.replace(old, new))

    return change


def new_weights():
    torch.save(torch.nn.Linear(64, 4).state_dict(), "weights.pt")


CODE = {
    "forward": edit("model_of_stale.py", "x.flatten(1))", "x.flatten(1) * 1)"),
    "a comment beside forward": edit("model_of_stale.py", "# no client", "# no one"),
    "the normalisation": edit("model_of_stale.py", "std=(1.0,)", "std=(0.25,)"),
    "the mean of the data": edit("model_of_stale.py", "mean=(0.5,)", "mean=(0.0,)"),
    "the number of classes": edit("model_of_stale.py", "(1, 8, 8), 4", "(1, 8, 8), 5"),
    "the labels": edit("model_of_stale.py", "torch.arange(12) % 4", "torch.arange(1, 13) % 4"),
    "the loss": edit("model_of_stale.py", "targets) * 1.0", "targets) * 2.0"),
    "a default of the factory": edit("model_of_stale.py", "width=3", "width=4"),
    "a module that the model imports": edit("helper_of_stale.py", "sigmoid", "tanh"),
    "a module that is imported inside a function": edit("inner_of_stale.py", "0.0", "0.1"),
    "a file read at import": edit("import.json", "1.0", "1.1"),
    "a file read by the factory": edit("plain.json", "1.0", "1.1"),
    "a file that seldom matters": edit("seldom.json", "1.0", "1.1"),
    "a file behind a hidden buffer": edit("hidden.json", "1.0", "1.1"),
    "a file read in forward": edit("forward.json", "1.0", "1.1"),
    "a file read by the factory of the data": edit("noise.json", "1", "2"),
    "a file of weights": new_weights,
    "an environment variable": lambda: os.environ.update({"STALE_VARIABLE": "2"}),
}


@pytest.mark.parametrize("what", CODE)
def test_a_change_of_the_users_code_or_files_gives_new_keys(project, monkeypatch, what):
    monkeypatch.setenv("STALE_VARIABLE", "1")
    before = keys(OWN)
    assert keys(OWN) == before
    CODE[what]()
    assert not before & keys(OWN)


OPTIONS = {
    "seed": ("[model]", "seed = 1\n[model]"),
    "the samples of a client": ("samples = 1", "samples = 2"),
    "the learning rate": ('sends = "gradient"', 'sends = "gradient"\nlr = 0.5'),
    "what is sent": ('sends = "gradient"', 'sends = "weights"'),
    "the mode": ('sends = "gradient"', 'sends = "gradient"\nmode = "eval"'),
    "a setting of the attack": ("steps = 3", "steps = 4"),
    "the strength of a defence": ("sigma = 0.5", "sigma = 0.6"),
    "another defence": ('name = "gaussian_noise", sigma', 'name = "laplacian_noise", scale'),
    "the threshold": ("[audit]", "[audit]\nthreshold = 25.0"),
    "an option of the data": ('"model_of_stale:data"', '"model_of_stale:data"\noptions = { bright = 0.5 }'),
    "an option of the model": ('"model_of_stale:model"', '"model_of_stale:model"\noptions = { width = 5 }'),
    "training before the round": ('"model_of_stale:model"', '"model_of_stale:model"\ntrained_rounds = 1'),
}


@pytest.mark.parametrize("what", OPTIONS)
def test_a_changed_option_gives_new_keys(project, what):
    old, new = OPTIONS[what]
    assert old in OWN
    assert not keys(OWN) & keys(OWN.replace(old, new))


DATA = {
    "one number in an npz file": ('npz = "own.npz"', lambda: write_npz(0.001)),
    "one label in an npz file": ('npz = "own.npz"', lambda: write_npz(0.0, labels=(0, 2, 1))),
    "one cell of a csv file": ('csv = "own.csv"\noptions = { target = "target" }', lambda: write_csv("1.6")),
    "the name of a column": ('csv = "own.csv"\noptions = { target = "target" }', edit("own.csv", "height", "weight")),
    "one picture": ('images = "images"', lambda: write_image("b", 51)),
    "the class of a picture": ('images = "images"', lambda: os.rename("images/one/b.png", "images/two/b.png")),
}


@pytest.mark.parametrize("what", DATA)
def test_changed_data_gives_new_keys(project, what):
    source, change = DATA[what]
    text = PLAIN.replace("DATA", source)
    before = keys(text)
    assert keys(text) == before
    change()
    assert not before & keys(text)


def test_other_content_in_the_data_folder_gives_new_keys(project, monkeypatch):
    text = PLAIN.replace("DATA", 'name = "digits"')
    before = keys(text)
    digits = load("digits")
    monkeypatch.setitem(SOURCES, "name", lambda name: replace(digits, inputs=digits.inputs * 0.5))
    assert not before & keys(text)


def test_other_code_of_leakgauge_gives_new_keys(project, monkeypatch):
    before = keys(OWN)
    monkeypatch.setattr("leakgauge.runtime.cache.code_digest", lambda: "other")
    assert not before & keys(OWN)


@pytest.mark.parametrize("library", ["torch", "numpy"])
def test_another_version_of_a_library_gives_new_keys(monkeypatch, library):
    from leakgauge.runtime import digests

    before, version = digests.code_digest(), digests._version
    monkeypatch.setattr(digests, "_version", lambda name: "0" if name == library else version(name))
    digests.code_digest.cache_clear()
    try:
        assert digests.code_digest() != before
    finally:
        monkeypatch.undo()
        digests.code_digest.cache_clear()


def test_another_version_of_a_package_that_the_model_imports_gives_new_keys(project, monkeypatch):
    from leakgauge.runtime import digests

    edit("helper_of_stale.py", "def squash", "import safetensors\ndef squash")()
    before = keys(OWN)
    version = digests._version
    monkeypatch.setattr(digests, "_version", lambda name: "0" if name == "safetensors" else version(name))
    assert not before & keys(OWN)


# Whole audits


def made(folder, text=OWN, **options):
    """Run an audit, and return the names of the attacks that ran. The others came from the cache."""
    forget_imports()
    plan = replace(read_audit(tomllib.loads(text), "audit.toml"), controls={}, **options)
    names = []

    def noted(plan, work, report, **options):
        names.append(str(work))
        return whole(plan, work, report, **options)

    whole, stages.attack_client = stages.attack_client, noted
    try:
        assert run_audit(plan, folder, Running("in-process", device=options.get("device"))).complete
    finally:
        stages.attack_client = whole
    return names


def test_an_audit_runs_again_after_an_edit_and_only_then(project):
    first = made("cache")
    assert len(first) == 2
    assert made("cache") == []
    CODE["forward"]()
    assert made("cache") == first


def test_a_result_that_the_budget_cut_short_is_used_for_this_budget_only(project):
    assert len(made("cache", budget=0.001)) == 2
    assert made("cache", budget=0.001) == []
    assert len(made("cache", budget=None)) == 2
    assert made("cache", budget=0.001) == []  # whole results are good for any budget


def test_the_source_of_an_installed_package_is_not_read(project):
    """Only its version counts, so that a large library costs no time."""
    assert source_digest(np.array, Image.new, json.dumps) == source_digest(Image.new)
    assert Cache(project / "cache").get("a") is None
