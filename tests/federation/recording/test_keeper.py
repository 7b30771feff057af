"""The keeper stores what a client trains on, and the training gets the same batches as without it."""

import pickle
import threading

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import leakgauge as lg
from leakgauge.core.errors import FileError, InvalidInput
from leakgauge.core.kept_samples import kept_files, load_kept
from leakgauge.evaluation.recipe_check import check_recipe
from leakgauge.federation.recording import keeper as module
from tests.federation.networks import mlp
from tests.federation.recording.loops import DATA
from tests.shared import key_pair

SPEC = lg.DataSpec((1, 4, 4), 3, mean=(0.4,), std=(0.3,))


def loader(seed=0, samples=6, size=4, flips=False):
    draw = torch.Generator().manual_seed(seed)
    inputs, targets = torch.rand(samples, 1, 4, 4, generator=draw), torch.randint(0, 3, (samples,), generator=draw)

    class Flipped(TensorDataset):
        def __getitem__(self, index):
            picture, target = super().__getitem__(index)
            return SPEC.normalise(picture.flip(-1) if flips and torch.rand(()) < 0.5 else picture), target

    return DataLoader(Flipped(inputs, targets), batch_size=size, shuffle=True, generator=draw)


def train(net, batches, epochs=2):
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for _ in range(epochs):
        for inputs, targets in batches:
            optimizer.zero_grad()
            nn.functional.cross_entropy(net(inputs), targets).backward()
            optimizer.step()


def kept(folder):
    return [load_kept(file) for file in kept_files(folder)]


@pytest.mark.parametrize("flips", [False, True])
def test_the_kept_order_makes_the_recipe_check_exact(tmp_path, flips):
    torch.manual_seed(0)
    net = mlp()
    recording = lg.record(tmp_path, model=net, data=SPEC)
    watch = recording.keeper().watch
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    with recording.client("hospital-3", 4, net, optimizer=optimizer, epochs=5, batch_size=4, samples=6):
        for _ in range(5):
            for inputs, targets in watch(loader(flips=flips)):
                optimizer.zero_grad()
                nn.functional.cross_entropy(net(inputs), targets).backward()
                optimizer.step()
    [one], [observation] = kept(tmp_path), lg.load_all(tmp_path, mlp())
    assert (one.run, one.round, one.names) == ("1", 4, ("hospital-3",))
    truth = one.truth(observation.data)
    assert len(truth) == 6
    assert (truth.trained is not None) == flips
    check = check_recipe(observation, truth)
    assert check.explained
    assert check.residual < 1e-5
    assert check.limit == 0.01  # nothing is unknown


@pytest.mark.parametrize("known", [False, True])
def test_a_training_that_stops_within_an_epoch_is_replayed_exactly(tmp_path, known):
    torch.manual_seed(0)
    net = mlp()
    recording = lg.record(tmp_path, model=net, data=SPEC)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    recipe = {"local_steps": 2, "samples": 12} if known else {}
    with recording.client("a", 1, net, optimizer=optimizer, batch_size=4, **recipe):
        for step, (inputs, targets) in enumerate(recording.keeper().watch(loader(samples=12))):
            if step == 2:
                break
            optimizer.zero_grad()
            nn.functional.cross_entropy(net(inputs), targets).backward()
            optimizer.step()
    [one], [observation] = kept(tmp_path), lg.load_all(tmp_path, mlp())
    check = check_recipe(observation, one.truth(observation.data))
    if known:
        assert check.residual < 1e-5
    else:
        assert check.causes == ("2 batches of 4, as the client trained on them",)
        assert check.residual_of_causes < 1e-5


def test_the_training_gets_the_same_batches_and_the_loader_looks_the_same(tmp_path):
    keeper = lg.keeper(tmp_path, data=SPEC, run="tuesday")
    plain, watched = loader(), keeper.watch(loader())
    with keeper.client(3, round=1):
        for (one, first), (other, second) in zip(plain, watched, strict=True):
            assert torch.equal(one, other)
            assert torch.equal(first, second)
            other.zero_()  # what the training does to a batch later is not kept
    assert len(watched) == len(plain) == 2
    assert watched.batch_size == 4
    assert len(watched.dataset) == 6
    [one] = kept(tmp_path)
    assert one.names == ("client-3",)
    assert torch.allclose(one.inputs.flatten(1).sort(0)[0], loader().dataset.tensors[0].flatten(1).sort(0)[0])


