"""One list tests every attack that reconstructs samples from one update.

A new attack is one line in TRAITS.
"""

import inspect
import math
import pickle
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import pytest
import torch
from torch import nn

from leakgauge import attacks, data, models
from leakgauge.attacks import ATTACKS, Attack, WarmStart
from leakgauge.core.data_spec import DataSpec
from leakgauge.core.errors import InvalidInput, MissingKnowledge, UnknownName
from leakgauge.core.local_training import LocalTraining
from leakgauge.evaluation import mse, pair, score
from leakgauge.federation.client import fedavg, fedsgd
from leakgauge.federation.rehearsal import public_data
from leakgauge.testing import check_attack, random_start, small_case
from tests.attacks.analytic.cases import people, table_network
from tests.attacks.malicious.cases import digits, network, trapped
from tests.shared import shared_case


@dataclass(frozen=True)
class Traits:
    """The traits of one attack in these tests.

    Args:
        quick: Options that make the attack quick and still successful.
        network: The network of the small cases, for which the attack's settings are made.
        kinds: The kinds of messages from which the attack reconstructs samples well.
        iterative: Whether the attack minimises a loss, with options ``steps``, ``lr`` and ``restarts``.
        deterministic: Whether the result does not depend on the seed.
        own_case: A message of a given kind and precision, and its truth, for an attack that does not apply to the small
            cases. Such an attack is not tried on other models.
        exact: Whether the attack solves for the samples. It then needs no labels and no number of samples, and it
            refuses models that it cannot solve. Its own tests are in ``tests/attacks/analytic``.
    """

    quick: Mapping[str, Any]
    network: str = "lenet"
    kinds: tuple[str, ...] = ("gradient", "weights")
    iterative: bool = True
    deterministic: bool = False
    own_case: Callable[..., Any] | None = None
    exact: bool = False


def transformer_case(kind, dtype=torch.float32):
    """Return the message of a client with one digit, for a vision transformer with trained positions."""
    model = models.vit(shape=(1, 8, 8), patch=2, width=24, seed=0).to(dtype)
    digit = data.load("digits").share([0])
    return fedsgd(model, digit) if kind == "gradient" else fedavg(model, digit, lr=0.1, epochs=2)


def fixed_transformer_case(kind, dtype=torch.float32):
    """Return the gradient of a client with one digit, for a vision transformer whose positions are not trained."""
    model = models.vit(shape=(1, 8, 8), patch=2, width=40, seed=0).to(dtype)
    model.positions.requires_grad_(False)
    return fedsgd(model, data.load("digits").share([0]))


def two_digits(kind, dtype=torch.float32):
    """Return the gradient of a client with two digits, for a dense network."""
    return dense_case(dtype)


def two_pictures(kind, dtype=torch.float32):
    """Return the gradient of a client with two digits, for a convolutional network that ends in two dense layers."""
    return small_case(network="cnn", dtype=dtype)


def trapped_digits(kind, dtype=torch.float32):
    """Return the gradient of a client with four digits, whose server planted traps."""
    observation, truth, _ = trapped(network(), digits(4), dtype=dtype)
    return observation, truth


def smooth_pictures(kind, dtype=torch.float32):
    """Return the gradient of a client with two digits, for a smooth convolutional network with one dense layer."""
    torch.manual_seed(0)
    body = nn.Conv2d(1, 12, 3, padding=1), nn.Softplus(), nn.AvgPool2d(2), nn.Flatten()
    model = nn.Sequential(*body, nn.Linear(192, 10)).to(dtype)
    return fedsgd(model, data.load("digits").share(range(2)))


def table_rows(kind, dtype=torch.float32):
    """Return the weights of a client with six rows of a table, for a dense network."""
    return fedavg(table_network().to(dtype), people(200).share(range(6)), lr=0.02, epochs=1, batch_size=2)


def four_digits(kind, dtype=torch.float32):
    """Return the weights of a client with four digits, for a dense network."""
    model = models.mlp(shape=(1, 8, 8), classes=10, hidden=(96, 48), seed=0).to(dtype)
    return fedavg(model, data.load("digits").share(range(4)), lr=0.02, epochs=1, batch_size=2)


def one_picture(kind, dtype=torch.float32):
    """Return the message of a client with one digit, for a network with dropout between its dense layers."""
    torch.manual_seed(0)
    body = (nn.Conv2d(1, 12, 3, padding=1), nn.Softplus(), nn.Flatten(), nn.Linear(768, 32), nn.ReLU(), nn.Dropout(0.5))
    model = nn.Sequential(*body, nn.Linear(32, 10)).to(dtype)
    digit = data.load("digits").share([0])
    return fedsgd(model, digit) if kind == "gradient" else fedavg(model, digit, lr=0.01, epochs=2)


