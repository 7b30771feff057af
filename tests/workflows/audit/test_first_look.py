"""The first look: its reasons are true of the message, and attacks then find what it announces."""

import pytest
import torch
from torch import nn

from leakgauge import data, models
from leakgauge.attacks import registry
from leakgauge.core.errors import MissingKnowledge
from leakgauge.core.observation import LocalTraining
from leakgauge.evaluation import score
from leakgauge.federation.client import fedavg, fedsgd
from leakgauge.federation.defences import DPSGD, Clipping, GaussianNoise
from leakgauge.workflows.audit import first_look
from leakgauge.workflows.audit.ceiling import bound_of
from tests.attacks.analytic.transformers import frozen
from tests.known_answers.networks import convolutional, unet
from tests.known_answers.populations import labelled_digits
from tests.shared import digits


def network(name="lenet", **options):
    return models.build(name, shape=(1, 8, 8), classes=10, seed=0, **options)


def convolutions_with_a_dense_tail():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(512, 64), nn.ReLU(), nn.Linear(64, 10)
    )


def risks(look):
    return {reason.about: reason.risk for reason in look.reasons}


def exact_attacks(look):
    return [reason.sentence.split()[3] for reason in look.reasons if reason.about == "exact attack"]


def psnr(attack, observation, truth, **options):
    return float(score(registry.build(attack, **options)(observation), truth)["psnr"].value)


MESSAGES = {
    "LeNet, one gradient": lambda: fedsgd(network(), digits().share([0])),
    "LeNet, one local step": lambda: fedavg(network(), digits().share(range(4)), lr=0.1),
    "LeNet, four local steps": lambda: fedavg(network(), digits().share(range(4)), lr=0.1, epochs=2, batch_size=2),
    "MLP, a batch": lambda: fedsgd(network("mlp", hidden=[128, 64]), digits().share(range(16))),
    "MLP, five local steps": lambda: fedavg(network("mlp", hidden=[32]), digits().share([0]), lr=0.1, epochs=5),
    "MLP, three steps of Adam": lambda: fedavg(
        network("mlp", hidden=[96, 48]), digits().share([0]), lr=1e-3, epochs=3, recipe=LocalTraining(optimiser="adam")
    ),
    "ViT": lambda: fedsgd(network("vit", patch=2, width=32), digits().share([3])),
    "ViT, frozen positions": lambda: fedsgd(frozen(width=40), digits().share([3])),
    "dense tail": lambda: fedsgd(convolutions_with_a_dense_tail(), digits().share(range(4))),
    "batch norm": lambda: fedsgd(models.resnet20(shape=(1, 8, 8), classes=10), digits().share(range(4))),
    "regression": lambda: fedsgd(nn.Linear(10, 1), data.load("diabetes").share(range(4))),
}


@pytest.mark.parametrize("make", MESSAGES.values(), ids=MESSAGES)
def test_every_attack_is_judged_and_only_those_that_apply_are_named(make):
    look = first_look(make()[0])
    names = {spec.name for spec in registry.specs(reads="update")}
    assert look.applies.keys() | look.refused.keys() == names
    assert not look.applies.keys() & look.refused.keys()
    words = {word.strip(".,:") for word in str(look).split()}
    assert not words & look.refused.keys()
    assert words & look.applies.keys() or "Optimisation attacks need" in str(look)
    exact = {name for name in look.applies if registry.ATTACKS[name].exact}
    assert set(exact_attacks(look)) == exact
    assert look.risk == "high" or not exact


@pytest.mark.parametrize(
    ("message", "attack", "options"),
    [
        ("MLP, a batch", "two_spans", {}),
        ("MLP, five local steps", "dense_read_off", {}),
        ("MLP, three steps of Adam", "adam_read_off", {}),
        ("ViT", "april", {}),
        ("ViT, frozen positions", "token_spans", {}),
    ],
)
def test_exact_attacks_that_are_announced_return_every_sample(message, attack, options):
    observation, truth = MESSAGES[message]()
    assert attack in exact_attacks(first_look(observation))
    assert psnr(attack, observation, truth, **options) > 60


def test_a_dense_tail_behind_convolutions_gives_the_features_that_are_announced():
    observation, _ = MESSAGES["dense tail"]()
    assert exact_attacks(first_look(observation)) == ["dense_tail_features"]
    result = registry.build("dense_tail_features", steps=1, restarts=1)(observation)
    assert "4 of 4 samples solved for and proven" in str(result.outcome)


