"""Sample reconstruction attacks (SRA), which rebuild samples from a model or from one gradient.

The attack on a model rebuilds one sample for each class (LMRA, Driouich et al., equation 5). The attack on a gradient
rebuilds the samples of one message (equation 4).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn import functional as F

from leakgauge.attacks.base import Reconstruction
from leakgauge.attacks.local_model.base import LocalModel
from leakgauge.attacks.papers.inverting_gradients import inverting_gradients
from leakgauge.core.errors import InvalidInput
from leakgauge.core.observation import Observation
from leakgauge.core.progress import Report, silent


@dataclass(frozen=True, eq=False)
class ClassSamples:
    """One rebuilt sample for each class.

    Args:
        samples: The samples in their original units.
        labels: The class of each sample.
        probabilities: The probability that the model assigns to the class of each sample.
    """

    samples: Tensor = field(repr=False)
    labels: Tensor
    probabilities: Tensor


def by_model(
    model: LocalModel,
    classes: Sequence[int] | None = None,
    *,
    steps: int = 200,
    lr: float = 0.1,
    smooth: int = 4,
    report: Report = silent,
) -> ClassSamples:
    r"""Rebuild one sample for each class, with the highest probability of the class (LMRA, equation 5).

    The method is gradient ascent from a zero sample (after Fredrikson et al. 2015). For class :math:`k`, it maximises
    the logarithm of the probability that the model assigns to the class, :math:`\log h_\theta(x)[k]`. The logarithm has
    the same maximum as the probability, and the gradient of the logarithm does not vanish if the probability is near
    zero or one. Pixels stay in [0, 1]. The result is the sample with the highest probability among all steps.

    Args:
        model: A model of the client.
        classes: The classes to rebuild. By default, all classes.
        steps: The number of steps.
        lr: The length of the first step, as a root mean square over pixels. The length falls to zero over the steps.
        smooth: The radius, in pixels, of the blur that is applied to the gradient of images. Without a blur, a dense
            network assigns as high a probability to noise as to a face.
        report: A function ``report(step, total, loss)`` that shows progress.
    """
    data = model.data
    labels = _labels(model, classes)
    like = next(iter(model.weights.values()))
    samples = torch.zeros(len(labels), *data.shape).to(like)
    best, height = samples.clone(), like.new_full((len(labels),), -torch.inf)
    for step in range(steps + 1):
        samples.requires_grad_()
        log_likelihoods = model.probabilities(samples).clamp_min(1e-30).log().gather(1, labels.unsqueeze(1)).squeeze(1)
        (slope,) = torch.autograd.grad(log_likelihoods.sum(), samples)
        with torch.no_grad():
            higher = log_likelihoods > height
            best[higher], height = samples[higher], torch.maximum(log_likelihoods, height)
            slope = _blurred(slope, smooth) if data.is_image else slope
            norm = slope.flatten(1).norm(dim=1).clamp_min(1e-30).view(-1, *[1] * len(data.shape))
            size = lr * (1 - step / (steps + 1)) * (slope[0].numel() ** 0.5)
            samples = samples + size * slope / norm
            samples = samples.clamp(0, 1) if data.bounded else samples
        report(step, steps, -float(log_likelihoods.mean().detach()))
    return ClassSamples(best.detach(), labels, height.exp())


def _labels(model: LocalModel, classes: Sequence[int] | None) -> Tensor:
    """Check the classes to rebuild, and return them as a tensor."""
    count = model.data.classes
    if count is None:
        raise InvalidInput("samples of classes can be rebuilt for a classification only, and this data is a regression")
    labels = torch.tensor(list(range(count)) if classes is None else list(classes))
    if len(labels) == 0 or int(labels.min()) < 0 or int(labels.max()) >= count:
        raise InvalidInput(f"classes must lie in 0 to {count - 1}, not {labels.tolist()}")
    return labels.to(next(iter(model.weights.values())).device)


def _blurred(pictures: Tensor, radius: int) -> Tensor:
    """Blur pictures with a box filter, which is applied twice."""
    for _ in range(2 if radius else 0):
        pictures = F.avg_pool2d(pictures, 2 * radius + 1, 1, radius, count_include_pad=False)
    return pictures


def by_gradient(
    observation: Observation, *, steps: int = 200, seed: int = 0, report: Report = silent
) -> Reconstruction:
    """Rebuild the samples whose gradient points in the direction of one update (LMRA, equation 4).

    This is :func:`leakgauge.attacks.papers.inverting_gradients.inverting_gradients` with total variation (Geiping et
    al. 2020).

    Args:
        observation: The message of one round.
        steps: The number of steps.
        seed: The seed of all random draws.
        report: A function ``report(step, total, loss)`` that shows progress.
    """
    return inverting_gradients(steps=steps)(observation, seed=seed, progress=report)
