"""The audit: everything is tried, kept, never done twice, and judged."""

import copy
from dataclasses import replace

import pytest
import torch

from leakgauge.attacks import registry
from leakgauge.attacks.spec import Cost
from leakgauge.core.errors import InvalidInput, UnknownName
from leakgauge.core.measure import Measure
from leakgauge.evaluation.support import ZERO_UPDATE
from leakgauge.evaluation.verdict import Finding, Verdict
from leakgauge.runtime.cache import Cache, key_of
from leakgauge.workflows.audit import read_audit, run, run_audit
from leakgauge.workflows.audit.budget import Forecast
from leakgauge.workflows.audit.judging import ClientResult
from leakgauge.workflows.audit.plan import Work
from leakgauge.workflows.result import Running

DOCUMENT = {
    "model": {"name": "lenet", "options": {"shape": [1, 8, 8], "classes": 10}},
    "data": {"name": "digits"},
    "training": {"sends": "gradient", "samples": 1},
    "audit": {"attacks": [{"name": "inverting_gradients", "steps": 5}, {"name": "idlg", "steps": 8}], "clients": 2},
    "defence": [{}, {"title": "noise", "chain": [{"name": "gaussian_noise", "sigma": 0.5}]}],
}


SCORE = Measure("psnr", 12.0, chance=12.0)
HERE = Running("in-process")  # the engines are tested elsewhere, and starting processes takes longer than this work


def document(**changes):
    return copy.deepcopy(DOCUMENT) | changes


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("audit")
    return run_audit(read_audit(document(), "audit.toml"), folder, HERE), folder


def test_cheap_attacks_come_first_and_knowing_attackers_only_where_the_knowledge_is_of_use():
    work = [one for one in read_audit(document(), "audit.toml").work if not one.control]
    assert [one.attack for one in work] == ["idlg"] * 4 + ["inverting_gradients"] * 6
    assert not any(one.knows_defence for one in work if one.attack == "idlg")  # it has no prior to trust more
    assert {(one.defence, one.knows_defence) for one in work} == {
        ("no defence", False),
        ("noise", False),
        ("noise", True),
    }
    unknowing = read_audit(document(attacker={"knows_defence": False}), "audit.toml").work
    assert not any(one.knows_defence for one in unknowing)


def test_the_verdict_is_per_attack_per_defence_and_overall(made):
    result, _ = made
    verdicts = {(one.attack, one.setup, one.knows_defence): one.verdict for one in result.findings}
    assert verdicts["idlg", "no defence", False] is Verdict.RECOVERS_DATA
    assert verdicts["idlg", "noise", False] is not Verdict.RECOVERS_DATA
    assert result.verdict is result.verdict_on("no defence") is Verdict.RECOVERS_DATA
    assert result.verdict_on("noise") is not Verdict.RECOVERS_DATA
    assert result.complete


def test_results_hold_what_a_report_shows(made):
    result, _ = made
    one = result.results[0]
    assert one.tensors["original"].shape == one.tensors["reconstructed"].shape == (1, 1, 8, 8)
    assert one.tensors["guess"].shape == (1, 8, 8)
    assert len(one.tensors["psnr"]) == 1
    assert one.document["scores"]["psnr"]["value"] == pytest.approx(float(one.tensors["psnr"][0]), rel=1e-4)
    assert any("gradient" in sentence for sentence in one.document["threat_model"])


def test_nothing_is_done_twice(made, monkeypatch):
    result, folder = made
    monkeypatch.setattr(run, "attack_client", None)
    again = run_audit(read_audit(document(), "audit.toml"), folder, HERE)
    assert [one.document for one in again.results] == [one.document for one in result.results]


def test_an_audit_that_was_stopped_goes_on(made, tmp_path):
    result, _ = made
    plan = read_audit(document(), "audit.toml")
    part = run_audit(plan, tmp_path, HERE, stop_after=3)
    assert not part.complete
    assert len(part.results) == 3
    whole = run_audit(plan, tmp_path, HERE)
    assert whole.complete
    for one, other in zip(whole.results, result.results, strict=True):
        assert one.document["scores"] == other.document["scores"]
        assert torch.equal(one.tensors["reconstructed"], other.tensors["reconstructed"])


def test_other_work_is_other_work():
    plan = read_audit(document(), "audit.toml")
    other = read_audit(document(training={"sends": "gradient", "samples": 2}), "audit.toml")
    keys = [key_of(one.definition(one.work[0])) for one in (plan, other)]
    assert keys[0] != keys[1]
    assert plan.scenario.fingerprint == read_audit(document(), "audit.toml").scenario.fingerprint
    changed = read_audit(
        document(model=DOCUMENT["model"] | {"options": {"shape": [1, 8, 8], "classes": 10, "seed": 5}}), "a"
    )
    assert changed.scenario.fingerprint != plan.scenario.fingerprint