@pytest.mark.parametrize("samples", [16, 300])
def test_the_number_of_samples_alone_never_makes_the_risk_low(samples):
    """A dense network returns whole batches, so no number of samples is safe by itself."""
    deep = first_look(fedsgd(network("mlp", hidden=[1024, 512]), digits().share(range(samples)))[0])
    assert deep.risk == "high"
    assert exact_attacks(deep)
    assert first_look(fedsgd(network(), digits().share(range(samples)))[0]).risk != "low"


def test_few_numbers_for_many_samples():
    small = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    look = first_look(fedsgd(small, digits().share(range(20)))[0])
    assert risks(look)["size"] == "medium"
    assert "needs further knowledge" in str(look)


def test_one_local_step_is_called_a_gradient_only_where_attacks_compute_one():
    def look(**options):
        return first_look(fedavg(network("mlp", hidden=[128, 64]), digits().share(range(4)), lr=0.1, **options)[0])

    assert "exact attacks compute the gradient" in str(look())
    assert "two_spans" in look().applies
    assert "shows the direction of the gradient" in str(look(hidden=["lr"]))
    assert "gradient does not follow" in str(look(hidden=["weight_decay"]))
    assert "two_spans" in look(hidden=["lr"]).refused
    assert "4 local steps" in str(look(epochs=2, batch_size=2))


def test_local_training_is_for_other_attacks():
    look = first_look(MESSAGES["LeNet, four local steps"]()[0])
    assert "dlf" in look.applies
    assert "idlg" in look.refused
    hidden = first_look(fedavg(network(), digits().share(range(4)), lr=0.1, hidden=["lr", "samples", "epochs"])[0])
    assert "learning rate" in hidden.refused["dlf"]
    assert risks(hidden)["size"] == risks(hidden)["steps"] == "medium"
    assert hidden.risk == "medium"


@pytest.mark.parametrize(
    ("message", "words"),
    [
        (lambda: regression(loss=rounded)[0], "need the targets"),
        (lambda: fedavg(network(), digits().share(range(4)), lr=0.1, hidden=["samples"])[0], "number of samples"),
    ],
)
def test_attacks_that_lack_knowledge_are_not_announced(message, words):
    """The attacks refuse such messages, and name the same knowledge."""
    observation = message()
    assert words in str(first_look(observation))
    assert "Optimisation attacks that apply" not in str(first_look(observation))
    with pytest.raises(MissingKnowledge):
        registry.build("inverting_gradients", steps=1)(observation)


