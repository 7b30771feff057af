"""The guess at a hidden column is the same, whatever the number of threads."""

import pytest
import torch
from sklearn.linear_model import LogisticRegression
from threadpoolctl import threadpool_info, threadpool_limits

from leakgauge.evaluation import imputed


@pytest.mark.skipif(not threadpool_info(), reason="the libraries have no threads of their own here")
def test_the_guess_is_computed_with_one_thread(monkeypatch):
    threads, fit = [], LogisticRegression.fit

    def counted(*arguments):
        threads.extend(pool["num_threads"] for pool in threadpool_info())
        return fit(*arguments)

    monkeypatch.setattr(LogisticRegression, "fit", counted)
    draw = torch.Generator().manual_seed(0)
    others = torch.randn(50, 3, generator=draw)
    with threadpool_limits(2):
        assert any(pool["num_threads"] == 2 for pool in threadpool_info())
        guess = imputed(others, others, (others[:, 0] > 0).long())
    assert (guess == (others[:, 0] > 0)).float().mean() > 0.9
    assert set(threads) == {1}
