"""Defences act at their place in a client's round, in their order, each with its own random numbers."""

import copy
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from leakgauge import data, fedavg, fedsgd, local_sgd, models, run_federation
from leakgauge.core.errors import InvalidInput
from leakgauge.core.observation import LocalTraining
from leakgauge.core.params import buffers_of, flatten, parameters_of
from leakgauge.core.seeding import derive
from leakgauge.federation.defence import Defence, Protection
from leakgauge.federation.defences import GaussianNoise, GradientDefence, LaplacianNoise, RandomPruning
from leakgauge.federation.training import LOSSES, State, Trainer
from tests.federation.networks import (
    NETWORKS,
    Spare,
    batch_norm,
    client,
    conv,
    dropout,
    make,
    mlp,
    same,
    samples,
    table,
)

AVG: dict[str, Any] = {"lr": 0.1, "epochs": 2, "batch_size": 3}
RUNS = {"fedsgd": fedsgd, "fedavg": partial(fedavg, **AVG)}
NOISE = (RandomPruning(0.3), GaussianNoise(0.05), LaplacianNoise(0.02))


@dataclass(frozen=True)
class Scaled(GradientDefence):
    """Gradients times a number."""

    factor: float

    def on_gradients(self, gradients, draw):
        return {name: self.factor * value for name, value in gradients.items()}


@dataclass(frozen=True)
class Shifted(GradientDefence):
    """Gradients plus a number."""

    by: float

    def on_gradients(self, gradients, draw):
        return {name: value + self.by for name, value in gradients.items()}


@dataclass(frozen=True)
class Clipped(GradientDefence):
    """Each sample's gradient scaled to a norm of at most one, which needs all layers of a gradient at once."""

    def on_gradients(self, gradients, draw):
        norms = torch.stack([value.flatten(1).square().sum(1) for value in gradients.values()]).sum(0).sqrt()
        return {
            name: value / norms.clamp_min(1).reshape(-1, *[1] * (value.dim() - 1)) for name, value in gradients.items()
        }


def distance(first, second):
    return float((flatten(first) - flatten(second)).abs().max())


@pytest.mark.parametrize("name", [name for name in NETWORKS if "dropout" not in name])
def test_sample_gradients_are_those_of_a_plain_loop_and_their_mean_is_the_batchs(name):
    model, (inputs, targets) = make(name), samples(5)
    trainer = Trainer(model, LocalTraining(mode="eval"))
    state = trainer.start(parameters_of(model), None)
    with trainer.active():
        found, buffers = trainer.sample_gradients(state, (inputs, targets))
        whole, _ = trainer.gradient(state, (inputs, targets), graph=False)
        assert list(found) == [name for name, value in model.named_parameters() if value.requires_grad]
        for row in range(5):
            alone, _ = trainer.gradient(state, (inputs[row : row + 1], targets[row : row + 1]), graph=False)
            for key, value in found.items():
                torch.testing.assert_close(value[row], alone[key])
    for key, value in found.items():
        torch.testing.assert_close(value.mean(0), whole[key])
    assert same(buffers, state.buffers)


@pytest.mark.parametrize("loss", LOSSES)
def test_every_loss_is_the_mean_of_its_samples(loss):
    model = nn.Sequential(nn.Flatten(), nn.Linear(6, 3 if loss == "cross_entropy" else 1)).double()
    inputs = torch.rand(4, 6, dtype=torch.double)
    targets = torch.tensor([0, 2, 1, 1]) if loss == "cross_entropy" else torch.tensor([0.0, 1.0, 1.0, 0.0]).double()
    trainer = Trainer(model, LocalTraining(loss=loss))
    state = trainer.start(parameters_of(model), None)
    found, _ = trainer.sample_gradients(state, (inputs, targets))
    whole, _ = trainer.gradient(state, (inputs, targets), graph=False)
    for name, value in found.items():
        torch.testing.assert_close(value.mean(0), whole[name])


@pytest.mark.parametrize("run", RUNS.values(), ids=RUNS)
def test_defences_of_no_strength_change_nothing(run):
    model, own = conv(), client(7)
    plain, _ = run(model, own)
    nothing = (GaussianNoise(0), LaplacianNoise(0.0), RandomPruning(0))
    defended, _ = run(model, own, defences=nothing)
    assert distance(plain.difference(), defended.difference()) < 1e-6
    assert same(run(model, own, defences=())[0].difference(), plain.difference())


