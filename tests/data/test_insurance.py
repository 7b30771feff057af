import pytest
import torch

from leakgauge.core.errors import InvalidInput
from leakgauge.data import load

from .real import REAL, needs_data

ROWS = """age,sex,bmi,children,smoker,region,charges
19,female,27.9,0,yes,southwest,16884.924
18,male,33.77,1,no,southeast,1725.5523
28,male,33,3,no,southeast,4449.462
"""


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "insurance").mkdir()
    (tmp_path / "insurance" / "insurance.csv").write_text(ROWS)
    return tmp_path


def test_who_smokes_is_one_column_of_zeros_and_ones(folder):
    dataset = load("insurance", folder=folder)
    assert (dataset.name, dataset.sensitive, dataset.spec.classes) == ("insurance", "smoker", None)
    assert dataset.inputs[:, dataset.spec.columns.index("smoker")].tolist() == [1, 0, 0]
    assert dataset.targets.tolist() == pytest.approx([16884.924, 1725.5523, 4449.462])


def test_another_column_can_be_the_sensitive_one(folder):
    dataset = load("insurance", folder=folder, sensitive="sex")
    assert dataset.inputs[:, dataset.spec.columns.index("sex")].tolist() == [0, 1, 1]


def test_a_sensitive_column_that_is_a_number_is_refused(folder):
    with pytest.raises(InvalidInput, match="called 'age'"):
        load("insurance", folder=folder, sensitive="age")


@needs_data
def test_the_real_table_has_1338_people():
    dataset = load("insurance", folder=REAL)
    assert len(dataset) == 1338
    smoke = dataset.inputs[:, dataset.spec.columns.index("smoker")]
    assert float(smoke.mean()) == pytest.approx(0.205, abs=0.001)
    assert bool(torch.isfinite(dataset.inputs).all())
