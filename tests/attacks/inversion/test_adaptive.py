"""An attacker who knows the defence gets back more than one who does not."""

import pytest

from leakgauge import attacks, defences, models
from leakgauge.attacks.inversion.adaptive import adapted, adapts
from leakgauge.attacks.inversion.objectives import L2, Adapted, Cosine
from leakgauge.evaluation import score
from leakgauge.federation.client import fedsgd
from tests.shared import digits


def observe(*chain, told=True):
    network = models.build("dlf_femnist", shape=(1, 8, 8), classes=10, channels=[16, 32], dense=64, seed=0)
    return fedsgd(network, digits().share(range(2)), defences=chain, granted=["labels"], knows_defence=told)


def quality(attack, *chain, told):
    observation, truth = observe(*chain, told=told)
    return score(attack(observation, progress=False), truth)["mse"].value


@pytest.mark.parametrize(
    "defence", [defences.RandomPruning(0.5, on="update"), defences.Clipping(0.3, on="update")], ids=repr
)
def test_knowing_the_defence_helps(defence):
    attack = attacks.dlg_simulation(steps=80)
    blind, told = (quality(attack, defence, told=knows) for knows in (False, True))
    assert told < 0.8 * blind


def test_an_undefended_client_is_attacked_as_ever():
    attack = attacks.inverting_gradients(steps=5)
    assert adapted(attack, observe(told=False)[0]) is attack
    assert adapted(attack, observe()[0]) is attack
    assert adapted(attack, observe(defences.Quantisation(4))[0]) is attack


def test_what_each_defence_changes():
    attack = attacks.inverting_gradients(steps=5)
    pruned = adapted(attack, observe(defences.RandomPruning(0.25, on="update"))[0])
    assert pruned.matching.objective == Adapted(Cosine(), masked=True)
    thinned = adapted(attack, observe(defences.RandomPruning(0.25))[0])
    assert thinned.matching.objective == Adapted(Cosine(), share=0.75)
    clipped = adapted(attacks.dlg_simulation(), observe(defences.Clipping(1.0))[0])
    assert clipped.matching.objective == Adapted(L2(), free_scale=True)
    noisy = adapted(attack, observe(defences.GaussianNoise(0.01))[0])
    assert noisy.matching.objective == attack.matching.objective
    assert noisy.priors[0].weight > attack.priors[0].weight


def test_many_clients_are_adapted_each():
    """Told clients are attacked one by one: each has its own defences."""
    observation, _ = observe(defences.RandomPruning(0.5, on="update"))
    attack = attacks.dlg_simulation(steps=3)
    alone, together = attack(observation, progress=False), attack.each([observation, observation], progress=False)
    assert together[0].samples.equal(alone.samples)


def test_an_attack_that_cannot_use_the_knowledge_is_known():
    noisy, quantised = (observe(one)[0] for one in (defences.GaussianNoise(0.01), defences.Quantisation(4)))
    assert adapts(attacks.inverting_gradients(steps=5), noisy)
    assert not adapts(attacks.inverting_gradients(steps=5), quantised)
    assert not adapts(attacks.idlg(steps=5), noisy)  # it has no prior to trust more


@pytest.mark.parametrize(
    "name",
    [
        "april",
        "dense_factorisation",
        "dense_read_off",
        "dense_tail_features",
        "gauss_newton",
        "local_rows",
        "local_spans",
        "token_spans",
        "two_spans",
    ],
)
def test_exact_attacks_do_not_use_the_knowledge(name):
    assert not adapts(attacks.build(name), observe(defences.GaussianNoise(0.01))[0])


def test_another_attack_may_use_the_knowledge():
    class Own(attacks.Attack):
        def run(self, observation, seed, report):
            raise NotImplementedError

    assert adapts(Own(), observe(defences.GaussianNoise(0.01))[0])