def test_a_defended_client_is_a_plain_loop_over_steps_and_samples():
    model, own = conv(), client(7)
    observation, truth = fedavg(model, own, **AVG, momentum=0.5, weight_decay=0.01, defences=(Clipped(), Scaled(3.0)))
    plain, inputs = copy.deepcopy(model), (own.inputs - 0.4) / 0.3
    optimiser = torch.optim.SGD(plain.parameters(), lr=0.1, momentum=0.5, weight_decay=0.01)
    for rows in truth.order:
        total = [torch.zeros_like(value) for value in plain.parameters()]
        for row in rows.tolist():
            plain.zero_grad()
            F.cross_entropy(plain(inputs[row : row + 1]), own.targets[row : row + 1]).backward()
            gradients = [value.grad for value in plain.parameters()]
            norm = torch.cat([gradient.flatten() for gradient in gradients]).norm().clamp_min(1)
            total = [sum_ + 3 * gradient / norm for sum_, gradient in zip(total, gradients, strict=True)]
        for value, sum_ in zip(plain.parameters(), total, strict=True):
            value.grad = sum_ / len(rows)
        optimiser.step()
    assert distance(observation.returned, parameters_of(plain)) < 1e-5


def test_defences_act_in_the_order_given():
    model, own = mlp(), client(4)
    plain = flatten(fedsgd(model, own)[0].gradient)
    scaled_first = flatten(fedsgd(model, own, defences=[Scaled(2.0), Shifted(1.0)])[0].gradient)
    shifted_first = flatten(fedsgd(model, own, defences=iter([Shifted(1.0), Scaled(2.0)]))[0].gradient)
    torch.testing.assert_close(scaled_first, 2 * plain + 1)
    torch.testing.assert_close(shifted_first, 2 * (plain + 1))
    torch.testing.assert_close(flatten(fedsgd(model, own, defences=Scaled(2.0))[0].gradient), 2 * plain)


@pytest.mark.parametrize("run", RUNS.values(), ids=RUNS)
def test_the_clients_seed_decides_the_noise_and_the_caller_keeps_its_own(run):
    model, own = dropout(), client(6)
    before = torch.get_rng_state()
    first, again, other = (run(model, own, defences=NOISE, seed=seed)[0].difference() for seed in (1, 1, 2))
    assert torch.equal(before, torch.get_rng_state())
    assert same(first, again)
    assert not same(first, other)
    assert not same(first, run(model, own, seed=1)[0].difference())


def test_a_defence_does_not_move_the_order_of_the_rows():
    plain, defended = (fedavg(conv(), client(7), **AVG, defences=chain)[1].order for chain in ((), NOISE))
    assert all(torch.equal(first, second) for first, second in zip(plain, defended, strict=True))


def test_two_of_the_same_kind_draw_separately_and_every_step_anew():
    zeros = {"a": torch.zeros(2, 1000)}
    one, two = (Protection([GaussianNoise(1.0)] * count, 0) for count in (1, 2))
    first, second = one.mean_gradient(zeros)["a"], one.mean_gradient(zeros)["a"]
    assert not torch.equal(first, second)
    both = two.mean_gradient(zeros)["a"]
    assert not torch.equal(both, 2 * first)
    assert both.std().item() == pytest.approx(1.0, rel=0.1)  # sqrt(2 draws / 2 samples)


@pytest.mark.parametrize(
    "name", [name for name in NETWORKS if name not in ("batch norm", "spare", "attention with dropout")]
)
def test_together_gives_the_numbers_of_one_by_one(name):
    """Dropout is the exception, because its masks are drawn for all at once. It must only be reproducible."""
    model, everyone = make(name), [client(size, seed=number) for number, size in enumerate((6, 4, 6, 6))]

    def run(together):
        return run_federation(
            model, everyone, rounds=2, lr=0.1, epochs=2, batch_size=4, momentum=0.7, weight_decay=0.01,
            defences=(*NOISE, Clipped()), together=together, watch=[0, 1], knows_defence=True,
        )  # fmt: skip

    together = run(True)
    if name == "dropout":
        assert same(together.weights, run(True).weights)
        return
    apart = run(False)
    assert distance(together.weights, apart.weights) < 1e-10
    assert same(run(None).weights, apart.weights)
    for index in (0, 1):
        for first, second in zip(together.observations[index], apart.observations[index], strict=True):
            assert distance(first.returned, second.returned) < 1e-10
            assert first.defences == tuple(map(repr, (*NOISE, Clipped())))


