"""AWA's composition: Q becomes layer weights, one epoch of several is attacked."""

import pytest

from leakscope import attacks, data, models
from leakscope.attacks.awa import RANGES, TABLE3, weights_of
from leakscope.errors import InvalidInput, UnknownName
from leakscope.federated.client import fedavg
from leakscope.inversion.layer_weights import ByKind
from leakscope.inversion.objectives import L2, LayerWeighted
from leakscope.inversion.update_models import EpochInterpolation
from leakscope.metrics import score

DIGITS = data.load("digits")


def test_the_papers_settings():
    attack = attacks.awa(Q="case1")
    assert attack.objective == LayerWeighted(L2(), ByKind(519.19, 802.55, 42.83, 946.44, 0.24, 0.07))
    assert attack.update_model == EpochInterpolation(1)
    assert attack.stop.max_steps == 1000


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
    observation, truth = fedavg(model, DIGITS.share(range(4)), lr=0.002, epochs=2, batch_size=2, grant=["labels"])
    result = attacks.awa(Q={"q_cv": 20.0, "q_fc": 20.0}, epoch=epoch, steps=150)(observation, progress=False)
    scored = score(result, truth)
    assert scored["psnr"].mean > scored["psnr"].chance + 2


def test_wrong_weights_are_refused():
    with pytest.raises(UnknownName, match="q_cv"):
        attacks.awa(Q={"q_conv": 3.0})
    with pytest.raises(UnknownName, match="case4"):
        attacks.awa(Q="case5")
    with pytest.raises(InvalidInput, match="above 0"):
        attacks.awa(Q={"q_bn": -1.0})
    with pytest.raises(InvalidInput, match="mapping"):
        attacks.awa(Q=[1.0, 2.0])
