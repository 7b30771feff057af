from __future__ import annotations

import pytest
import torch

from leakgauge.core.data_spec import DataSpec
from leakgauge.core.errors import InvalidInput
from leakgauge.data import Dataset, adult_phd, by_group, dirichlet, iid, orl_lmra
from leakgauge.data.partition import _ATTEMPTS


def toy(samples: int = 100, classes: int = 4, groups: bool = False) -> Dataset:
    targets = torch.arange(samples) % classes
    return Dataset(
        torch.arange(samples, dtype=torch.float32).unsqueeze(1),
        targets,
        DataSpec((1,), classes, bounded=False),
        name="toy",
        groups=torch.arange(samples) // 10 if groups else None,
        group_names=tuple(f"person {index}" for index in range(-(-samples // 10))) if groups else (),
    )


def rows(clients: list[Dataset]) -> list[list[int]]:
    return [client.inputs.flatten().int().tolist() for client in clients]


def assert_partition(clients: list[Dataset], dataset: Dataset) -> None:
    assert sorted(row for part in rows(clients) for row in part) == list(range(len(dataset)))
    for client in clients:
        assert client.population is dataset
        assert client.rows is not None
        assert torch.equal(client.targets, dataset.targets[client.rows])


def test_iid() -> None:
    dataset = toy(103)
    clients = iid(dataset, 10, seed=3)
    assert_partition(clients, dataset)
    assert {len(client) for client in clients} == {10, 11}
    assert [client.name for client in clients[:2]] == ["client 0", "client 1"]


def test_dirichlet_skews_labels() -> None:
    dataset = toy(1000)
    skewed, even = (dirichlet(dataset, 5, alpha) for alpha in (0.1, 1000.0))

    def largest_share(clients: list[Dataset]) -> float:
        shares = [client.targets.bincount(minlength=4).max() / len(client) for client in clients]
        return float(torch.stack(shares).mean())

    assert_partition(skewed, dataset)
    assert_partition(even, dataset)
    assert largest_share(skewed) > 0.6
    assert largest_share(even) < 0.35


def test_dirichlet_minimum() -> None:
    clients = dirichlet(toy(200), 8, 0.3, minimum=10)
    assert min(len(client) for client in clients) >= 10


@pytest.mark.parametrize(
    "split",
    [
        lambda seed: iid(toy(), 7, seed=seed),
        lambda seed: dirichlet(toy(), 3, 0.5, seed=seed),
        lambda seed: by_group(toy(groups=True), clients=4, limit=3, seed=seed),
    ],
)
def test_seed_decides_everything(split) -> None:
    state = torch.get_rng_state()
    assert rows(split(1)) == rows(split(1))
    assert rows(split(1)) != rows(split(2))
    assert torch.equal(state, torch.get_rng_state())


def test_by_group() -> None:
    dataset = toy(95, groups=True)
    everyone = by_group(dataset)
    assert_partition(everyone, dataset)
    assert [len(client) for client in everyone] == [10] * 9 + [5]
    assert len(by_group(dataset, minimum=6)) == 9
    few = by_group(dataset, minimum=6, clients=3, limit=4)
    assert [len(client) for client in few] == [4, 4, 4]
    for client in few:
        assert client.groups is not None
        assert client.name == dataset.group_names[int(client.groups[0])]
        assert len(client.groups.unique()) == 1


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: iid(toy(), 0), "clients must be a whole number of at least 1"),
        (lambda: iid(toy(), 2.5), "clients must be a whole number"),  # type: ignore[arg-type]
        (lambda: iid(toy(), 101), "101 clients cannot share 100 samples"),
        (lambda: iid(toy(), 2, seed=-1), "seed must be a whole number of at least 0"),
        (lambda: dirichlet(toy(), 2, 0.0), "alpha must be a number above 0"),
        (lambda: dirichlet(toy(), 2, float("nan")), "alpha must be a number above 0"),
        (lambda: dirichlet(toy(), 20, 1.0, minimum=6), "fewer clients or a smaller minimum"),
        (lambda: dirichlet(toy(), 20, 0.001, minimum=5), f"after {_ATTEMPTS} draws"),
        (lambda: by_group(toy()), "has no groups"),
        (lambda: by_group(toy(groups=True), minimum=11), "only 0 have 11 samples or more"),
        (lambda: by_group(toy(groups=True), clients=11), "11 clients were requested"),
        (lambda: by_group(toy(groups=True), limit=0), "limit must be"),
        (lambda: adult_phd(toy()), "needs the column 'age'"),
        (lambda: orl_lmra(toy()), "needs 40 people, but toy has 4"),
    ],
)
def test_bad_arguments(call, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        call()


def test_dirichlet_needs_classes() -> None:
    numbers = Dataset(torch.zeros(4, 1), torch.zeros(4), DataSpec((1,), None, bounded=False))
    with pytest.raises(InvalidInput, match="is a regression"):
        dirichlet(numbers, 2, 1.0)


def census(people: int = 400) -> Dataset:
    inputs = torch.zeros(people, 2)
    inputs[:, 0] = torch.arange(people) % 60 + 17
    inputs[::5, 1] = 1
    spec = DataSpec((2,), 2, bounded=False, columns=("age", "education=Doctorate"))
    return Dataset(inputs, torch.zeros(people, dtype=torch.long), spec, name="census")


def test_adult_phd() -> None:
    dataset = census()
    clients = adult_phd(dataset, total=200)
    assert len(clients) == 10
    assert sum(len(client) for client in clients) == 200
    young, middle, old = (client.inputs[:, 0] for client in clients[:3])
    assert young.max() < 38 <= middle.min()
    assert middle.max() <= 52 < old.min()
    assert sum(len(client) for client in clients[:3]) == 80
    assert all(client.inputs[:, 1].sum() == 0 for client in clients[3:])
    assert {len(client) for client in clients[3:]} == {17, 18}
    assert sum(len(client) for client in adult_phd(dataset, total=None)) == 400
    assert not torch.equal(clients[3].inputs, adult_phd(dataset, seed=1, total=200)[3].inputs)
    for total in (50, 401):
        with pytest.raises(InvalidInput, match="Change total"):
            adult_phd(dataset, total=total)


def people() -> Dataset:
    targets = torch.arange(40).repeat_interleave(10)
    return Dataset(torch.zeros(400, 1), targets, DataSpec((1,), 40), name="people")


@pytest.mark.parametrize(("images", "sizes"), [((3, 4), (148, 184)), ((3, 5), (148, 220))])
def test_orl_lmra(images: tuple[int, int], sizes: tuple[int, int]) -> None:
    clients = orl_lmra(people(), seed=4, images=images)
    few, many = sizes
    assert [len(client) for client in clients] == [many] * 4 + [few] * 5 + [many]
    owned = []
    for client in clients:
        assert client.rows is not None
        assert len(client.rows.unique()) == len(client.rows)
        pictures = client.targets.bincount(minlength=40)
        assert sorted(pictures.unique().tolist()) == [images[len(client) == many], 10]
        owned += (pictures == 10).nonzero().flatten().tolist()
    assert sorted(owned) == list(range(40))


def test_orl_lmra_refuses_too_many_pictures() -> None:
    with pytest.raises(InvalidInput, match="between 1 and 10 pictures"):
        orl_lmra(people(), images=(3, 11))
