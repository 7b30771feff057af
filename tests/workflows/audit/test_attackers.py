"""Attackers of an audit: by name, with mistakes said where they were made."""

import pytest

from leakgauge import fedavg, fedsgd, models
from leakgauge.attacks import registry
from leakgauge.core.errors import InvalidInput, UnknownName
from leakgauge.data import iid, load
from leakgauge.federation.defences import build
from leakgauge.workflows.audit.attackers import Attacker, Trial, read_attacker


def test_by_name():
    assert read_attacker("idlg", {"steps": 3}, None, "here") == Attacker("idlg", {"steps": 3})
    assert read_attacker("attribute_inference", {}, "sex", "here") == Attacker("attribute_inference", {}, "sex")


def test_the_repr_tells_all_that_the_outcome_depends_on():
    assert repr(Attacker("idlg", {"steps": 3})) != repr(Attacker("idlg", {"steps": 4}))
    assert repr(Attacker("idlg")) == repr(Attacker("idlg", {"lr": 1.0}))
    assert repr(Attacker("attribute_inference", {}, "sex")) != repr(Attacker("attribute_inference", {}, "age"))


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("idlgg", {}, "did you mean 'idlg'"),
        (None, {}, "here"),
        ("idlg", {"step": 3}, "here: .*did you mean 'steps'"),
        ("attribute_inference", {}, "here: .*Name a sensitive column"),
    ],
)
def test_mistakes(name, options, words):
    with pytest.raises((InvalidInput, UnknownName), match=words):
        read_attacker(name, options, None, "here")


def test_options_that_an_attack_does_not_have_are_refused():
    with pytest.raises(InvalidInput, match=r"here: .*'steps'"):
        read_attacker("attribute_inference", {"steps": 3}, "sex", "here")


def test_attacks_on_many_rounds_are_not_for_one_message():
    with pytest.raises(UnknownName, match="lmra"):
        read_attacker("lmra", {}, None, "here")


def test_an_attack_that_only_the_undefended_message_fits_returns_nothing():
    client = iid(load("digits"), 400, seed=0)[0]
    network = models.build("mlp", shape=(1, 8, 8), classes=10, hidden=(32, 16), seed=0)
    plain, _ = fedsgd(network, client)
    rounded, truth = fedsgd(network, client, defences=(build("quantisation", bits=8),))
    fits = registry.ATTACKS["gauss_newton"].fits
    assert fits(plain).applies
    assert not fits(rounded).applies
    document, tensors = Attacker("gauss_newton")(Trial(rounded, truth, seconds=9.0), lambda *_: None)
    assert document["outcome"].startswith("does not apply to this message: made for smooth networks")
    assert document["seconds"] == 0
    assert document["scores"]["psnr"]["value"] == 0
    assert not document["cut_short"]
    assert tensors["reconstructed"].shape == truth.inputs.shape


@pytest.mark.parametrize(("lr", "proven", "settled"), [(None, True, True), (0.01, False, True), (1e-5, False, False)])
def test_samples_that_come_back_nearly_exactly_need_no_slower_attack(lr, proven, settled):
    """After several local steps, the rounding of the weights leaves an error, which grows for small steps."""
    network = models.build("vit", shape=(1, 8, 8), classes=10, patch=2, width=32, depth=1, heads=2, seed=0)
    client = load("digits").share([3])
    made = fedsgd(network, client) if lr is None else fedavg(network, client, lr=lr, epochs=5)
    document, _ = Attacker("april")(Trial(*made), lambda *_: None)
    assert (document["proven"], document["settled"]) == (proven, settled)
