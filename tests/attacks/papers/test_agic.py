"""AGIC's composition, and that its step costs the same however many steps the client took."""

import pytest

from leakgauge import attacks, models
from leakgauge.attacks.inversion.labels import MostNegative
from leakgauge.attacks.inversion.layer_weights import Sloped
from leakgauge.attacks.inversion.objectives import Cosine, LayerWeighted
from leakgauge.attacks.inversion.update_models import FullSimulation, OneBatch
from leakgauge.core.errors import UnknownName
from leakgauge.evaluation import score
from leakgauge.federation.client import fedavg
from tests.shared import digits


def test_the_papers_settings():
    attack = attacks.agic()
    assert attack.matching.objective == LayerWeighted(Cosine(), Sloped(50.0, "linear", zeros=True, norms="one"))
    assert attack.matching.update_model == OneBatch()
    assert attack.stop.max_steps == 10_000
    baseline = attacks.invg_simulation()
    assert baseline.matching.objective == Cosine()
    assert baseline.matching.update_model == FullSimulation()
    assert (attack.priors, attack.descent.optimiser, attack.descent.schedule) == (
        baseline.priors,
        baseline.descent.optimiser,
        baseline.descent.schedule,
    )


def test_layers_count_alike_over_epochs_too():
    joint = attacks.agic_epochs(beta=1.0, zeros=False)
    alike = LayerWeighted(Cosine(), Sloped(1.0, "linear", zeros=False, norms="one"))
    assert joint.first.matching.objective == joint.joint.matching.objective == alike


def passes(attack, batch_size):
    """How often the network is run forward in a step on a client with eight samples."""
    return runs(attack(steps=2), batch_size) - runs(attack(steps=1), batch_size)


def runs(attack, batch_size):
    model = models.build("lenet", shape=(1, 8, 8), classes=10, seed=0)
    observation, _ = fedavg(
        model, digits().share(range(8)), lr=0.01, epochs=1, batch_size=batch_size, granted=["labels"]
    )
    seen = []
    hook = observation.model.register_forward_hook(lambda *_: seen.append(1))
    try:
        attack(observation, progress=False)
    finally:
        hook.remove()
    return len(seen)


def test_a_step_does_not_grow_with_the_clients_steps():
    assert passes(attacks.agic, 8) == passes(attacks.agic, 1) > 0
    assert passes(attacks.invg_simulation, 1) == 8 * passes(attacks.invg_simulation, 8)


def test_several_local_steps_are_inverted_as_one():
    model = models.build("dlf_femnist", shape=(1, 8, 8), classes=10, channels=[16, 32], dense=64, seed=0)
    observation, truth = fedavg(model, digits().share([0, 1, 2]), lr=1e-3, epochs=1, batch_size=1)
    result = attacks.agic(steps=150, beta=5.0)(observation, progress=False)
    assert sorted(result.labels.tolist()) == sorted(truth.targets.tolist())
    scored = score(result, truth)
    assert scored["psnr"].value > scored["psnr"].chance + 3


@pytest.mark.parametrize("option", ["shape", "norms"])
def test_unknown_options_are_refused(option):
    with pytest.raises(UnknownName):
        attacks.agic(**{option: "other"})


def test_labels_are_read_as_told():
    assert attacks.agic(distinct=True).labels == MostNegative(distinct=True)
