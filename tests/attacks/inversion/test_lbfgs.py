"""The batched L-BFGS against ``torch.optim.LBFGS``, problem by problem."""

import pytest
import torch
from torch import nn

from leakgauge.attacks.inversion.lbfgs import LBFGS
from leakgauge.attacks.papers.idlg import FINE
from leakgauge.core.errors import UnknownName


def quadratic(condition):
    scales = torch.logspace(0, condition, 6, dtype=torch.double)
    return lambda x: (scales * (x - 0.3).square()).sum() / 2


def valley(x):
    """A Rosenbrock-like curved valley, mild enough for a fixed step."""
    return (x[1:] - x[:-1].square()).square().sum() + 0.1 * (1 - x[:-1]).square().sum()


def gradient_matching():
    """The smallest of the problems this optimiser is for: find the sample behind a gradient."""
    generator = torch.Generator().manual_seed(3)
    weight = torch.randn(4, 6, generator=generator, dtype=torch.double)
    sample = torch.randn(6, generator=generator, dtype=torch.double)

    def gradient(x):
        w = weight.clone().requires_grad_()
        loss = nn.functional.cross_entropy(torch.sigmoid(w @ x), torch.tensor(1))
        return torch.autograd.grad(loss, w, create_graph=True)[0]

    target = gradient(sample).detach()
    return lambda x: (gradient(x) - target).square().sum()


PROBLEMS = {
    "round bowl": quadratic(0),
    "long bowl": quadratic(1.5),
    "valley": valley,
    "gradient matching": gradient_matching(),
}


def start(count=1):
    return torch.randn(count, 6, generator=torch.Generator().manual_seed(1), dtype=torch.double)


class Problems:
    """Several functions as one ``evaluate``, which counts how often each is looked at."""

    def __init__(self, *functions):
        self.functions = list(functions)
        self.counts = [0] * len(functions)

    def __call__(self, variables, rows):
        losses, gradients = [], []
        for x, row in zip(variables["x"], rows.tolist(), strict=True):
            self.counts[row] += 1
            leaf = x.detach().requires_grad_()
            loss = self.functions[row](leaf)
            losses.append(loss.detach())
            gradients.append(torch.autograd.grad(loss, leaf)[0])
        return torch.stack(losses), {"x": torch.stack(gradients)}


def batched(functions, x, steps, **settings):
    run, problems = LBFGS(**settings).begin({"x": x}), Problems(*functions)
    losses = [run.step(problems, 1.0) for _ in range(steps)]
    return run.variables["x"], torch.stack(losses), problems.counts


def torchs(function, x, steps, inner=20, evaluations=25, history=100):
    leaf, count = x.clone().requires_grad_(), 0
    optimiser = torch.optim.LBFGS([leaf], lr=1, max_iter=inner, max_eval=evaluations, history_size=history)

    def closure():
        nonlocal count
        count += 1
        optimiser.zero_grad()
        loss = function(leaf)
        loss.backward()
        return loss

    losses = [optimiser.step(closure).detach() for _ in range(steps)]
    return leaf.detach(), torch.stack(losses), count


@pytest.mark.parametrize("name", PROBLEMS)
def test_the_first_ten_iterates_are_torchs(name):
    for inner in range(1, 11):
        expected, _, _ = torchs(PROBLEMS[name], start()[0], 1, inner=inner)
        found, _, _ = batched([PROBLEMS[name]], start(), 1, inner=inner)
        assert torch.allclose(found[0], expected, rtol=1e-9, atol=1e-11), inner


@pytest.mark.parametrize("name", PROBLEMS)
@pytest.mark.parametrize("settings", [{}, {"inner": 3}, {"evaluations": 4}, {"history": 3}], ids=str)
def test_several_steps_are_torchs(name, settings):
    expected, losses, count = torchs(PROBLEMS[name], start()[0], 4, **settings)
    found, found_losses, counts = batched([PROBLEMS[name]], start(), 4, **settings)
    assert torch.allclose(found[0], expected, rtol=1e-6, atol=1e-8)
    assert torch.allclose(found_losses[:, 0], losses, rtol=1e-6, atol=1e-10)
    assert counts == [count]


