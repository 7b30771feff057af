"""Captures are paired with kept samples by run, client and round, and anything else is refused by name."""

from dataclasses import replace

import pytest
import torch

import leakgauge as lg
from leakgauge.core.errors import FileError, InvalidInput
from leakgauge.core.kept_samples import KeptSamples, kept_path, save_kept
from leakgauge.workflows.captures import Captures, ClientData
from leakgauge.workflows.kept_data import KeptData, source_of_truths
from tests.shared import digits, key_pair
from tests.workflows.test_attack_captures import network

SPEC = replace(digits().spec, mean=(0.3,), std=(0.35,))


def samples(client, round):
    first = 8 * client + 4 * round
    return replace(digits().share(range(first, first + 4)), spec=SPEC)


def keep(folder, client, round, *, run="7", names=None, key=None):
    own = samples(client, round)
    names = names or (f"client-{client}",)
    order = (torch.arange(4), torch.arange(4))
    one = KeptSamples(run, round, names, SPEC, own.inputs, own.targets, order, (1, 1))
    return save_kept(one, kept_path(folder, run, names[0], round), key)


@pytest.fixture
def captures(tmp_path):
    """Two rounds of two clients in one run."""
    folder = tmp_path / "captures" / "run-7"
    for client in (0, 1):
        for round in (0, 1):
            settings = {"lr": 0.1, "epochs": 2, "batch_size": 4, "round": round}
            observation, _ = lg.fedavg(network(), samples(client, round), client=f"client-{client}", **settings)
            lg.save(observation, folder / f"client-{client}_round-{round:06d}.safetensors")
    return tmp_path / "captures"


def attacked(captures, **options):
    output = captures.parent / "out"
    result = lg.attack(
        captures, "inverting_gradients", output, options={"steps": 2}, model=network(), engine="in-process", **options
    )
    return {(one.capture.client, int(one.capture.file.stem[-1])): one for one in result.attacked}, result


def test_kept_samples_beside_the_captures_are_the_truth(captures):
    for client, round in ((0, 0), (0, 1), (1, 1)):
        keep(captures, client, round)
    found, result = attacked(captures)
    for (client, round), one in found.items():
        if (client, round) == ("client-1", 0):
            assert one.score is None
            continue
        assert torch.equal(one.capture.truth.inputs, samples(int(client[-1]), round).inputs)
        assert one.capture.check.explained
        assert one.capture.check.residual < 1e-5
        assert one.score is not None
    assert "client-1" in result.notes[0]


def test_without_kept_samples_nothing_is_scored_and_given_data_comes_first(captures):
    assert source_of_truths(None, Captures.find(captures, network())) is None
    keep(captures, 0, 0)
    place = captures / "run-7" / "kept"
    source = source_of_truths(place, Captures.find(captures, network()))
    assert isinstance(source, KeptData)
    data = captures.parent / "data"
    data.mkdir()
    (data / "client-0.npz").write_bytes(b"")
    assert isinstance(source_of_truths(data, Captures.find(captures, network())), ClientData)


@pytest.mark.parametrize(
    ("changes", "names"),
    [({"names": ("site-9",)}, "site-9"), ({"run": "8"}, "run 8"), ({"round": 1, "names": ("client-2",)}, "client-2")],
)
def test_samples_that_match_nothing_fail_and_both_sides_are_named(captures, changes, names):
    path = keep(captures, **{"client": 0, "round": 0, **changes})
    beside = captures / "run-7" / "kept"
    beside.mkdir(exist_ok=True)
    path.rename(beside / path.name)
    with pytest.raises(InvalidInput, match="'client-0', 'client-1'") as problem:
        attacked(captures)
    assert names in str(problem.value)


def test_a_node_may_be_known_by_another_name(captures):
    keep(captures, 0, 0, names=("partition-5", "client-0"))
    found, _ = attacked(captures)
    assert found["client-0", 0].score is not None
    assert found["client-0", 1].score is None


def test_a_damaged_file_costs_one_capture(captures):
    keep(captures, 0, 0)
    damaged = keep(captures, 1, 0)
    damaged.write_bytes(damaged.read_bytes()[:-3] + b"xyz")
    found, result = attacked(captures)
    assert ("client-1", 0) not in found
    assert damaged.name in " ".join(result.refused)
    assert found["client-0", 0].score is not None


def test_targets_that_the_data_does_not_have_are_refused(captures):
    own = samples(0, 0)
    order = (torch.arange(4), torch.arange(4))
    one = KeptSamples("7", 0, ("client-0",), SPEC, own.inputs, own.targets + 90, order, (1, 1))
    save_kept(one, kept_path(captures, "7", "client-0", 0))
    with pytest.raises(InvalidInput, match="client-0"):
        attacked(captures)


def test_encrypted_samples_need_the_key(captures):
    private, public = key_pair()
    keep(captures, 0, 0, key=public)
    with pytest.raises(InvalidInput, match="--key"):
        attacked(captures)
    with pytest.raises(FileError, match=r"none\.pem"):
        attacked(captures, key=captures / "none.pem")
    (captures.parent / "auditor.pem").write_bytes(private)
    found, _ = attacked(captures, key=captures.parent / "auditor.pem")
    assert found["client-0", 0].score is not None


def test_a_sum_of_clients_has_the_samples_of_all(captures):
    for client in (0, 1):
        keep(captures, client, 0)
    source = source_of_truths(None, Captures.find(captures, network()))
    file = captures / "run-7" / "client-0_round-000000.safetensors"
    summed = replace(lg.load(file, network()), client="sum of 2 clients")
    assert len(source.truth(summed, (file,))) == 8


def test_infer_reads_the_samples_of_all_rounds_of_a_client(captures):
    for client in (0, 1):
        for round in (0, 1):
            keep(captures, client, round)
    result = lg.infer(captures, "last_returned", captures.parent / "out", model=network(), engine="in-process")
    assert result.scored
    assert set(result.losses) == {"client-0", "client-1"}
    source = source_of_truths(None, Captures.find(captures, network()))
    files = sorted((captures / "run-7").glob("client-0*.safetensors"))
    truth = source.truth(lg.load(files[0], network()), files)
    assert len(truth) == 8
    assert len(truth.reference_inputs) >= 4
    assert "owner" in {one.about for one in result.inferences}
