"""A hidden attribute from a model, from gradients, and from the equations of gradients."""

from dataclasses import replace

import pytest
import torch
from torch.nn import functional as F

from leakgauge import Dataset, DataSpec, data, fedavg, fedsgd, models
from leakgauge.attacks.attribute import PublicRecords, by_equations, by_gradient, by_model
from leakgauge.attacks.attribute.problem import GradientProblem
from leakgauge.attacks.local_model import LastReturned, LocalModel
from leakgauge.attacks.local_model.messages import Messages
from leakgauge.attacks.registry import ATTACKS, build, specs
from leakgauge.core.errors import InvalidInput
from leakgauge.federation.local_only import least_squares_optimum, train_alone
from tests.attacks.local_model.cases import linear_clients, network, table_clients, watched


def records_of(client, attribute="secret", **options):
    return PublicRecords.hiding(client.inputs, client.targets, client.spec, attribute, **options)


def right(found, client):
    return float((found.choice == client.inputs[:, 0].long()).double().mean())


def alone_model(client, model, **options):
    """The client's own model, as an attacker would hold it who got it right."""
    alone = train_alone(model, client, lr=0.5, epochs=400, **options)
    return LocalModel(model, alone.weights, {}, client.spec, "cross_entropy", "")


def test_records_do_not_hold_what_is_hidden():
    (client, *_) = table_clients()
    records = records_of(client)
    assert bool(records.inputs[:, 0].isnan().all())
    torch.testing.assert_close(records.inputs[:, 1:], client.inputs[:, 1:])
    torch.testing.assert_close(records.filled(client.inputs[:, 0].long()), client.inputs)
    category = records_of(client, "job")
    assert category.columns == (3, 4, 5)
    torch.testing.assert_close(category.filled(client.inputs[:, 3:].argmax(1)), client.inputs)


def test_what_is_known_of_records_is_all_but_the_hidden_column_and_the_target():
    (client, *_) = table_clients(rows=3)
    expected = torch.cat((client.inputs[:, :3], F.one_hot(client.targets, 2)), dim=1)
    assert torch.equal(records_of(client, "job").known(), expected)


def test_records_that_cannot_be_are_refused():
    (client, *_) = table_clients()
    with pytest.raises(InvalidInput, match="no column or category 'age'"):
        records_of(client, "age")
    with pytest.raises(InvalidInput, match="fewer than two"):
        records_of(client, values=(1.0,))
    with pytest.raises(InvalidInput, match="39 targets"):
        PublicRecords.hiding(client.inputs, client.targets[:-1], client.spec, "secret")


def test_a_model_gives_the_value_that_fits_the_target_best():
    (client, *_), model = table_clients(rows=80), network()
    local = alone_model(client, model)
    found = by_model(local, records_of(client))
    distances = []
    for value in (0.0, 1.0):
        rows = client.inputs.clone()
        rows[:, 0] = value
        distances.append((local(rows).softmax(1) - F.one_hot(client.targets, 2)).square().sum(1))
    assert torch.equal(found.choice, torch.stack(distances, 1).argmin(1))
    assert right(found, client) > 0.7
    assert found.coefficient is None
    assert found.guarantee(0.1) is None


def test_a_category_is_inferred_too():
    (client, *_), model = table_clients(rows=80), network()
    local = alone_model(client, model)
    found = by_model(local, records_of(client, "job"))
    distances = []
    for value in range(3):
        rows = client.inputs.clone()
        rows[:, 3:] = F.one_hot(torch.tensor(value), 3).float()
        distances.append((local(rows).softmax(1) - F.one_hot(client.targets, 2)).square().sum(1))
    assert torch.equal(found.choice, torch.stack(distances, 1).argmin(1))


def test_a_prior_decides_where_the_model_says_nothing():
    (client, *_), model = table_clients(), network()
    weights = {name: torch.zeros_like(value) for name, value in model.named_parameters()}
    blind = LocalModel(model, weights, {}, client.spec, "cross_entropy", "")
    assert by_model(blind, records_of(client), prior=(0.2, 0.8)).choice.eq(1).all()
    assert by_model(blind, records_of(client), prior=(0.8, 0.2)).choice.eq(0).all()
    with pytest.raises(InvalidInput, match="2 shares"):
        by_model(blind, records_of(client), prior=(1.0,))