def test_without_a_word_the_attacks_that_fit_are_taken():
    plain = {key: DOCUMENT[key] for key in ("model", "data")}
    assert list(read_audit(plain | {"training": {"sends": "gradient"}}, "a").attacks) == [
        "lbfgs_simulation",
        "learned_inversion",
        "prior_path",
    ]
    found = read_audit(plain | {"training": {"lr": 0.1, "epochs": 2}}, "a")
    searches = ["lbfgs_simulation", "surrogate", "prior_path", "dlf"]
    assert list(found.attacks) == [*searches[:2], "learned_inversion", *searches[2:]]
    alone = read_audit(plain | {"training": {"lr": 0.1, "epochs": 2}, "attacker": {"public": "none"}}, "a")
    assert list(alone.attacks) == searches
    assert list(found.chains) == ["no defence"]


WRONG = [
    ({"audit": {"attack": []}}, "did you mean 'attacks'"),
    ({"audit": {"attacks": []}}, "is empty"),
    ({"audit": {"attacks": ["idgl"]}}, "did you mean 'idlg'"),
    ({"audit": {"attacks": ["dlf"]}}, "dlf does not apply here: made for local training"),
    ({"audit": {"attacks": [{"name": "idlg", "step": 3}]}}, "did you mean 'steps'"),
    ({"audit": {"attacks": ["attribute_inference"]}}, "Name a sensitive column"),
    ({"audit": {"clients": 0}}, "at least 1"),
    ({"attacker": {"knows_defence": 1}}, "knows_defence must be of type bool"),
    ({"defence": {"chain": []}}, r"written \[\[defence\]\]"),
    ({"defence": [{"chain": [{"name": "noise"}]}]}, "chain: there is no defence 'noise'"),
    ({"defence": [{}, {}]}, "Titles must differ"),
    ({"training": {"samples": 0}}, r"\[training\] samples must be a whole number of at least 1"),
    (
        {"training": {"sends": "gradient", "batch_size": 0}},
        r"batch_size must be a whole number of at least 1",
    ),
    ({"model": {"name": "lenett"}}, r"audit.toml: \[model\].*did you mean 'lenet'"),
    ({"model": {"name": "lenet", "options": {"shape": [1, 8, 8], "classes": 3}}}, "10"),
    ({"data": {"name": "digit"}}, r"audit.toml: \[data\].*did you mean 'digits'"),
    ({"attacker": {"granted": ["everything"]}}, "'everything'"),
    ({"typo": {}}, "'typo'"),
    ({"defense": []}, "did you mean 'defence'"),
]


@pytest.mark.parametrize(("changes", "words"), WRONG, ids=[words for _, words in WRONG])
def test_wrong_audits_are_refused_in_one_sentence(changes, words, monkeypatch):
    monkeypatch.setattr(run, "attack_client", None)
    with pytest.raises((InvalidInput, UnknownName), match=words):
        read_audit(document(**changes), "audit.toml")


def test_every_attack_has_its_positive_controls():
    plan = read_audit(document(training={"sends": "gradient", "samples": 3}), "audit.toml")
    controls = plan.controls_of("idlg")
    assert {one.control for one in controls} == {"one sample, label known"}
    assert plan.scenario_of(controls[0]).samples == 1
    larger = read_audit(document(training={"sends": "gradient", "samples": 20}), "audit.toml")
    assert list(larger.controls) == ["one sample, label known", "5 samples, labels known"]
    defended = read_audit(document(defence=DOCUMENT["defence"][1:]), "audit.toml")
    assert list(defended.controls) == ["no defence", "one sample, label known"]
    assert all(defended.chain_of(one) == () for one in defended.controls_of("idlg"))


def test_a_control_that_cannot_be_simulated_is_left_out():
    """Batch norm in train mode cannot train on a single sample, so only the larger control remains."""
    network = {"name": "mlp", "options": {"shape": [1, 8, 8], "classes": 10, "hidden": [8], "batch_norm": True}}
    training = {"sends": "gradient", "samples": 8}
    plan = read_audit(document(model=network, training=training, defence=[]), "audit.toml")
    assert list(plan.controls) == ["2 samples, labels known"]


