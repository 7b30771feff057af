"""Tokens are counted in any order, as a plain count does."""

from collections import Counter

import torch

from leakgauge.evaluation.metrics.bags_of_tokens import commonest_tokens, overlaps, token_agreement, whole, words


def test_common_tokens_agree_with_a_plain_count():
    draw = torch.Generator().manual_seed(0)
    one, other = torch.randint(6, (5, 7), generator=draw).float(), torch.randint(6, (3, 7), generator=draw).float()
    places = [0, 2, 3, 6]
    plain = [[sum((Counter(a[places].tolist()) & Counter(b[places].tolist())).values()) for a in one] for b in other]
    assert overlaps(one, other, places).tolist() == plain


def test_values_that_are_no_tokens_match_nothing():
    broken = torch.tensor([[float("nan"), float("inf"), 3.4]])
    assert whole(broken, [0, 1, 2]).tolist() == [[-1, -1, 3]]
    assert overlaps(broken, torch.tensor([[1.0, 2.0, 3.0]]), [0, 1, 2]).tolist() == [[1]]


def test_the_agreement_of_sets_is_1_for_equal_sets_only():
    assert token_agreement(torch.tensor([1, 2, 2]), torch.tensor([2, 1])) == 1
    assert token_agreement(torch.tensor([1, 2, 3]), torch.tensor([2, 1])) < 1
    assert token_agreement(torch.tensor([4]), torch.tensor([2, 1])) == 0


def test_the_commonest_tokens_come_as_often_as_in_a_typical_text():
    reference = torch.tensor([[5.0, 5.0, 1.0], [5.0, 5.0, 2.0], [5.0, 5.0, 2.0]])
    assert sorted(commonest_tokens(reference, [0, 1, 2]).tolist()) == [2, 5, 5]


def test_words_are_the_columns_that_are_not_zero():
    assert words(torch.tensor([[0.0, 1e-9, -2.0], [0.0, 0.0, 0.0]])).tolist() == [2]
