"""The one loop: best iterates, independent problems, divergence, interrupts, and what it costs."""

import math

import pytest
import torch

from leakgauge.attacks.inversion import solve as loop
from leakgauge.attacks.inversion.lbfgs import LBFGS
from leakgauge.attacks.inversion.optimisers import SGD, Adam, Drops
from leakgauge.attacks.inversion.solve import Descent
from leakgauge.attacks.inversion.stopping import AnyOf, MaxSteps, Plateau, Threshold
from leakgauge.core.errors import InvalidInput

NAN = float("nan")


def solve(loss, start, *, project=None, constants=None, vectorise=False, report=None, **settings):
    """Minimise with the settings of a descent as keyword arguments."""
    return loop.solve(
        loss, start, Descent(**settings), project=project, constants=constants, vectorise=vectorise, report=report
    )


def bowl(variables, constants, step):
    return {"bowl": variables["x"].square().sum()}


def points(*values):
    return {"x": torch.tensor([[float(value)] for value in values])}


class Counted:
    """A loss that counts how often it is looked at, by the problem's number in the constants."""

    def __init__(self, loss):
        self.loss, self.counts = loss, {}

    def __call__(self, variables, constants, step):
        problem = int(constants["problem"])
        self.counts[problem] = self.counts.get(problem, 0) + 1
        return self.loss(variables, constants, step)


def numbered(count):
    return {"problem": torch.arange(count)}


def test_the_best_iterate_is_returned_not_the_last():
    """The step is too long for the bowl: every iterate is worse than the one before."""
    (solution,) = solve(bowl, points(1), optimiser=SGD(lr=1.1), stop=MaxSteps(5))
    assert solution.variables["x"].item() == 1.0
    assert (solution.loss, solution.best_step) == (1.0, 0)
    assert solution.trace.losses.diff().min() > 0


def test_the_best_iterate_may_lie_in_the_middle():
    def tilts(variables, constants, step):
        return {"slope": variables["x"].sum() * (1 if step < 3 else -1) + (0 if step < 3 else 10)}

    (solution,) = solve(tilts, points(0), optimiser=SGD(lr=1.0), stop=MaxSteps(6))
    assert (solution.best_step, solution.variables["x"].item(), solution.loss) == (2, -2.0, -2.0)


def test_the_iterate_after_the_last_step_counts_too():
    (solution,) = solve(bowl, points(1), optimiser=SGD(lr=0.5), stop=MaxSteps(1))
    assert (solution.variables["x"].item(), solution.loss) == (0.0, 0.0)
    assert solution.trace.losses.tolist() == [1.0]


def test_each_problem_has_its_own_end_and_trace():
    stop = AnyOf(Threshold(1e-4), MaxSteps(15))
    solutions = solve(bowl, points(0.001, 1, 1000), optimiser=SGD(lr=0.25), stop=stop)
    assert [solution.outcome.kind for solution in solutions] == ["converged", "converged", "finished"]
    assert [len(solution.trace.losses) for solution in solutions] == [1, 8, 15]
    for solution in solutions:
        assert len(solution.trace.losses) == solution.outcome.step + 1
        assert torch.equal(solution.trace.terms["bowl"], solution.trace.losses)
        assert solution.loss <= solution.trace.losses.min()
        assert solution.trace.seconds > 0


@pytest.mark.parametrize("optimiser", [SGD(lr=0.25), Adam(lr=0.3, signed=True), LBFGS(inner=2)], ids=repr)
def test_problems_together_are_what_they_are_alone(optimiser):
    stop, start = AnyOf(Threshold(1e-4), Plateau(4), MaxSteps(30)), points(0.001, 1, -7, 1000)
    together = solve(bowl, start, optimiser=optimiser, stop=stop, schedule=Drops())
    assert len({solution.outcome.step for solution in together}) > 1
    for row, solution in enumerate(together):
        (alone,) = solve(bowl, {"x": start["x"][row : row + 1]}, optimiser=optimiser, stop=stop, schedule=Drops())
        assert torch.equal(solution.trace.losses, alone.trace.losses)
        assert torch.equal(solution.variables["x"], alone.variables["x"])
        assert (solution.loss, solution.best_step) == (alone.loss, alone.best_step)
        assert solution.outcome == alone.outcome


def test_a_problem_that_ended_costs_nothing_more():
    loss = Counted(bowl)
    stop = AnyOf(Threshold(1e-4), MaxSteps(20))
    solutions = solve(loss, points(0.001, 1, 1000), optimiser=SGD(lr=0.25), stop=stop, constants=numbered(3))
    lengths = [len(solution.trace.losses) for solution in solutions]
    assert [loss.counts[problem] - length for problem, length in enumerate(lengths)] == [1, 1, 1]  # the last iterate