def test_dropout_that_cannot_be_vectorised_twice_is_refused_together_and_runs_alone():
    model, everyone = make("attention with dropout", torch.float32), [client(6), client(6, seed=1)]
    with pytest.raises(InvalidInput, match=r"these clients cannot train together.*Use together=False"):
        run_federation(model, everyone, rounds=1, **AVG, defences=NOISE, together=True)
    assert run_federation(model, everyone, rounds=1, **AVG, defences=NOISE).rounds == 1


def test_a_federation_of_one_is_the_client():
    federation = run_federation(conv_once := conv(), [client(6)], rounds=1, **AVG, defences=NOISE, watch=[0])
    alone, _ = fedavg(conv_once, client(6), **AVG, defences=NOISE, seed=derive(0, "client", 0, "round", 0))
    assert same(federation.weights, alone.returned)
    assert federation.observations[0][0].defences is None


def test_frozen_parameters_stand_still_and_unused_ones_are_protected_too():
    frozen, _ = fedavg(make("frozen", torch.float32), client(6), **AVG, defences=GaussianNoise(1.0))
    moved = {name for name, value in frozen.difference().items() if bool(value.any())}
    assert moved == {"1.bias", "3.weight", "3.bias"}
    spare, _ = fedsgd(Spare(), client(6), defences=GaussianNoise(1.0))
    assert spare.gradient is not None
    assert bool(spare.gradient["spare.weight"].all())


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16], ids=str)
def test_other_precisions(dtype):
    observation, _ = fedavg(mlp().to(dtype), client(6), **AVG, defences=NOISE)
    assert observation.returned is not None
    assert {value.dtype for value in observation.returned.values()} == {dtype}


