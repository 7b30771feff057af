"""Inputs of proven samples, computed again in the row spaces of the whole gradients.

A sample that is found after others were subtracted has an error, because the gradients of the others are subtracted
with small errors. These errors may be larger than the gradient of a sample that the model has learned. The row spaces
of the observed gradients have no such errors. Every proven sample is therefore solved for in these spaces once more,
from its own inexact input.
"""

from __future__ import annotations

import torch

from leakgauge.attacks.analytic.layer_span import LayerSpan
from leakgauge.attacks.analytic.levenberg import Problem, search
from leakgauge.attacks.analytic.one_hot import OneHotProblem, one_hot_columns
from leakgauge.attacks.analytic.proof import Candidates, Prover
from leakgauge.attacks.analytic.two_layers import TwoLayers

#: The largest number of iterations of each sample.
ITERATIONS = 8
#: The largest difference of two targets of a regression that are the same, as a share of the larger one.
SAME_TARGET = 1e-2


def polished(chain: TwoLayers, whole: list[LayerSpan], found: Candidates, prove: Prover) -> Candidates:
    """Return the proven samples with more exact inputs, where the proof shows that they are more exact.

    Args:
        chain: The two dense layers.
        whole: The observed gradients of both layers, without any sample subtracted.
        found: The proven samples.
        prove: The prover for these gradients.
    """
    first, second = whole
    layer, last, columns = chain.augmented_weight() @ first.right, first.right[-1], one_hot_columns(chain)
    problem = Problem(layer, last, second.right, chain.activation)
    if columns is not None:
        problem = OneHotProblem(layer, last, second.right, chain.activation, columns @ first.right)
    before = prove(found.inputs[0], (first, second))
    ends, _ = search(problem, found.inputs[0] @ first.right, ITERATIONS)
    after = prove(ends @ first.right.T, (first, second))
    same = torch.isclose(after.targets.double(), found.targets.double(), rtol=SAME_TARGET, atol=0.0)
    better = (after.error < before.error) & same & (after.copies == found.copies)
    rows = torch.nonzero(better).flatten()
    return found.replaced(rows, after.rows(rows)) if len(rows) else found
