"""AWA's composition: Q becomes layer weights, one epoch of several is attacked."""

import pytest

from leakgauge import attacks, models
from leakgauge.attacks import search_awa
from leakgauge.attacks.inversion.layer_weights import ByKind
from leakgauge.attacks.inversion.objectives import L2, LayerWeighted
from leakgauge.attacks.inversion.optimisers import Constant, Drops
from leakgauge.attacks.inversion.update_models import EpochInterpolation
from leakgauge.attacks.papers.awa import RANGES, TABLE3, RecAttack, weights_of
from leakgauge.core.errors import InvalidInput, UnknownName
from leakgauge.core.progress import silent
from leakgauge.evaluation import score
from leakgauge.federation.client import fedavg
from tests.shared import digits


def test_the_papers_settings():
    attack = attacks.awa(Q="case1")
    assert attack.matching.objective == LayerWeighted(L2(), ByKind(519.19, 802.55, 42.83, 946.44, 0.24, 0.07))
    assert attack.matching.update_model == EpochInterpolation(1)
    assert attack.stop.max_steps == 1000
    assert attack.descent.keep_last
    assert attack.descent.schedule == Constant()


def test_each_paper_with_the_others_step_rule():
    assert attacks.awa(drops=True).descent.schedule == attacks.agic().descent.schedule == Drops()
    other = attacks.agic(signed=False, drops=False)
    assert (other.descent.optimiser, other.descent.schedule) == (
        attacks.awa().descent.optimiser,
        attacks.awa().descent.schedule,
    )


def test_table_3_lies_within_the_ranges_of_table_2():
    for numbers in TABLE3.values():
        assert numbers.keys() == RANGES.keys()
        assert all(RANGES[name][0] <= value <= RANGES[name][1] for name, value in numbers.items())


def test_q_may_be_given_in_part():
    assert weights_of({}) == ByKind()
    assert weights_of({"q_cv": 5.0}) == ByKind(convolution=5.0)


@pytest.mark.parametrize("epoch", [1, 2])
def test_any_epoch_of_several_may_be_attacked(epoch):
    model = models.build("dlf_femnist", shape=(1, 8, 8), classes=10, channels=[16, 32], dense=64, seed=0)
    observation, truth = fedavg(model, digits().share(range(4)), lr=0.002, epochs=2, batch_size=2, granted=["labels"])
    result = attacks.awa(Q={"q_cv": 20.0, "q_fc": 20.0}, epoch=epoch, steps=150)(observation, progress=False)
    scored = score(result, truth)
    assert scored["psnr"].value > scored["psnr"].chance + 2


def test_wrong_weights_are_refused():
    with pytest.raises(UnknownName, match="q_cv"):
        attacks.awa(Q={"q_conv": 3.0})
    with pytest.raises(UnknownName, match="case4"):
        attacks.awa(Q="case5")
    with pytest.raises(InvalidInput, match="above 0"):
        attacks.awa(Q={"q_bn": -1.0})
    with pytest.raises(InvalidInput, match="mapping"):
        attacks.awa(Q=[1.0, 2.0])


def case(epochs=2, batch_size=2):
    model = models.build("dlf_femnist", shape=(1, 8, 8), classes=10, channels=[8, 16], dense=32, seed=0)
    return fedavg(model, digits().share(range(4)), lr=0.002, epochs=epochs, batch_size=batch_size, granted=["labels"])


def test_a_search_goes_on_where_it_ended_and_names_its_best(tmp_path):
    observation, _ = case()
    path = tmp_path / "trials"
    begun = search_awa(observation, trials=3, random=3, steps=30, path=path)
    found = search_awa(observation, trials=6, random=3, steps=30, path=path)
    assert found.trials[:3] == begun.trials
    assert found.best.value == min(trial.value for trial in found.trials if trial.state == "done")
    assert found.running_minimum[-1] <= begun.running_minimum[-1]
    for trial in found.trials:
        assert all(RANGES[name][0] <= value <= RANGES[name][1] for name, value in trial.numbers.items())
    other, _ = case(epochs=1)
    assert search_awa(other, trials=3, random=3, steps=30, path=path).trials != begun.trials
    assert attacks.awa(Q=found.best.numbers)


def test_a_trial_is_the_attack_with_its_unweighted_distance():
    """f(Q) of equation 33 by hand: the reconstruction's own update against the observed one, all layers alike."""
    observation, _ = case(epochs=1, batch_size=4)
    numbers = {"q_cv": 7.0, "q_fc": 3.0}
    seen = []
    trial = RecAttack(observation, attacks.awa(Q={}, steps=20), seed=3)
    result, value = trial.attempt(numbers, lambda step, value: seen.append((step, value)), silent)
    same = attacks.awa(Q=numbers, steps=20)(observation, seed=3, progress=False)
    assert same.samples.equal(result.samples)
    assert [step for step, _ in seen] == list(range(2, 21, 2)) or len(seen) >= 9
    assert value <= 1.5 * seen[0][1]


def test_ctrl_c_in_a_trial_is_no_result():
    observation, _ = case()

    def stop(step, total, loss):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        RecAttack(observation, attacks.awa(Q={}, steps=20)).attempt({}, lambda step, value: None, stop)
