"""Functions for your own tests. They check that an attack obeys the rules of attacks, or that an audit finds no leak.

>>> from leakgauge.attacks import idlg
>>> from leakgauge.testing import check_attack
>>> check_attack(idlg(steps=20))

The rules are those of :class:`leakgauge.Attack`. Every check raises an ``AssertionError`` that names the broken rule or
limit.
"""

from __future__ import annotations

import pickle
import random
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields, is_dataclass, replace
from statistics import fmean
from tempfile import TemporaryDirectory
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from leakgauge.attacks.base import Attack, Reconstruction
from leakgauge.core.container import Location
from leakgauge.core.errors import InvalidInput, UnknownName
from leakgauge.core.observation import Observation
from leakgauge.core.seeding import generator
from leakgauge.core.truth import Truth
from leakgauge.data import load
from leakgauge.evaluation import pair, score
from leakgauge.federation.client import fedavg, fedsgd
from leakgauge.models import build

__all__ = ["assert_no_leak", "check_attack", "random_start", "small_case"]

Case = Literal["gradient", "weights"]
Network = Literal["lenet", "cnn"]


def assert_no_leak(
    config: Location | Mapping[str, Any],
    *,
    fail_if: Sequence[str] = ("recovered > 0.05",),
    output: Location | None = None,
    jobs: int | None = 1,
) -> None:
    """Run an audit inside a test, and raise an ``AssertionError`` if a limit is broken or the audit is not complete.

    The error names every broken limit and the attack that broke it.

    Args:
        config: The configuration, as for :func:`leakgauge.audit`.
        fail_if: The limits, each as a condition that must not be true, such as ``"recovered > 0.05"``.
        output: The folder for the page of the audit. ``None`` writes no page.
        jobs: The number of attacks that run at the same time.
    """
    from leakgauge.workflows.audit import audit

    with TemporaryDirectory() as folder:
        result = audit(config, folder if output is None else output, fail_if=fail_if, jobs=jobs)
        broken = [check.sentence() for check in result.checks if check.failed]
    if not result.complete:
        raise AssertionError(f"the audit is not complete: {result.failed or 'it was interrupted'}")
    if broken:
        raise AssertionError("this set-up leaks: " + "; ".join(broken))


def small_case(
    kind: Case = "gradient", *, network: Network = "lenet", dtype: torch.dtype = torch.float32
) -> tuple[Observation, Truth]:
    """Return an observation of a small client that leaks its data, and the client's true samples.

    The client has digits of 8 x 8 pixels and an untrained network. An attack on the observation takes seconds.

    Args:
        kind: ``"gradient"`` is the gradient of two digits (FedSGD). ``"weights"`` is the update of a client that
            trained on four digits for two epochs of two batches (FedAvg).
        network: ``"lenet"`` has sigmoids and pixels without normalisation. ``"cnn"`` is a network like those of DLF
            (Dimitrov et al., TMLR 2022), with ReLU and normalised pixels.
        dtype: The precision of the network.
    """
    if kind not in ("gradient", "weights"):
        raise UnknownName("small case", kind, ["gradient", "weights"])
    digits = load("digits")
    if network == "lenet":
        model = build("lenet", shape=(1, 8, 8), classes=10, seed=0).to(dtype)
    elif network == "cnn":
        model = build("dlf_femnist", shape=(1, 8, 8), classes=10, channels=[16, 32], dense=64, seed=0).to(dtype)
        digits = replace(digits, spec=replace(digits.spec, mean=(0.305,), std=(0.376,)))
    else:
        raise UnknownName("network of a small case", network, ["lenet", "cnn"])
    if kind == "gradient":
        return fedsgd(model, digits.share(range(2)))
    return fedavg(model, digits.share(range(4)), lr=0.01, epochs=2, batch_size=2)


