"""The shares of records in clients' gradients, solved with and without the matrix of the equations."""

import pytest
import torch
from torch.func import functional_call

from leakgauge.attacks import record_shares, source
from tests.attacks.local_model.cases import linear, linear_clients, network, table_clients, watched


def equations(clients, model, rounds=3, **options):
    """Return the rounds of all clients with their records."""
    seen = watched(model, clients, rounds=rounds, watch=range(len(clients)), **options)
    inputs, targets = (torch.cat([getattr(one, name) for one in clients]) for name in ("inputs", "targets"))
    return [list(messages) for messages in zip(*seen.values(), strict=True)], inputs, targets


CASES = {
    "classes": lambda: equations(table_clients(rows=15), network().double()),
    "numbers": lambda: equations(linear_clients(8, clients=3, rows=20), linear(8), batch_size=10, lr=0.01),
}


@pytest.mark.parametrize("case", CASES)
def test_conjugate_gradients_solve_the_same_equations_as_the_matrix(case, monkeypatch):
    rounds, inputs, targets = CASES[case]()
    expected = record_shares.record_shares(rounds, inputs, targets, 1e-2)
    monkeypatch.setattr(record_shares, "DENSE", 10)
    monkeypatch.setattr(record_shares, "BLOCK", 40)
    monkeypatch.setattr(record_shares, "AT_A_TIME", 2)
    monkeypatch.setattr(record_shares, "TOLERANCE", 1e-6)
    shares = record_shares.record_shares(rounds, inputs, targets, 1e-2)
    assert float((shares - expected).norm() / expected.norm()) < 1e-3


def test_mixtures_and_products_agree_with_one_gradient_after_another():
    rounds, inputs, targets = equations(table_clients(rows=15), network())
    gradients = record_shares.RecordGradients(rounds[1], inputs, targets)
    model, sent = rounds[1][0].model, dict(rounds[1][0].sent)
    plain = []
    for record, target in zip(gradients.inputs, targets, strict=True):
        leaves = {name: value.clone().requires_grad_() for name, value in sent.items()}
        loss = torch.nn.functional.cross_entropy(functional_call(model, leaves, (record[None],)), target[None])
        plain.append(torch.cat([part.flatten() for part in torch.autograd.grad(loss, list(leaves.values()))]))
    plain = torch.stack(plain)
    torch.testing.assert_close(gradients.each(torch.arange(len(inputs))), plain, rtol=1e-4, atol=1e-6)
    shares = torch.randn(len(inputs), 3, generator=torch.Generator().manual_seed(0))
    mixtures = gradients.mixtures(shares)
    flat = torch.cat([value.flatten(1) for value in mixtures.values()], dim=1)
    torch.testing.assert_close(flat, shares.T @ plain, rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(gradients.products(mixtures).float(), plain @ flat.T, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("case", CASES)
def test_sources_are_the_same_with_and_without_the_matrix(case, monkeypatch):
    rounds, inputs, targets = CASES[case]()
    by_client = [list(messages) for messages in zip(*rounds, strict=True)]
    expected = source.by_equations(by_client, inputs, targets).choice
    monkeypatch.setattr(record_shares, "DENSE", 10)
    assert float((source.by_equations(by_client, inputs, targets).choice == expected).double().mean()) > 0.95