class Headless(nn.Module):
    """A model without a linear layer, whose labels cannot be read."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.eye(64)[:, :10])

    def forward(self, inputs):
        return inputs.flatten(1) @ self.weight


class Backwards(nn.Module):
    """A model whose layers are defined in another order than they are used."""

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(128, 10)
        self.entrance = nn.Conv2d(1, 2, 1)

    def forward(self, inputs):
        return self.head(self.entrance(inputs).flatten(1))


class Coded(nn.Module):
    """A model that looks up an embedding for each pixel, rounded to a whole number."""

    def __init__(self):
        super().__init__()
        self.codes = nn.Embedding(2, 2)
        self.head = nn.Linear(128, 10)

    def forward(self, inputs):
        return self.head(self.codes((inputs.flatten(1) > 0.5).long()).flatten(1))


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (Coded(), "is an embedding. The update changes 2 of the 2 rows of codes.weight"),
        (Backwards(), "first trained layer is a convolution"),
        (network("mlp", hidden=[16]), "dense, with a bias"),
        (nn.Sequential(nn.Flatten(), nn.Linear(64, 10, bias=False)), "dense, without a bias"),
        (nn.Sequential(nn.BatchNorm2d(1), nn.Flatten(), nn.Linear(64, 10)), "first trained layer is a normalisation"),
    ],
)
def test_the_first_layer_is_the_one_that_samples_reach_first(model, words):
    assert words in str(first_look(fedsgd(model, digits().share(range(3)), mode="eval")[0]))


def test_labels_without_a_formula_are_estimated_from_gradients():
    look = first_look(fedsgd(Headless(), digits().share(range(4)))[0])
    assert "They are estimated from the gradients that each label causes" in str(look)
    assert not look.missing


def test_labels_are_readable_or_not():
    assert "can be estimated from the last layer's bias" in str(first_look(MESSAGES["LeNet, one local step"]()[0]))
    observation, truth = MESSAGES["LeNet, one gradient"]()
    assert "bias shows the label of the sample" in str(first_look(observation))
    assert int(list(observation.difference().values())[-1].argmin()) == int(truth.targets[0])
    granted = first_look(fedsgd(network(), digits().share(range(4)), granted=["labels"])[0])
    assert "labels are granted" in str(granted)
    frozen = network()
    for parameter in list(frozen.parameters())[-2:]:
        parameter.requires_grad_(False)
    assert "does not show the labels" in str(first_look(fedsgd(frozen, digits().share(range(4)))[0]))


def rounded(outputs, targets):
    return (outputs - targets.long()).square().mean()


def regression(**options):
    """Return the message of a client whose targets are numbers."""
    table = data.load("diabetes").share(range(3))
    return fedsgd(models.mlp(shape=table.spec.shape, classes=1, hidden=(8,), seed=0), table, **options)


def test_targets_that_are_no_classes_are_optimised():
    look = first_look(regression()[0])
    assert not look.missing
    assert "targets are numbers, which the message does not show directly. They are optimised beside" in str(look)
    assert "labels are granted" in str(first_look(regression(granted=["labels"])[0]))
    refused = first_look(regression(loss=rounded)[0])
    assert refused.missing == "the targets"
    assert "does not accept targets that can be optimised" in str(refused)


@pytest.mark.parametrize(("kind", "words"), [("labels", "several labels"), ("mask", "masks"), ("places", "masks")])
def test_the_kind_of_the_targets_is_named(kind, words):
    population = labelled_digits(targets=kind)
    factory = convolutional if kind == "labels" else unet
    model = factory(shape=population.spec.shape, classes=population.spec.outputs)
    observation, _ = fedsgd(model, population.share(range(2)))
    assert f"The targets are {words}, " in str(first_look(observation))


@pytest.mark.parametrize(("shared", "words"), [(True, "sees the running"), (False, "does not see the running")])
def test_batch_norm_and_its_statistics_are_seen(shared, words):
    normed = models.resnet20(shape=(1, 8, 8), classes=10)
    look = first_look(fedsgd(normed, digits().share(range(4)), share_statistics=shared)[0])
    assert words in str(look)
    assert look.risk == "medium"
    evaluated = first_look(fedsgd(normed, digits().share(range(4)), mode="eval")[0])
    assert "Batch norm" not in str(evaluated)


def defended(*defences, **options):
    model = network("mlp", hidden=[32])
    return fedsgd(model, digits().share([0]), defences=defences, knows_defence=True, **options)


def test_a_defence_lowers_the_risk_only_if_it_hinders_exact_attacks():
    clipped, truth = defended(Clipping(0.1))
    assert first_look(clipped).risk == "high"
    assert psnr("dense_read_off", clipped, truth) > 60
    noisy, truth = defended(GaussianNoise(1.0))
    assert first_look(noisy).risk == "medium"
    assert "defends itself with GaussianNoise" in str(first_look(noisy))
    assert not len(registry.build("dense_read_off")(noisy).samples)


def test_only_a_strong_proof_makes_the_risk_low():
    recipe = LocalTraining(lr=1.0, epochs=1, batch_size=1, samples=1)
    for epsilon, risk in ((1.0, "low"), (8.0, "medium")):
        defence = DPSGD(epsilon=epsilon)
        look = first_look(defended(defence)[0], bound_of((defence,), recipe))
        assert look.risk == risk
        assert "Whatever the attack" in str(look)


def test_an_update_of_zero_holds_nothing():
    observation, _ = fedsgd(network(), digits().share([0]))
    zero = {name: torch.zeros_like(value) for name, value in observation.gradient.items()}
    look = first_look(observation.knowing(gradient=zero))
    assert look.risk == "low"
    assert "update is zero" in str(look)


def test_an_unknown_learning_rate_rules_out_optimisation_and_not_the_read_off():
    message, _ = fedavg(network("mlp", hidden=[32, 16]), digits().share([3]), lr=0.01, epochs=3, hidden=["lr"])
    look = first_look(message)
    assert look.missing == "the learning rate"
    assert "dense_read_off" in look.applies
    for name in ("prior_path", "inverting_gradients", "awa", "dlf"):
        assert look.refused[name] == "needs the client's learning rate, which is unknown"
