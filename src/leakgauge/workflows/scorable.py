"""The check that the result of an attack can be scored, which scores a guess before any attack runs."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import torch
from torch import Tensor

from leakgauge.core.errors import InvalidInput, LeakgaugeError, printable
from leakgauge.core.truth import Truth
from leakgauge.evaluation import score

Key = TypeVar("Key", bound=Hashable)


@dataclass(frozen=True, eq=False)
class MeanGuess:
    """The guess that all samples are the mean of the data.

    Args:
        samples: The guessed samples, (N, *shape).
        labels: Labels or targets of the samples.
    """

    samples: Tensor
    labels: Tensor


def check_scorable(truth: Truth, named: Mapping[str, Any], threshold: float | None = None) -> None:
    """Score a guess with the metrics of an attack, and raise an error if this fails.

    For images, the chance level is not computed from reference samples, because this takes seconds for large images.

    Args:
        truth: The client's own samples.
        named: The options of the score if the message names words of the client.
        threshold: The PSNR in dB above which an image counts as recovered.
    """
    if truth.data.is_image:
        truth = replace(truth, reference_inputs=None, reference_targets=None)
    mean = truth.data.denormalise(torch.zeros_like(truth.inputs, dtype=torch.float))
    try:
        score(
            MeanGuess(mean, truth.targets), truth, threshold=threshold if truth.data.is_image else None, **dict(named)
        )
    except (LeakgaugeError, MemoryError):
        raise
    except Exception as problem:  # a metric may fail in many ways on a shape that it was not made for
        cause = (str(problem).strip().splitlines() or [type(problem).__name__])[0]
        raise InvalidInput(
            f"samples of shape {truth.data.shape} with targets of shape {tuple(truth.targets.shape[1:])} cannot be "
            f"scored, so no attack was started ({printable(cause)}). Describe the data with another DataSpec, or "
            "report this as a bug"
        ) from problem


def not_scorable(truths: Mapping[Key, Truth], named: Mapping[Key, Mapping[str, Any]]) -> dict[Key, str]:
    """Return the error of each client whose results could not be scored. Clients with the same kind of data share it.

    Args:
        truths: The samples of each client.
        named: The options of the score of each client, as for :func:`check_scorable`.
    """
    problems: dict[Hashable, str] = {}
    kinds: dict[Key, Hashable] = {}
    for key, truth in truths.items():
        kinds[key] = kind = (truth.data, truth.targets.shape[1:], truth.targets.dtype)
        if kind not in problems:
            problems[kind] = ""
            try:
                check_scorable(truth, named[key])
            except InvalidInput as problem:
                problems[kind] = str(problem)
    return {key: problems[kind] for key, kind in kinds.items() if problems[kind]}
