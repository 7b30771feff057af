r"""The attack that reads one sample's features off a dense layer, then searches for a picture with these features.

The gradient of a dense layer with a bias, for one sample, is :math:`\delta\, [f(x), 1]^T`. So the gradient of any
neuron's weights divided by that of its bias is the layer's input :math:`f(x)`. This holds whatever comes after the
layer: any loss, any number of targets, and dropout. A picture with these features is then searched for as in
:mod:`.features`, whose attack solves for the features of whole batches, but needs to know what comes after the layer.

If the inputs of the layer pass through dropout, the gradient shows the entries that were kept, and only these are
matched. Over several local steps the features change a little, and the division gives a mean of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from leakgauge.attacks.analytic import features, output_features
from leakgauge.attacks.analytic.dense import DenseChain, DoesNotFit, augmented
from leakgauge.attacks.analytic.features import extractor
from leakgauge.attacks.analytic.layer_span import rank_of
from leakgauge.attacks.analytic.picture_search import STUCK, PictureSearch, Schedule
from leakgauge.attacks.analytic.read_off import NOISIEST, ROUGHEST, check_survives, regression, update_of
from leakgauge.attacks.base import Attack, Reconstruction
from leakgauge.attacks.inversion.labels import LastLayer
from leakgauge.attacks.inversion.last_layer import outputs_for_labels
from leakgauge.attacks.inversion.stopping import Kind, Outcome
from leakgauge.attacks.spec import AttackSpec, Cost, Fit
from leakgauge.core.checks import not_negative, positive, whole_number
from leakgauge.core.observation import Observation
from leakgauge.core.progress import Report
from leakgauge.core.seeding import generator, seeded

#: The smallest number of features for each value of a sample. Fewer features hardly show a picture.
SHARE = 1 / 8
#: Features below this share of the largest one were set to zero by dropout, or by an activation.
ZERO = 1e-6


@dataclass(frozen=True, eq=False)
class Body:
    """The part of a network before a dense layer.

    Args:
        path: The path of the dense layer.
        extract: The function that maps samples to the layer's inputs, without dropout.
        gain: The factor by which dropout multiplies the inputs that it keeps, which is 1 without dropout.
    """

    path: str
    extract: Callable[[Tensor], Tensor]
    gain: float

    @classmethod
    def of(cls, observation: Observation, dtype: torch.dtype) -> Body:
        """Return the part before the first dense layer that gets one vector for each sample.

        If the features are random in another way than by dropout right before the layer, :class:`.DoesNotFit` is
        raised.

        Args:
            observation: The message of the client.
            dtype: The precision of the features.
        """
        path = DenseChain(observation, on_samples=False, least=1).first
        still = extractor(observation, path, dtype, without=_dropout)
        moving = extractor(observation, path, dtype)
        draw = torch.Generator().manual_seed(0)
        dummy = torch.randn(1, *observation.data.shape, generator=draw).to(observation.device, dtype).requires_grad_()
        with seeded(0, "features"), torch.enable_grad():
            plain, random = still(dummy), moving(dummy)
        if not plain.requires_grad:
            raise DoesNotFit("the features have no derivative with respect to the samples, as those of embeddings")
        kept = (random != 0) & (plain != 0)
        ratios = (random[kept] / plain[kept]).detach()
        if not len(ratios) or not torch.allclose(ratios, ratios.median(), rtol=1e-3):
            raise DoesNotFit("the features are random, as with dropout inside the network")
        return cls(path, still, float(ratios.median()))


def _dropout(module: nn.Module) -> bool:
    return isinstance(module, nn.modules.dropout._DropoutNd)


@dataclass(frozen=True)
class FeatureReadOff(Attack):
    """The attack that reads one sample's features off a dense layer. See :func:`feature_read_off`.

    Args:
        schedule: The settings of the search for the picture.
    """

    uses_defences: ClassVar[bool] = False

    schedule: Schedule

    def __post_init__(self) -> None:
        whole_number("steps", self.schedule.steps)
        whole_number("restarts", self.schedule.restarts)
        positive("lr", self.schedule.lr)
        not_negative("the weight of total variation", self.schedule.tv)

    def run(self, observation: Observation, seed: int, report: Report) -> Reconstruction:
        """Return a picture with the features of the client's only sample, or nothing if they could not be read.

        Args:
            observation: The message of the client.
            seed: The seed of the random starts.
            report: The progress function, which gets the number of Adam steps.
        """
        dtype, random = next(iter(observation.sent.values())).dtype, generator(seed, "feature read-off")
        body = Body.of(observation, dtype)
        seen, error = regression(augmented(update_of(observation), body.path))
        readable = error < NOISIEST
        seen = (seen / body.gain).to(dtype)
        kept = torch.ones_like(seen) if body.gain == 1 else (seen.abs() > ZERO * seen.abs().max()).to(dtype)
        search = PictureSearch(
            lambda inputs: body.extract(inputs) * kept, (seen * kept)[None][: int(readable)], observation.data, random
        )
        interrupted = search.run(self.schedule, report) if readable else False
        loss = float(search.losses.mean()) if readable else math.nan
        exact = error < ROUGHEST and search.determined and loss <= STUCK
        labels = _label(observation, random) if readable else None
        return Reconstruction(search.samples, labels, _outcome(error, loss, interrupted, exact), loss=loss)


def _label(observation: Observation, random: torch.Generator) -> Tensor | None:
    """Return the label of the client's only sample, or ``None`` if it is no class or cannot be inferred."""
    if observation.data.classes is None or outputs_for_labels(observation) is None:
        return None
    return LastLayer()(observation.knowing(samples=1), random)


