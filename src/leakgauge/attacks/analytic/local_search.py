"""The searches that the attacks on two dense layers after several local steps repeat until all samples are found."""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Protocol

from torch import Tensor

from leakgauge.attacks.analytic.local_layers import LocalLayers
from leakgauge.attacks.base import Attack, Reconstruction
from leakgauge.attacks.inversion.stopping import Outcome
from leakgauge.core.checks import whole_number
from leakgauge.core.observation import Observation
from leakgauge.core.progress import Report


class Findings(Protocol):
    """The inputs of the first dense layer that were found so far."""

    searches: int

    @property
    def layers(self) -> LocalLayers:
        """The updates of the two layers."""

    def search_once(self) -> None:
        """Search at weights between the sent and the returned ones, and add what was found."""

    def kept(self) -> tuple[Tensor, Tensor]:
        """Return the augmented inputs that count as samples, and their distances from the second row space."""


@dataclass(frozen=True)
class LocalSearch(Attack):
    """An attack that searches for the inputs of two dense layers until all are found.

    Args:
        starts: The number of starting points of each search.
        iterations: The largest number of iterations of each search.
        attempts: The largest number of searches in a row without a new sample. The attack then gives up.
    """

    uses_defences: ClassVar[bool] = False
    samples_are: ClassVar[str] = "samples"  # the word for what is found

    starts: int
    iterations: int
    attempts: int

    def __post_init__(self) -> None:
        for name in ("starts", "iterations", "attempts"):
            whole_number(name, getattr(self, name))

    @abstractmethod
    def findings(self, observation: Observation, seed: int) -> Findings:
        """Return the empty findings on a message, or raise :class:`.DoesNotFit` if the attack does not apply.

        Args:
            observation: The message of the client.
            seed: The seed of the random starts.
        """

    def run(self, observation: Observation, seed: int, report: Report) -> Reconstruction:
        """Return the samples whose inputs of the second layer lie nearest to this layer's row space.

        Args:
            observation: The message of the client.
            seed: The seed of the random starts.
            report: The progress function, which gets the number of samples that were found.
        """
        findings = self.findings(observation, seed)
        layers = findings.layers
        interrupted = _find_all(findings, self.attempts, report)
        inputs, distances = findings.kept()
        dtype = next(iter(observation.sent.values())).dtype
        samples = layers.chain.samples(inputs[:, :-1], observation.data).to(dtype)
        labels = layers.labels(inputs, observation.data.classes)
        words = f"{len(samples)} of {layers.samples} {self.samples_are} found, which cannot be proven, after "
        words += f"{findings.searches} search{'' if findings.searches == 1 else 'es'}"
        outcome = Outcome("interrupted" if interrupted else "finished", findings.searches, words)
        return Reconstruction(samples, labels, outcome, loss=float(distances.max()) if len(distances) else math.nan)


def _find_all(findings: Findings, attempts: int, report: Report) -> bool:
    """Search until all samples are found or no attempt is left. Return whether Ctrl-C ended the search."""
    failures, samples = 0, findings.layers.samples
    try:
        while failures < attempts:
            before = len(findings.kept()[0])
            findings.search_once()
            found = len(findings.kept()[0])
            report(found, samples, math.nan)
            if found == samples:
                break
            failures = 0 if found > before else failures + 1
    except KeyboardInterrupt:
        return True
    return False
