"""The ladder of versions of a set-up, and the sentences about how far an attack gets on it."""

from leakgauge.core.measure import Measure
from leakgauge.evaluation.support import NOT_FOUND, without_evidence
from leakgauge.evaluation.verdict import Finding, Verdict
from leakgauge.workflows.audit import audit
from leakgauge.workflows.audit.ladder import rungs_of, sentences, strongest_attack
from leakgauge.workflows.scenario_document import read_scenario

PLAIN = {"model": {"name": "lenet"}, "data": {"name": "digits"}, "training": {"samples": 6, "epochs": 2, "lr": 0.1}}


def scenario(**training):
    return read_scenario(PLAIN | {"training": PLAIN["training"] | training}, "here")


def test_each_rung_changes_one_thing():
    rungs = rungs_of(scenario())
    assert rungs["samples 16"].scenario.samples == 16
    assert rungs["samples 16"].scenario.training["epochs"] == 2
    steps = rungs["local steps 25"].scenario
    assert (steps.samples, steps.training["epochs"], steps.training["batch_size"]) == (6, 25, 6)
    assert "sigma=0.01" in repr(rungs["noise 0.01"].chain)
    assert rungs["noise 0.01"].scenario == scenario()


def test_a_gradient_has_no_local_steps():
    assert not any("local steps" in name for name in rungs_of(scenario(sends="gradient")))


def test_rungs_with_more_samples_than_the_data_are_left_out():
    small = scenario()
    vars(small)["dataset"] = small.dataset.share(range(20))
    assert [name for name in rungs_of(small) if "samples" in name] == ["samples 1", "samples 4", "samples 16"]


def finding(setup, verdict, psnr=20.0, attack="idlg"):
    return Finding(attack, setup, {"psnr": Measure("psnr", psnr, chance=12.0)}, verdict)


def test_the_sentences_name_the_last_rung_that_leaks_and_the_first_that_does_not():
    rungs = rungs_of(scenario())
    leaks, safe = Verdict.RECOVERS_DATA, Verdict.NOTHING_ABOVE_CHANCE
    found = [finding("samples 1", leaks), finding("samples 4", leaks), finding("samples 16", safe)]
    assert sentences(rungs, found) == ["Samples: data came back up to 4, and was not found at 16."]
    gap = [finding("samples 1", leaks), finding("samples 4", safe), finding("samples 16", leaks)]
    assert sentences(rungs, gap) == ["Samples: data came back up to 16 (but was not found at 4)."]
    assert sentences(rungs, found[:2]) == ["Samples: data came back up to 4, the largest value that was tried."]
    assert sentences(rungs, [finding("noise 0.001", safe)]) == [
        "Noise: the attack did not find data at 0.001 or above."
    ]


def test_the_strongest_attack_is_the_one_that_exceeds_chance_by_most():
    weak, strong = finding("a", Verdict.RECOVERS_DATA, 18.0), finding("a", Verdict.RECOVERS_DATA, 40.0, "dlf")
    assert strongest_attack([weak, strong, finding("a", Verdict.NOTHING_ABOVE_CHANCE, 90.0, "agic")]) == "dlf"
    assert strongest_attack([finding("a", Verdict.NOTHING_ABOVE_CHANCE)]) is None


def test_a_rung_without_evidence_is_no_all_clear():
    lost = without_evidence(finding("samples 16", Verdict.NOTHING_ABOVE_CHANCE))
    assert (lost.verdict, lost.reason) == (Verdict.INCONCLUSIVE, NOT_FOUND)
    leaks = finding("samples 4", Verdict.RECOVERS_DATA)
    assert without_evidence(leaks) is leaks


def test_no_rung_of_a_page_shows_a_verdict_of_no_leakage(tmp_path):
    document = PLAIN | {"training": {"samples": 1, "sends": "gradient"}, "audit": {"clients": 1, "budget": "20s"}}
    document["model"] = {"name": "mlp", "options": {"hidden": [16]}}
    result = audit(document, tmp_path, engine="in-process")
    assert any("noise" in rung.setup and rung.verdict is Verdict.INCONCLUSIVE for rung in result.ladder)
    assert all(rung.verdict is not Verdict.NOTHING_ABOVE_CHANCE for rung in result.ladder)
    section = (tmp_path / "audit.html").read_text().partition("How far the strongest attack gets")[2]
    table = section[: section.index("</table>")]
    assert "not found" in table
    assert "nothing above chance" not in table
