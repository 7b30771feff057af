"""The check of received weights by a client, before it trains on them.

A client cannot prove that its server is honest. It can see the manipulations that are known, refuse to train on them,
and compare a digest with other clients. The words for a model without a sign are therefore "no known manipulation
found", and never "safe".
"""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from leakgauge.core.data_spec import DataSpec
from leakgauge.core.errors import InvalidInput, LeakgaugeError, shown
from leakgauge.core.likely_samples import likely_samples
from leakgauge.core.params import Params, detach
from leakgauge.core.seeding import seeded
from leakgauge.federation.received import signs
from leakgauge.federation.received.digest import fingerprint

#: The number of samples on which the layers are watched.
WATCHED = 64
#: The number of samples of the batch for D-SNR.
HINTED = 16
#: The limits that honest models keep, chosen on other training runs than those in ``benchmarks/malicious``, where the
#: largest values were 0 twins, 0.45 rare units, 0.67 quiet, a transmit ratio of 0.75 and an affine error of 0.048.
MOST_TWINS = 0.1
MOST_RARE = 0.6
MOST_QUIET = 0.75
MOST_TRANSMITTED = 5.0
LEAST_AFFINE = 0.01
#: From this D-SNR on, one sample of a batch stands out.
HINT = 5.0
NOTHING = "no known manipulation found"


class ModelRefused(LeakgaugeError):
    """The error of a client that does not train on a received model. Its text names the signs."""


@dataclass(frozen=True)
class Sign:
    """A sign of a manipulation.

    Args:
        name: The name of the check, such as ``"twins"``.
        layer: The path of the layer, or an empty text.
        value: The measured value.
        limit: The limit that honest models keep.
        sentence: The sign in words.
    """

    name: str
    layer: str
    value: float
    limit: float
    sentence: str


@dataclass(frozen=True)
class ModelCheck:
    """The result of the check of received weights.

    Args:
        signs: The signs of a manipulation.
        digest: The digest of the weights. Clients of an honest round have the same.
        figures: The most suspicious value of each check over all layers.
        hints: Sentences that are no reason to refuse.
        seconds: The time of the check.
    """

    signs: tuple[Sign, ...]
    digest: str
    figures: Mapping[str, float] = field(default_factory=dict)
    hints: tuple[str, ...] = ()
    seconds: float = 0.0

    @property
    def refused(self) -> bool:
        """Whether a client should not train on the weights."""
        return bool(self.signs)

    @property
    def sentences(self) -> tuple[str, ...]:
        """The result in words."""
        found = tuple(one.sentence for one in self.signs) or (
            f"{NOTHING}. This shows no honesty, because other manipulations may exist. Compare the digest with "
            "other clients.",
        )
        return (*found, *self.hints, f"digest: {self.digest}")

    def __str__(self) -> str:
        return " ".join(self.sentences)

    def require(self) -> None:
        """Raise :class:`ModelRefused` if there is a sign of a manipulation."""
        if self.signs:
            words = " ".join(one.sentence for one in self.signs)
            raise ModelRefused(f"the received model looks planted, so this client does not train on it. {words}")


def check_model(
    model: nn.Module,
    data: DataSpec | None = None,
    *,
    weights: Mapping[str, Tensor] | None = None,
    samples: Tensor | None = None,
    targets: Tensor | None = None,
) -> ModelCheck:
    """Look for known manipulations in the weights that a client received.

    Args:
        model: The agreed architecture. It is not changed.
        data: The description of the samples. Without it, only the weights are looked at.
        weights: The received weights by the names of the model's state. By default, those of ``model``.
        samples: Samples of the client, on which layers are watched. By default, random ones of the same kind.
        targets: The classes of the samples, for the hint D-SNR.
    """
    began = time.perf_counter()
    agreed = dict(model.state_dict())
    received = agreed if weights is None else dict(weights)
    digest = fingerprint(detach(received))
    found = _differences(agreed, received) or _not_finite(received)
    figures: dict[str, float] = {}
    hints: list[str] = []
    if not found:
        own = copy.deepcopy(model)
        own.load_state_dict(received)
        own = own.float().eval()
        figures, found = _watch(own, data, samples, hints)
        if samples is not None and targets is not None and data is not None:
            _hint(own, data, samples, targets, figures, hints)
    return ModelCheck(tuple(found), digest, figures, tuple(hints), time.perf_counter() - began)


def _differences(agreed: Params, received: Params) -> list[Sign]:
    """Return a sign for each difference between the received and the agreed architecture."""
    found = []
    missing, extra = sorted(agreed.keys() - received.keys()), sorted(received.keys() - agreed.keys())
    for names, words in ((missing, "lacks"), (extra, "has the additional tensors")):
        if names:
            listed = ", ".join(shown(name) for name in names[:3]) + (" and more" if len(names) > 3 else "")
            sentence = f"The architecture is not as agreed: the received model {words} {listed}."
            found.append(Sign("architecture", names[0], len(names), 0, sentence))
    for name in agreed.keys() & received.keys():
        one, other = agreed[name], received[name]
        if one.shape != other.shape:
            sentence = f"{shown(name)} has the shape {tuple(other.shape)}, and {tuple(one.shape)} was agreed."
            found.append(Sign("architecture", name, 1, 0, sentence))
        elif one.dtype != other.dtype:
            sentence = f"{shown(name)} has the number type {other.dtype}, and {one.dtype} was agreed."
            found.append(Sign("dtype", name, 1, 0, sentence))
    return sorted(found, key=lambda one: (one.name, one.layer))


