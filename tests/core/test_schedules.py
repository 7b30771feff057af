import pytest
import torch
from torch.optim import lr_scheduler

from leakgauge.core.errors import InvalidInput
from leakgauge.core.local_training import LocalTraining

STEPS = 6
SCHEDULES = {
    "constant": lambda optimiser: lr_scheduler.ConstantLR(optimiser, factor=1.0),
    "step(every=2, factor=0.5)": lambda optimiser: lr_scheduler.StepLR(optimiser, 2, 0.5),
    "exponential(factor=0.8)": lambda optimiser: lr_scheduler.ExponentialLR(optimiser, 0.8),
    "cosine": lambda optimiser: lr_scheduler.CosineAnnealingLR(optimiser, STEPS),
    "cosine(final=0.1)": lambda optimiser: lr_scheduler.CosineAnnealingLR(optimiser, STEPS, eta_min=0.02),
    "linear(start=0.25, steps=4)": lambda optimiser: lr_scheduler.LinearLR(optimiser, 0.25, total_iters=4),
    "linear(start=1, end=0, steps=6)": lambda optimiser: lr_scheduler.LinearLR(optimiser, 1, 0, 6),
}


def recipe(schedule, **settings):
    return LocalTraining(lr=0.2, samples=6, batch_size=2, epochs=2, schedule=schedule, **settings)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_schedule_is_that_of_torch(schedule):
    optimiser = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.2)
    scheduler = SCHEDULES[schedule](optimiser)
    expected = []
    for _ in range(STEPS):
        expected.append(optimiser.param_groups[0]["lr"])
        optimiser.step()
        scheduler.step()
    assert [0.2 * factor for factor in recipe(schedule).factors] == pytest.approx(expected, abs=1e-12)


def test_a_schedule_may_count_epochs():
    assert recipe('exponential(factor=0.5, per="epoch")').factors == (1, 1, 1, 0.5, 0.5, 0.5)


def test_factors_may_be_given_and_the_last_one_stays():
    assert recipe([1, 0.5]).factors == (1, 0.5, 0.5, 0.5, 0.5, 0.5)


def test_accumulated_batches_are_one_step():
    assert recipe("constant", accumulation=2).batches_of_steps == (2, 1)
    assert recipe("cosine", accumulation=3).factors == pytest.approx((1, 0.5))


@pytest.mark.parametrize(
    ("schedule", "words"),
    [
        ("cosin", "did you mean 'cosine'"),
        ("cosine(0.1)", "cannot be read"),
        ("cosine(end=0.1)", "no option of the schedule 'cosine' called 'end'"),
        ("step(every=0)", "every is not valid"),
        ("step(factor=-1)", "factor is not valid"),
        ("__import__('os').system('true')", "cannot be read"),
        ("cosine(per='round')", "per must be 'step' or 'epoch'"),
        ([], "factors of the learning rate"),
        ([1, float("nan")], "factors of the learning rate"),
        (3, "a text such as 'cosine'"),
        ("x" * 300, "a text such as 'cosine'"),
    ],
)
def test_what_is_no_schedule_is_refused(schedule, words):
    with pytest.raises(InvalidInput, match=words):
        recipe(schedule)
