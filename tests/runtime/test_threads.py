"""The number of threads changes no bit of a result. Engines and audits also have tests of their own."""

import json
import os
import subprocess
import sys
from hashlib import sha256
from importlib.util import find_spec

import pytest
import torch

import leakgauge as lg
from leakgauge.core.params import flatten
from leakgauge.reproduction.rows import find_rows
from leakgauge.reproduction.runner import Choice, run_rows
from tests.attacks.local_model.cases import table_clients
from tests.reproduction.test_runner import ROW
from tests.runtime.work import PYTHONPATH
from tests.workflows.audit.test_engines import DOCUMENT as AUDIT
from tests.workflows.infer_captures.test_infer_captures import record

# The layers are large enough for several threads, which would then change the last bits of each of these results.
WIDE_ROW = ROW.replace('name = "lenet"', 'name = "dlf_femnist"')
FRONTIER = {
    **{key: AUDIT[key] for key in ("model", "data", "training", "attacker")},
    "frontier": {
        "attack": "idlg", "options": {"steps": 2}, "clients": 1, "federation": 2, "federation_samples": 30, "rounds": 1,
        "test": 50,
    },
    "defence": [{"title": "no defence"}],
}  # fmt: skip
THREADS = (1, 2, 4)


def wide():
    return lg.models.build("mlp", shape=[6], classes=2, hidden=[16384], seed=0)


def each(function):
    """Call a function with each number of threads, and return the results."""
    results = []
    try:
        for threads in THREADS:
            torch.set_num_threads(threads)
            results.append(function())
            assert torch.get_num_threads() == threads
    finally:
        torch.set_num_threads(1)
    return results


@pytest.fixture
def rows(tmp_path, monkeypatch):
    """Return a benchmark row of one's own, which other processes find too."""
    monkeypatch.setenv("LEAKGAUGE_BENCHMARKS", str(tmp_path / "rows"))
    (tmp_path / "rows" / "mine" / "table1").mkdir(parents=True)
    (tmp_path / "rows" / "mine" / "table1" / "digits.toml").write_text(WIDE_ROW)


@pytest.fixture(scope="module")
def captured(tmp_path_factory):
    """A folder with captures of a federation and the data of its clients."""
    root = tmp_path_factory.mktemp("captured")
    return record(root, table_clients(clients=2, rows=8), wide(), rounds=3)


def measured(**options):
    found = run_rows(find_rows("mine", "table1/digits"), Choice(clients=1, steps=2), **options)
    return sorted(json.dumps(result.to_json()["ours"]) for result in found)


def inferred(root, output, **options):
    found = lg.infer(
        root / "captures", "lmra", output, options={"samples": 4, "steps": 2, "training": 2}, model=wide(),
        data=root / "data", sensitive="secret", **options,
    )  # fmt: skip
    models = [sha256(flatten(model.weights).numpy().tobytes()).hexdigest() for model in found.models.values()]
    return models, [[one.about, one.attack, one.measure.to_row()] for one in found.inferences]


def attacked(root, output, **options):
    found = lg.attack(
        root / "captures",
        "inverting_gradients",
        output,
        options={"steps": 2},
        model=wide(),
        data=root / "data",
        **options,
    )
    return [[one.reconstruction.loss, *(one.score[name].value for name in one.score)] for one in found.attacked]


def everything(root, output, **options):
    """Return figures of every workflow, as JSON."""
    audit, frontier = (
        lg.audit(AUDIT, output / "audit", **options),
        lg.frontier(FRONTIER, output / "frontier", **options),
    )
    return json.dumps(
        {
            "audit": [
                [finding.attack, finding.verdict.name, {name: one.to_row() for name, one in finding.measures.items()}]
                for finding in audit.findings
            ],
            "frontier": [[point.utility, point.leakage["psnr"].to_row()] for point in frontier.points],
            "attack": attacked(root, output / "attack", **options),
            "infer": inferred(root, output / "infer", **options),
            "rows": measured(**options),
        }
    )


def test_rows(rows):
    first, *others = each(lambda: measured(jobs=1))
    assert first
    assert others == [first, first]


def test_inferences(captured, tmp_path):
    outputs = iter("124")
    first, *others = each(lambda: inferred(captured, tmp_path / next(outputs), engine="in-process"))
    assert first
    assert others == [first, first]


PROGRAM = """
import sys
from pathlib import Path
from tests.runtime.test_threads import everything
root, output, engine = sys.argv[1:]
print(everything(Path(root), Path(output), engine=engine))
"""


@pytest.fixture(scope="module")
def everything_with(captured, tmp_path_factory):
    """Return a function that runs every workflow in a process of its own, and returns the figures."""

    def run(engine, threads, rows_folder):
        names = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
        settings = {"PYTHONPATH": PYTHONPATH, "LEAKGAUGE_BENCHMARKS": rows_folder, **dict.fromkeys(names, str(threads))}
        command = [sys.executable, "-c", PROGRAM, str(captured), str(tmp_path_factory.mktemp("output")), engine]
        done = subprocess.run(command, env={**os.environ, **settings}, capture_output=True, text=True, check=True)
        return done.stdout

    return run


#: Engines with the numbers of threads of their environments.
OTHERS = {"here": [("in-process", 2), ("in-process", 4)], "processes": [("processes", 2)], "ray": [("ray", 2)]}


@pytest.mark.long
@pytest.mark.parametrize("where", OTHERS)
def test_neither_engines_nor_the_threads_of_all_libraries_change_anything(rows, everything_with, where):
    """Other libraries than torch count their threads when they are loaded, and workers read the environment too."""
    if where == "ray" and not find_spec("ray"):
        pytest.skip("Ray is not installed")
    folder = os.environ["LEAKGAUGE_BENCHMARKS"]
    first = everything_with("in-process", 1, folder)
    assert len(first) > 1000
    for engine, threads in OTHERS[where]:
        assert everything_with(engine, threads, folder) == first
