"""Scores of exact copies, blind guesses, broken and missing samples, and tables."""

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from leakgauge.core.errors import InvalidInput, UnknownName
from leakgauge.core.observation import DataSpec
from leakgauge.core.truth import Truth
from leakgauge.evaluation import METRICS, psnr, score, ssim


@dataclass(frozen=True)
class Result:
    samples: Tensor
    labels: Tensor | None = None


SPEC = DataSpec((1, 16, 16), 4)
LABELS = torch.tensor([0, 1, 2, 3, 0, 1])


def images(count, seed=0):
    rough = torch.rand(count, 1, 16, 16, generator=torch.Generator().manual_seed(seed))
    return (4 * torch.nn.functional.avg_pool2d(rough, 5, 1, 2, count_include_pad=False) - 1.5).clamp(0, 1)


def per_sample(outcome, name):
    values = outcome[name].per_sample
    assert values is not None
    return values


@pytest.fixture
def truth():
    return Truth(images(6), LABELS, SPEC, (), images(30, 1), torch.arange(30) % 4)


TABLE = DataSpec((3,), 2, mean=(40.0, 0.5, 0.5), std=(10.0, 1.0, 1.0), bounded=False, columns=("age", "x=a", "x=b"))
ROWS = torch.tensor([[20.0, 1.0, 0.0], [45.0, 0.0, 1.0], [70.0, 1.0, 0.0]])


def test_an_exact_copy_in_any_order(truth):
    order = torch.tensor([3, 1, 5, 0, 2, 4])
    outcome = score(Result(truth.inputs[order], LABELS[order]), truth)
    assert list(outcome) == ["psnr", "ssim", "mse", "recovered", "label_errors", "label_accuracy"]
    assert torch.equal(order[outcome.pairing.rows], torch.arange(6))
    means = [outcome[name].value for name in outcome]
    assert means == pytest.approx([100, 1, 0, 1, 0, 1])
    assert outcome["psnr"].chance < 40
    assert all(outcome.above_chance(name) for name in ("psnr", "ssim", "mse", "recovered", "label_accuracy"))
    assert outcome.threshold == 20.0
    assert outcome.notes == ()


def test_no_blind_guess_beats_chance(truth):
    mean = truth.reference_inputs.mean(0, keepdim=True).expand_as(truth.inputs)
    outcome = score(Result(mean), truth)
    assert outcome["psnr"].chance - 0.5 < outcome["psnr"].value < outcome["psnr"].chance
    assert outcome["psnr"].chance_source == "other samples mixed with their mean (25%)"
    assert outcome["psnr"].luck > outcome["psnr"].chance
    assert not any(outcome.above_chance(name) for name in outcome)


def test_other_peoples_images_are_no_leak(truth):
    outcome = score(Result(images(6, 99), (LABELS + 1) % 4), truth)
    assert not outcome.above_chance("psnr")
    assert not outcome.above_chance("recovered")


@pytest.mark.parametrize("reference", [images(1), torch.cat([images(1), images(20, 1)])])
def test_a_single_image_is_not_its_own_chance(reference):
    owner = Truth(images(1), torch.tensor([1]), SPEC, (), reference)
    outcome = score(Result(images(1), torch.tensor([1])), owner)
    assert outcome["psnr"].chance < 40
    assert outcome["psnr"].low is None
    assert outcome.above_chance("psnr")


def test_values_are_those_of_the_functions(truth):
    noisy = (truth.inputs + 0.05 * torch.randn(truth.inputs.shape, generator=torch.Generator().manual_seed(3))).clamp(
        0, 1
    )
    outcome = score(Result(noisy), truth, threshold=26.0)
    expected = psnr(noisy, truth.inputs)
    assert per_sample(outcome, "psnr").tolist() == pytest.approx(expected.tolist(), abs=1e-3)
    assert per_sample(outcome, "ssim").tolist() == pytest.approx(ssim(noisy, truth.inputs).tolist(), abs=1e-4)
    assert outcome["recovered"].value == pytest.approx((expected > 26).double().mean().item())
    assert "label_errors" not in outcome