def _not_finite(received: Params) -> list[Sign]:
    return [
        Sign("finite", name, 1, 0, f"{shown(name)} holds NaN or Inf.")
        for name, value in received.items()
        if value.is_floating_point() and not bool(torch.isfinite(value).all())
    ]


def _watch(
    model: nn.Module, data: DataSpec | None, samples: Tensor | None, hints: list[str]
) -> tuple[dict[str, float], list[Sign]]:
    """Return the figures of a model and the signs among them."""
    measured = {"twins": signs.static_twins(model), "transmit": signs.transmit_ratios(model)}
    for inputs in _inputs(model, data, samples, hints):
        with seeded(0, "check"):
            seen = signs.behaviour_of(model, inputs)
        _largest(measured, "twins", signs.twins_in_outputs(seen, model))
        _largest(measured, "rare", signs.rare_units(seen, model))
        _largest(measured, "quiet", signs.quiet_layers(seen, model))
        _largest(measured, "dead", dict.fromkeys(seen.silent, 1.0))
        error = signs.affine_error(model, inputs)
        _largest(measured, "passes", {"": 1 / max(error, 1e-12)})
    figures = {name: max(values.values(), default=0.0) for name, values in measured.items()}
    return figures, [sign for name, values in measured.items() for sign in _signs(name, values)]


def _largest(measured: dict[str, dict[str, float]], name: str, values: dict[str, float]) -> None:
    """Keep the more suspicious value of each layer."""
    known = measured.setdefault(name, {})
    for path, value in values.items():
        known[path] = max(value, known.get(path, -math.inf))


def _signs(name: str, values: Mapping[str, float]) -> list[Sign]:
    limit, words = LIMITS[name]
    return [
        Sign(name, path, value, limit, words.format(layer=f"the layer {path!r}", value=value))
        for path, value in values.items()
        if value > limit
    ]


#: For each check, the limit that honest models keep, and the words for a model that breaks it.
LIMITS: dict[str, tuple[float, str]] = {
    "twins": (
        MOST_TWINS,
        "{value:.0%} of the rows or columns of {layer} do the same as another one, as planted traps.",
    ),
    "transmit": (MOST_TRANSMITTED, "The kernels of {layer} copy single pixels (transmit ratio {value:.3g})."),
    "rare": (MOST_RARE, "{value:.0%} of the units of {layer} are active for few samples only, as planted traps."),
    "quiet": (MOST_QUIET, "The units of {layer} are silent for {value:.0%} of the samples, as planted traps."),
    "dead": (0.0, "Nothing that {layer} gives has an effect, as a layer that is switched off for some clients."),
    "passes": (
        1 / LEAST_AFFINE,
        "What reaches the first dense layer is an affine function of the sample, so that convolutions pass it on.",
    ),
}


def _inputs(model: nn.Module, data: DataSpec | None, samples: Tensor | None, hints: list[str]) -> list[Tensor]:
    """Return inputs on which the model can be watched."""
    if data is None:
        if samples is not None:
            raise InvalidInput("samples need their description. Pass data=DataSpec(...)")
        hints.append("Without a description of the samples, the layers were not watched at work.")
        return []
    like = next(model.parameters())
    drawn = likely_samples(data, WATCHED, seed=0) if samples is None else samples[:WATCHED]
    inputs = data.normalise(drawn.to(like))
    try:
        with torch.no_grad():
            model(inputs[:2])
    except Exception as problem:  # a user's model may raise anything, as for token ids that random samples are not
        hints.append(
            f"The layers were not watched at work, because the model does not run on "
            f"{'random' if samples is None else 'these'} samples ({type(problem).__name__}). Pass samples of your own."
        )
        return []
    return [inputs]


def _hint(
    model: nn.Module,
    data: DataSpec,
    samples: Tensor,
    targets: Tensor,
    figures: dict[str, float],
    hints: list[str],
) -> None:
    """Add the hint D-SNR, for samples of classes."""
    if data.classes is None or len(samples) < 2:
        return
    inputs = data.normalise(samples[:HINTED].to(next(model.parameters())))
    try:
        figures["d_snr"] = signs.disaggregation(model, inputs, targets[:HINTED].to(inputs.device))
    except Exception:  # such as a model with another loss
        return
    if figures["d_snr"] > HINT:
        hints.append(
            f"One sample stands out in the gradient of a layer (D-SNR {figures['d_snr']:.3g}). Honest models do this "
            "too, so it is no reason to refuse."
        )
