"""The chance levels of samples, labels and targets."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from leakgauge.core.errors import InvalidInput
from leakgauge.core.observation import DataSpec
from leakgauge.core.truth import Truth
from leakgauge.data import load
from leakgauge.evaluation import (
    METRICS,
    blind_guesses,
    label_accuracy_chance,
    label_error_chance,
    pair,
    psnr,
    target_error_chance,
)
from leakgauge.evaluation.chance import best, chance_of, draw, known_without_message, other_samples
from leakgauge.evaluation.label_chance import proportional_counts
from leakgauge.evaluation.ruler import Ruler

SPEC = DataSpec((1, 12, 12), 3)


def images(count, seed):
    return torch.rand(count, 1, 12, 12, generator=torch.Generator().manual_seed(seed))


def truth(originals, reference=None, targets=None):
    return Truth(originals, torch.zeros(len(originals), dtype=torch.long), SPEC, (), reference, targets)


def test_each_guess_by_hand():
    originals, reference = images(3, 0), images(20, 1)
    guesses = {guess.source: guess for guess in blind_guesses(Ruler(originals, SPEC), reference, draws=4, seed=7)}
    for source, value in (("black image", 0.0), ("grey image", 0.5), ("white image", 1.0)):
        expected = psnr(torch.full_like(originals, value), originals).mean().item()
        assert guesses[source].value("psnr") == pytest.approx(expected, abs=1e-4)
    mean = psnr(reference.mean(0, keepdim=True).expand_as(originals), originals).mean().item()
    assert guesses["mean of other samples"].value("psnr") == pytest.approx(mean, abs=1e-4)
    random = [
        psnr(pair(reference[rows], originals).apply(reference[rows]), originals).mean().item()
        for rows in draw(20, 3, 4, 7)
    ]
    assert guesses["random other samples"].value("psnr") == pytest.approx(sum(random) / 4, abs=1e-4)


def test_without_reference_only_blank_samples():
    assert len(blind_guesses(Ruler(images(2, 0), SPEC), None)) == 3
    table = DataSpec((4,), None, mean=(1.0, 2.0, 3.0, 4.0), bounded=False)
    (guess,) = blind_guesses(Ruler(torch.tensor([[1.0, 2.0, 3.0, 4.0]]), table), None)
    assert (guess.source, guess.value("mse"), guess.value("features")) == ("blank row", 0.0, 1.0)


def test_best_is_the_attackers():
    levels = {"a": 1.0, "b": 2.0}
    assert best(levels, "higher").source == "b"
    assert best(levels, "lower").source == "a"


def test_own_images_are_no_guess():
    own, others = images(1, 0), images(5, 1)
    reference, targets = other_samples(truth(own, torch.cat([others[:2], own, others[2:]]), torch.arange(6)))
    assert reference is not None
    assert targets is not None
    assert torch.equal(reference, others)
    assert targets.tolist() == [0, 1, 3, 4, 5]
    assert other_samples(truth(own, own, torch.tensor([1]))) == (None, None)


def test_equal_samples_of_other_people_stay():
    """As many copies are left out as the client holds, because these may be the client's own rows."""
    own, others = images(1, 0), images(2, 1)
    reference, targets = other_samples(truth(own, torch.cat([own, others, own, own]), torch.arange(5)))
    assert reference is not None
    assert targets is not None
    assert targets.tolist() == [1, 2, 3, 4]
    assert torch.equal(reference[2], own[0])
    both, _ = other_samples(truth(own.repeat(2, 1, 1, 1), torch.cat([own, others, own, own])))
    assert both is not None
    assert len(both) == 3


def test_equal_rows_of_a_table_stay():
    rows = torch.tensor([[1.0, 0.0]])
    owner = Truth(rows, torch.zeros(1), DataSpec((2,), None, bounded=False), (), rows.repeat(3, 1))
    reference, _ = other_samples(owner)
    assert reference is not None
    assert len(reference) == 2


def test_rows_of_other_clients_in_a_sum_are_no_guess():
    """The sum of several clients has the reference samples of its first client, which hold the rows of the others."""
    rows = torch.rand(6, 2, generator=torch.Generator().manual_seed(0))
    owner = Truth(rows[:4], torch.zeros(4), DataSpec((2,), None, bounded=False), (), rows[1:])
    reference, _ = other_samples(owner)
    assert reference is not None
    assert torch.equal(reference, rows[4:])


def test_a_picture_that_everybody_holds_is_known_without_the_message():
    grey = torch.full((5, 1, 12, 12), 0.502)
    guessed = level_of("psnr", grey[:1], grey)
    assert guessed.value == 100.0
    assert level_of("recovered", grey[:1], grey).value == 1.0


def test_a_guess_within_one_grey_level_is_an_exact_copy():
    picture = images(1, 0).clamp(0.1, 0.9)
    noise = images(8, 1) - 0.5
    for metric, exact in (("psnr", 100.0), ("ssim", 1.0), ("mse", 0.0)):
        assert level_of(metric, picture, picture + noise / 255).value == exact
    assert level_of("psnr", picture, picture + noise / 4).value < 48


def test_a_constant_picture_of_an_own_tone_is_not_known():
    tones = torch.linspace(0.05, 0.95, 19).view(-1, 1, 1, 1).expand(-1, 1, 12, 12)
    assert level_of("psnr", torch.full((1, 1, 12, 12), 0.33), tones).value < 20


def level_of(metric, originals, reference, **options):
    others, _ = other_samples(truth(originals, reference))
    guesses = blind_guesses(Ruler(originals, SPEC), others, **options)
    return chance_of(guesses, metric, METRICS[metric].direction)


