"""One list tests every attack: what is in ATTACKS is tested here, with options that make it quick where it needs them.

A new attack is one line in QUICK, or none if its defaults are quick.
"""

import inspect
import math
import pickle

import pytest
import torch

from leakgauge import attacks, data, models
from leakgauge.attacks import ATTACKS, Attack, WarmStart
from leakgauge.core.errors import InvalidInput, MissingKnowledge, UnknownName
from leakgauge.evaluation import mse, pair, score
from leakgauge.federation.client import fedavg, fedsgd
from leakgauge.testing import check_attack, random_start, small_case

QUICK: dict[str, dict[str, object]] = {
    "agic": {"steps": 120},
    "awa": {"steps": 100},
    "dlf": {"steps": 60, "warm_steps": 80, "lr": 0.03},
    "dlf_paper": {"steps": 160, "lr": 0.1, "invariance": 10.0},
    "dlg": {"steps": 20, "lr": 0.5},
    "dlg_simulation": {"steps": 100},
    "epafl": {"steps": 8},
    "idlg": {"steps": 8},
    "inverting_gradients": {"steps": 60},
    "invg_simulation": {"steps": 60},
    "surrogate": {"steps": 80},
}
#: Attacks whose settings are for networks of DLF's kind.
CNN = {"dlf", "dlf_paper", "surrogate"}
CASES = {(kind, net): small_case(kind, network=net) for kind in ("gradient", "weights") for net in ("lenet", "cnn")}
#: Attacks that are made for one gradient, and read local training only roughly.
GRADIENT_ONLY = {"dlg", "epafl", "idlg"}
PAIRS = [
    (name, kind)
    for name in ATTACKS
    for kind in ("gradient", "weights")
    if not (kind == "weights" and name in GRADIENT_ONLY)
]


def network(name):
    return "cnn" if name in CNN else "lenet"


def case(name, kind="gradient"):
    return CASES[kind, network(name)]


def quick(name, **options):
    return attacks.build(name, **(QUICK.get(name, {}) | options))


def short(name):
    return quick(name, steps=3)


def assert_falling(attack, observation):
    """Run an attack of three steps; its loss falls, unless it returns its last iterate whatever its loss."""
    result = attack(observation, progress=False)
    assert result.trace is not None
    assert math.isfinite(result.loss)
    assert attack.keep_last or result.loss < result.trace.losses[0]
    return result


@pytest.mark.parametrize(("name", "kind"), PAIRS)
def test_it_keeps_the_promises_of_an_attack(name, kind):
    observation, truth = case(name, kind)
    check_attack(quick(name), observation=observation, truth=truth)


@pytest.mark.parametrize(("name", "kind"), PAIRS)
def test_it_beats_its_random_start_clearly(name, kind):
    observation, truth = case(name, kind)
    attack = quick(name)
    result = attack(observation, seed=3, progress=False)
    assert result.trace is not None
    # What a warm start left to do is less; from one gradient it leaves nothing.
    assert result.loss < result.trace.losses[0] / (1.25 if isinstance(attack.start, WarmStart) else 10)
    start = random_start(observation, seed=3)
    found, blind = (
        mse(pair(samples, truth.inputs).apply(samples), truth.inputs).mean() for samples in (result.samples, start)
    )
    assert found < blind / 5


#: Attacks on networks whose products may be taken in bfloat16.
MIXED = [name for name, make in ATTACKS.items() if "mixed" in (make.__kwdefaults__ or {})]


@pytest.mark.parametrize("name", MIXED)
@pytest.mark.parametrize("kind", ["gradient", "weights"])
def test_it_gets_as_far_in_mixed_precision(name, kind):
    observation, truth = case(name, kind)
    full, mixed = (quick(name, mixed=mixed)(observation, seed=3, progress=False) for mixed in (False, True))
    assert "MixedPrecision" in repr(quick(name, mixed=True))
    off = [mse(pair(one.samples, truth.inputs).apply(one.samples), truth.inputs).mean() for one in (full, mixed)]
    assert off[1] < 2 * off[0] + 0.005
    assert not torch.equal(full.samples, mixed.samples)
    with pytest.raises(InvalidInput, match="mixed must be True or False"):
        quick(name, mixed="yes")


