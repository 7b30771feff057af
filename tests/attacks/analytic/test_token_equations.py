"""The linear equations for the patches, from the spans of patches and of tokens."""

import torch

from leakgauge.attacks.analytic.token_equations import _evened, complement_of_tokens, patch_span, rank_of_tokens, solve
from leakgauge.attacks.analytic.token_spans import _known
from leakgauge.federation.client import fedsgd
from tests.attacks.analytic.transformers import DIGITS, frozen, true_patches


def test_true_patches_and_tokens_lie_in_the_spans():
    model = frozen(patch=4, width=24)
    observation, truth = fedsgd(model, DIGITS.share([4]))
    known = _known(observation)
    update = {name: value.double() for name, value in observation.gradient.items()}
    patches = true_patches(known.layer, observation, truth).double()
    origin, basis = patch_span(known.patch_gradient(update), known.patches, 1e-7, biased=True)
    assert basis.shape == (16, 3)
    rest = (patches - origin) - (patches - origin) @ basis @ basis.T
    assert rest.norm() < 1e-4 * patches.norm()
    inputs = known.inputs
    complement = complement_of_tokens(inputs, update)
    assert complement.shape == (24 - 5, 25)
    with torch.no_grad():
        tokens = model.patches(observation.data.normalise(truth.inputs)).flatten(2).transpose(1, 2)
        seen = model.blocks[0].attention_norm(tokens + model.positions[:, 1:])[0].double()
    seen = torch.cat([seen, seen.new_ones(4, 1)], 1)
    assert (seen @ complement.T).norm() < 1e-4 * seen.norm()


def test_rows_of_zeros_stay_zeros():
    rows = _evened(torch.tensor([[3.0, 4.0], [0.0, 0.0]]))
    assert torch.equal(rows, torch.tensor([[0.6, 0.8], [0.0, 0.0]]))


def test_the_solution_is_that_of_each_patch_by_itself():
    """One least-squares problem for each patch, of its token outside of the span, written plainly."""
    model = frozen(pooling="mean").double()
    observation, truth = fedsgd(model, DIGITS.share([2]))
    known = _known(observation)
    update = dict(observation.gradient)
    solution = solve(known, update)
    gradient = known.inputs.gradient(update)
    right = torch.linalg.svd(gradient)[2]
    outside = right[16:]
    for number, patch in enumerate(true_patches(known.layer, observation, truth)):
        # [C (E p + b + position), omega] in the span of the tokens, with omega and p unknown.
        centred = torch.eye(40).double() - 1 / 40
        columns = torch.cat([centred @ known.kernel, torch.zeros(40, 1).double()], 1)
        columns = torch.cat([columns, torch.tensor([[0.0, 0, 0, 0, 1]]).double()])
        constant = torch.cat([centred @ (known.bias + model.positions[0, number]), torch.zeros(1)]).detach()
        alone = torch.linalg.lstsq(outside @ columns, -(outside @ constant)[:, None]).solution[:4, 0]
        torch.testing.assert_close(solution.patches[number], alone, rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(alone, patch.double(), rtol=1e-5, atol=1e-6)
    assert solution.error < 1e-6
    assert solution.free.shape == (0, 4)


def test_the_rank_counts_tokens_that_gradients_reach():
    ranks = []
    for depth in (1, 2):
        observation, _ = fedsgd(frozen(depth=depth), DIGITS.share([2]))
        known = _known(observation)
        ranks.append(rank_of_tokens(known.inputs, {n: v.double() for n, v in observation.gradient.items()}))
    assert ranks[0] < 10
    assert ranks[1] >= 16