@pytest.mark.parametrize("history", [100, 4])
def test_problems_together_are_what_they_are_alone(history):
    functions, x = list(PROBLEMS.values()), start(4)
    together, losses, counts = batched(functions, x, 6, inner=7, history=history)
    for row, function in enumerate(functions):
        alone, alone_losses, (count,) = batched([function], x[row : row + 1], 6, inner=7, history=history)
        assert torch.allclose(together[row], alone[0], rtol=1e-8, atol=1e-10)
        assert torch.allclose(losses[:, row], alone_losses[:, 0], rtol=1e-8, atol=1e-12)
        assert counts[row] == count


def test_a_problem_that_waits_keeps_its_history():
    """One whose steps end early must not lose its pairs to one that goes on."""
    functions = [PROBLEMS["gradient matching"], PROBLEMS["valley"]]
    settings = {"history": 5, "tolerance_change": 1e-4}
    together, _, counts = batched(functions, start(2), 5, **settings)
    alone, _, (count,) = batched(functions[:1], start(2)[:1], 5, **settings)
    assert counts[0] == count < counts[1] / 2
    assert torch.allclose(together[0], alone[0], rtol=1e-8, atol=1e-10)


def test_a_solved_problem_stands_still_and_costs_one_look_a_step():
    run, problems = LBFGS().begin({"x": start(2)}), Problems(quadratic(0), valley)
    for _ in range(3):
        run.step(problems, 1.0)
    solved, before, other = run.variables["x"][0].clone(), problems.counts[0], problems.counts[1]
    run.step(problems, 1.0)
    assert torch.equal(run.variables["x"][0], solved)
    assert problems.counts[0] == before + 1
    assert problems.counts[1] > other + 1


