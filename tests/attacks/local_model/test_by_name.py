"""The attacks on a local model in the registry."""

from dataclasses import replace

import pytest

from leakgauge import fedsgd
from leakgauge.attacks.local_model import Distilled, Learned, LocalModelAttack, build
from leakgauge.attacks.registry import ATTACKS, specs
from leakgauge.core.errors import InvalidInput, UnknownName
from tests.attacks.local_model.cases import linear, linear_clients, network, table_clients, watched


def test_attacks_by_name():
    assert build("learned", widths=[8], epochs=5) == Learned(widths=(8,), epochs=5)
    with pytest.raises(UnknownName, match="did you mean 'secant'"):
        build("secnt")
    with pytest.raises(UnknownName, match="option of secant"):
        build("secant", ridge=1)
    with pytest.raises(UnknownName, match="no attack on a local model called 'dlf'"):
        build("dlf")
    with pytest.raises(InvalidInput, match="must be a whole number"):
        build("lmra", steps="abc")
    assert build("lmra") == build("distilled") == Distilled()


@pytest.mark.parametrize("spec", specs(recovers="model"), ids=lambda spec: spec.name)
def test_every_registered_attack_is_a_local_model_attack(spec):
    assert spec.reads == "rounds"
    attack = build(spec.name)
    assert isinstance(attack, LocalModelAttack)
    assert spec.audit is None
    honest = watched(linear(3), linear_clients(3), rounds=1)[0][0]
    assert spec.fits(replace(honest, steered=spec.name if spec.malicious else "")).applies
    assert spec.fits(honest).applies is not spec.malicious


def test_the_rules_name_the_reason():
    network_round = watched(network(), table_clients(), rounds=1)[0][0]
    batches = watched(linear(3), linear_clients(3), rounds=1, batch_size=4)[0][0]
    gradient = fedsgd(linear(3), linear_clients(3)[0])[0]
    assert "linear regression only" in ATTACKS["exact"].fits(network_round).reason
    assert "full batches" in ATTACKS["exact"].fits(batches).reason
    assert ATTACKS["least_squares"].fits(batches).applies
    assert ATTACKS["exact"].fits(gradient).applies
    for name in ("last_returned", "secant", "learned"):
        assert not ATTACKS[name].fits(gradient).applies
        assert "learning rate" in ATTACKS[name].fits(gradient).reason
        assert ATTACKS[name].fits(gradient.knowing(lr=0.1)).applies
    assert ATTACKS["lmra"].fits(gradient).applies