@pytest.mark.parametrize("name", ATTACKS)
def test_another_seed_gives_another_result(name):
    observation, _ = case(name)
    one, other = (short(name)(observation, seed=seed, progress=False) for seed in (0, 1))
    assert not torch.equal(one.samples, other.samples)
    assert (one.seed, other.seed) == (0, 1)


@pytest.mark.parametrize("name", ATTACKS)
def test_it_is_handed_nothing_but_what_a_server_has(name):
    attack = quick(name)
    assert list(inspect.signature(attack).parameters) == ["observation", "seed", "device", "progress"]
    assert list(inspect.signature(attack.run).parameters) == ["observation", "seed", "report"]
    assert type(attack).__call__ is Attack.__call__


@pytest.mark.parametrize("name", ATTACKS)
def test_its_options_are_keywords_with_defaults_and_its_docstring_says_what_it_does(name):
    for parameter in inspect.signature(ATTACKS[name]).parameters.values():
        assert parameter.kind is inspect.Parameter.KEYWORD_ONLY
        assert parameter.default is not inspect.Parameter.empty
    assert len(inspect.getdoc(ATTACKS[name]) or "") > 100


@pytest.mark.parametrize("name", ATTACKS)
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


@pytest.mark.parametrize("name", ATTACKS)
def test_ctrl_c_returns_the_best_so_far(name):
    observation, _ = case(name)

    def report(step, total, loss):
        if step == 2:
            raise KeyboardInterrupt

    result = quick(name)(observation, progress=report)
    assert str(result.outcome) == "interrupted at step 1; the best iterate so far is returned"
    assert result.trace is not None
    assert result.loss <= result.trace.losses.min()
    assert len(result.trace.losses) == 2


@pytest.mark.parametrize("name", ATTACKS)
def test_progress_counts_up_to_the_limit_and_the_loss_never_rises(name):
    lines: list[tuple[int, int | None, float]] = []
    attack = short(name)
    attack(case(name)[0], progress=lambda *line: lines.append(line))
    limit = lines[-1][0]
    assert [(step, total) for step, total, _ in lines] == [(step, limit) for step in range(1, limit + 1)]
    if not attack.keep_last:
        losses = [loss for *_, loss in lines]
        assert limit == 3
        assert losses == sorted(losses, reverse=True)


@pytest.mark.parametrize("name", ATTACKS)
@pytest.mark.parametrize("wrong", [None, "observation", 3, torch.zeros(2)], ids=str)
def test_what_is_no_observation_is_refused(name, wrong):
    with pytest.raises(InvalidInput, match=f"takes an Observation, not {type(wrong).__name__}"):
        quick(name)(wrong)


@pytest.mark.parametrize("name", ATTACKS)
@pytest.mark.parametrize("wrong", ["0", 1.5, None, True])
def test_what_is_no_seed_is_refused(name, wrong):
    with pytest.raises(InvalidInput, match="seed must be a whole number, not"):
        quick(name)(case(name)[0], seed=wrong)


@pytest.mark.parametrize("name", ATTACKS)
def test_what_is_no_device_is_refused(name):
    with pytest.raises(InvalidInput, match="cannot run on device 'toaster'"):
        quick(name)(case(name)[0], device="toaster")


IMPOSSIBLE: dict[str, tuple[list[object], str]] = {
    "steps": ([0, -5, 2.5, "many"], "steps must be a whole number of at least 1, not"),
    "restarts": ([0, None], "restarts must be a whole number of at least 1, not"),
    "lr": ([0, -0.1, math.nan, "fast"], "lr must be a number above 0, not"),
    "threshold": ([math.inf, "low"], "threshold must be a finite number, not"),
    "tv": ([-1.0, None], "total variation must be a number of at least 0, not"),
    "vectorise": (["no", None], "vectorise must be True or False, not"),
}