def test_equal_samples_of_one_pass_are_two_samples(tmp_path):
    keeper = lg.keeper(tmp_path, data=SPEC, run="r")
    sample = torch.zeros(1, 1, 4, 4)
    with keeper.client("a", round=1):
        for _ in range(2):
            list(keeper.watch([(sample, torch.tensor([1])), (sample, torch.tensor([1]))]))
    [one] = kept(tmp_path)
    assert len(one.inputs) == 2
    assert [rows.tolist() for rows in one.order] == [[0], [1], [0], [1]]


def test_several_clients_in_threads_of_one_process_are_kept_apart(tmp_path):
    keeper = lg.keeper(tmp_path, data=SPEC, run="r")
    barrier = threading.Barrier(3)

    def work(number):
        with keeper.client(number, round=1):
            barrier.wait()
            for _ in keeper.watch(loader(seed=number)):
                barrier.wait()

    threads = [threading.Thread(target=work, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = {one.names[0]: one for one in kept(tmp_path)}
    assert found.keys() == {"client-0", "client-1", "client-2"}
    for number in range(3):
        own = loader(seed=number).dataset.tensors[0].flatten(1).sum(1).sort()[0]
        assert torch.allclose(found[f"client-{number}"].inputs.flatten(1).sum(1).sort()[0], own, atol=1e-5)


def test_a_thread_of_the_training_and_a_copy_of_the_keeper_belong_to_the_same_training(tmp_path):
    keeper = lg.keeper(tmp_path, data=SPEC, run="r")
    copied = pickle.loads(pickle.dumps(keeper))
    with keeper.client("a", round=1):
        thread = threading.Thread(target=lambda: list(copied.watch(loader())))
        thread.start()
        thread.join()
    assert len(kept(tmp_path)) == 1


def test_passes_without_gradients_and_trainings_that_fail_are_not_kept(tmp_path):
    keeper = lg.keeper(tmp_path, data=SPEC, run="r")
    with keeper.client("a", round=1), torch.no_grad():
        list(keeper.watch(loader()))

    def breaks():
        with keeper.client("a", round=1):
            list(keeper.watch(loader()))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        breaks()
    assert kept(tmp_path) == []


def test_rounds_that_are_not_recorded_are_not_kept(tmp_path):
    recording = lg.record(tmp_path, model=mlp(), data=SPEC, every=2)
    for round in range(3):
        net = mlp()
        with recording.client("a", round, net):
            train(net, recording.keeper().watch(loader()))
    assert [one.round for one in kept(tmp_path)] == [0, 2]


def test_samples_may_be_encrypted_for_an_auditor(tmp_path):
    private, public = key_pair()
    (tmp_path / "auditor.pub").write_bytes(public)
    keeper = lg.keeper(tmp_path / "captures", data=SPEC, run="r", key=tmp_path / "auditor.pub")
    with keeper.client("a", round=1):
        list(keeper.watch(loader()))
    [file] = kept_files(tmp_path / "captures")
    with pytest.raises(InvalidInput, match="--key"):
        load_kept(file)
    assert len(load_kept(file, private).inputs) == 6


@pytest.mark.parametrize(
    ("batch", "options"),
    [
        ({"img": 0, "label": 1}, {}), ({"pixel_values": 0, "labels": 1}, {}),
        ({"a": 0, "b": 1, "label": 1}, {"inputs": "a"}), ({"a": 0, "b": 1}, {"inputs": "a", "targets": "b"}),
        ((1, 0), {"inputs": 1, "targets": 0}), ([0, 1], {}),
    ],
)  # fmt: skip
def test_the_forms_of_batches(tmp_path, batch, options):
    parts = next(iter(loader()))
    keys = batch.items() if isinstance(batch, dict) else None
    made = {key: parts[number] for key, number in keys} if keys else type(batch)(parts[number] for number in batch)
    keeper = lg.keeper(tmp_path, data=SPEC, run="r", **options)
    with keeper.client("a", round=1):
        list(keeper.watch([made]))
    [one] = kept(tmp_path)
    assert torch.allclose(one.inputs, SPEC.denormalise(parts[0]), atol=1e-6)
    assert torch.equal(one.targets, parts[1])


@pytest.mark.parametrize(
    ("batch", "sentence"),
    [
        ({"a": torch.zeros(2, 1, 4, 4)}, 'inputs="..."'), ("text", "is a str"),
        ((torch.zeros(2, 1, 5, 5), torch.zeros(2)), "has shape"),
        ((torch.zeros(2, 1, 4, 4), torch.zeros(3)), "3 targets"),
        ((torch.zeros(2, 1, 4, 4),), "IndexError"), ((object(), 1), "TypeError"),
    ],
)  # fmt: skip
def test_batches_that_are_not_understood_cost_one_sentence(tmp_path, caplog, batch, sentence):
    keeper = lg.keeper(tmp_path, data=SPEC, run="r")
    for _ in range(2):
        with keeper.client("a", round=1):
            assert list(keeper.watch([batch, batch])) == [batch, batch]
    assert sentence in caplog.text
    assert len(caplog.records) == 1
    assert kept(tmp_path) == []


def test_nothing_that_goes_wrong_in_keeping_harms_the_training(tmp_path, monkeypatch, caplog):
    def full(*_, **__):
        raise OSError(28, "No space left on device")

    keeper = lg.keeper(tmp_path, data=SPEC, run="r")
    monkeypatch.setattr(module, "save_kept", full)
    with keeper.client("a", round=1):
        assert len(list(keeper.watch(loader()))) == 2
    assert "No space left" in caplog.text
    monkeypatch.setattr(module, "MOST_BYTES", 10)
    with keeper.client("b", round=1):
        assert len(list(keeper.watch(loader()))) == 2
    assert "take more than" in caplog.text


def test_a_folder_that_cannot_be_written_costs_one_sentence(tmp_path, caplog):
    (tmp_path / "captures").write_text("a file in the place of the folder")
    for _ in range(2):
        with lg.keeper(tmp_path / "captures", data=SPEC, run="r").client("a", round=1):
            assert len(list(lg.keeper(tmp_path / "captures", data=SPEC, run="r").watch(loader()))) == 2
    assert "kept no samples of a in round 1" in caplog.text


def test_two_runs_at_once_and_repeated_rounds_overwrite_nothing(tmp_path):
    def work(run):
        with lg.keeper(tmp_path, data=SPEC, run=run).client("a", round=1):
            list(lg.keeper(tmp_path, data=SPEC, run=run).watch(loader(seed=len(run))))

    threads = [threading.Thread(target=work, args=(run,)) for run in ("x", "xy", "x", "xy")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    names = sorted(str(path.relative_to(tmp_path)) for path in kept_files(tmp_path))
    stem = "kept/a_round-000001"
    assert names == [f"run-{run}/{stem}{end}.safetensors" for run in ("x", "xy") for end in ("", "_2")]


def test_a_loader_outside_a_training_costs_one_sentence(tmp_path, caplog):
    watched = lg.keeper(tmp_path, data=SPEC, run="r").watch(loader())
    assert len(list(watched)) == len(list(watched)) == 2
    assert "keeper.client(name, round=...)" in caplog.text
    assert len(caplog.records) == 1


def test_mistakes_of_the_set_up_are_errors(tmp_path):
    with pytest.raises(InvalidInput, match="normalises"):
        lg.keeper(tmp_path, data=lg.DataSpec((1, 4, 4), 3))
    with pytest.raises(InvalidInput, match="DataSpec"):
        lg.keeper(tmp_path, data=None)
    with pytest.raises(FileError, match="public key"):
        lg.keeper(tmp_path, data=DATA, key=tmp_path / "none.pub")
    with pytest.raises(InvalidInput, match="run="), lg.keeper(tmp_path, data=DATA).client("a", round=1):
        pass
