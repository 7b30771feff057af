"""Stacked problems against ``torch.optim`` on each of them alone."""

from collections.abc import Callable

import pytest
import torch

from leakgauge.attacks.inversion.optimisers import SGD, Adam, Constant, Decay, Drops, Optimiser, Ramp
from leakgauge.core.errors import InvalidInput

SHAPE = (3, 7)  # odd, so that rows do not end where vector instructions do


def start(problems=3):
    return torch.randn(problems, *SHAPE, generator=torch.Generator().manual_seed(0))


def scales(rows):
    return (1 + rows.float()).reshape(-1, 1, 1)


def evaluate(variables, rows):
    """Bowls of a different steepness each."""
    x, scale = variables["x"], scales(rows)
    return (scale * x.square()).flatten(1).sum(1), {"x": 2 * scale * x}


def torch_alone(make, x, scale, steps, signed=False, factors=None):
    leaf = x.clone()
    optimiser = make([leaf])
    lr = optimiser.param_groups[0]["lr"]
    for step in range(steps):
        optimiser.param_groups[0]["lr"] = lr * (factors[step] if factors else 1.0)
        leaf.grad = 2 * scale * leaf
        if signed:
            leaf.grad = leaf.grad.sign()
        optimiser.step()
    return leaf


OPTIMISERS: dict[str, tuple[Optimiser, Callable[[list[torch.Tensor]], torch.optim.Optimizer], bool]] = {
    "adam": (Adam(lr=0.05), lambda leaves: torch.optim.Adam(leaves, lr=0.05), False),
    "adam with betas": (
        Adam(lr=0.1, betas=(0.5, 0.9)),
        lambda leaves: torch.optim.Adam(leaves, lr=0.1, betas=(0.5, 0.9)),
        False,
    ),
    "signed adam": (Adam(lr=0.05, signed=True), lambda leaves: torch.optim.Adam(leaves, lr=0.05), True),
    "sgd": (SGD(lr=0.02), lambda leaves: torch.optim.SGD(leaves, lr=0.02), False),
    "momentum": (
        SGD(lr=0.02, momentum=0.9),
        lambda leaves: torch.optim.SGD(leaves, lr=0.02, momentum=0.9),
        False,
    ),
}


@pytest.mark.parametrize("name", OPTIMISERS)
def test_each_stacked_problem_is_torchs_bit_for_bit(name):
    ours, make, signed = OPTIMISERS[name]
    factors = [1.0, 0.5, 0.5, 2.0, 1.0, 0.1]
    run = ours.begin({"x": start()})
    losses = [run.step(evaluate, factor) for factor in factors]
    for row in range(3):
        expected = torch_alone(make, start()[row], row + 1, len(factors), signed, factors)
        assert torch.equal(run.variables["x"][row], expected)
    assert torch.equal(losses[0], evaluate({"x": start()}, torch.arange(3))[0])
    assert not torch.equal(losses[0], losses[1])


@pytest.mark.parametrize("name", OPTIMISERS)
@pytest.mark.parametrize("before", [0, 2])
def test_keep_preserves_the_state(name, before):
    ours, make, signed = OPTIMISERS[name]
    run, rows = ours.begin({"x": start()}), torch.tensor([2, 0])
    for _ in range(before):
        run.step(evaluate, 1.0)
    run.keep(rows)
    for _ in range(3):
        run.step(lambda variables, kept: evaluate(variables, rows[kept]), 1.0)
    assert run.variables["x"].shape == (2, *SHAPE)
    for position, row in enumerate(rows.tolist()):
        expected = torch_alone(make, start()[row], row + 1, before + 3, signed)
        assert torch.equal(run.variables["x"][position], expected)


@pytest.mark.parametrize("name", OPTIMISERS)
def test_the_start_is_left_alone(name):
    x = start()
    OPTIMISERS[name][0].begin({"x": x}).step(evaluate, 1.0)
    assert torch.equal(x, start())