@pytest.mark.parametrize(("value", "word"), [(NAN, "NaN"), (math.inf, "infinite")])
@pytest.mark.parametrize("vectorise", [False, True])
def test_divergence_is_an_outcome_of_one_problem(value, word, vectorise):
    def breaks(variables, constants, step):
        bad = constants["breaks"] * (step >= 3)
        return {"bowl": torch.where(bad > 0, value, 1.0) * variables["x"].square().sum()}

    flags = {"breaks": torch.tensor([0.0, 1.0, 0.0])}
    settings = {"optimiser": SGD(lr=0.25), "stop": MaxSteps(6), "vectorise": vectorise}
    first, broken, third = solve(breaks, points(1, 2, 3), constants=flags, **settings)
    sentence = f"diverged at step 3, where the loss became {word}, and the best iterate before it (step 2) is returned"
    assert (broken.outcome.kind, broken.outcome.step, str(broken.outcome)) == ("diverged", 3, sentence)
    assert (broken.variables["x"].item(), broken.loss) == (0.5, 0.25)
    expected = solve(bowl, points(1, 3), **settings)
    for found, alone in zip((first, third), expected, strict=True):
        assert found.outcome == alone.outcome
        assert torch.equal(found.variables["x"], alone.variables["x"])


def test_divergence_at_the_very_first_step_returns_the_start():
    def nothing(variables, constants, step):
        return {"nan": variables["x"].sum() * NAN}

    (solution,) = solve(nothing, points(2), optimiser=Adam(), stop=MaxSteps(5))
    assert str(solution.outcome) == "diverged at step 0, where the loss became NaN, and the start is returned"
    assert (solution.variables["x"].item(), solution.loss) == (2.0, math.inf)
    assert len(solution.trace.losses) == 1


@pytest.mark.parametrize("optimiser", [SGD(lr=0.25), LBFGS(inner=2)], ids=repr)
def test_an_interrupt_inside_the_loss_returns_the_best_so_far(optimiser):
    looks = 0

    def stubborn(variables, constants, step):
        nonlocal looks
        looks += 1
        if looks == 6:
            raise KeyboardInterrupt
        return {"valley": (variables["x"] - 1).abs().pow(1.5).sum()}

    first, second = solve(stubborn, points(5, 9), optimiser=optimiser, stop=MaxSteps(50))
    for solution, start in ((first, 5), (second, 9)):
        assert solution.outcome.kind == "interrupted"
        assert str(solution.outcome).endswith("the best iterate so far is returned")
        assert solution.loss < abs(start - 1) ** 1.5
        assert solution.loss == pytest.approx(abs(solution.variables["x"].item() - 1) ** 1.5, rel=1e-5)
        assert len(solution.trace.losses) == len(solution.trace.terms["valley"]) > 0


def test_an_interrupt_in_the_report_spares_those_that_have_ended():
    def report(step, total, loss):
        if step == 3:
            raise KeyboardInterrupt

    stop = AnyOf(Threshold(1e-4), MaxSteps(50))
    done, running = solve(bowl, points(0.001, 100), optimiser=SGD(lr=0.25), stop=stop, report=report)
    assert done.outcome.kind == "converged"
    assert str(running.outcome) == "interrupted at step 2, and the best iterate so far is returned"
    assert running.trace.losses.tolist() == [10000, 2500, 625]


def test_an_interrupt_before_anything_returns_the_start():
    def stopped(variables, constants, step):
        raise KeyboardInterrupt

    (solution,) = solve(stopped, points(3), optimiser=Adam(), stop=MaxSteps(5))
    assert (solution.outcome.kind, solution.variables["x"].item(), solution.loss) == ("interrupted", 3.0, math.inf)


@pytest.mark.parametrize("optimiser", [SGD(lr=0.25), Adam(lr=0.5), LBFGS()], ids=repr)
def test_projection_keeps_every_iterate_allowed(optimiser):
    def loss(variables, constants, step):
        return {"far": (variables["x"] - 5).square().sum()}

    def project(variables):
        variables["x"].clamp_(-1, 1)

    (solution,) = solve(loss, points(0), optimiser=optimiser, stop=MaxSteps(4), project=project, snapshot_every=1)
    assert solution.variables["x"].item() == 1.0
    assert solution.loss == 16.0
    assert max(iterate["x"].item() for _, iterate in solution.trace.snapshots) == 1.0