def test_black_images_do_not_hide_what_comes_back_of_the_others():
    originals = torch.zeros(4, 1, 16, 16)
    originals[2:3] = images(1)
    truth = Truth(originals, LABELS[:4], SPEC, (), images(30, 1), torch.arange(30) % 4)
    noise = 0.03 * torch.randn(originals.shape, generator=torch.Generator().manual_seed(2))
    outcome = score(Result(originals + noise), truth)
    alone = score(Result((originals + noise)[2:3]), Truth(originals[2:3], LABELS[:1], SPEC, (), images(30, 1)))
    assert outcome["psnr"].value == pytest.approx(alone["psnr"].value)
    assert outcome["psnr"].chance < 20
    assert outcome["psnr"].value > outcome["psnr"].chance + 10
    assert (outcome["psnr"].n, len(per_sample(outcome, "psnr"))) == (1, 4)
    assert "3 of 4 images are known without the message. The figures are about the others." in outcome.notes


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_broken_samples_are_counted_and_noted(truth, bad):
    samples = truth.inputs.clone()
    samples[2, 0, 3, 3] = bad
    outcome = score(Result(samples, LABELS), truth)
    assert outcome["recovered"].value == pytest.approx(5 / 6)
    assert outcome.pairing.rows.tolist() == [0, 1, -1, 3, 4, 5]
    assert [per_sample(outcome, name)[2].item() for name in ("psnr", "ssim", "mse", "recovered")] == [
        0,
        0,
        1,
        0,
    ]
    assert outcome["label_errors"].value == 0
    assert outcome["label_accuracy"].value == pytest.approx(5 / 6)
    assert any("1 of 6 reconstructions hold NaN" in note for note in outcome.notes)
    everything = score(Result(torch.full_like(samples, bad), LABELS), truth)
    assert everything["psnr"].value == 0
    assert not everything.above_chance("psnr")


def test_fewer_and_more_reconstructions(truth):
    fewer = score(Result(truth.inputs[:4], LABELS[:4]), truth)
    assert fewer["recovered"].value == pytest.approx(4 / 6)
    assert fewer["label_errors"].value == 2
    assert "2 of 6 originals have no reconstruction and count as not recovered." in fewer.notes
    more = score(Result(torch.cat([images(3, 8), truth.inputs]), torch.cat([LABELS[:3], LABELS])), truth)
    assert more["recovered"].value == 1
    assert more["label_errors"].value == 3
    assert any("9 reconstructions for 6 originals" in note for note in more.notes)
    none = score(Result(truth.inputs[:0], LABELS[:0]), truth)
    assert (none["recovered"].value, none["label_errors"].value) == (0, 6)


def test_pixels_are_clipped_as_a_viewer_would(truth):
    black = Truth(torch.zeros(2, 1, 16, 16), LABELS[:2], SPEC)
    outcome = score(Result(torch.full((2, 1, 16, 16), -3.0)), black)
    assert outcome["psnr"].value == 100
    assert "100% of the values lay outside [0, 1] and were clipped." in outcome.notes
    assert any("no reference samples" in note for note in outcome.notes)


def test_unbounded_and_small_images():
    spec = DataSpec((1, 6, 6), None, bounded=False)
    originals = 200 * torch.rand(3, 1, 6, 6, generator=torch.Generator().manual_seed(0)) - 100
    outcome = score(Result(originals), Truth(originals, torch.zeros(3), spec))
    assert outcome["psnr"].value == 100
    assert outcome["psnr"].data_range == pytest.approx(200, rel=0.1)
    assert any("unbounded" in note for note in outcome.notes)
    assert any("11 x 11" in note for note in outcome.notes)
    wild = score(Result(1e30 * originals), Truth(originals, torch.zeros(3), spec))
    assert torch.isfinite(per_sample(wild, "ssim")).all()


def test_tables():
    owner = Truth(ROWS, torch.tensor([0, 1, 1]), TABLE, (), ROWS + 30, torch.tensor([0, 1, 1]))
    guess = ROWS[[1, 2, 0]] + torch.tensor([5.0, 0.1, 0.0])
    outcome = score(Result(guess, torch.tensor([1, 1, 0])), owner)
    assert list(outcome) == ["mse", "features", "rows", "label_errors", "label_accuracy"]
    assert outcome["mse"].value == pytest.approx((0.5**2 + 0.1**2) / 3)
    assert outcome["features"].value == pytest.approx(0.5)
    assert outcome["label_accuracy"].value == 1
    assert outcome.threshold is None


