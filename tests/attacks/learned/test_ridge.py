import torch

from leakgauge.attacks.learned.features import Kernel
from leakgauge.attacks.learned.ridge import SCREENED, _System, fit


def problem(count=60, inputs=12, outputs=5, noise=0.1, seed=0):
    draw = torch.Generator().manual_seed(seed)
    rows = torch.randn(count + 1, inputs, generator=draw, dtype=torch.double)
    map_ = torch.randn(inputs, outputs, generator=draw, dtype=torch.double)
    values = rows @ map_ + noise * torch.randn(count + 1, outputs, generator=draw, dtype=torch.double) + 3
    kernel = Kernel("linear", rows[:-1] @ rows[:-1].T, rows[:-1] @ rows[-1])
    return rows[:-1], kernel, values[:-1], values[-1], torch.arange(count) % 5


def plain(rows, values, others, penalty):
    """Return the predictions of a ridge regression with an intercept for other rows, fitted in the plain form."""
    mean, middle = rows.mean(0), values.mean(0)
    square = (rows - mean).T @ (rows - mean) + penalty * torch.eye(rows.shape[1], dtype=rows.dtype)
    return middle + (others - mean) @ torch.linalg.solve(square, (rows - mean).T @ (values - middle))


def test_held_out_errors_are_those_of_regressions_without_the_fold():
    rows, kernel, values, _, folds = problem()
    system, strength = _System.of(kernel.among), 0.1
    penalty = float(strength * system.eigenvalues.mean())
    errors = system.held_out(values, folds, strength)
    for fold in range(5):
        inside = folds == fold
        predicted = plain(rows[~inside], values[~inside], rows[inside], penalty)
        assert torch.allclose(errors[inside], values[inside] - predicted, atol=1e-8)


def test_the_prediction_is_that_of_the_plain_form():
    rows, kernel, values, true, folds = problem()
    found = fit([kernel], values, folds, seed=0)
    penalty = found.strength * float(_System.of(kernel.among).eigenvalues.mean())
    other = torch.linalg.lstsq(rows, kernel.observed[:, None]).solution.T
    assert torch.allclose(found.predicted, plain(rows, values, other, penalty)[0], atol=1e-6)
    assert found.explains
    assert found.error < 0.1
    assert (found.predicted - true).abs().max() < 1
    assert found.held_out is not None
    assert (found.held_out - values).square().mean() < 0.1


def test_values_that_messages_do_not_show_are_not_explained():
    _, kernel, values, _, folds = problem(count=200)
    other = torch.randn(values.shape, generator=torch.Generator().manual_seed(9), dtype=torch.double)
    for seed in range(5):
        order = torch.randperm(len(other), generator=torch.Generator().manual_seed(seed))
        assert not fit([kernel], other[order], folds, seed=0).explains


def test_the_similarity_that_predicts_best_is_chosen_also_after_screening():
    rows, kernel, values, _, folds = problem(count=SCREENED + 50)
    noise = torch.randn(rows.shape, generator=torch.Generator().manual_seed(3), dtype=torch.double)
    useless = [Kernel(f"useless {number}", noise @ noise.T, noise @ noise[0]) for number in range(3)]
    assert fit([*useless, kernel], values, folds, seed=0).kernel == "linear"
