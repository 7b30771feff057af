"""Traces of defences in an update, beside the replay of the client's training."""

import torch

from leakgauge.evaluation.recipe_traces import trace_of_defence

PARTS = {"one": 500, "two": 500}


def replay():
    return torch.cat(
        [torch.randn(500, generator=torch.Generator().manual_seed(0)), torch.linspace(-9, 9, 500)]
    ).double()


def test_values_that_are_cut_off_are_a_trace():
    cut = replay().clamp(-3, 3)
    trace = trace_of_defence(cut, replay(), PARTS, 0.01)
    assert trace.explains
    assert trace.words == "values that are cut off at 3"
    pruned = torch.where(cut.abs() < 1, torch.zeros(()), cut)
    assert "zeros in place of" in trace_of_defence(pruned, replay(), PARTS, 0.01).words


def test_values_at_a_limit_beside_another_training_are_none():
    other = 1.3 * replay()
    assert not trace_of_defence(other.clamp(-3, 3), replay(), PARTS, 0.01).explains
    below = replay().clamp(-3, 3)
    below[:2] = 3.0  # where the replay is smaller than the limit
    assert not trace_of_defence(below, replay(), PARTS, 0.01).explains


def test_the_largest_values_of_the_replay_itself_are_no_limit():
    assert "cut off" not in trace_of_defence(replay(), replay(), PARTS, 0.01).words
