import pytest

from leakgauge import models
from leakgauge.core.errors import InvalidInput
from leakgauge.federation.client import fedavg, fedsgd
from leakgauge.federation.defences import LocalWork
from leakgauge.federation.rounds import run_federation
from tests.shared import digits


def model():
    return models.mlp(shape=(1, 8, 8), classes=10, hidden=[8], seed=0)


def test_the_client_follows_the_changed_recipe():
    own = digits().share(range(6))
    observation, truth = fedavg(
        model(), own, lr=0.1, epochs=1, batch_size=2, defences=LocalWork(epochs=3, batch_size=99)
    )
    assert (observation.training.epochs, observation.training.batch_size) == (3, 6)
    assert [len(rows) for rows in truth.order] == [6, 6, 6]


def test_a_federation_follows_it_too():
    found = run_federation(
        model(), [digits().share(range(6)), digits().share(range(6, 12))], rounds=1, lr=0.1, batch_size=2, watch=[0],
        defences=LocalWork(epochs=2),
    )  # fmt: skip
    assert found.observations[0][0].training.epochs == 2


def test_fedsgd_has_no_local_work():
    with pytest.raises(InvalidInput, match="FedSGD has no local training"):
        fedsgd(model(), digits().share(range(6)), defences=LocalWork(epochs=2))
