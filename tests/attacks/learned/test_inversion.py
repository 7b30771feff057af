from types import SimpleNamespace

import pytest
import torch
from torch import nn

from leakgauge import attacks, data, models
from leakgauge.attacks.learned.inversion import needs_public_data, rounded
from leakgauge.core.data_spec import DataSpec
from leakgauge.core.errors import MissingKnowledge
from leakgauge.data import Dataset
from leakgauge.evaluation import score
from leakgauge.federation import defences
from leakgauge.federation.client import fedavg, fedsgd
from leakgauge.federation.rehearsal import public_data

DIGITS = data.load("digits")


def granted(chain=(), samples=1, client=0, public=140, send=fedsgd, **options):
    model = models.lenet(shape=(1, 8, 8), seed=client)
    own = DIGITS.share(range(client * samples, (client + 1) * samples))
    knows = {"knows_defence": bool(chain)} | options
    observation, truth = send(model, own, defences=chain, seed=client, **knows)
    known = chain if knows["knows_defence"] else ()
    others = DIGITS.share(range(200, 200 + public))
    return public_data(observation, others, defences=known, truth=truth), truth


def excess(observation, truth, result):
    measure = score(result, truth, public=observation.public)["psnr"]
    return measure.value - measure.chance


def learn(observation, **options):
    return attacks.build("learned_inversion", **options)(observation, seed=1, progress=False)


@pytest.mark.parametrize("defence", [None, ("top_k", {"keep": 0.1}), ("quantisation", {"bits": 6})])
def test_it_finds_what_the_message_adds_to_public_data(defence):
    chain = () if defence is None else (defences.build(defence[0], **defence[1]),)
    gains = []
    for client in range(2):
        observation, truth = granted(chain, client=client, granted=["labels"])
        gains.append(excess(observation, truth, learn(observation)))
    assert sum(gains) / 2 > 0.7


def test_messages_of_other_people_show_nothing():
    gains = []
    for client in range(4):
        observation, truth = granted(client=client, granted=["labels"])
        public = observation.public
        row = (public.targets == truth.targets).nonzero()[:1, 0]
        message = public.rehearse(public.samples[row], public.targets[row], 3)
        result = learn(observation.knowing(gradient=message))
        gains.append(excess(observation, truth, SimpleNamespace(samples=result.samples, labels=None)))
    assert sum(gains) / 4 < 0


def test_noise_that_hides_everything_leaves_the_guess():
    observation, truth = granted((defences.build("gaussian_noise", sigma=100.0),), granted=["labels"])
    result = learn(observation)
    assert result.outcome.kind == "guess"
    assert "adds nothing to the public data" in str(result.outcome)
    assert excess(observation, truth, result) == pytest.approx(0, abs=0.7)


def test_a_batch_comes_back_in_the_order_of_the_granted_labels():
    observation, truth = granted(samples=4, client=5, granted=["labels"])
    result = learn(observation, rehearsals=140)
    assert torch.equal(result.labels, truth.targets)
    assert excess(observation, truth, result) > 1
    by_place = (result.samples - truth.inputs).square().mean()
    assert by_place < (result.samples.flip(0) - truth.inputs).square().mean()


def test_labels_are_learned_and_then_count_as_known():
    for client in range(2):
        observation, truth = granted(client=client)
        assert torch.equal(learn(observation).labels, truth.targets)


def test_local_training_is_learned():
    def send(model, own, **options):
        return fedavg(model, own, lr=0.05, epochs=3, batch_size=1, **options)

    gains = []
    for client in range(2):
        observation, truth = granted(client=client, send=send, granted=["labels"])
        gains.append(excess(observation, truth, learn(observation)))
    assert sum(gains) / 2 > 0.5


def test_an_unknown_defence_is_imitated_or_the_guess_is_returned():
    for name, options in (("gaussian_noise", {"sigma": 3.0}), ("clipping", {"norm": 0.01}), ("top_k", {"keep": 0.01})):
        chain = (defences.build(name, **options),)
        observation, truth = granted(chain, client=1, knows_defence=False, granted=["labels"])
        assert excess(observation, truth, learn(observation)) > -0.7, name


def test_series_and_regression_targets():
    draw = torch.Generator().manual_seed(0)
    phase = torch.rand(300, 1, generator=draw) * 6
    times = torch.linspace(0, 6, 24)
    series, targets = (times + phase).sin(), phase[:, 0].sin()
    whole = Dataset(series, targets, DataSpec((24,), None, bounded=False, time_axis=0), "series")
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(24, 16), nn.Tanh(), nn.Linear(16, 1))
    observation, truth = fedsgd(model, whole.share([0]))
    result = learn(public_data(observation, whole.share(range(50, 170)), truth=truth))
    assert result.samples.shape == (1, 24)
    assert (result.samples - truth.inputs).square().mean() < 0.5 * series.var()
    assert result.labels is not None
    assert (result.labels - truth.targets).abs().max() < 0.5


def test_a_column_of_large_numbers_does_not_drown_the_others():
    draw = torch.Generator().manual_seed(0)
    rows = torch.randn(200, 6, generator=draw)
    rows[:, 5] *= 1e4
    spec = DataSpec((6,), 2, bounded=False, mean=(0.0,) * 6, std=(1.0,) * 5 + (1e4,))
    whole = Dataset(rows, (rows[:, 0] > 0).long(), spec, "table")
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 2))
    chain = (defences.build("top_k", keep=0.3),)
    observation, truth = fedsgd(model, whole.share([0]), defences=chain, knows_defence=True, granted=["labels"])
    result = learn(public_data(observation, whole.share(range(40, 200)), defences=chain, truth=truth))
    assert result.outcome.kind == "finished"
    off = spec.normalise(result.samples) - spec.normalise(truth.inputs)
    assert off[0, :5].square().mean() < 0.6 * spec.normalise(truth.inputs)[0, :5].square().mean()


def test_what_is_missing_is_named():
    observation, _ = fedsgd(models.lenet(shape=(1, 8, 8), seed=0), DIGITS.share([0]))
    with pytest.raises(MissingKnowledge, match="needs public data of the same kind, which the attacker does not have"):
        learn(observation)
    few, _ = granted(public=30)
    assert needs_public_data(few).reason == "needs at least 40 public samples for this client, and there are 30"
    hidden, _ = granted(send=lambda *args, **more: fedavg(*args, lr=0.1, hidden=["lr"], **more))
    assert not needs_public_data(hidden).applies


def test_rounding_keeps_the_number_of_samples():
    draw = torch.Generator().manual_seed(0)
    counts = 3 * torch.randn(50, 6, generator=draw)
    labels = rounded(counts, 7)
    assert labels.shape == (50, 7)
    assert (labels.diff(dim=1) >= 0).all()


def test_fewer_rehearsals_are_a_shorter_attack():
    attack = attacks.build("learned_inversion", rehearsals=1000)
    assert attack.scaled(0.3).rehearsals == 300
    assert attack.scaled(0.0001).rehearsals == 40
    observation, _ = granted(samples=2)
    assert attack.forecast(observation) > attack.scaled(0.1).forecast(observation) > 0
