"""Settings of a federated training that cannot work are refused before the first round."""

import pytest

from leakgauge import run_federation
from leakgauge.core.errors import InvalidInput, UnknownName
from tests.federation.networks import client, conv, table


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"rounds": 0}, "rounds must be at least 1"),
        ({"every": 0}, "every must be at least 1"),
        ({"test_every": 0}, "test_every must be at least 1"),
        ({"test": client(0)}, "test data holds no samples"),
        ({"clients_per_round": 0}, "between 1 and 2, not 0"),
        ({"clients_per_round": 3}, "between 1 and 2, not 3"),
        ({"weighting": "size"}, "'samples' or 'uniform', not 'size'"),
        ({"watch": [2]}, "client 2 cannot be watched. The clients are 0 to 1"),
        ({"watch": [-1]}, "client -1 cannot be watched"),
        ({"batch_size": 0}, "batch_size must be a whole number of at least 1, not 0"),
        ({"epochs": 0}, "epochs"),
        ({"lr": -1.0}, "lr must be above 0"),
        ({"loss": "entropy"}, "no loss 'entropy'"),
        ({"granted": ["everything"]}, "no grant 'everything'"),
        ({"hidden": ["everything"]}, "no part of the recipe to hide 'everything'"),
    ],
)
def test_errors(options, words):
    with pytest.raises(InvalidInput, match=words):
        run_federation(conv(), [client(3), client(3, seed=1)], **({"rounds": 1, "lr": 0.1} | options))


def test_clients_that_cannot_take_part():
    with pytest.raises(InvalidInput, match="at least one client"):
        run_federation(conv(), [], rounds=1, lr=0.1)
    with pytest.raises(InvalidInput, match="has no samples"):
        run_federation(conv(), [client(3), client(0)], rounds=1, lr=0.1)
    with pytest.raises(InvalidInput, match="does not accept samples"):
        run_federation(conv(), [client(3), table(3)], rounds=1, lr=0.1)
    with pytest.raises(UnknownName, match="did you mean 'labels'"):
        run_federation(conv(), [client(3)], rounds=1, lr=0.1, granted=["lables"])