def test_constants_belong_to_their_problem_even_after_others_ended():
    def towards(variables, constants, step):
        return {"distance": (variables["x"] - constants["goal"]).square().sum()}

    goals = torch.tensor([[0.0], [4.0], [-3.0]])
    stop = AnyOf(Threshold(1e-6), MaxSteps(60))
    for vectorise in (False, True):
        solutions = solve(
            towards,
            points(0, 0, 0),
            constants={"goal": goals},
            optimiser=SGD(lr=0.3),
            stop=stop,
            vectorise=vectorise,
        )
        assert solutions[0].outcome.step == 0
        found = torch.stack([solution.variables["x"] for solution in solutions])
        assert torch.allclose(found, goals, atol=1e-2)


def test_snapshots_are_the_iterates_at_every_so_many_steps():
    first, second = solve(bowl, points(1, 8), optimiser=SGD(lr=0.25), stop=MaxSteps(5), snapshot_every=2)
    for solution, start in ((first, 1), (second, 8)):
        steps = [step for step, _ in solution.trace.snapshots]
        values = [iterate["x"].item() for _, iterate in solution.trace.snapshots]
        assert (steps, values) == ([0, 2, 4], [start, start / 4, start / 16])
    (without,) = solve(bowl, points(1), optimiser=SGD(lr=0.25), stop=MaxSteps(5))
    assert without.trace.snapshots == []


def test_terms_are_traced_and_their_sum_is_minimised():
    def two(variables, constants, step):
        return {"pull": (variables["x"] - 4).square().sum(), "stay": variables["x"].square().sum()}

    (solution,) = solve(two, points(0), optimiser=SGD(lr=0.1), stop=MaxSteps(30))
    assert solution.variables["x"].item() == pytest.approx(2, abs=1e-3)
    terms = solution.trace.terms
    assert torch.allclose(terms["pull"] + terms["stay"], solution.trace.losses)
    assert (terms["pull"][0].item(), terms["stay"][0].item()) == (16, 0)


@pytest.mark.parametrize("optimiser", [Adam(lr=0.1), LBFGS(inner=3)], ids=repr)
def test_vectorised_is_the_same_as_one_by_one(optimiser):
    def wavy(variables, constants, step):
        x, y = variables["x"], variables["y"]
        bowl = 0.1 * (x.square().sum() + (y - x).square().sum())
        return {"wave": (x.sin() * constants["height"]).sum(), "bowl": bowl}

    generator = torch.Generator().manual_seed(0)
    start = {"x": torch.randn(5, 1, generator=generator).double(), "y": torch.zeros(5).double()}
    constants = {"height": torch.arange(5.0).double()}
    stop = AnyOf(Threshold(-1.0), MaxSteps(25))
    one, all_ = (
        solve(wavy, start, constants=constants, optimiser=optimiser, stop=stop, vectorise=vectorise)
        for vectorise in (False, True)
    )
    assert len({solution.outcome.step for solution in one}) > 1
    for single, stacked in zip(one, all_, strict=True):
        assert torch.allclose(single.trace.losses, stacked.trace.losses, rtol=1e-10, atol=1e-12)
        assert torch.allclose(single.variables["x"], stacked.variables["x"], rtol=1e-8, atol=1e-10)
        assert single.outcome.kind == stacked.outcome.kind


def test_the_schedule_scales_the_learning_rate():
    seen = []

    def schedule(step, total):
        seen.append((step, total))
        return 0.0 if step else 1.0

    (solution,) = solve(bowl, points(1), optimiser=SGD(lr=0.25), stop=MaxSteps(3), schedule=schedule)
    assert solution.trace.losses.tolist() == [1, 0.25, 0.25]
    assert seen == [(0, 3), (1, 3), (2, 3)]


def test_the_report_counts_steps_and_gives_the_best_loss():
    lines = []
    solve(bowl, points(1, 8), optimiser=SGD(lr=1.1), stop=MaxSteps(3), report=lambda *line: lines.append(line))
    assert lines == [(1, 3, 1.0), (2, 3, 1.0), (3, 3, 1.0)]


def test_a_rule_without_a_limit_is_refused():
    with pytest.raises(
        InvalidInput, match=r"may never stop. Combine it with a limit: AnyOf\(Threshold\(value=0.1\), MaxSteps"
    ):
        solve(bowl, points(1), optimiser=Adam(), stop=Threshold(0.1))