def test_controls_run_only_for_attacks_that_succeed_nowhere_without_a_defence(made):
    """The success of idlg without a defence is its control."""
    result, _ = made
    unsuccessful = {one.attack for one in result.findings if one.verdict is not Verdict.RECOVERS_DATA}
    assert unsuccessful == {"idlg", "inverting_gradients"}
    assert {one.attack for one in result.controls} == {"inverting_gradients"}
    assert all(one.reason for one in result.findings if one.verdict is not Verdict.RECOVERS_DATA)


WEAK = {"attacks": [{"name": "inverting_gradients", "steps": 1}], "clients": 2}


def test_an_attack_that_fails_on_its_control_is_inconclusive_and_never_an_all_clear(tmp_path):
    hidden = {"title": "noise", "chain": [{"name": "gaussian_noise", "sigma": 5.0}]}
    weak = run_audit(read_audit(document(audit=WEAK, defence=[hidden]), "audit.toml"), tmp_path / "weak", HERE)
    assert weak.verdict is Verdict.INCONCLUSIVE
    assert {one.setup for one in weak.controls} == {"no defence", "one sample, label known"}
    assert not any(one.verdict is Verdict.RECOVERS_DATA for one in weak.controls)
    strong_attack = {"attacks": [{"name": "idlg", "steps": 8}], "clients": 2}
    plan = read_audit(document(audit=strong_attack, defence=[hidden]), "audit.toml")
    strong = run_audit(plan, tmp_path / "strong", HERE)
    assert [(one.setup, one.verdict) for one in strong.controls] == [("no defence", Verdict.RECOVERS_DATA)]
    assert strong.verdict is Verdict.INCONCLUSIVE  # the noise would lead idlg far below a guess
    assert "returned a guess" in strong.reason_for("noise")


def test_an_exact_attack_that_proves_nothing_is_no_all_clear(tmp_path):
    """It succeeds on its control, one sample, and that says nothing about samples that it could not prove."""
    network = {"name": "mlp", "options": {"shape": [1, 8, 8], "classes": 10, "hidden": [32, 16]}}
    hidden = {"title": "noise", "chain": [{"name": "gaussian_noise", "sigma": 1.0}]}
    changes = {"model": network, "audit": {"attacks": ["two_spans"], "clients": 2}, "defence": [hidden]}
    found = run_audit(read_audit(document(**changes), "audit.toml"), tmp_path, HERE)
    assert all(one.verdict is Verdict.RECOVERS_DATA for one in found.controls)
    assert found.verdict is Verdict.INCONCLUSIVE


def test_an_attack_is_not_tried_on_versions_that_it_refuses():
    """The read-off takes one sample through dropout, and refuses several, so the ladder has one rung of samples."""
    model = {"name": "tests.known_answers.networks:dropped_out"}
    plan = read_audit(document(model=model, audit={"attacks": ["dense_read_off"]}, defence=[]), "audit.toml")
    works = [Work("no defence", "dense_read_off", False, 0, f"samples {count}") for count in (1, 4)]
    assert [plan.applies(work) for work in works] == [True, False]


@pytest.mark.parametrize(
    ("psnr", "errors", "ending", "cost", "again"),
    [
        (12.0, 0.0, ("falling", "searched"), 0.1, True),  # labels leak, and samples may leak too
        (12.0, 3.0, ("falling", "searched"), 0.1, True),
        (12.0, 3.0, ("falling", "searched"), 12.0, True),  # more than half of the budget
        (12.0, 3.0, ("falling", "searched"), 30.0, False),
        (12.0, 3.0, ("searched",), 0.1, True),
        (12.0, 3.0, ("searched",), 12.0, False),
        (12.0, 3.0, (), 0.1, False),  # a blind guess, which another start does not change
        (40.0, 0.0, ("falling", "searched"), 0.1, False),
    ],
)
def test_a_second_attempt_is_made_until_samples_are_found(psnr, errors, ending, cost, again, tmp_path):
    plan = read_audit({**document(defence=[], audit={"clients": 2, "budget": "60s"})}, "audit.toml")
    state = run._Run(plan, Cache(tmp_path), HERE, None)
    state.forecast = Forecast(dict.fromkeys(plan.attacks, cost), 1, 60.0)
    measures = (
        Measure("psnr", psnr, chance=12.0, worst=psnr),
        Measure("label_errors", errors, chance=3.0, direction="lower"),
    )
    scores = {measure.name: measure.to_row() for measure in measures}
    works = [work for work in plan.work if work.attack == "prior_path"]
    for work in works:
        result = {"scores": scores, "seconds": cost, "loss": 1.0} | dict.fromkeys(ending, True)
        state.results[work] = ClientResult(work, result, {})
    assert state.further_attempts() == ([replace(work, attempt=1) for work in works] if again else [])