def test_samples_mixed_with_the_mean_are_a_guess():
    """With many samples, a mixture beats both the mean and random samples, because each original finds a good pair."""
    digits = load("digits")
    guesses = blind_guesses(Ruler(digits.inputs[:16], digits.spec), digits.inputs[16:])
    levels = {guess.source: guess.value("psnr") for guess in guesses}
    mixed = max(value for source, value in levels.items() if "mixed" in source)
    assert mixed > levels["mean of other samples"] + 0.3
    assert mixed > levels["random other samples"] + 0.3


def test_luck_is_the_best_draw():
    digits = load("digits")
    own, others = digits.inputs[:1], digits.inputs[1:200]
    guesses = blind_guesses(Ruler(own, digits.spec), others)
    level = chance_of(guesses, "psnr", "higher")
    assert level.luck == max(value for guess in guesses for value in guess.values("psnr"))
    assert level.luck > level.value + 1
    best_sample = max(float(quality.values["psnr"].max()) for guess in guesses for quality in guess.qualities)
    assert level.luck_of_one == best_sample >= level.luck
    many = blind_guesses(Ruler(digits.inputs[:5], digits.spec), others)
    assert len(guesses[-1].qualities) > len(many[-1].qualities)


def test_a_single_right_label_of_two_is_luck_and_twelve_are_not():
    assert label_error_chance(1, 2).luck == 0
    assert (label_error_chance(12, 10).luck or 0) > 0


def test_a_random_target_may_be_right_by_luck():
    reference = torch.linspace(0, 100, 101)
    level = target_error_chance(torch.tensor([80.0]), reference)
    assert level.luck is not None
    assert 0 < level.luck < 10
    assert target_error_chance(torch.tensor([80.0])).luck is None


def test_references_need_their_targets():
    with pytest.raises(InvalidInput, match="5 reference samples but 4 targets"):
        other_samples(truth(images(1, 0), images(5, 1), torch.arange(4)))


def test_draws_are_seeded_and_repeat_only_when_they_must():
    first, again, other = draw(10, 6, 3, 0), draw(10, 6, 3, 0), draw(10, 6, 3, 1)
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert not all(torch.equal(a, b) for a, b in zip(first, other, strict=True))
    assert all(len(rows.unique()) == 6 for rows in first)
    assert [len(rows) for rows in draw(2, 6, 1, 0)] == [6]


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(0, 50), min_size=1, max_size=12).filter(any), st.integers(0, 60))
def test_proportional_counts_add_up_and_stay_near(frequencies, total):
    generator = torch.Generator().manual_seed(0)
    counts = proportional_counts(torch.tensor(frequencies), total, generator)
    assert int(counts.sum()) == total
    exact = total * torch.tensor(frequencies).double() / sum(frequencies)
    assert ((counts - exact).abs() < 1).all()


def test_label_errors_of_equally_likely_classes():
    chance = label_error_chance(1, 10, draws=2000)
    assert chance.value == pytest.approx(0.9, abs=0.03)
    assert "equally likely" in chance.source


def test_label_errors_from_reference_frequencies():
    assert label_error_chance(4, 3, torch.tensor([80, 0, 0])).value == 0
    skewed = label_error_chance(1, 3, torch.tensor([75, 25, 0]), draws=4000)
    assert skewed.value == pytest.approx(0.25, abs=0.03)  # the commonest label is right three times out of four


def test_the_chance_of_labels_does_not_depend_on_the_clients_own():
    """A client that happens to hold the commonest label is no reason to call a right label a guess."""
    frequencies = torch.tensor([40, 30, 30])
    assert label_error_chance(1, 3, frequencies).value > 0.5


def test_label_accuracy_levels():
    assert label_accuracy_chance(torch.tensor([0, 1]), 4).value == 0.25
    originals, reference = images(4, 0), images(4, 1)
    guesses = blind_guesses(Ruler(originals, SPEC), reference, draws=3)
    level = label_accuracy_chance(torch.tensor([2, 2, 2, 1]), 3, torch.tensor([2, 2, 0, 2]), guesses)
    assert level.value == 0.75


def test_target_error_levels():
    assert target_error_chance(torch.tensor([1.0, -1.0])).value == 1.0
    level = target_error_chance(torch.tensor([10.0, 12.0]), torch.tensor([11.0, 11.0]))
    assert (level.value, level.source) == (1.0, "mean target of other samples")
    assert target_error_chance(torch.ones(2, 3), torch.ones(5, 3)).value == 0
    masks = torch.tensor([[[1, 2]], [[1, 0]], [[1, 2]]])
    level = target_error_chance(torch.tensor([[[1, 1]], [[0, 2]]]), masks, values=3)
    assert (level.value, level.source) == (0.5, "most frequent target of other samples")


def test_only_images_that_any_guess_copies_are_known():
    originals = images(4, 0)
    originals[1] = originals[3] = 0.0
    guesses = blind_guesses(Ruler(originals, SPEC), images(30, 1))
    assert known_without_message(guesses).tolist() == [False, True, False, True]
    everything = blind_guesses(Ruler(torch.zeros_like(originals), SPEC), images(30, 1))
    assert known_without_message(everything).tolist() == [False] * 4


def test_a_guess_about_some_originals_by_hand():
    originals = images(4, 0)
    guess = next(one for one in blind_guesses(Ruler(originals, SPEC), images(30, 1)) if len(one.qualities) > 1)
    chosen = torch.tensor([True, False, True, False])
    by_hand = [float((quality.values["psnr"][0] + quality.values["psnr"][2]) / 2) for quality in guess.qualities]
    assert guess.about(chosen).values("psnr") == pytest.approx(by_hand)