@pytest.mark.parametrize("attack", [by_gradient, by_equations])
def test_attacks_on_gradients_weigh_what_they_see_against_the_prior(attack):
    clients = table_clients(rows=12)
    rounds, records = watched(network(), clients, rounds=4, lr=0.1)[0], records_of(clients[0])
    assert right(attack(rounds, records, prior=(0.3, 0.7)), clients[0]) >= 0.75
    with pytest.raises(InvalidInput, match="2 shares"):
        attack(rounds, records, prior=(0.0, 1.0))


def test_where_gradients_say_nothing_the_prior_decides():
    (client, *_) = table_clients(rows=60)
    rounds = watched(network(), [client], rounds=4, lr=0.1)[0]
    records = records_of(client)
    # messages in which everything but noise is drowned
    draw = torch.Generator().manual_seed(0)
    noisy = [
        replace(one, returned={k: v + torch.randn(v.shape, generator=draw) for k, v in one.returned.items()})
        for one in rounds
    ]
    for prior, value in (((0.2, 0.8), 1), ((0.8, 0.2), 0)):
        assert by_gradient(rounds, records, steps=0, prior=prior).choice.eq(value).all()
        assert by_equations(noisy, records, prior=prior).choice.eq(value).double().mean() > 0.9
    assert 0.3 < by_equations(noisy, records).choice.double().mean() < 0.7


def test_proposition_4_holds_for_a_linear_regression():
    draw = torch.Generator().manual_seed(0)
    (client, *_) = linear_clients(4, rows=200)
    inputs = client.inputs.clone()
    inputs[:, 0] = torch.randint(2, (200,), generator=draw).double()
    targets = inputs @ torch.tensor([3.0, 1.0, -1.0, 0.5]).double() + 0.6 * torch.randn(200, generator=draw).double()
    client = Dataset(inputs, targets, client.spec)
    model = models.build("mlp", shape=[4], classes=1, hidden=[], seed=0).double()
    local = LocalModel(model, least_squares_optimum(client, bias=True), {}, client.spec, "mse", "")
    found = by_model(local, PublicRecords.hiding(inputs, targets, client.spec, "x0"))
    assert found.coefficient == pytest.approx(float(local.weights["head.weight"][0, 0]), rel=1e-6)
    assert "proposition 4" in found.outcome
    error = float(local.losses(inputs, targets).mean())
    guarantee = found.guarantee(error)
    assert 0.5 < guarantee < 1
    assert right(found, client) >= guarantee
    assert by_model(local, PublicRecords.hiding(inputs, targets, client.spec, "x0"), prior=(0.5, 0.5)).coefficient


def test_gradients_of_small_full_batch_clients_give_the_attribute_away():
    clients = table_clients(rows=12)
    rounds = watched(network(), clients, rounds=4, lr=0.1)[0]
    records = records_of(clients[0])
    assert right(by_gradient(rounds, records, steps=60, rounds=4), clients[0]) >= 0.75
    assert right(by_equations(rounds, records), clients[0]) == 1.0


def test_the_equations_solve_categories_and_regressions():
    (client, *_) = table_clients(rows=14)
    rounds = watched(network(), [client], rounds=3)[0]
    found = by_equations(rounds, records_of(client, "job"))
    assert torch.equal(found.choice, client.inputs[:, 3:].argmax(1))
    spec = DataSpec((6,), None, bounded=False, columns=client.spec.columns)
    regression = Dataset(client.inputs, client.inputs @ torch.arange(6.0) + 1, spec, "numbers")
    model = models.build("mlp", shape=[6], classes=1, hidden=[16], seed=0)
    seen = [fedavg(model, regression, lr=0.01)[0]]
    assert (
        right(by_equations(seen, PublicRecords.hiding(client.inputs, regression.targets, spec, "secret")), client) == 1
    )