def test_signed_moves_do_not_depend_on_the_steepness():
    run = Adam(lr=0.05, signed=True).begin({"x": start(1).expand(3, *SHAPE)})
    run.step(evaluate, 1.0)
    gentle, _, steep = run.variables["x"]
    assert torch.equal(gentle, steep)


def test_two_variables_share_one_run():
    run = SGD(lr=0.5).begin({"a": torch.ones(2, 1), "b": torch.zeros(2, 3)})
    gradients = {"a": torch.tensor([[1.0], [2.0]]), "b": torch.ones(2, 3)}
    run.step(lambda variables, rows: (torch.zeros(2), gradients), 1.0)
    assert run.variables["a"].tolist() == [[0.5], [0.0]]
    assert torch.equal(run.variables["b"], torch.full((2, 3), -0.5))


@pytest.mark.parametrize(
    ("step", "factor"), [(0, 1), (2, 1), (3, 0.1), (4, 0.1), (5, 0.01), (6, 0.01), (7, 0.001), (8, 0.001)]
)
def test_drops_come_at_three_five_and_seven_eighths(step, factor):
    assert Drops()(step, 8) == pytest.approx(factor)


def test_drops_of_ones_own():
    schedule = Drops(at=(0.5,), factor=0.3)
    assert [schedule(step, 5) for step in range(5)] == [1, 1, 1, 0.3, 0.3]


def test_without_a_total_nothing_drops():
    assert Drops()(10**6, None) == Constant()(10**6, None) == 1.0


@pytest.mark.parametrize("lr", [0, -0.1, float("nan"), float("inf"), "0.1", None, True])
@pytest.mark.parametrize("optimiser", [Adam, SGD])
def test_a_learning_rate_that_cannot_work_is_refused(optimiser, lr):
    with pytest.raises(InvalidInput, match="lr must be a number above 0, not"):
        optimiser(lr=lr)


def slopes_of_one(variables, rows):
    return torch.zeros(len(rows)), {name: torch.ones_like(value) for name, value in variables.items()}


def test_variables_may_have_rates_of_their_own():
    """Adam's first step is as long as its rate."""
    run = Adam(lr=0.1, rates=(("slow", 0.001), ("absent", 5.0))).begin({"x": torch.zeros(2, 3), "slow": torch.zeros(2)})
    run.step(slopes_of_one, 0.5)
    assert torch.allclose(run.variables["x"], torch.full((2, 3), -0.05))
    assert torch.allclose(run.variables["slow"], torch.full((2,), -0.0005))


def test_rates_stay_when_problems_end():
    run = Adam(lr=0.1, rates=(("slow", 0.001),)).begin({"x": torch.zeros(2, 3), "slow": torch.zeros(2)})
    run.step(slopes_of_one, 1.0)
    run.keep(torch.tensor([1]))
    run.step(slopes_of_one, 1.0)
    assert torch.allclose(run.variables["x"], torch.full((1, 3), -0.2))
    assert torch.allclose(run.variables["slow"], torch.full((1,), -0.002))


def test_a_rate_that_cannot_work_is_named():
    with pytest.raises(InvalidInput, match="the learning rate of position must be a number above 0"):
        Adam(rates=(("position", 0.0),))


def test_decay_multiplies_every_so_many_steps_smoothly():
    schedule = Decay(0.5, every=10)
    assert [schedule(step, None) for step in (0, 10, 20)] == [1, 0.5, 0.25]
    assert schedule(5, 100) == pytest.approx(0.5**0.5)


@pytest.mark.parametrize(("start", "end"), [(1, 4), (4, 1)])
def test_a_ramp_goes_in_equal_ratios_and_is_held(start, end):
    found = [Ramp(start, end)(step, 8) for step in range(8)]
    ratio = (end / start) ** 0.25
    assert found == pytest.approx([start * ratio ** min(step, 4) for step in range(8)])


def test_a_ramp_without_a_length_is_at_its_end():
    assert Ramp(1, 3)(0, None) == Ramp(1, 3, share=0)(0, 10) == 3