def test_broken_rows_count_as_blank():
    owner = Truth(ROWS, torch.tensor([0, 1, 1]), TABLE)
    outcome = score(Result(torch.full_like(ROWS, float("nan"))), owner)
    assert outcome["features"].value == 0
    assert outcome["mse"].value == outcome["mse"].chance
    assert score(Result(torch.full_like(ROWS, 1e38)), owner)["mse"].value < float("inf")


def test_regression_targets():
    spec = DataSpec((2,), None, bounded=False)
    inputs = torch.tensor([[0.0, 0.0], [5.0, 5.0]])
    owner = Truth(inputs, torch.tensor([1.0, 9.0]), spec, (), inputs + 2, torch.tensor([4.0, 6.0]))
    outcome = score(Result(inputs.flip(0), torch.tensor([9.5, 1.0])), owner)
    assert outcome["target_error"].value == pytest.approx(0.25)
    assert outcome["target_error"].chance == pytest.approx(4.0)
    broken = score(Result(inputs, torch.tensor([float("nan"), 9.0])), owner)
    assert broken["target_error"].value == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("result", "words"),
    [
        (Result(torch.rand(6, 3, 16, 16)), r"\(6, 3, 16, 16\)\. The truth needs \(count, 1, 16, 16\)"),
        (Result(torch.rand(16, 16)), r"\(16, 16\)\. The truth needs"),
        (Result(torch.zeros(6, 1, 16, 16, dtype=torch.uint8)), "floats"),
        (Result(torch.rand(6, 1, 16, 16), torch.tensor([1])), "1 labels for 6 samples"),
        (Result(torch.rand(6, 1, 16, 16), torch.rand(6)), "whole numbers"),
        (Result(torch.rand(6, 1, 16, 16), torch.full((6,), 4)), "0 to 3"),
    ],
)
def test_wrong_shapes(truth, result, words):
    with pytest.raises(InvalidInput, match=words):
        score(result, truth)


def test_other_errors(truth):
    with pytest.raises(InvalidInput, match="no samples"):
        score(Result(images(1)), Truth(images(1)[:0], LABELS[:0], SPEC))
    with pytest.raises(InvalidInput, match="this data is a table"):
        score(Result(ROWS), Truth(ROWS, torch.tensor([0, 1, 1]), TABLE), threshold=20)
    with pytest.raises(UnknownName, match="did you mean 'psnr'"):
        score(Result(truth.inputs), truth)["psnrr"]


def test_printing_and_rows(truth):
    outcome = score(Result(truth.inputs, LABELS), truth)
    lines = str(outcome).splitlines()
    assert lines[0].split() == ["metric", "value", "95%", "interval", "chance", "n"]
    assert lines[1].startswith("psnr (dB)")
    assert len({len(line) for line in lines[:7]}) == 1
    assert lines[7] == "recovered: PSNR above 20 dB"
    rows = outcome.to_rows()
    assert [row["metric"] for row in rows] == list(outcome)
    assert all(isinstance(value, str | int | float | bool | None) for row in rows for value in row.values())
    assert set(outcome) <= set(METRICS)


def test_scores_repeat_exactly_and_leave_the_generator_alone(truth):
    before = torch.get_rng_state()
    result = Result(images(6, 5), LABELS)
    assert str(score(result, truth)) == str(score(result, truth))
    assert torch.equal(before, torch.get_rng_state())


def test_masks_are_scored_by_their_wrong_entries_also_if_nothing_came_back():
    masks = torch.randint(3, (4, 16, 16), generator=torch.Generator().manual_seed(0))
    spec = DataSpec((1, 16, 16), None, target_shape=(16, 16), target_values=3)
    truth = Truth(images(4), masks, spec, (), images(30, 1), torch.zeros(30, 16, 16, dtype=torch.long))
    order = torch.tensor([2, 0, 3, 1])
    assert score(Result(truth.inputs[order], masks[order]), truth)["target_error"].value == 0
    changed = masks.clone()
    changed[0, :4] = (changed[0, :4] + 1) % 3
    assert score(Result(truth.inputs, changed), truth)["target_error"].value == pytest.approx(0.25 / 4)
    nothing = score(Result(torch.zeros(0, 1, 16, 16), torch.zeros(0)), truth)
    assert not nothing.above_chance("target_error")
