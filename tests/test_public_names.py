import os
import subprocess
import sys

import leakgauge

PUBLIC = {
    "Attack", "DataSpec", "Dataset", "Defence", "Federation", "Finding", "LeakgaugeError", "LocalTraining", "Measure",
    "Observation", "Reconstruction", "Score", "Truth", "Verdict", "attack", "attacks", "audit", "data", "defences",
    "errors", "evaluation", "fedavg", "fedsgd", "frontier", "infer", "load", "load_all", "load_rounds", "local_sgd",
    "metrics", "models", "run_federation", "save", "save_all", "score",
}  # fmt: skip


def test_the_public_names_are_these_and_no_others():
    assert set(leakgauge.__all__) == PUBLIC


def test_every_public_name_exists_and_is_documented():
    for name in leakgauge.__all__:
        assert getattr(leakgauge, name).__doc__, name


def test_what_reads_many_rounds_has_these_names():
    assert set(leakgauge.attacks.local_model.__all__) == {
        "Distilled", "Exact", "GlobalModel", "LastReturned", "Learned", "LeastSquares", "LocalModel",
        "LocalModelAttack", "Messages", "Secant", "build",
    }  # fmt: skip
    for name in leakgauge.attacks.local_model.__all__:
        assert getattr(leakgauge.attacks.local_model, name).__doc__, name


def test_the_version_is_that_of_the_installed_package():
    from importlib.metadata import version

    assert version("leakgauge") == leakgauge.__version__


def test_importing_costs_little_more_than_torch():
    code = (
        "import sys, time; s = time.perf_counter(); import torch; t = time.perf_counter() - s; "
        "import leakgauge; print((time.perf_counter() - s) / t); "
        "heavy = ('torchmetrics', 'sklearn', 'scipy', 'pandas', 'PIL', 'typer', 'optuna', 'flwr', 'ray', 'rich'); "
        "print(sorted(m for m in heavy if m in sys.modules))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=os.environ)
    ratio, heavy = run.stdout.splitlines()
    assert float(ratio) < 2.5
    assert heavy == "[]"
