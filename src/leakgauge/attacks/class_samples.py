"""Sample reconstruction (SRA): what a class looks like to a model, or what a round's gradient shows (LMRA, 5 and 4)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn import functional as F

from leakgauge.attacks import inverting_gradients
from leakgauge.attacks.base import Reconstruction
from leakgauge.attacks.local_model.messages import LocalModel
from leakgauge.core.errors import InvalidInput
from leakgauge.core.observation import Observation
from leakgauge.core.progress import Report, silent


@dataclass(frozen=True, eq=False)
class ClassSamples:
    """One sample for each class, as a person sees it, with the probability that the model gives the class."""

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
    r"""The sample that a model takes most for one of a class, for each class (LMRA, equation 5).

    Gradient ascent on :math:`\log h_\theta(x)[k]`, which has the same maximum as the probability and does not fade
    where that is near 0 or 1 (after Fredrikson et al. 2015), from a zero sample; steps have the length ``lr`` in the
    root mean square over pixels, and shrink to nothing. Pixels stay in [0, 1]. The sample of the highest probability
    on the way is kept. The slopes of pictures are blurred by a radius of ``smooth`` pixels: without that a dense
    network likes noise as well as a face.
    """
    data = model.data
    if data.classes is None:
        raise InvalidInput("samples of classes can be rebuilt for a classification only; this data is a regression")
    wanted = torch.tensor(list(range(data.classes)) if classes is None else list(classes))
    if len(wanted) == 0 or int(wanted.min()) < 0 or int(wanted.max()) >= data.classes:
        raise InvalidInput(f"classes must lie in 0 to {data.classes - 1}, not {wanted.tolist()}")
    like = next(iter(model.weights.values()))
    wanted = wanted.to(like.device)
    samples = torch.zeros(len(wanted), *data.shape).to(like)
    best, height = samples.clone(), like.new_full((len(wanted),), -torch.inf)
    for step in range(steps + 1):
        samples.requires_grad_()
        chances = model.probabilities(samples).clamp_min(1e-30).log().gather(1, wanted.unsqueeze(1)).squeeze(1)
        (slope,) = torch.autograd.grad(chances.sum(), samples)
        with torch.no_grad():
            higher = chances > height
            best[higher], height = samples[higher], torch.maximum(chances, height)
            slope = _blurred(slope, smooth) if data.is_image else slope
            norm = slope.flatten(1).norm(dim=1).clamp_min(1e-30).view(-1, *[1] * len(data.shape))
            size = lr * (1 - step / (steps + 1)) * (slope[0].numel() ** 0.5)
            samples = samples + size * slope / norm
            samples = samples.clamp(0, 1) if data.bounded else samples
        report(step, steps, -float(chances.mean().detach()))
    return ClassSamples(best.detach(), wanted, height.exp())


def _blurred(pictures: Tensor, radius: int) -> Tensor:
    """Pictures under a window of two box means of a radius."""
    for _ in range(2 if radius else 0):
        pictures = F.avg_pool2d(pictures, 2 * radius + 1, 1, radius, count_include_pad=False)
    return pictures


def by_gradient(
    observation: Observation, *, steps: int = 200, seed: int = 0, report: Report = silent
) -> Reconstruction:
    """The samples whose gradient points where a client went in one round, with total variation (LMRA, equation 4).

    This is :func:`leakgauge.attacks.papers.inverting_gradients` (Geiping et al. 2020).
    """
    return inverting_gradients(steps=steps)(observation, seed=seed, progress=report)
