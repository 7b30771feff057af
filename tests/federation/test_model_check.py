"""Models, data and losses that do not fit are refused before any training."""

import pytest
from torch import nn

from leakgauge import fedavg, fedsgd
from leakgauge.core.errors import InvalidInput
from leakgauge.federation.training import LOSSES
from tests.federation.networks import batch_norm, client, conv, linear, table


def two_outputs():
    return linear(16, 2)


@pytest.mark.parametrize(
    ("model", "data", "options", "words"),
    [
        (conv, client(0), {}, "client 'someone' has no samples"),
        (linear, client(3), {}, r"does not accept samples of shape \(1, 4, 4\)"),
        (two_outputs, client(3), {}, "2 outputs, but 'someone' has 3 classes. Build the model with 3 outputs"),
        (lambda: linear(16, 7), client(3), {}, "lacks some classes of the model, describe it with classes=7"),
        (two_outputs, client(3), {"loss": "binary_cross_entropy"}, "'binary_cross_entropy' is for two classes, but"),
        (lambda: linear(6, 2), table(3), {}, "2 outputs, but 'table' with the loss 'mse' needs 1"),
        (linear, table(3), {"loss": "cross_entropy"}, "needs classes, but 'table' is a regression. Use loss='mse'"),
        (lambda: nn.Flatten(), client(3), {}, "no parameters"),
        (conv, client(3), {"granted": ["lables"]}, "did you mean 'labels'"),
        (conv, client(3), {"hidden": ["momentun"]}, "did you mean 'momentum'"),
        (conv, client(3), {"hidden": ["loss"]}, "known: accumulation, batch_size, betas"),
        (conv, client(3), {"loss": "entropy"}, "no loss 'entropy'"),
        (conv, client(3), {"mode": "test"}, "mode must be 'train' or 'eval'"),
        (batch_norm, client(1), {}, "batch norm in train mode cannot train on a batch of one.*mode='eval'"),
    ],
)
def test_what_does_not_fit_is_refused(model, data, options, words):
    with pytest.raises(InvalidInput, match=words):
        fedsgd(model(), data, **options)
    with pytest.raises(InvalidInput, match=words):
        fedavg(model(), data, lr=0.1, **options)


def test_a_loss_of_the_users_own_may_take_any_outputs(monkeypatch):
    monkeypatch.setitem(LOSSES, "mine", lambda outputs, targets: outputs.square().mean())
    assert fedsgd(linear(16, 7), client(3), loss="mine")[0].training.loss == "mine"


def test_a_model_must_return_a_tensor():
    class Pair(nn.Linear):
        def forward(self, inputs):
            return inputs, inputs

    with pytest.raises(InvalidInput, match="must return a tensor of outputs, not tuple"):
        fedsgd(Pair(4, 4), client(2))