def one_digit(kind, dtype=torch.float32):
    """Return the message of a client with one digit, for a small smooth network."""
    model = models.lenet(shape=(1, 8, 8), activation="sigmoid", seed=0).to(dtype)
    digit = data.load("digits").share([0])
    return fedsgd(model, digit) if kind == "gradient" else fedavg(model, digit, lr=0.1, epochs=2)


def one_digit_with_adam(kind, dtype=torch.float32):
    """Return the weights of a client that took one step of Adam on one digit, for a dense network."""
    model = models.mlp(shape=(1, 8, 8), classes=10, hidden=(48, 24), seed=0).to(dtype)
    return fedavg(model, data.load("digits").share([0]), lr=1e-3, recipe=LocalTraining(optimiser="adam"))


class OfWords(nn.Module):
    """A recurrent network on the embeddings of a text's words."""

    def __init__(self):
        super().__init__()
        self.table, self.body, self.head = nn.Embedding(40, 8), nn.GRU(8, 12, batch_first=True), nn.Linear(12, 3)

    def forward(self, inputs):
        return self.head(self.body(self.table(inputs.round().long()))[0][:, -1])


def one_text(kind, dtype=torch.float32):
    """Return the message of a client with one text of six words, for a recurrent network with an embedding."""
    torch.manual_seed(0)
    inputs = torch.randint(1, 40, (1, 6), generator=torch.Generator().manual_seed(1)).to(dtype)
    text = data.Dataset(inputs, torch.tensor([1]), DataSpec((6,), 3, bounded=False))
    return fedsgd(OfWords().to(dtype), text)


def two_rows_of_words(kind, dtype=torch.float32):
    """Return the gradient of a client with two rows of word counts, for a linear model."""
    torch.manual_seed(0)
    inputs = torch.zeros(2, 30, dtype=dtype)
    inputs[0, [3, 7, 11]], inputs[1, [2, 7, 20, 21]] = 1, torch.tensor([1, 2, 1, 3]).to(dtype)
    rows = data.Dataset(inputs, torch.tensor([0, 2]), DataSpec((30,), 3, bounded=False))
    return fedsgd(nn.Linear(30, 3).to(dtype), rows)


def with_public_digits(kind, dtype=torch.float32):
    """Return the message of a client with one digit, for an attacker who has 120 other digits."""
    digits = data.load("digits")
    model = models.lenet(shape=(1, 8, 8), seed=0).to(dtype)
    digit = digits.share([0])
    observation, truth = fedsgd(model, digit) if kind == "gradient" else fedavg(model, digit, lr=0.1, epochs=2)
    return public_data(observation, digits.share(range(100, 220)), truth=truth), truth


