"""The solution of the least total variation."""

import torch

from leakgauge.attacks.analytic.variation import FreeDirections, conjugate_gradients, least_variation

SHAPE = (1, 6, 6)
#: Four patches of nine pixels.
PIXELS = torch.nn.functional.unfold(torch.arange(36.0).reshape(1, 1, 6, 6), 3, stride=3)[0].T.long()


def test_conjugate_gradients_against_a_direct_solution():
    draws = torch.Generator().manual_seed(0)
    factor = torch.randn(12, 8, generator=draws, dtype=torch.double)
    matrix, target = factor.T @ factor, torch.randn(8, 3, generator=draws, dtype=torch.double)
    solution = conjugate_gradients(lambda part: matrix @ part, target, 100)
    torch.testing.assert_close(solution, torch.linalg.solve(matrix, target), rtol=1e-6, atol=1e-6)


def test_a_lost_direction_of_every_patch_is_filled_from_its_neighbours():
    """A linear ramp whose patches miss one direction. The ramp is smoother than any other filling."""
    ramp = torch.arange(6.0, dtype=torch.double).expand(6, 6) / 6
    direction = torch.randn(1, 9, generator=torch.Generator().manual_seed(0), dtype=torch.double)
    direction /= direction.norm()
    patches = ramp.flatten()[PIXELS]
    cut = patches - patches @ direction.T @ direction
    filled = least_variation(cut, FreeDirections(over_pixels=direction), PIXELS, SHAPE)
    cut_image = torch.zeros(36, dtype=torch.double).index_put((PIXELS.flatten(),), cut.flatten())
    before, after = ((image - ramp.flatten()).norm() for image in (cut_image, filled))
    assert before > 1
    assert after < before / 10


def test_nothing_free_changes_nothing():
    patches = torch.rand(4, 9, dtype=torch.double)
    for free in (FreeDirections(over_patches=torch.zeros(4, 0)), FreeDirections(over_pixels=torch.zeros(0, 9))):
        free = FreeDirections(
            *(None if basis is None else basis.double() for basis in (free.over_patches, free.over_pixels))
        )
        sample = least_variation(patches, free, PIXELS, SHAPE)
        assert torch.equal(sample[PIXELS], patches)


def test_changes_and_coordinates_are_adjoint():
    draws = torch.Generator().manual_seed(0)
    left, right, patches = (torch.randn(*size, generator=draws) for size in ((4, 2), (3, 9), (4, 9)))
    for free, size in (
        (FreeDirections(left, None), (2, 9)),
        (FreeDirections(None, right), (4, 3)),
        (FreeDirections(left, right), (2, 3)),
    ):
        part = torch.randn(*size, generator=draws)
        one, other = (free.change(part) * patches).sum(), (part * free.coordinates(patches)).sum()
        torch.testing.assert_close(one, other)