def test_keep_goes_on_as_if_the_others_had_never_been():
    functions, rows = list(PROBLEMS.values()), [1, 3]
    run = LBFGS(inner=5).begin({"x": start(4)})
    for _ in range(2):
        run.step(Problems(*functions), 1.0)
    run.keep(torch.tensor(rows))
    remaining = Problems(*(functions[row] for row in rows))
    for _ in range(2):
        run.step(remaining, 1.0)
    expected, _, _ = batched([functions[row] for row in rows], start(4)[rows], 4, inner=5)
    assert run.variables["x"].shape == (2, 6)
    assert torch.allclose(run.variables["x"], expected, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("when", [0, 3], ids=["at once", "after three looks"])
def test_nan_in_one_problem_does_not_touch_another(when):
    looks = 0

    def breaks(x):
        nonlocal looks
        looks += 1
        return x.square().sum() * (float("nan") if looks > when else 1.0)

    together, losses, _ = batched([breaks, valley], start(2), 2)
    alone, _, _ = batched([valley], start(2)[1:], 2)
    assert losses[-1].isnan().tolist() == [True, False]
    assert torch.equal(together[1], alone[0])


def test_the_history_limit_matters_and_is_torchs():
    found, _, _ = batched([valley], start(), 3, history=1)
    expected, _, _ = torchs(valley, start()[0], 3, history=1)
    unlimited, _, _ = batched([valley], start(), 3)
    assert torch.allclose(found[0], expected, rtol=1e-8, atol=1e-10)
    assert not torch.allclose(found, unlimited, atol=1e-8)


def test_variables_of_several_names_and_shapes_are_one_problem():
    def evaluate(variables, rows):
        leaves = {name: value.detach().requires_grad_() for name, value in variables.items()}
        losses = (leaves["a"].flatten(1).sum(1) - leaves["b"]).square() + leaves["b"].square()
        return losses.detach(), dict(zip(leaves, torch.autograd.grad(losses.sum(), list(leaves.values())), strict=True))

    run = LBFGS().begin({"a": torch.ones(2, 2, 3), "b": torch.tensor([1.0, -2.0])})
    first = run.step(evaluate, 1.0)
    run.step(evaluate, 1.0)
    assert first.tolist() == [26.0, 68.0]
    assert run.variables["a"].shape == (2, 2, 3)
    assert run.step(evaluate, 1.0).max() < 1e-8


def test_a_projection_in_place_moves_the_run():
    run = LBFGS().begin({"x": torch.ones(1, 2, 2)})
    run.variables["x"].clamp_(max=0.25)
    assert run.variables["x"].max() == 0.25


def test_the_start_is_left_alone():
    x = start()
    batched([valley], x, 1)
    assert torch.equal(x, start())


def test_the_factor_scales_the_first_move():
    runs = [LBFGS(inner=1).begin({"x": start()}) for _ in range(2)]
    for run, factor in zip(runs, (1.0, 0.5), strict=True):
        run.step(Problems(valley), factor)
    whole, half = (run.variables["x"] - start() for run in runs)
    assert torch.allclose(half, whole / 2)


def steep(x):
    """A wall on which a fixed step jumps further and further."""
    return (x.square() + 1).sqrt().sum() + (x - 1).pow(4).sum()


def test_backtracking_lets_no_loss_rise():
    functions, x = [steep, valley, PROBLEMS["gradient matching"], quadratic(1.5)], 3 * start(4)
    _, losses, _ = batched(functions, x, 6, line_search="backtracking")
    assert bool((losses[1:] <= losses[:-1] + 1e-12).all())
    assert bool((losses[-1] < losses[0] / 2).all())


def test_backtracking_problems_together_are_what_they_are_alone():
    functions, x = list(PROBLEMS.values()), 2 * start(4)
    together, _, counts = batched(functions, x, 3, line_search="backtracking")
    for row, function in enumerate(functions):
        alone, _, (count,) = batched([function], x[row : row + 1], 3, line_search="backtracking")
        assert torch.allclose(together[row], alone[0], rtol=1e-7, atol=1e-9)
        assert counts[row] == count


def test_backtracking_comes_back_from_where_there_is_no_number():
    """The first step of a fixed length leaves the domain of the logarithm."""

    def barrier(x):
        return (x.square() - x.log()).sum()

    x = torch.full((1, 6), 0.02, dtype=torch.double)
    _, fixed, _ = batched([barrier], 100 * x, 3, lr=30.0)
    found, losses, _ = batched([barrier], 100 * x, 20, lr=30.0, line_search="backtracking")
    assert fixed.isnan().any()
    assert losses.isfinite().all()
    assert torch.allclose(found, torch.full_like(found, 0.5**0.5), atol=1e-4)


def test_backtracking_keeps_to_the_budget():
    x = 3 * start()
    found, _, (count,) = batched([steep], x, 1, line_search="backtracking", evaluations=5, lr=1e9)
    assert count == 5
    assert torch.allclose(found, x)  # five looks find no way down from so long a step, so it is taken back


def test_a_line_search_that_there_is_not_is_named():
    with pytest.raises(UnknownName, match="no line search 'wolfe'"):
        LBFGS(line_search="wolfe")


def test_pytorchs_tolerances_end_a_small_loss_early_and_finer_ones_do_not():
    def small(x):
        return 1e-6 * quadratic(1.5)(x)

    ends = {}
    for name, tolerances in {"PyTorch's": {}, "fine": FINE}.items():
        run = LBFGS(**tolerances).begin({"x": start()})
        for _ in range(10):
            run.step(Problems(small), 1.0)
        ends[name] = float(small(run.variables["x"][0]))
    assert ends["PyTorch's"] > 1e-7
    assert ends["fine"] < 1e-12
