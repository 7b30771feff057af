import pytest
import torch

from leakgauge import attacks, data, models
from leakgauge.attacks.inversion.guess import with_guess
from leakgauge.attacks.inversion.solve import Solution, Trace
from leakgauge.attacks.inversion.stopping import Outcome
from leakgauge.federation import defences
from leakgauge.federation.client import fedavg, fedsgd

DIGITS = data.load("digits")


def message(*chain, send=fedsgd, **options):
    model = models.lenet(shape=(1, 8, 8), seed=0)
    return send(model, DIGITS.share([3]), defences=chain, knows_defence=True, granted=["labels"], **options)


def decided(observation, samples, outcome="finished"):
    attack = attacks.build("inverting_gradients", steps=3)
    inputs = attack.space.units(observation.data).normalise(samples)
    trace = Trace(torch.zeros(1), {}, [], 0.0, torch.ones(1))
    solution = Solution({"inputs": inputs}, 0.0, 0, Outcome(outcome, 0, outcome), trace)
    return with_guess(attack, observation, solution, observation.labels)


CHAINS = [
    (defences.build("gaussian_noise", sigma=0.01),),
    (defences.build("quantisation", bits=6),),
    (defences.build("top_k", keep=0.5),),
]


@pytest.mark.parametrize("chain", CHAINS)
def test_true_samples_explain_the_message_and_others_do_not(chain):
    observation, truth = message(*chain)
    assert decided(observation, truth.inputs).outcome.kind == "finished"
    other = DIGITS.inputs[DIGITS.targets != 3][:1]
    left = decided(observation, 1 - other)
    assert left.outcome.kind == "failed"
    assert not left.variables["inputs"].any()
    assert "the attack failed, and a blind guess is returned" in str(left.outcome)


def test_nothing_is_compared_for_a_message_without_noise_or_after_ctrl_c():
    observation, _ = message()
    assert decided(observation, torch.rand(1, 1, 8, 8)).outcome.kind == "finished"
    noisy, _ = message(defences.build("gaussian_noise", sigma=10.0))
    assert decided(noisy, torch.rand(1, 1, 8, 8), "interrupted").outcome.kind == "interrupted"


def test_labels_and_batches_that_were_searched_can_be_compared_too():
    chain = (defences.build("gaussian_noise", sigma=50.0),)
    model = models.lenet(shape=(1, 8, 8), seed=0)
    observation, _ = fedavg(model, DIGITS.share(range(4)), lr=0.1, epochs=2, batch_size=2, defences=chain)
    result = attacks.build("lbfgs_simulation", steps=1, pool=1)(observation, progress=False)
    assert result.outcome.kind == "failed"


@pytest.mark.parametrize("send", [fedsgd, lambda *args, **more: fedavg(*args, lr=0.1, epochs=2, **more)])
def test_an_attack_on_pure_noise_returns_the_guess(send):
    observation, _ = message(defences.build("gaussian_noise", sigma=50.0), send=send)
    result = attacks.build("inverting_gradients", steps=20)(observation, progress=False)
    assert result.outcome.kind == "failed"
    assert float(result.samples.std()) == 0
