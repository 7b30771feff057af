"""The secant method on linear clients, on noise and on updates that grow."""

import math
from dataclasses import replace

import pytest
import torch

from leakgauge.attacks.local_model import GlobalModel, LastReturned, Messages, Secant
from leakgauge.attacks.local_model.secant import held_out_error, shorter_steps
from leakgauge.core.params import flatten
from tests.attacks.local_model.cases import distance, linear, linear_clients, watched


def test_the_secant_finds_the_optimum_of_a_linear_client():
    clients = linear_clients(5)
    rounds = watched(linear(5), clients, rounds=60, epochs=3, clients_per_round=3)[0]
    proxies = {type(one).__name__: distance(one(rounds), clients[0]) for one in (GlobalModel(), LastReturned())}
    found = Secant()(rounds)
    assert distance(found, clients[0]) < 0.02 * min(proxies.values())
    assert found.figures["held_out_error"] < 0.01


def test_the_secant_stays_with_the_last_returned_model_where_updates_are_noise():
    clients = linear_clients(3)
    draw = torch.Generator().manual_seed(0)
    rounds = []
    for one in watched(linear(3), clients, rounds=30)[0]:
        noise = {name: torch.randn(v.shape, generator=draw, dtype=v.dtype) for name, v in one.sent.items()}
        rounds.append(replace(one, returned={name: one.sent[name] + value for name, value in noise.items()}))
    kept = min(rounds, key=lambda one: float(Messages.read([one]).updates.norm()))
    rounds[-1] = replace(
        rounds[-1], returned={n: rounds[-1].sent[n] + kept.returned[n] - kept.sent[n] for n in kept.sent}
    )
    found, last = Secant()(rounds), LastReturned()(rounds)
    torch.testing.assert_close(flatten(found.weights), flatten(last.weights))


def test_held_out_error_is_that_of_a_plain_ridge_regression():
    draw = torch.Generator().manual_seed(0)
    sent, updates = (torch.randn(12, 7, generator=draw, dtype=torch.double) for _ in range(2))
    total = 0.0
    x, y = sent - sent.mean(0), updates - updates.mean(0)
    for fold in range(3):
        out = torch.arange(12) % 3 == fold
        solved = torch.linalg.solve(x[~out].T @ x[~out] + 0.7 * torch.eye(7).double(), x[~out].T @ y[~out])
        total += float((x[out] @ solved - y[out]).square().sum())
    assert held_out_error(sent, updates, 0.7, 3) == pytest.approx(math.sqrt(total / 12))


def test_steps_grow_until_the_predicted_update_is_short_enough():
    draw = torch.Generator().manual_seed(0)
    mapped, moved, update = (torch.randn(*shape, generator=draw).double() for shape in ((4, 9), (4, 9), (9,)))
    arguments = (mapped @ mapped.T, mapped @ update, moved @ moved.T, float(update.norm()))
    (none,) = shorter_steps(*arguments, 10.0)
    assert not none.any()
    least = float((update - mapped.T @ torch.linalg.lstsq(mapped.T, update[:, None]).solution[:, 0]).norm())
    wanted = (least + float(update.norm())) / 2
    left = [float((update + step @ mapped).norm()) for step in shorter_steps(*arguments, wanted)]
    assert left == sorted(left, reverse=True)
    assert least < left[-1] <= wanted < left[-2]


def test_a_secant_does_not_go_back_to_where_updates_were_small():
    template, *_ = watched(linear(3), linear_clients(3), rounds=1)[0]
    first = {name: torch.ones_like(value) for name, value in template.sent.items()}
    rounds = []
    for number in range(6):  # the further from zero, the faster away from it: zero is no optimum
        sent = {name: value * 1.1**number for name, value in first.items()}
        returned = {name: value * 1.1 for name, value in sent.items()}
        rounds.append(replace(template, sent=sent, returned=returned, round=number))
    assert torch.allclose(flatten(Secant()(rounds).weights), flatten(LastReturned()(rounds).weights))