@pytest.mark.parametrize(
    ("start", "constants"),
    [
        ({}, {}),
        ({"x": torch.zeros(0, 1)}, {}),
        ({"x": torch.zeros(2, 1), "y": torch.zeros(3)}, {}),
        ({"x": torch.zeros(2, 1)}, {"c": torch.zeros(3)}),
        ({"x": torch.tensor(1.0)}, {}),
    ],
    ids=["nothing", "no problems", "variables differ", "constants differ", "not stacked"],
)
def test_sizes_that_do_not_fit_are_refused(start, constants):
    with pytest.raises(InvalidInput, match="must stack the same number of problems"):
        solve(bowl, start, constants=constants, optimiser=Adam(), stop=MaxSteps(1))


def test_the_start_is_left_alone():
    def project(variables):
        variables["x"].zero_()

    start = points(1, 2)
    solve(bowl, start, optimiser=Adam(), stop=MaxSteps(3), project=project)
    assert torch.equal(start["x"], points(1, 2)["x"])


@pytest.mark.parametrize("vectorise", [False, True])
def test_the_same_seed_gives_the_same_bits(vectorise):
    def noisy(variables, constants, step):
        return {"noise": (variables["x"] * torch.rand(4)).sum(), "bowl": variables["x"].square().sum()}

    def run(seed):
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            return solve(noisy, {"x": torch.ones(2, 4)}, optimiser=Adam(), stop=MaxSteps(5), vectorise=vectorise)[
                0
            ].trace.losses

    assert torch.equal(run(1), run(1))
    assert not torch.equal(run(1), run(2))


def test_a_variable_that_the_loss_does_not_use_stands_still():
    start = points(1) | {"idle": torch.ones(1, 3)}
    (solution,) = solve(bowl, start, optimiser=SGD(lr=0.25), stop=MaxSteps(3))
    assert torch.equal(solution.variables["idle"], torch.ones(3))


def test_the_last_iterate_on_demand():
    """Every iterate is worse than the one before, and each problem has its own last."""
    solutions = solve(bowl, points(1, 3), optimiser=SGD(lr=1.5), stop=MaxSteps(3), keep_last=True)
    for solution, start in zip(solutions, (1, 3), strict=True):
        assert (solution.variables["x"].item(), solution.loss) == (-8.0 * start, 64.0 * start**2)
        assert solution.trace.losses.tolist() == [start**2 * 4.0**step for step in range(3)]


def test_the_last_iterate_is_the_last_finite_one():
    def breaks(variables, constants, step):
        return {"bowl": variables["x"].square().sum() * (NAN if step == 2 else 1)}

    (solution,) = solve(breaks, points(1), optimiser=SGD(lr=1.5), stop=MaxSteps(5), keep_last=True)
    assert solution.outcome.kind == "diverged"
    assert (solution.variables["x"].item(), solution.loss, solution.best_step) == (-2.0, 4.0, 1)


def test_an_interrupt_keeps_the_last_iterate_that_was_looked_at():
    def report(step, total, loss):
        if step == 2:
            raise KeyboardInterrupt

    (solution,) = solve(bowl, points(1), optimiser=SGD(lr=1.5), stop=MaxSteps(5), keep_last=True, report=report)
    assert solution.outcome.kind == "interrupted"
    assert (solution.variables["x"].item(), solution.loss) == (-2.0, 4.0)


def test_constants_stay_with_their_problems_when_others_end():
    """Each has its own goal; the easy ones leave first."""
    goals = torch.tensor([[1.0], [50.0], [2.0], [80.0]])

    def loss(variables, constants, step):
        return {"miss": (variables["x"] - constants["goal"]).abs().sum()}

    for vectorise in (False, True):
        solutions = solve(
            loss,
            points(0, 0, 0, 0),
            optimiser=SGD(lr=1.0),
            stop=AnyOf(Threshold(0.5), MaxSteps(100)),
            constants={"goal": goals},
            vectorise=vectorise,
        )
        assert [round(float(one.variables["x"])) for one in solutions] == [1, 50, 2, 80]


def test_the_trace_counts_evaluations():
    start = points(1, 2)
    by_sgd = solve(bowl, start, optimiser=SGD(lr=0.1), stop=MaxSteps(4))
    assert [one.trace.evaluations.tolist() for one in by_sgd] == [[1, 2, 3, 4]] * 2
    (first, _) = solve(bowl, {"x": start["x"].repeat(1, 3)}, optimiser=LBFGS(inner=3), stop=MaxSteps(2))
    assert first.trace.evaluations[0] == 3
    assert len(first.trace.evaluations) == len(first.trace.losses)
