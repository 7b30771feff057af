import pytest
import torch

from leakgauge import data, models
from leakgauge.attacks.learned.imitation import imitation_of
from leakgauge.federation import defences
from leakgauge.federation.client import fedsgd


def message(*chain, knows=False):
    model = models.lenet(shape=(1, 8, 8), seed=0)
    return fedsgd(model, data.load("digits").share([0]), defences=chain, knows_defence=knows)[0]


def test_a_message_without_traces_or_with_a_known_defence_is_not_imitated():
    assert imitation_of(message()) is None
    assert imitation_of(message(defences.build("gaussian_noise", sigma=0.1), knows=True)) is None


@pytest.mark.parametrize("chain", [("top_k", {"keep": 0.05}), ("random_pruning", {"probability": 0.9, "on": "update"})])
def test_pruned_messages_are_imitated_by_pruning(chain):
    name, options = chain
    seen, plain = message(defences.build(name, **options)), message()
    imitate = imitation_of(seen)
    assert imitate is not None
    imitated = imitate(plain.difference(), 0)
    assert all(torch.allclose(imitated[key], value) for key, value in seen.difference().items()) or name != "top_k"
    kept = [sum(int((value != 0).sum()) for value in tree.values()) for tree in (imitated, seen.difference())]
    assert kept[0] == pytest.approx(kept[1], rel=0.15)


def test_noise_is_imitated_by_noise_of_the_same_size():
    seen, plain = message(defences.build("gaussian_noise", sigma=0.3)), message()
    imitate = imitation_of(seen)
    assert imitate is not None
    before = plain.difference()
    added = torch.cat([(imitate(before, 5)[name] - value).flatten() for name, value in before.items()])
    assert float(added.std()) == pytest.approx(0.3, rel=0.2)
