"""Seeds for the parts of a run."""

from typing import Any

import numpy as np
import pytest
import torch

from leakgauge.core.seeding import derive, generator, seeded


def test_derived_seeds_differ_by_part_and_fit_into_torch():
    seeds = [derive(seed, *keys) for seed in (0, 1) for keys in ((), ("a",), ("b",), ("a", 1), ("a", "1"), (("a", 1),))]
    assert len(set(seeds)) == len(seeds)
    assert all(0 <= seed < 2**63 for seed in seeds)


def test_derived_seeds_are_the_same_in_every_process():
    assert derive(7, "order", 3) == 4967576539904251390


def test_a_numpy_seed_is_the_number_it_holds():
    seed: Any = np.int64(3)
    assert derive(seed, "a") == derive(3, "a")


def test_generators_repeat():
    first, again, other = (torch.rand(3, generator=generator(0, key)) for key in ("a", "a", "b"))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_seeded_draws_repeat_and_leave_the_caller_alone():
    before = torch.get_rng_state()
    draws = []
    for _ in range(2):
        with seeded(3, "dropout"):
            draws.append(torch.rand(4))
    assert torch.equal(*draws)
    assert torch.equal(before, torch.get_rng_state())


def test_an_error_inside_leaves_the_caller_alone_too():
    before = torch.get_rng_state()
    with pytest.raises(RuntimeError), seeded(3):
        raise RuntimeError(str(torch.rand(1)))
    assert torch.equal(before, torch.get_rng_state())
