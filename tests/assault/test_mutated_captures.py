"""Mutated captures: each is refused in one sentence, or loads and is attacked within limits of memory and time."""

from pathlib import Path

import pytest
import torch

import leakgauge as lg
from leakgauge.data import Dataset
from tests.assault.laboratory import examine
from tests.assault.mutators import opened

#: The number of mutations of each mutator in the long form, and the number in one test.
MANY, IN_ONE_TEST = 6000, 1500
FEW = 40


def make_bases(folder):
    """Save four small captures: of a table and of pictures, of gradients and of weights, with and without grants."""
    draw = torch.Generator().manual_seed(0)
    table = Dataset(
        torch.rand(4, 2, generator=draw), torch.tensor([0, 1, 1, 0]), lg.DataSpec((2,), 2, columns=("a", "b")), "Ada"
    )
    pictures = Dataset(torch.rand(4, 1, 8, 8, generator=draw), torch.tensor([0, 1, 2, 1]), lg.DataSpec((1, 8, 8), 3))
    small = lg.models.build("mlp", shape=(2,), classes=2, hidden=(4,), batch_norm=True, seed=0)
    dense = lg.models.build("mlp", shape=(1, 8, 8), classes=3, hidden=(8,), seed=0)
    convolutions = lg.models.build("lenet", shape=(1, 8, 8), classes=3, seed=0)
    granted = ["labels", "label_counts", "label_batches"]
    recipe = {"lr": 0.1, "epochs": 2, "batch_size": 2}
    seen = {
        "everything": lg.fedavg(small, table, **recipe, granted=granted, knows_defence=True)[0],
        "nothing": lg.fedavg(dense, pictures, **recipe)[0],
        "gradient": lg.fedsgd(convolutions, pictures)[0],
        "one": lg.fedsgd(dense, pictures.share([0]), granted=["label_counts"])[0],
    }
    return [lg.save(one, folder / f"{name}.safetensors") for name, one in seen.items()]


@pytest.fixture(scope="module")
def bases(tmp_path_factory):
    return [str(path) for path in make_bases(tmp_path_factory.mktemp("bases"))]


def check(mutator, bases, numbers, record_property):
    report = examine({"mutator": mutator, "bases": bases}, [str(number) for number in numbers])
    record_property("assault", f"captures, mutator of {mutator}, {report}")
    assert len(report.results) == len(numbers)
    assert report.failures == {}
    return report


def test_a_number_stands_for_one_mutation_in_every_process(bases):
    """The tensors that a mutation draws from have one order, whatever order the reader returns them in."""
    for base in bases:
        _, tensors = opened(Path(base).read_bytes())
        assert list(tensors) == sorted(tensors)


@pytest.mark.parametrize("mutator", ["bytes", "structure"])
def test_some_mutated_captures(mutator, bases, record_property):
    report = check(mutator, bases, range(FEW), record_property)
    assert report.counts["refused"] > FEW / 4
    assert mutator == "bytes" or report.counts["attacked"] > 5  # the signature is right


@pytest.mark.long
@pytest.mark.parametrize("start", range(0, MANY, IN_ONE_TEST))
@pytest.mark.parametrize("mutator", ["bytes", "structure"])
def test_thousands_of_mutated_captures(mutator, bases, start, record_property):
    check(mutator, bases, range(start, start + IN_ONE_TEST), record_property)
