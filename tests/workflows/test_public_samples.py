import numpy
import pytest
import torch

from leakgauge.core.errors import InvalidInput
from leakgauge.core.public_data import sample_digests
from leakgauge.workflows.audit import read_audit, run_audit
from leakgauge.workflows.public_samples import read_public, rows_of_another, with_public

DOCUMENT = {
    "model": {"name": "lenet", "options": {"shape": [1, 8, 8], "classes": 10}},
    "data": {"name": "digits"},
    "training": {"sends": "gradient", "samples": 2},
    "audit": {"clients": 3, "attacks": ["learned_inversion"]},
}


def plan(public=None, **changes):
    return read_audit(*with_public((DOCUMENT | changes, "a.toml"), public))


def test_an_audit_grants_samples_that_no_client_holds():
    scenario = plan().scenario
    assert len(scenario.public) == 500
    public = set(sample_digests(scenario.public.inputs))
    for client in range(3):
        observation, truth = scenario.observe(client)
        assert len(observation.public) <= 500
        assert not set(sample_digests(truth.inputs)) & set(observation.public.digests)
        assert set(observation.public.digests) <= public
    sentence = "It has public data of the same kind: 500 samples of digits that no client holds."
    assert sentence in " ".join(observation.threat_model())


def test_training_clients_hold_none_of_them():
    scenario = plan(model=DOCUMENT["model"] | {"trained_rounds": 1, "trained_samples": 20}).scenario
    trained = scenario.order[-200:]
    assert not set(scenario.public.rows.tolist()) & set(trained.tolist())


def test_the_number_can_be_chosen_or_none():
    assert len(plan(80).scenario.public) == 80
    assert len(plan("80").scenario.public) == 80
    nobody = DOCUMENT | {"audit": {"clients": 3}}
    chosen = read_audit(*with_public((nobody, "a.toml"), "none"))
    assert chosen.scenario.public is None
    assert "learned_inversion" not in chosen.attacks
    assert "It has no public data of the same kind." in chosen.scenario.observe(0)[0].threat_model()


def test_a_file_is_public_data(tmp_path):
    path = tmp_path / "others.npz"
    draw = numpy.random.default_rng(0)
    numpy.savez(path, x=draw.integers(0, 255, (60, 8, 8), dtype=numpy.uint8), y=numpy.arange(60) % 10)
    observation, _ = plan(str(path)).scenario.observe(0)
    assert len(observation.public) == 60
    assert "60 samples of others" in " ".join(observation.threat_model())


WRONG = [
    (20, "public = 20 is too little to learn from"),
    (5000, r"public = 5,000, but digits has 1,795 samples that no client holds"),
    (1795, "too few for 3 clients with 2 each and 1,795 other samples"),
    ("mnist5k", r"samples of shape \(1, 28, 28\), but the clients' data has \(1, 8, 8\)"),
    ("nowhere.npz", "nowhere.npz"),
    ("digts", "did you mean 'digits'"),
    (True, "must be of type int or str|must be a number of samples"),
]


@pytest.mark.parametrize(("public", "words"), WRONG)
def test_mistakes_are_named_before_any_attack(public, words):
    with pytest.raises(InvalidInput, match=words):
        read_audit(DOCUMENT | {"attacker": {"public": public}}, "a.toml")


def test_words_of_the_command_line():
    assert [read_public(text) for text in ("500", "none", "a.csv")] == [500, 0, "a.csv"]


def test_too_little_data_grants_nothing():
    small = DOCUMENT | {"training": {"sends": "gradient", "samples": 590}}
    with pytest.raises(InvalidInput, match="learned_inversion does not apply here: needs public data"):
        read_audit(small, "a.toml")


def test_data_whose_samples_are_all_copies_of_the_clients_are_no_public_data():
    document = {
        "model": {"name": "mlp"},
        "data": {"factory": "tests.known_answers.populations:constant_images"},
        "training": {"sends": "gradient", "samples": 1},
        "audit": {"clients": 1},
    }
    plan = read_audit(document, "constant")
    assert plan.scenario.public is not None
    assert plan.scenario.observe(0)[0].public is None


def test_another_client_has_the_same_labels():
    observation, _ = plan(120, attacker={"granted": ["labels"], "public": 120}).scenario.observe(0)
    public = observation.public
    labels = torch.tensor([3, 3, 5])
    rows = rows_of_another(public, 3, labels, seed=0)
    assert torch.equal(public.targets[rows], labels)
    assert len(set(rows.tolist())) == 3
    assert len(set(rows_of_another(public, 3, None, seed=0).tolist())) == 3


def test_the_control_with_shuffled_messages_is_part_of_a_result(tmp_path):
    small = plan(
        60, training={"sends": "gradient", "samples": 1}, audit={"clients": 2, "attacks": ["learned_inversion"]}
    )
    audit = run_audit(small, tmp_path)
    results = [result for result in audit.results if result.shuffled]
    assert len(results) == 2
    for result in results:
        assert result.shuffled["psnr"].value != result.measures["psnr"].value
    finding = next(one for one in audit.findings if one.attack == "learned_inversion")
    assert "With messages of other people, the same attack finds nothing (psnr" in finding.reason
