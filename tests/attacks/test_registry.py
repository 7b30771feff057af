"""The registry finds every attack that a file declares, in a fixed order, and refuses what is unknown."""

import inspect
from dataclasses import replace
from pathlib import Path

import pytest

from leakgauge import attacks
from leakgauge.attacks import registry
from leakgauge.attacks.spec import AttackSpec, Cost, Fit, always, local_training, one_gradient
from leakgauge.core.errors import InvalidInput, UnknownName
from leakgauge.testing import small_case


def test_attacks_on_one_update_come_cheapest_first_in_the_order_of_an_audit():
    order = [
        "lbfgs_simulation", "epafl", "idlg", "surrogate", "dlg", "agic", "awa", "dlg_simulation", "inverting_gradients",
        "invg_simulation", "dlf", "dlf_paper",
    ]  # fmt: skip
    names = [spec.name for spec in registry.specs(recovers="samples", reads="update")]
    assert [name for name in names if name in order] == order


def test_the_default_audit_runs_these_attacks_with_these_options():
    chosen = registry.specs(recovers="samples", reads="update")
    options = {spec.name: spec.audit for spec in chosen if spec.audit is not None}
    assert options["lbfgs_simulation"] == {"retries": 2}
    assert "epafl" not in options  # lbfgs_simulation takes its place on smooth networks
    assert options["surrogate"] == {"steps": 300}
    assert options["prior_path"] == {"steps": 1000}
    assert "inverting_gradients" not in options
    assert options["dlf"] == {}
    for name in options:
        attacks.build(name, **options[name])


def test_names_are_in_alphabetical_order_and_each_is_a_factory_of_the_package():
    assert list(registry.ATTACKS) == sorted(registry.ATTACKS)
    for name, spec in registry.ATTACKS.items():
        assert spec.name == name
        assert getattr(attacks, name, None) is spec.factory or inspect.ismodule(getattr(attacks, name))
        assert spec.summary.endswith(".")
        assert "\n" not in spec.summary


def test_every_attack_on_samples_has_a_line_in_the_documentation():
    page = (Path(__file__).parents[2] / "docs" / "attacks.md").read_text(encoding="utf-8")
    assert [spec.name for spec in registry.specs("samples") if f"\n| `{spec.name}` | " not in page] == []


def test_an_attack_on_epochs_is_registered_and_left_out_of_an_audit_of_one_update():
    assert "agic_epochs" in [spec.name for spec in registry.specs(reads="epochs")]
    assert "agic_epochs" not in [spec.name for spec in registry.specs(reads="update")]
    assert isinstance(attacks.build("agic_epochs", steps=3), attacks.JointInversion)


def test_a_name_that_is_neither_module_nor_attack_is_no_attribute():
    with pytest.raises(AttributeError, match=r"module 'leakgauge.attacks' has no attribute 'nonsense'"):
        attacks.nonsense  # noqa: B018
    assert inspect.ismodule(attacks.papers)


def test_a_registered_attack_without_an_explicit_export_is_a_name_of_the_package(monkeypatch):
    spec = replace(registry.ATTACKS["idlg"], name="other")
    monkeypatch.setattr(attacks, "ATTACKS", {"other": spec})
    assert attacks.other is spec.factory


def test_two_attacks_of_one_name_are_refused(monkeypatch):
    monkeypatch.setattr("leakgauge.attacks.papers.dlg.SPEC", registry.ATTACKS["idlg"], raising=False)
    with pytest.raises(InvalidInput, match="two attacks have the name 'idlg'"):
        len(registry.Registry())


def test_a_description_names_known_kinds_only():
    with pytest.raises(UnknownName, match="value of recovers in the description of odd 'money'"):
        AttackSpec(name="odd", factory=dict, summary="", recovers="money", fits=one_gradient, cost=Cost.HOURS)
    with pytest.raises(UnknownName, match="value of reads in the description of odd 'novels'"):
        AttackSpec(name="odd", factory=dict, summary="", reads="novels", fits=one_gradient, cost=Cost.HOURS)


FOUR_STEPS = "this is the result of 4 local steps"


@pytest.mark.parametrize(
    ("rule", "kind", "network", "fit"),
    [
        (always("any reason"), "gradient", "cnn", Fit(True, "any reason")),
        (always("any reason"), "weights", "cnn", Fit(True, "any reason")),
        (
            one_gradient,
            "weights",
            "lenet",
            Fit(False, "made for one gradient, and this is the result of 4 local steps"),
        ),
        (one_gradient, "gradient", "lenet", Fit(True, "made for one gradient of a smooth network")),
        (local_training("why"), "gradient", "lenet", Fit(False, "made for local training, and this is one gradient")),
        (local_training("why"), "weights", "lenet", Fit(True, "why")),
    ],
)
def test_rules_give_their_reasons(rule, kind, network, fit):
    assert rule(small_case(kind, network=network)[0]) == fit


def test_rules_look_at_the_layers_and_at_the_learning_rate():
    fit = one_gradient(small_case("gradient", network="cnn")[0])
    assert fit.applies
    assert "fragile with piecewise linear layers" in fit.reason
    observation = small_case("weights")[0]
    unknown = replace(observation, training=replace(observation.training, lr=None))
    assert local_training("why")(unknown) == Fit(False, "needs the client's learning rate, which is unknown")
