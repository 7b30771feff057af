"""The number of threads changes no bit of a row or of an inference. Audits and engines have tests of their own."""

import torch

import leakgauge as lg
from leakgauge.reproduction.rows import find_rows
from leakgauge.reproduction.runner import Choice, run_rows
from tests.attacks.local_model.cases import network, table_clients
from tests.reproduction.test_runner import ROW
from tests.workflows.infer_captures.test_infer_captures import record

WIDE = 'name = "dlf_femnist"'  # its layers are large enough for several threads


def each(function):
    """Call a function with 1, 2 and 4 threads. Return the three results."""
    results = []
    try:
        for threads in (1, 2, 4):
            torch.set_num_threads(threads)
            results.append(function())
            assert torch.get_num_threads() == threads
    finally:
        torch.set_num_threads(1)
    return results


def test_rows(tmp_path, monkeypatch):
    monkeypatch.setenv("LEAKGAUGE_BENCHMARKS", str(tmp_path))
    (tmp_path / "mine" / "table1").mkdir(parents=True)
    (tmp_path / "mine" / "table1" / "digits.toml").write_text(ROW.replace('name = "lenet"', WIDE))
    rows = find_rows("mine", "table1/digits")

    def run():
        return [result.to_json()["ours"] for result in run_rows(rows, Choice(clients=2, steps=2), jobs=1)]

    first, *others = each(run)
    assert first
    assert others == [first, first]


def test_inferences(tmp_path):
    root, outputs = record(tmp_path, table_clients(rows=20)), iter("124")
    options = {"samples": 4, "steps": 3, "training": 3}

    def run():
        found = lg.infer(
            root / "captures", "lmra", tmp_path / next(outputs), options=options, model=network(),
            data=root / "data", sensitive="secret", engine="in-process",
        )  # fmt: skip
        return [(one.about, one.attack, one.measure.to_row(), one.shares) for one in found.inferences]

    first, *others = each(run)
    assert first
    assert others == [first, first]
