import subprocess
import sys

import pytest

import leakgauge

PUBLIC = {
    "Attack", "DataSpec", "Dataset", "Defence", "Federation", "Finding", "LeakgaugeError", "LocalTraining", "Measure",
    "ModelCheck", "Observation", "Reconstruction", "Score", "Truth", "Verdict", "attack", "attacks", "audit",
    "check_model", "data", "defences", "errors", "evaluation", "fedavg", "fedsgd", "frontier", "infer", "keeper",
    "load", "load_all", "load_rounds", "local_sgd", "metrics", "models", "public_data", "record", "run_federation",
    "save", "save_all", "score",
}  # fmt: skip


def test_the_public_names_are_these_and_no_others():
    assert set(leakgauge.__all__) == PUBLIC


def test_every_public_name_exists_and_is_documented():
    for name in leakgauge.__all__:
        assert getattr(leakgauge, name).__doc__, name


def test_what_reads_many_rounds_has_these_names():
    assert set(leakgauge.attacks.local_model.__all__) == {
        "ActiveAdam", "ActiveServer", "Distilled", "Exact", "GlobalModel", "Isolation", "LastReturned", "Learned",
        "LeastSquares", "LocalModel", "LocalModelAttack", "Messages", "Secant", "build",
    }  # fmt: skip
    for name in leakgauge.attacks.local_model.__all__:
        assert getattr(leakgauge.attacks.local_model, name).__doc__, name


def test_the_version_is_that_of_the_installed_package():
    from importlib.metadata import version

    assert version("leakgauge") == leakgauge.__version__


HEAVY = ["torch", "numpy", "torchmetrics", "sklearn", "scipy", "pandas", "PIL", "optuna", "opacus", "flwr", "ray"]
LIST_HEAVY = f"""
import atexit, sys
atexit.register(lambda: print(*sys.modules.keys() & {HEAVY}, file=sys.stderr))
"""


@pytest.mark.parametrize(
    "program",
    ["import leakgauge", "sys.argv = ['leakgauge', '--help']\nfrom leakgauge.cli import main\nmain()"],
    ids=["import", "help"],
)
def test_neither_the_import_nor_the_help_loads_a_heavy_library(program):
    done = subprocess.run([sys.executable, "-c", LIST_HEAVY + program], capture_output=True, text=True, check=True)
    assert done.stderr.split() == []
