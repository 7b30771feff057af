"""Losses by name, as functions, from modules, and losses that call the model themselves."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from leakgauge.core.errors import InvalidInput, UnknownName
from leakgauge.core.local_training import LocalTraining
from leakgauge.federation.client import fedavg, fedsgd
from leakgauge.federation.losses import LOSSES, loss_of, named_loss
from tests.federation.networks import CLASSES, client


class Dictionary(nn.Module):
    """A model that returns a dictionary, and its own loss if it is given labels."""

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(16, CLASSES)

    def forward(self, inputs, labels=None):
        outputs = {"logits": self.head(inputs.flatten(1))}
        return outputs if labels is None else outputs | {"loss": F.cross_entropy(outputs["logits"], labels)}


def from_dictionary(outputs, targets):
    return F.cross_entropy(outputs["logits"], targets)


def own_loss(model, inputs, targets):
    return model(inputs, labels=targets)["loss"]


@pytest.fixture(autouse=True)
def _registry(monkeypatch):
    monkeypatch.setattr("leakgauge.federation.losses.LOSSES", LOSSES)
    before = dict(LOSSES)
    yield
    LOSSES.clear()
    LOSSES.update(before)


def plain():
    torch.manual_seed(0)
    model = Dictionary().double()
    inner = nn.Sequential(nn.Flatten(), nn.Linear(16, CLASSES)).double()
    inner[1].load_state_dict(model.head.state_dict())
    return model, inner


@pytest.mark.parametrize("loss", [from_dictionary, own_loss, f"{__name__}:own_loss"])
def test_a_model_that_returns_a_dictionary_trains_with_a_loss_of_its_own(loss):
    model, inner = plain()
    settings = {"lr": 0.1, "epochs": 2, "batch_size": 2}
    found, expected = fedavg(model, client(5), loss=loss, **settings)[0], fedavg(inner, client(5), **settings)[0]
    for value, other in zip(found.returned.values(), expected.returned.values(), strict=True):
        torch.testing.assert_close(value, other)
    assert found.training.loss == (loss if isinstance(loss, str) else f"{__name__}:{loss.__name__}")


def test_a_model_that_returns_a_dictionary_is_told_about_the_hook():
    with pytest.raises(InvalidInput, match="must return a tensor of outputs, not dict"):
        fedsgd(plain()[0], client(3))


def test_two_functions_of_one_name_stay_apart():
    names = [named_loss(lambda outputs, targets, factor=factor: factor * outputs.sum()) for factor in (1, 2)]
    assert names[1] == f"{names[0]}#2"


@pytest.mark.parametrize(
    ("loss", "words"),
    [
        ("cross_entropi", "did you mean 'cross_entropy'"),
        ("nowhere.at.all:f", "importing the loss 'nowhere.at.all:f' raised ModuleNotFoundError"),
        (f"{__name__}:missing", "is not a function"),
        ("os.path:a b", "must be 'module:function'"),
        (3, "a name or a function"),
    ],
)
def test_what_is_no_loss_is_refused(loss, words):
    with pytest.raises(InvalidInput, match=words):
        named_loss(loss)


def test_a_recipe_never_imports_code():
    """A recipe may come from a capture, and a capture must not decide which code is run."""
    with pytest.raises(InvalidInput, match="--know loss=os:getcwd"):
        fedsgd(plain()[1], client(3), recipe=LocalTraining(loss="os:getcwd"))
    assert "os:getcwd" not in LOSSES


def test_label_smoothing_is_that_of_torch_and_needs_classes():
    outputs, targets = torch.randn(4, 3), torch.tensor([0, 2, 1, 1])
    smoothed = loss_of(LocalTraining(label_smoothing=0.3))
    torch.testing.assert_close(smoothed(outputs, targets), F.cross_entropy(outputs, targets, label_smoothing=0.3))
    binary = loss_of(LocalTraining(loss="binary_cross_entropy", label_smoothing=0.2))
    expected = F.binary_cross_entropy_with_logits(outputs[:, 0], torch.tensor([0.1, 0.9, 0.9, 0.9]))
    torch.testing.assert_close(binary(outputs[:, :1], torch.tensor([0, 1, 1, 1])), expected)
    with pytest.raises(InvalidInput, match="label_smoothing needs the loss cross_entropy"):
        loss_of(LocalTraining(loss="mse", label_smoothing=0.1))
    with pytest.raises(UnknownName):
        loss_of(LocalTraining(loss="nothing"))


def test_binary_cross_entropy_takes_the_probabilities_of_both_classes():
    logit, both = torch.randn(5, 1), torch.rand(5, 1)
    loss = LOSSES["binary_cross_entropy"]
    torch.testing.assert_close(loss(logit, torch.cat([1 - both, both], 1)), loss(logit, both[:, 0]))


@pytest.mark.parametrize(("loss", "expected"), [("l1", F.l1_loss), ("huber", F.huber_loss), ("mse", F.mse_loss)])
def test_losses_of_numbers_are_those_of_torch(loss, expected):
    outputs, targets = torch.randn(5, 1, 3), 3 * torch.randn(5, 3)
    torch.testing.assert_close(LOSSES[loss](outputs, targets), expected(outputs[:, 0], targets))


def test_two_labels_of_each_sample_are_no_probabilities_of_two_classes():
    outputs, targets = torch.randn(5, 2), torch.randint(2, (5, 2))
    expected = F.binary_cross_entropy_with_logits(outputs, targets.float())
    torch.testing.assert_close(LOSSES["binary_cross_entropy"](outputs, targets), expected)