def test_the_adjoint_is_the_transpose():
    (client, *_) = table_clients(rows=7)
    messages = Messages.read(watched(network(), [client], rounds=2)[0])
    problem = GradientProblem(messages, records_of(client), [0, 1])
    draw = torch.Generator().manual_seed(0)
    shares = torch.randn(7, 2, generator=draw)
    directions = [torch.randn(one.shape, generator=draw) for one in problem.observed]
    forward = sum(float(a @ b) for a, b in zip(problem.mixed(shares), directions, strict=True))
    assert forward == pytest.approx(float((shares * problem.transposed(directions)).sum()), rel=1e-4)
    truth = F.one_hot(client.inputs[:, 0].long(), 2).float()
    torch.testing.assert_close(problem.mixed(truth)[0], problem.observed[0], rtol=1e-3, atol=1e-5)


def test_the_equations_need_the_scale():
    (client, *_) = table_clients()
    rounds = watched(network(), [client], rounds=2, hidden=("lr",))[0]
    with pytest.raises(InvalidInput, match="use by_gradient"):
        by_equations(rounds, records_of(client))
    assert by_gradient(rounds, records_of(client), steps=2).choice.shape == (40,)
    with pytest.raises(InvalidInput, match="rounds must be at least 1"):
        by_gradient(rounds, records_of(client), rounds=0)


def test_the_model_that_came_back_can_be_asked():
    (client, *_) = table_clients()
    rounds = watched(network(), [client], rounds=3, lr=0.5, epochs=20)[0]
    assert right(by_model(LastReturned()(rounds), records_of(client)), client) > 0.5


def registered(name, rounds, records, **options):
    return build(name, **options)(rounds, records, model=LastReturned()(rounds, progress=False))


@pytest.mark.parametrize("prior", [None, (0.3, 0.7)])
def test_the_registered_attacks_are_the_functions(prior):
    clients = table_clients(rows=12)
    rounds, records = watched(network(), clients, rounds=4, lr=0.1)[0], records_of(clients[0])
    expected = {
        "attribute_by_model": by_model(LastReturned()(rounds), records, prior),
        "attribute_by_gradient": by_gradient(rounds, records, prior=prior),
        "attribute_by_equations": by_equations(rounds, records, prior=prior),
    }
    assert list(expected) == [spec.name for spec in specs(recovers="attribute", reads="rounds")]
    for name, result in expected.items():
        assert torch.equal(registered(name, rounds, records, prior=prior).scores, result.scores)
    with pytest.raises(InvalidInput, match="needs a model of the client"):
        build("attribute_by_model")(rounds, records)


def test_an_audit_solves_exact_gradients_and_compares_directions_otherwise():
    (spec,) = specs(recovers="attribute", reads="update")
    assert (spec.name, spec.audit) == ("attribute_inference", {})
    (client, *_), records = table_clients(rows=12), records_of(table_clients(rows=12)[0])
    one_step = fedavg(network(), client, lr=0.1)[0]
    exact = [fedsgd(network(), client)[0], one_step]
    inexact = [
        one_step.knowing(lr=None),
        one_step.knowing(samples=None),
        fedavg(network(), client, lr=0.1, epochs=2)[0],
    ]
    for observations, attack, words in ((exact, by_equations, "equations"), (inexact, by_gradient, "direction")):
        for observation in observations:
            result, expected = build(spec.name)([observation], records), attack([observation], records)
            assert torch.equal(result.scores, expected.scores)
            assert result.outcome == expected.outcome
            assert words in spec.fits(observation).reason


def test_the_rules_name_the_reason():
    (client, *_) = table_clients(rows=12)
    observation = fedavg(network(), client, lr=0.1)[0]
    picture = fedsgd(models.build("mlp", shape=[1, 8, 8], classes=10, hidden=[8]), data.load("digits").share(range(4)))[
        0
    ]
    for spec in specs(recovers="attribute"):
        assert spec.fits(observation).applies
        assert not spec.fits(picture).applies
        assert "named columns" in spec.fits(picture).reason
    equations = ATTACKS["attribute_by_equations"].fits
    assert equations(observation.knowing(lr=None, samples=None)).reason.endswith("unknown: lr, samples")
    assert equations(fedsgd(network(), client)[0]).applies
    assert "noise" in equations(fedavg(network(), client, lr=0.1, epochs=2)[0]).reason