def check_attack(
    attack: Attack | Callable[[], Attack],
    *,
    observation: Observation | None = None,
    truth: Truth | None = None,
    seed: int = 0,
) -> None:
    """Run an attack, and raise an ``AssertionError`` if it breaks a rule of :class:`Attack`.

    The attack runs three times, so it should be quick.

    Args:
        attack: The attack, or a function that makes the attack.
        observation: The observation to attack. By default, ``small_case("gradient")``.
        truth: The true samples of the client. Without them, the quality of the result is not checked.
        seed: The seed of the attack.
    """
    if not isinstance(attack, Attack):
        attack = attack()
        _promise(isinstance(attack, Attack), f"the factory makes a {type(attack).__name__}, not an Attack")
    if observation is None:
        observation, truth = small_case()
    _check_record(attack)
    with _unchanged(observation):
        try:
            result = attack(observation, seed=seed, progress=False)
        except InvalidInput as problem:
            raise AssertionError(str(problem)) from problem
    _check_result(result, observation)
    _check_repeatable(attack, observation, result)
    _check_interrupt(attack, observation, seed)
    if truth is not None:
        _check_quality(result, observation, truth)


def random_start(observation: Observation, seed: int = 0) -> Tensor:
    """Return as many random samples as the client has, in the units of the data, such as pixels in [0, 1].

    The samples are drawn from N(0, 1) as normalised inputs of the model. Then the normalisation is undone.

    Args:
        observation: The observation of the client.
        seed: The seed of the draw.
    """
    data, samples = observation.data, int(observation.training.need("samples"))
    guess = data.denormalise(torch.randn(samples, *data.shape, generator=generator(seed, "random start")))
    return guess.clamp(0, 1) if data.bounded else guess


def _promise(holds: bool, sentence: str) -> None:
    if not holds:
        raise AssertionError(sentence)


def _check_record(attack: Attack) -> None:
    """Check that the attack is a dataclass, that its ``repr`` shows all settings, and that it can be pickled."""
    name = type(attack).__name__
    _promise(type(attack).__call__ is Attack.__call__, f"{name} overrides __call__. Write run() instead")
    _promise(
        is_dataclass(attack) and "__dataclass_fields__" in vars(type(attack)),
        f"{name} is not a dataclass. Decorate it with @dataclass(frozen=True), so that its repr is its record",
    )
    text = repr(attack)
    for item in fields(attack):
        if item.repr:
            setting = f"{item.name}={getattr(attack, item.name)!r}"
            _promise(setting in text, f"repr({name}) does not show the setting {setting}")
    _promise(
        re.search(r" at 0x[0-9a-f]+", text) is None,
        f"repr({name}) holds a memory address, so no two runs have the same record: {text}",
    )
    try:
        copy = pickle.loads(pickle.dumps(attack))
    except Exception as problem:
        raise AssertionError(f"{name} cannot be pickled, so it cannot run in another process: {problem}") from problem
    _promise(repr(copy) == text, f"{name} differs after pickling: {copy!r}")


def _check_result(result: Reconstruction, observation: Observation) -> None:
    data, count = observation.data, int(observation.training.need("samples"))
    samples, labels = result.samples, result.labels
    _promise(
        tuple(samples.shape) == (count, *data.shape),
        f"the samples have shape {tuple(samples.shape)}, but the client has {count} of shape {data.shape}",
    )
    _promise(samples.is_floating_point(), f"the samples are {samples.dtype}, not floats")
    _promise(bool(torch.isfinite(samples).all()), "the samples hold NaN or infinite values")
    if data.bounded:
        low, high = float(samples.min()), float(samples.max())
        _promise(low >= 0 and high <= 1, f"pixels must lie in [0, 1] as a person sees them, not {low:g} to {high:g}")
    if labels is not None:
        _promise(len(labels) == count, f"there are {len(labels)} labels for {count} samples")
        if data.classes is not None:
            whole = not labels.is_floating_point() and not labels.is_complex()
            _promise(whole, f"labels of a classification are whole numbers, not {labels.dtype}")
            _promise(
                int(labels.min()) >= 0 and int(labels.max()) < data.classes,
                f"labels must lie in 0 to {data.classes - 1}, not {int(labels.min())} to {int(labels.max())}",
            )
    _promise(bool(str(result.outcome).strip()), "the outcome has no sentence")