def test_missing_knowledge_is_part_of_the_reason(tmp_path):
    changes = {
        "model": {"name": "mlp", "options": {"shape": [1, 8, 8], "classes": 10, "hidden": [16]}},
        "training": {"samples": 24, "epochs": 4, "batch_size": 24},
        "attacker": {"hidden": ["samples", "batch_size"]},
        "audit": {"clients": 1},
        "defence": [],
    }
    found = run_audit(read_audit(document(**changes), "audit.toml"), tmp_path, HERE)
    assert found.verdict is Verdict.INCONCLUSIVE
    reason = found.reason_for("no defence")
    assert "because the attacker does not know the number of samples" in reason
    assert "The attack returned no sample" in reason


def test_the_reason_of_a_search_comes_before_that_of_an_exact_attack(made):
    audit, _ = made
    chosen = {"two_spans": "It proved none.", "inverting_gradients": "It is too weak."}
    findings = tuple(
        Finding(name, "x", {"psnr": SCORE}, Verdict.INCONCLUSIVE, reason=text) for name, text in chosen.items()
    )
    plan = replace(audit.plan, chains={"x": ()})
    assert replace(audit, findings=findings, plan=plan).reason_for("x") == "It is too weak."


def test_messages_that_may_determine_the_samples_are_recognised():
    tables = {
        "noise": [{"name": "gaussian_noise", "sigma": 0.1}],
        "clipped": [{"name": "clipping", "norm": 1.0}],
        "few": [{"name": "top_k", "keep": 0.001}],
        "many": [{"name": "top_k", "keep": 0.5}],
        "ten": [{"name": "secure_aggregation", "clients": 10}],
        "hundred": [{"name": "secure_aggregation", "clients": 100}],
    }
    defences = [{}, *({"title": title, "chain": chain} for title, chain in tables.items())]
    network = {"name": "mlp", "options": {"shape": [1, 8, 8], "classes": 10, "hidden": [64]}}
    plan = read_audit(document(model=network, defence=defences), "audit.toml")
    assert set(plan.determined) == {"no defence", "clipped", "many", "ten"}


def test_zero_updates_are_inconclusive_with_their_own_reason_and_cost_nothing(tmp_path):
    training = {"samples": 2, "lr": 1e-12}
    plan = read_audit(document(training=training, audit={"clients": 2, "budget": "5s"}, defence=[]), "audit.toml")
    audit = run_audit(plan, tmp_path / "cache", HERE)
    assert audit.verdict is Verdict.INCONCLUSIVE
    assert audit.reason_for("no defence") == ZERO_UPDATE
    assert audit.seconds < 1


def test_an_audit_of_texts_reads_the_words_and_runs_no_search(tmp_path):
    model = {"name": "tests.known_answers.networks:of_words", "options": {"body": "gru"}}
    texts = {"factory": "tests.known_answers.populations:texts"}
    training = {"sends": "gradient", "samples": 16}
    plan = read_audit(document(model=model, data=texts, training=training, audit={"clients": 2}, defence=[]), "here")
    assert list(plan.attacks) == ["embedding_read_off"]
    assert "rows of table.weight, which are the words" in str(plan.first_look)
    audit = run_audit(plan, tmp_path / "cache", HERE)
    assert audit.verdict is Verdict.RECOVERS_ATTRIBUTES
    assert audit.findings[0].measures["tokens"].value == 1
    hidden = document(
        model=model, data=texts, training=training, attacker={"hidden": ["samples"]}, audit={}, defence=[]
    )
    with pytest.raises(InvalidInput, match="looked up in an embedding, and embedding_read_off does not apply: needs"):
        read_audit(hidden, "here")


def test_nothing_else_runs_where_a_quick_exact_attack_has_every_sample(tmp_path):
    smooth = {"name": "tests.known_answers.networks:dense", "options": {"hidden": [96, 48], "activation": "gelu"}}
    training = {"sends": "gradient", "samples": 2}
    plan = read_audit(document(model=smooth, training=training, audit={"clients": 2}, defence=[]), "audit.toml")
    assert {"two_spans", "gauss_newton", "prior_path"} <= set(plan.attacks)
    audit = run_audit(plan, tmp_path / "cache", HERE)
    assert "two_spans" in {result.work.attack for result in audit.results}
    assert all(registry.ATTACKS[result.work.attack].cost is Cost.INSTANT for result in audit.results)
    assert not audit.controls
    assert audit.verdict is Verdict.RECOVERS_DATA