@pytest.mark.parametrize(
    ("name", "option"),
    [(name, option) for name in ATTACKS for option in IMPOSSIBLE if option in (ATTACKS[name].__kwdefaults__ or {})],
)
def test_options_that_cannot_work_are_refused_before_any_work(name, option):
    values, sentence = IMPOSSIBLE[option]
    for value in values:
        with pytest.raises(InvalidInput, match=f"{sentence} {value!r}"):
            attacks.build(name, **{option: value})


@pytest.mark.parametrize("name", ATTACKS)
def test_an_unknown_option_is_answered_with_the_nearest(name):
    with pytest.raises(UnknownName, match=rf"no option of {name}\(\) 'stepz'; did you mean 'steps'\? \(known: "):
        attacks.build(name, stepz=3)


def test_an_unknown_attack_is_answered_with_the_nearest():
    with pytest.raises(UnknownName, match="no attack 'inverting_gradient'; did you mean 'inverting_gradients'"):
        attacks.build("inverting_gradient")


@pytest.mark.parametrize("name", ATTACKS)
def test_float64_models_are_attacked_in_float64(name):
    observation, truth = small_case(network=network(name), dtype=torch.double)
    result = quick(name)(observation, progress=False)
    assert result.samples.dtype == torch.double
    assert score(result, truth)["mse"].value < score(result, truth)["mse"].chance / 2


@pytest.mark.parametrize("name", ATTACKS)
@pytest.mark.parametrize("mode", ["eval", "train"])
def test_batch_norm_is_left_alone_in_both_modes(name, mode):
    model = models.mlp(shape=(1, 8, 8), classes=10, hidden=(16,), batch_norm=True, seed=0)
    observation, _ = fedsgd(model, data.load("digits").share(range(3)), mode=mode)
    check_attack(short(name), observation=observation)


@pytest.mark.parametrize("name", ATTACKS)
def test_a_residual_network_in_eval_mode_works(name):
    model = models.resnet20(shape=(1, 8, 8), seed=0)
    observation, _ = fedsgd(model, data.load("digits").share([0]), mode="eval")
    assert_falling(short(name), observation)


@pytest.mark.parametrize("name", ATTACKS)
def test_a_frozen_layer_is_no_obstacle(name):
    model = models.lenet(shape=(1, 8, 8), seed=0)
    for parameter in model.features[0].parameters():
        parameter.requires_grad_(False)
    observation, _ = fedsgd(model, data.load("digits").share([0]))
    assert_falling(short(name), observation)


@pytest.mark.parametrize("name", ATTACKS)
def test_a_regression_needs_its_targets(name):
    table = data.load("diabetes").share(range(2))
    model = models.mlp(shape=table.spec.shape, classes=1, hidden=(16,), seed=0)
    observation, _ = fedsgd(model, table)
    with pytest.raises(MissingKnowledge, match=r"labels can only be (inferred|optimised) .*knowing\(labels="):
        quick(name)(observation)
    granted, truth = fedsgd(model, table, granted=["labels"])
    result = assert_falling(short(name), granted)
    assert result.labels is not None
    assert torch.equal(result.labels.sort().values, truth.targets.sort().values)


@pytest.mark.parametrize("name", ATTACKS)
def test_granted_labels_are_used(name):
    observation, _ = case(name)
    wrong = torch.tensor([9, 8])
    result = short(name)(observation.knowing(labels=wrong), progress=False)
    assert result.labels is not None
    assert torch.equal(result.labels.sort().values, wrong.sort().values)


@pytest.mark.parametrize("name", ATTACKS)
def test_an_unknown_number_of_samples_is_named(name):
    observation, _ = fedavg(
        models.lenet(shape=(1, 8, 8), seed=0), data.load("digits").share([0]), lr=0.1, hidden=["samples"]
    )
    with pytest.raises(MissingKnowledge, match="needs the client's samples"):
        quick(name)(observation)


@pytest.mark.parametrize("name", ATTACKS)
def test_more_restarts_keep_the_first_ones_and_never_raise_the_loss(name):
    observation, _ = case(name)
    losses = [quick(name, steps=1, restarts=count)(observation, progress=False).loss for count in (1, 2, 4, 8)]
    assert losses == sorted(losses, reverse=True)
    assert losses[-1] < losses[0]
