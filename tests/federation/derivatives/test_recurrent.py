from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn.utils.rnn import pack_padded_sequence

from leakgauge.core.local_training import LocalTraining
from leakgauge.federation.derivatives import CheapSecondDerivatives, has_costly_layers, recurrent
from leakgauge.federation.training import Trainer


@pytest.fixture
def replaced(monkeypatch) -> list[bool]:
    """For each call of an LSTM, whether the module under test computed it."""
    seen: list[bool] = []
    original = recurrent._helps

    def counted(args: Any) -> bool:
        seen.append(original(args))
        return seen[-1]

    monkeypatch.setattr(recurrent, "_helps", counted)
    return seen


def _every_order(model: nn.Module, inputs: Tensor, states: tuple[Tensor, ...], ours: bool) -> list[Tensor]:
    """Return the results of a layer, and their slopes of the first, second and third order."""
    leaves = [one.detach().clone().requires_grad_() for one in (inputs, *states)]
    parameters = list(model.parameters())
    given = (leaves[0], tuple(leaves[1:])) if states else (leaves[0],)
    if ours:
        with CheapSecondDerivatives():
            output, after = model(*given)
    else:
        output, after = model(*given)
    found = [output, *after]
    value = output.sin().sum() + after[0].cos().sum() + after[1].square().sum()
    for order in range(3):
        slopes = torch.autograd.grad(value, [*leaves, *parameters], create_graph=order < 2)
        value = torch.stack([one.sin().square().sum() for one in slopes]).sum()
        found += slopes
    return found


OPTIONS: list[dict[str, Any]] = [
    {},
    {"num_layers": 2, "bidirectional": True, "batch_first": True},
    {"num_layers": 2, "bias": False},
    {"bidirectional": True, "bias": False, "batch_first": True},
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("steps", [1, 4])
@pytest.mark.parametrize("given", [False, True])
def test_an_lstm_agrees_with_pytorch_in_every_order(options, steps, given, replaced):
    torch.manual_seed(0)
    layer = nn.LSTM(3, 4, **options).double()
    inputs = torch.randn(*((2, steps) if options.get("batch_first") else (steps, 2)), 3, dtype=torch.double)
    places = options.get("num_layers", 1) * (1 + options.get("bidirectional", False))
    states = tuple(torch.randn(2, places, 2, 4, dtype=torch.double)) if given else ()
    for one, other in zip(*(_every_order(layer, inputs, states, ours) for ours in (True, False)), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9)
    assert replaced == [True]


def test_a_single_sequence_and_floats(replaced):
    layer, inputs = nn.LSTM(3, 4), torch.randn(5, 3)
    for one, other in zip(*(_every_order(layer, inputs, (), ours) for ours in (True, False)), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4)
    assert replaced == [True]


@pytest.mark.filterwarnings("ignore:LSTM with projections:UserWarning")  # PyTorch's own
@pytest.mark.parametrize("kind", ["dropout", "projection", "packed", "autocast"])
def test_other_layers_are_left_to_pytorch(kind, replaced):
    options: dict[str, Any] = {"dropout": {"num_layers": 2, "dropout": 0.5}, "projection": {"proj_size": 2}}.get(
        kind, {}
    )
    layer, inputs = nn.LSTM(3, 4, **options), torch.randn(5, 2, 3)
    given = pack_padded_sequence(inputs, torch.tensor([5, 3])) if kind == "packed" else inputs

    def called() -> Tensor:
        torch.manual_seed(0)
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=kind == "autocast"):
            output: Tensor = layer(given)[1][0]
            return output

    expected = called()
    with CheapSecondDerivatives():
        assert torch.equal(called(), expected)
    assert replaced == [False]


def test_dropout_in_eval_mode_is_none(replaced):
    layer = nn.LSTM(3, 4, num_layers=2, dropout=0.5).eval()
    inputs = torch.randn(5, 2, 3)
    with CheapSecondDerivatives():
        found = layer(inputs)[0]
    torch.testing.assert_close(found, layer(inputs)[0])
    assert replaced == [True]


class _Classifier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.head = nn.LSTM(3, 5, batch_first=True), nn.Linear(5, 2)

    def forward(self, inputs: Tensor) -> Tensor:
        result: Tensor = self.head(self.layer(inputs)[0][:, -1])
        return result


@pytest.mark.parametrize("functional", [False, True])
def test_simulations_use_it(functional, replaced, monkeypatch):
    torch.manual_seed(0)
    model = _Classifier().double()
    assert has_costly_layers(model)
    weights = {name: value.detach() for name, value in model.named_parameters()}
    trainer = Trainer(model, LocalTraining(lr=0.1), functional=functional, as_attacker=True)
    batches = [(torch.randn(2, 6, 3).double(), torch.tensor([0, 1])) for _ in range(2)]

    def slope() -> Any:
        inputs = batches[0][0].clone().requires_grad_()
        state = trainer.run(trainer.start(weights, None), [(inputs, batches[0][1]), batches[1]], "graph")
        loss = torch.stack([(state.weights[name] - value).square().sum() for name, value in weights.items()]).sum()
        return torch.autograd.grad(loss, inputs)[0]

    found = slope()
    assert replaced == [True, True]
    monkeypatch.setattr(recurrent, "_helps", lambda args: False)
    torch.testing.assert_close(found, slope(), rtol=1e-9, atol=1e-12)


def test_many_problems_at_once_agree_with_one_after_another():
    model = _Classifier().double()
    weights = {name: value.detach() for name, value in model.named_parameters()}
    inputs = torch.randn(3, 2, 4, 3).double()

    def of_weights(inputs: Tensor) -> Any:
        return grad(lambda values: functional_call(model, values, (inputs,)).sin().sum())(weights)

    def slope(inputs: Tensor) -> Any:
        return grad(lambda inputs: sum(value.square().sum() for value in of_weights(inputs).values()))(inputs)

    one_by_one = torch.stack([slope(one) for one in inputs])
    with CheapSecondDerivatives():
        together = vmap(slope)(inputs)
    torch.testing.assert_close(together, one_by_one)