def _check_repeatable(attack: Attack, observation: Observation, first: Reconstruction) -> None:
    """Check that the same seed gives exactly the same result.

    The result must depend neither on the state of the global random generators nor on whether progress is reported.
    """

    def report(step: int, total: int | None, loss: float) -> None:
        _promise(
            isinstance(step, int) and isinstance(total, (int, type(None))) and isinstance(loss, float),
            f"progress is reported as (step, total, loss), not {(step, total, loss)!r}",
        )

    with torch.random.fork_rng():
        torch.manual_seed(12345)
        again = attack(observation, seed=first.seed, progress=report)
    same = torch.equal(first.samples, again.samples) and _equal(first.labels, again.labels)
    _promise(same, f"the same seed gives other samples. Draw random numbers from torch or the seed ({attack!r})")


def _check_interrupt(attack: Attack, observation: Observation, seed: int) -> None:
    """Check that the attack returns its best result so far when it is interrupted by Ctrl-C.

    The check interrupts the attack at its first progress report. An attack without progress reports is not interrupted.
    """

    def interrupt(step: int, total: int | None, loss: float) -> None:
        raise KeyboardInterrupt

    try:
        result = attack(observation, seed=seed, progress=interrupt)
    except KeyboardInterrupt:
        raise AssertionError("Ctrl-C ends the attack without a result. Return the best result so far") from None
    _check_result(result, observation)


def _check_quality(result: Reconstruction, observation: Observation, truth: Truth) -> None:
    """Check that the error of the result is low.

    It must be below half of the error of random samples, and below the error of the best guess without the message.
    """
    error = _error(result.samples, truth)
    blind = fmean(_error(random_start(observation, guess), truth) for guess in range(10))
    _promise(
        error < blind / 2,
        f"not clearly better than random, with a squared error of {error:.4g} where a random start has {blind:.4g}",
    )
    measure = score(result, truth)["mse"]
    if measure.chance is not None:
        _promise(
            measure.value < measure.chance,
            f"no better than a blind guess ({measure.chance_source}), "
            f"with a squared error of {measure.value:.4g} where the guess has {measure.chance:.4g}",
        )


def _error(samples: Tensor, truth: Truth) -> float:
    """Pair the samples with the true samples, and return the mean squared error in normalised pixels."""
    samples = samples.to(truth.inputs.dtype)
    paired = pair(samples, truth.inputs).apply(samples)
    return float((truth.data.normalise(paired) - truth.data.normalise(truth.inputs)).square().mean())


@contextmanager
def _unchanged(observation: Observation) -> Iterator[None]:
    """Check that the ``with`` block does not change the observation, its model or the random generators."""
    before, generators = _contents(observation), _generators()
    yield
    for name, value in _contents(observation).items():
        _promise(
            _equal(before.get(name), value), f"the attack changes the observation, because {name} differs after it"
        )
    for name, state in _generators().items():
        _promise(state == generators[name], f"the attack moves the global random generator of {name}")


def _contents(observation: Observation) -> dict[str, Any]:
    """Return everything about an observation that an attack could change."""
    contents: dict[str, Any] = {
        name: getattr(observation, name) for name in ("labels", "label_counts", "label_batches")
    }
    for name in ("sent", "gradient", "returned", "buffers", "returned_buffers"):
        tensors: dict[str, Tensor] = getattr(observation, name) or {}
        contents |= {f"{name}[{key!r}]": value for key, value in tensors.items()}
    model = observation.model
    contents |= {f"model.{key}": value for key, value in model.state_dict().items()}
    contents |= {f"model.{key}.requires_grad": value.requires_grad for key, value in model.named_parameters()}
    contents |= {f"model.{key}.grad": value.grad for key, value in model.named_parameters()}
    for key, module in model.named_modules():
        contents[f"the mode of model.{key}"] = module.training
        contents[f"the hooks of model.{key}"] = len(module._forward_hooks) + len(module._forward_pre_hooks)
    return {key: value.detach().clone() if isinstance(value, Tensor) else value for key, value in contents.items()}


def _generators() -> dict[str, object]:
    return {
        "torch": torch.get_rng_state().tolist(),
        "numpy": repr(np.random.get_state()),  # noqa: NPY002 - the global generator must not change
        "Python": random.getstate(),
    }


def _equal(first: object, second: object) -> bool:
    if isinstance(first, Tensor) and isinstance(second, Tensor):
        return first.dtype == second.dtype and torch.equal(first, second)
    return type(first) is type(second) and first == second