def test_defences_act_on_a_regression_with_dropout():
    """Noise changes the update. Clipping bounds it, whatever the dropout masks are."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(6, 4), nn.Dropout(0.5), nn.Linear(4, 1))
    recipe: dict[str, Any] = {"lr": 0.001, "epochs": 2, "batch_size": 2}
    plain, noisy = (fedavg(model, table(5), **recipe, defences=chain)[0].difference() for chain in ((), NOISE))
    assert bool(flatten(noisy).isfinite().all())
    assert distance(plain, noisy) > 1e-5
    clipped = flatten(fedavg(model, table(5), **recipe, defences=Clipped())[0].difference())
    steps, longest = 6, 0.001  # three batches in each of two epochs, each gradient no longer than one
    assert 0 < float(clipped.norm()) <= steps * longest * 1.0001 < float(flatten(plain).norm())


def test_buffers_that_do_not_depend_on_samples_are_kept():
    class Counting(nn.Module):
        """A network that counts its calls."""

        calls: torch.Tensor

        def __init__(self):
            super().__init__()
            self.body = mlp()
            self.register_buffer("calls", torch.zeros(()))

        def forward(self, inputs):
            self.calls.add_(1)
            return self.body(inputs)

    observation, _ = fedavg(Counting(), client(6), **AVG, defences=NOISE)
    assert observation.returned_buffers is not None
    assert observation.returned_buffers["calls"].item() == 4


@pytest.mark.parametrize("run", RUNS.values(), ids=RUNS)
def test_batch_norm_in_train_mode_is_refused_and_in_eval_mode_is_not(run):
    with pytest.raises(
        InvalidInput, match=r"GaussianNoise\(on='samples', sigma=0.1\) acts on each sample's.*'1'.*Use mode='eval'"
    ):
        run(batch_norm(), client(6), defences=GaussianNoise(0.1))
    observation, _ = run(batch_norm(), client(6), defences=GaussianNoise(0.1), mode="eval")
    assert same(observation.returned_buffers, observation.buffers)
    with pytest.raises(InvalidInput, match="batch norm in train mode"):
        run_federation(batch_norm(), [client(6)] * 2, rounds=1, **AVG, defences=GaussianNoise(0.1))
    kept = nn.Sequential(nn.InstanceNorm2d(1, track_running_stats=True), nn.Flatten(), nn.Linear(16, 3))
    with pytest.raises(InvalidInput, match="batch norm in train mode"):
        run(kept, client(6), defences=GaussianNoise(0.1))
    own = nn.Sequential(nn.InstanceNorm2d(1), nn.Flatten(), nn.Linear(16, 3))
    run(own, client(6), defences=GaussianNoise(0.1))


@pytest.mark.parametrize("run", RUNS.values(), ids=RUNS)
def test_a_model_that_cannot_be_vectorised_is_refused(run):
    class Branching(nn.Module):
        """A network that branches on its inputs."""

        def __init__(self):
            super().__init__()
            self.body = mlp()

        def forward(self, inputs):
            return self.body(inputs if inputs.mean() > 0 else -inputs)

    with pytest.raises(
        InvalidInput, match="a defence needs the gradient of each sample, which this model does not have"
    ):
        run(Branching(), client(6), defences=NOISE)
    with pytest.raises(InvalidInput, match="cannot train together"):
        run_federation(Branching(), [client(6)] * 2, rounds=1, **AVG, defences=NOISE, together=True)


@dataclass(frozen=True)
class Flat(GradientDefence):
    """A defence that returns tensors of another shape."""

    def on_gradients(self, gradients, draw):
        return {name: value.mean(0) for name, value in gradients.items()}


@dataclass(frozen=True)
class Nowhere(Defence):
    """A defence that acts at no place."""


@pytest.mark.parametrize("run", RUNS.values(), ids=RUNS)
@pytest.mark.parametrize("wrong", ["gaussian_noise", 0.1, [0.1], GaussianNoise, [GaussianNoise], Nowhere(), None])
def test_anything_else_than_a_defence_is_refused(run, wrong):
    with pytest.raises(InvalidInput, match=r"must be objects such as leakgauge.defences.GaussianNoise\(0.01\)"):
        run(mlp(), client(6), defences=wrong)


def test_a_defence_that_changes_shapes_is_named():
    with pytest.raises(InvalidInput, match=r"Flat\(on='samples'\) must return gradients with the names, shapes"):
        fedsgd(mlp(), client(6), defences=Flat())


def test_defended_training_is_not_differentiated():
    model, (inputs, targets) = mlp(), samples(4, dtype=torch.float32)
    with pytest.raises(InvalidInput, match="training with defences cannot be differentiated"):
        local_sgd(
            model, parameters_of(model), [(inputs, targets)], LocalTraining(lr=0.1), gradients="graph",
            protection=Protection(NOISE, 0),
        )  # fmt: skip


def test_the_attacker_knows_of_defences_only_if_granted():
    plain, _ = fedsgd(mlp(), client(6), defences=NOISE)
    assert plain.defences is None
    assert not any("GaussianNoise" in sentence for sentence in plain.threat_model())
    informed, _ = fedsgd(mlp(), client(6), defences=NOISE, knows_defence=True)
    assert informed.defences == (
        "RandomPruning(on='samples', probability=0.3)",
        "GaussianNoise(on='samples', sigma=0.05)",
        "LaplacianNoise(on='samples', scale=0.02)",
    )
    assert informed.threat_model()[-1] == (
        "It is granted the client's defences (RandomPruning(on='samples', probability=0.3), "
        "GaussianNoise(on='samples', sigma=0.05), "
        "LaplacianNoise(on='samples', scale=0.02))."
    )
    none, _ = fedavg(mlp(), client(6), **AVG, knows_defence=True)
    assert none.defences == ()
    assert none.threat_model()[-1] == "It is granted the client's defences (none)."


def test_states_may_be_stacked_clients():
    model = mlp()
    trainer = Trainer(model, LocalTraining(lr=0.1, momentum=0.5, weight_decay=0.1))
    single = trainer.start(parameters_of(model), buffers_of(model))
    gradient = {name: torch.rand_like(value) for name, value in single.weights.items()}
    stack = {name: torch.stack([value, 2 * value]) for name, value in gradient.items()}
    parts = (single.weights, single.slots, single.buffers)
    stacked = State(*torch.utils._pytree.tree_map(lambda value: torch.stack([value, value]), parts))
    after = trainer.descend(stacked, stack, {})
    for row, factor in enumerate((1, 2)):
        alone = trainer.descend(single, {name: factor * value for name, value in gradient.items()}, {})
        assert same({name: value[row] for name, value in after.weights.items()}, alone.weights)


def test_noise_keeps_an_attack_from_the_sample():
    from leakgauge.attacks import idlg
    from leakgauge.evaluation import score

    model, own = models.lenet(shape=(1, 8, 8), seed=0), data.load("digits").share([0])
    found = {}
    for sigma in (0.0, 0.3):
        observation, truth = fedsgd(model, own, defences=GaussianNoise(sigma), granted=["labels"])
        found[sigma] = score(idlg(steps=30)(observation, progress=False), truth)["psnr"].value
    assert found[0.0] > found[0.3] + 5
