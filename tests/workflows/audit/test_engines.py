"""Neither the engine nor the number of threads changes a bit of an audit."""

import pytest
import torch

import leakgauge as lg

DOCUMENT = {
    "model": {"name": "lenet", "trained_rounds": 1, "trained_samples": 20}, "data": {"name": "digits"},
    "training": {"sends": "gradient", "samples": 4},
    "attacker": {"granted": ["labels"]},
    "audit": {"attacks": [{"name": "idlg", "steps": 3}], "clients": 2},
}  # fmt: skip


@pytest.fixture
def with_threads():
    """Return a function that audits with a number of threads, and returns all figures and samples."""

    def audit(folder, threads, **options):
        torch.set_num_threads(threads)
        try:
            found = lg.audit(DOCUMENT, folder, **options)
            assert torch.get_num_threads() == threads
        finally:
            torch.set_num_threads(1)
        return [one.document["scores"] for one in found.results], [
            one.tensors["reconstructed"] for one in found.results
        ]

    return audit


@pytest.mark.parametrize(("engine", "threads"), [("in-process", 4), ("auto", 2)])
def test_threads_change_nothing(tmp_path, with_threads, engine, threads):
    """The model is trained and the clients are simulated in this process, which may have many threads."""
    scores, samples = with_threads(tmp_path / "1", 1, engine=engine)
    others, other_samples = with_threads(tmp_path / str(threads), threads, engine=engine)
    assert others == scores
    assert all(map(torch.equal, samples, other_samples))


def test_processes_change_nothing(tmp_path, with_threads):
    assert (
        with_threads(tmp_path / "1", 2, engine="in-process")[0]
        == with_threads(tmp_path / "2", 1, engine="processes", jobs=2)[0]
    )
