"""Defences that an attacker knows of: read as data, and turned into numbers."""

import pytest
import torch

from leakgauge import defences, models
from leakgauge.attacks.inversion.known_defences import (
    KnownDefence,
    kept_share,
    known_defences,
    noise_share,
    pruned_updates,
    read,
)
from leakgauge.core.params import flatten
from leakgauge.federation.client import fedavg, fedsgd
from tests.shared import digits


def own():
    return digits().share(range(6))


def network():
    return models.mlp(shape=(1, 8, 8), classes=10, hidden=[64], seed=0)


def test_a_repr_is_read_as_a_name_and_settings():
    assert read(repr(defences.TopK(0.1))) == KnownDefence("TopK", {"on": "update", "keep": 0.1})
    assert read(repr(defences.DPSGD(noise=1.5))).settings["noise"] == 1.5


@pytest.mark.parametrize(
    "text",
    ["", "noise", "f(g())", "__import__('os').system('true')", "GaussianNoise(open('x'))", "a.b(c=1)", "(" * 5000],
)
def test_what_is_no_plain_repr_is_passed_over_and_nothing_is_run(text):
    assert read(text) is None


def test_nothing_is_known_unless_granted():
    hidden, _ = fedsgd(network(), own(), defences=defences.GaussianNoise(0.1))
    told, _ = fedsgd(network(), own(), defences=defences.GaussianNoise(0.1), knows_defence=True)
    assert known_defences(hidden) == []
    assert [one.name for one in known_defences(told)] == ["GaussianNoise"]


@pytest.mark.parametrize(
    "defence",
    [
        defences.GaussianNoise(0.1),
        defences.GaussianNoise(0.1, on="gradient"),
        defences.GaussianNoise(0.01, on="update"),
        defences.LaplacianNoise(0.1),
        defences.DPSGD(noise=1.0, clip=0.5),
    ],
    ids=repr,
)
@pytest.mark.parametrize("kind", ["gradient", "weights"])
def test_the_expected_noise_is_the_noise_that_is_there(defence, kind):
    """Against the measured squared difference to the same client without noise to speak of."""
    quiet = defences.DPSGD(noise=1e-9, clip=0.5) if isinstance(defence, defences.DPSGD) else ()

    def run(chain):
        if kind == "gradient":
            return fedsgd(network(), own(), defences=chain, knows_defence=True)[0]
        return fedavg(network(), own(), lr=0.01, epochs=2, batch_size=3, defences=chain, knows_defence=True)[0]

    noisy, plain = run(defence), run(quiet)
    difference = flatten(noisy.summed_gradient()) - flatten(plain.summed_gradient())
    measured = float(difference.square().sum() / flatten(noisy.summed_gradient()).square().sum())
    assert noise_share(noisy, known_defences(noisy)) == pytest.approx(min(1.0, measured), rel=0.25)


def test_pruning_leaves_a_share_or_holes():
    step, whole = defences.RandomPruning(0.2), defences.RandomPruning(0.2, on="update")
    known = [read(repr(one)) for one in (step, step)]
    assert kept_share(known) == pytest.approx(0.64)
    assert not pruned_updates(known)
    assert pruned_updates([read(repr(whole))])
    assert kept_share([read(repr(whole))]) == 1
    assert not pruned_updates([read(repr(defences.TopK(0.1)))])


def test_an_unknown_recipe_tells_of_no_noise():
    hidden, _ = fedavg(
        network(), own(), lr=0.1, defences=defences.GaussianNoise(0.1), knows_defence=True, hidden=["lr"]
    )
    assert noise_share(hidden, known_defences(hidden)) == 0
    assert torch.isfinite(flatten(hidden.returned)).all()


@pytest.mark.parametrize("sigma", ["1e200", "1e999", f"1{'0' * 400}"])
def test_numbers_that_no_client_could_use_are_all_noise(sigma):
    """A capture of a stranger may name any number."""
    observation, _ = fedsgd(network(), own())
    hostile = observation.knowing(defences=(f"GaussianNoise(on='update', sigma={sigma})",))
    assert noise_share(hostile, known_defences(hostile)) == 1