def _outcome(error: float, loss: float, interrupted: bool, exact: bool) -> Outcome:
    if not error < NOISIEST:
        words = "no features could be read off, because the neurons do not agree on one sample, as in noisy updates"
        return Outcome("finished", 0, words)
    kind: Kind = "interrupted" if interrupted else "converged" if exact else "finished"
    words = f"features read off with an estimated relative error of {error:.2g}"
    return Outcome(kind, 0, f"{words}. The picture has these features up to a relative squared error of {loss:.2g}")


def fits(observation: Observation) -> Fit:
    """Decide whether the attack applies. It needs one sample, whose features enter a dense layer with a bias.

    Args:
        observation: The message of the client.
    """
    try:
        check_survives(observation)
        chain = DenseChain(observation, on_samples=False, least=1)
        rows = augmented(update_of(observation), chain.first)
        samples = observation.training.samples
        precision = torch.finfo(next(iter(observation.sent.values())).dtype).eps / 2
        if samples != 1 and (samples is not None or rank_of(rows, precision) != 1):
            raise DoesNotFit("made for one sample, whose features are all that a dense layer's gradient shows")
        if rows.shape[1] - 1 < SHARE * math.prod(observation.data.shape):
            raise DoesNotFit(f"the {rows.shape[1] - 1} features of the dense layer are too few to show a sample")
        Body.of(observation, torch.double)
        for other in (features, output_features):
            if other.fits(observation).applies:
                raise DoesNotFit("another exact attack solves for the same features, with a proof")
        _refuse_samples(observation)
    except DoesNotFit as reason:
        return Fit(False, str(reason))
    return Fit(True, "the only sample's features enter a dense layer with a bias, whose gradient is a copy of them")


def _refuse_samples(observation: Observation) -> None:
    """Raise an error if the sample itself enters a dense layer."""
    try:
        DenseChain(observation)
    except DoesNotFit:
        return
    raise DoesNotFit("the sample enters a dense layer itself, so dense_read_off returns it")


def feature_read_off(*, steps: int = 600, lr: float = 0.2, restarts: int = 4, tv: float = 0.3) -> FeatureReadOff:
    """Read the features of a client's only sample off a dense layer, then search for a picture with these features.

    The attack needs neither labels nor the layers after the dense layer. It applies to one gradient and to local
    training with SGD on one sample.

    Args:
        steps: The number of Adam steps from each starting point.
        lr: The first learning rate of Adam. It falls to a hundredth in the last part of the steps.
        restarts: The largest number of starting points.
        tv: The weight of total variation at the first step, from which the weight falls.
    """
    return FeatureReadOff(Schedule(steps, lr, restarts, tv))


SPECS = (
    AttackSpec(
        name="feature_read_off",
        factory=feature_read_off,
        summary="Feature read-off (ours): the features of one sample from any dense layer, then the picture.",
        fits=fits,
        cost=Cost.SECONDS,
        rank=0,
        audit={},
        exact=True,
    ),
)