TRAITS = {
    "adam_read_off": Traits(
        {}, kinds=("weights",), iterative=False, deterministic=True, own_case=one_digit_with_adam, exact=True
    ),
    "agic": Traits({"steps": 120}),
    "april": Traits({}, iterative=False, deterministic=True, own_case=transformer_case),
    "awa": Traits({"steps": 100}),
    "dense_factorisation": Traits({}, kinds=("gradient",), iterative=False, own_case=two_digits, exact=True),
    "dense_read_off": Traits(
        {}, kinds=("gradient",), iterative=False, deterministic=True, own_case=two_digits, exact=True
    ),
    "dense_output_features": Traits(
        {"steps": 400, "restarts": 2}, kinds=("gradient",), iterative=False, own_case=smooth_pictures, exact=True
    ),
    "dense_tail_features": Traits(
        {"steps": 400, "restarts": 2}, kinds=("gradient",), iterative=False, own_case=two_pictures, exact=True
    ),
    "dlf": Traits({"steps": 60, "warm_steps": 80, "lr": 0.03}, network="cnn"),
    "dlf_paper": Traits({"steps": 160, "lr": 0.1, "invariance": 10.0}, network="cnn"),
    "dlg": Traits({"steps": 20, "lr": 0.5}, kinds=("gradient",)),
    "dlg_simulation": Traits({"steps": 100}),
    "embedding_read_off": Traits(
        {}, kinds=("gradient",), iterative=False, deterministic=True, own_case=one_text, exact=True
    ),
    "epafl": Traits({"steps": 8}, kinds=("gradient",)),
    "feature_read_off": Traits({"steps": 300, "restarts": 2}, iterative=False, own_case=one_picture, exact=True),
    "gauss_newton": Traits({"starts": 2}, iterative=False, own_case=one_digit),
    "idlg": Traits({"steps": 8}, kinds=("gradient",)),
    "inverting_gradients": Traits({"steps": 60}),
    "invg_simulation": Traits({"steps": 60}),
    "lbfgs_simulation": Traits({"steps": 12, "pool": 1}),
    "learned_inversion": Traits({"rehearsals": 120}, iterative=False, own_case=with_public_digits),
    "local_rows": Traits({"starts": 48}, kinds=("weights",), iterative=False, own_case=table_rows, exact=True),
    "local_spans": Traits({}, kinds=("weights",), iterative=False, own_case=four_digits, exact=True),
    "prior_path": Traits({"steps": 100, "lr": 0.3}),
    "surrogate": Traits({"steps": 80}, network="cnn"),
    "token_spans": Traits(
        {}, kinds=("gradient",), iterative=False, deterministic=True, own_case=fixed_transformer_case
    ),
    "trap_read_off": Traits(
        {}, kinds=("gradient",), iterative=False, deterministic=True, own_case=trapped_digits, exact=True
    ),
    "two_spans": Traits({}, kinds=("gradient",), iterative=False, own_case=two_digits, exact=True),
    "word_read_off": Traits(
        {}, kinds=("gradient",), iterative=False, deterministic=True, own_case=two_rows_of_words, exact=True
    ),
}
ANY_MODEL = [name for name, traits in TRAITS.items() if traits.own_case is None]
ITERATIVE = [name for name, traits in TRAITS.items() if traits.iterative]
PAIRS = [(name, kind) for name, traits in TRAITS.items() for kind in traits.kinds]
ITERATIVE_PAIRS = [(name, kind) for name, kind in PAIRS if name in ITERATIVE]
INEXACT = [name for name, traits in TRAITS.items() if not traits.exact]


def dense_case(dtype=torch.float32):
    """Return the gradient of two digits from dense layers, for which exact attacks are made."""
    model = models.mlp(shape=(1, 8, 8), classes=10, hidden=(48, 24), seed=0).to(dtype)
    return fedsgd(model, data.load("digits").share(range(2)))


def test_the_list_is_complete():
    assert sorted(TRAITS) == sorted(spec.name for spec in attacks.specs(recovers="samples", reads="update"))


def case(name, kind="gradient"):
    own_case = TRAITS[name].own_case
    return shared_case(kind, TRAITS[name].network) if own_case is None else own_case(kind)


def quick(name, **options):
    return attacks.build(name, **{**TRAITS[name].quick, **options})


def short(name, **options):
    """Return an attack of three steps, or the whole attack if it takes no steps."""
    warm = {option: 20 for option in TRAITS[name].quick if option == "warm_steps"}
    return quick(name, **({"steps": 3} | warm | options if TRAITS[name].iterative else {}))


@cache
def whole(name, kind):
    """Return the result of a whole attack, which several tests look at."""
    return quick(name)(case(name, kind)[0], seed=3, progress=False)


def assert_falling(attack, observation):
    """Run an attack of three steps; its loss falls, unless it returns its last iterate or its warm start."""
    result = attack(observation, progress=False)
    assert result.trace is not None
    assert math.isfinite(result.loss)
    assert attack.descent.keep_last or result.loss < result.trace.losses[0] or isinstance(attack.space.start, WarmStart)
    return result


@pytest.mark.parametrize(("name", "kind"), PAIRS)
def test_it_keeps_the_promises_of_an_attack(name, kind):
    observation, truth = case(name, kind)
    check_attack(short(name), observation=observation, truth=None if TRAITS[name].iterative else truth)


@pytest.mark.parametrize(("name", "kind"), ITERATIVE_PAIRS)
def test_it_beats_its_random_start_clearly(name, kind):
    observation, truth = case(name, kind)
    attack = quick(name)
    result = whole(name, kind)
    assert result.trace is not None
    # A warm start leaves less to do, and the loss of the attack that has one is a logarithm.
    assert result.loss < result.trace.losses[0] / (1.05 if isinstance(attack.space.start, WarmStart) else 10)
    start = random_start(observation, seed=3)
    found, blind = (
        mse(pair(samples, truth.inputs).apply(samples), truth.inputs).mean() for samples in (result.samples, start)
    )
    assert found < blind / 5
    measure = score(result, truth)["mse"]
    assert measure.value < measure.chance


def with_option(option):
    """Return the attacks whose factory has an option."""
    return [name for name in TRAITS if option in inspect.signature(ATTACKS[name].factory).parameters]


@pytest.mark.parametrize("name", with_option("mixed"))
@pytest.mark.parametrize("kind", ["gradient", "weights"])
def test_it_gets_as_far_in_mixed_precision(name, kind):
    observation, truth = case(name, kind)
    full, mixed = whole(name, kind), quick(name, mixed=True)(observation, seed=3, progress=False)
    assert "MixedPrecision" in repr(quick(name, mixed=True))
    off = [mse(pair(one.samples, truth.inputs).apply(one.samples), truth.inputs).mean() for one in (full, mixed)]
    assert off[1] < 2 * off[0] + 0.005
    assert not torch.equal(full.samples, mixed.samples)
    with pytest.raises(InvalidInput, match=r"mixed of \w+\(\) must be true or false"):
        quick(name, mixed="yes")


@pytest.mark.parametrize("name", TRAITS)
def test_another_seed_gives_another_result_unless_the_attack_is_deterministic(name):
    observation, _ = case(name)
    one, other = (short(name)(observation, seed=seed, progress=False) for seed in (0, 1))
    assert torch.equal(one.samples, other.samples) == TRAITS[name].deterministic
    assert (one.seed, other.seed) == (0, 1)


def test_attacks_are_handed_nothing_but_what_a_server_has():
    """The checks of the base class then hold for every attack. They are in test_base.py."""
    for name in TRAITS:
        attack = quick(name)
        assert list(inspect.signature(attack).parameters) == ["observation", "seed", "device", "progress"], name
        assert list(inspect.signature(attack.run).parameters) == ["observation", "seed", "report"], name
        assert type(attack).__call__ is Attack.__call__, name


def test_options_are_keywords_with_defaults_and_each_has_a_line_in_the_docstring():
    for name in TRAITS:
        factory = ATTACKS[name].factory
        documentation = inspect.getdoc(factory) or ""
        assert len(documentation) > 100, name
        for parameter in inspect.signature(factory).parameters.values():
            assert parameter.kind is inspect.Parameter.KEYWORD_ONLY, name
            assert parameter.default is not inspect.Parameter.empty, name
            assert f"\n    {parameter.name}: " in documentation, f"{name}: {parameter.name} is not in its Args"


@pytest.mark.parametrize("name", ITERATIVE)
def test_the_record_tells_its_settings(name):
    attack = quick(name, steps=7, lr=0.125)
    assert "steps=7" in repr(attack)
    assert "lr=0.125" in repr(attack)
    assert "restarts=1" in repr(attack)
    result = attack(case(name)[0], seed=5, progress=False)
    assert (result.attack, result.seed, result.client) == (repr(attack), 5, "digits")
    assert result.seconds > 0
    copy = pickle.loads(pickle.dumps(result))
    assert torch.equal(copy.samples, result.samples)


@pytest.mark.parametrize("name", ITERATIVE)
def test_ctrl_c_returns_the_best_so_far(name):
    observation, _ = case(name)

    def report(step, total, loss):
        if step == 2:
            raise KeyboardInterrupt

    result = quick(name)(observation, progress=report)
    assert str(result.outcome) == "interrupted at step 1, and the best iterate so far is returned"
    assert result.trace is not None
    assert result.loss <= result.trace.losses.min()
    assert len(result.trace.losses) == 2


@pytest.mark.parametrize("name", ITERATIVE)
def test_progress_counts_up_to_the_limit_and_the_loss_never_rises(name):
    lines: list[tuple[int, int | None, float]] = []
    attack = short(name)
    attack(case(name)[0], progress=lambda *line: lines.append(line))
    limit = lines[-1][0]
    assert [(step, total) for step, total, _ in lines] == [(step, limit) for step in range(1, limit + 1)]
    if not attack.descent.keep_last and not isinstance(attack.space.start, WarmStart):
        losses = [loss for *_, loss in lines]
        assert limit == 3
        assert losses == sorted(losses, reverse=True)


IMPOSSIBLE: dict[str, tuple[list[object], str]] = {
    "steps": ([0, -5, 2.5, "many"], r"steps( of \w+\(\))? must be a whole number( of at least 1| or left out)?, not"),
    "restarts": ([0, None], r"restarts( of \w+\(\))? must be a whole number( of at least 1)?, not"),
    "lr": (
        [0, -0.1, math.nan, "fast"],
        r"lr( of \w+\(\))? must be a (number above 0|finite number)( or .*)?, not",
    ),
    "threshold": ([math.inf, "low"], r"threshold( of \w+\(\))? must be a finite number( or left out)?, not"),
    "tv": ([-1.0, None], r"(total variation|tv of \w+\(\)) must be a (number of at least 0|finite number), not"),
    "vectorise": (["no", None], r"vectorise of \w+\(\) must be true or false, not"),
}


@pytest.mark.parametrize(
    ("name", "option"),
    [(name, option) for option in IMPOSSIBLE for name in with_option(option)],
)
def test_options_that_cannot_work_are_refused_before_any_work(name, option):
    values, sentence = IMPOSSIBLE[option]
    for value in values:
        with pytest.raises(InvalidInput, match=f"{sentence} {value!r}"):
            attacks.build(name, **{option: value})


def test_an_unknown_option_is_answered_with_the_nearest():
    for name in ITERATIVE:
        with pytest.raises(UnknownName, match=rf"no option of {name}\(\) 'stepz'.* 'steps'.* \(known: "):
            attacks.build(name, stepz=3)


def test_an_unknown_attack_is_answered_with_the_nearest():
    with pytest.raises(UnknownName, match=r"no attack 'inverting_gradient'.* 'inverting_gradients'"):
        attacks.build("inverting_gradient")


@pytest.mark.parametrize("name", TRAITS)
def test_float64_models_are_attacked_in_float64(name):
    traits = TRAITS[name]
    if traits.own_case is None:
        observation, truth = small_case(network=traits.network, dtype=torch.double)
    else:
        observation, truth = traits.own_case("gradient", torch.double)
    result = quick(name)(observation, progress=False)
    assert result.samples.dtype == torch.double
    assert score(result, truth)["mse"].value < score(result, truth)["mse"].chance / 2


@pytest.mark.parametrize("name", ANY_MODEL)
@pytest.mark.parametrize("mode", ["eval", "train"])
def test_batch_norm_is_left_alone_in_both_modes(name, mode):
    model = models.mlp(shape=(1, 8, 8), classes=10, hidden=(16,), batch_norm=True, seed=0)
    observation, _ = fedsgd(model, data.load("digits").share(range(3)), mode=mode)
    check_attack(short(name), observation=observation)


@pytest.mark.parametrize("name", ITERATIVE)
def test_a_residual_network_in_eval_mode_works(name):
    model = models.resnet20(shape=(1, 8, 8), seed=0)
    observation, _ = fedsgd(model, data.load("digits").share([0]), mode="eval")
    assert_falling(short(name), observation)


@pytest.mark.parametrize("name", ITERATIVE)
def test_a_frozen_layer_is_no_obstacle(name):
    model = models.lenet(shape=(1, 8, 8), seed=0)
    for parameter in model.features[0].parameters():
        parameter.requires_grad_(False)
    observation, _ = fedsgd(model, data.load("digits").share([0]))
    assert_falling(short(name), observation)


@pytest.mark.parametrize("name", ITERATIVE)
def test_targets_of_a_regression_are_optimised_or_given(name):
    table = data.load("diabetes").share(range(2))
    model = models.mlp(shape=table.spec.shape, classes=1, hidden=(16,), seed=0)
    observation, _ = fedsgd(model, table)
    unknown = assert_falling(short(name), observation)
    assert unknown.labels is not None
    assert unknown.labels.shape == (2,)
    granted, truth = fedsgd(model, table, granted=["labels"])
    result = assert_falling(short(name), granted)
    assert result.labels is not None
    assert torch.equal(result.labels.sort().values, truth.targets.sort().values)


@pytest.mark.parametrize("name", INEXACT)
def test_granted_labels_are_used(name):
    observation, _ = case(name)
    wrong = torch.tensor([9, 8])[: observation.training.samples]
    result = short(name)(observation.knowing(labels=wrong), progress=False)
    assert result.labels is not None
    assert torch.equal(result.labels.sort().values, wrong.sort().values)


@pytest.mark.parametrize("name", INEXACT)
def test_an_unknown_number_of_samples_is_named(name):
    observation, _ = fedavg(
        models.lenet(shape=(1, 8, 8), seed=0), data.load("digits").share([0]), lr=0.1, hidden=["samples"]
    )
    with pytest.raises(MissingKnowledge, match="needs the client's samples"):
        quick(name)(observation)


@pytest.mark.parametrize("name", ITERATIVE)
def test_more_restarts_keep_the_first_ones_and_never_raise_the_loss(name):
    observation, _ = case(name)
    losses = [short(name, steps=1, restarts=count)(observation, seed=2, progress=False).loss for count in (1, 2, 6)]
    assert losses == sorted(losses, reverse=True)
    assert losses[-1] < losses[0]
