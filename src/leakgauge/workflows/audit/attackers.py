"""Who attacks a client in an audit or a frontier: an attack that rebuilds samples, or one that infers a column.

Both take an observation and give figures: ``{metric: {"value": ..., "chance": ..., ...}}`` and words as a document of
plain values, and the samples that it is about.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from torch import Tensor

from leakgauge import attacks
from leakgauge.attacks.inversion.adaptive import adapts
from leakgauge.core.errors import InvalidInput, LeakgaugeError, UnknownName
from leakgauge.core.observation import Observation
from leakgauge.core.progress import Report
from leakgauge.core.truth import Truth
from leakgauge.evaluation import score
from leakgauge.evaluation.chance import other_samples
from leakgauge.workflows.audit import hidden_column

#: Figures and words, and the samples that they are about.
Found = tuple[dict[str, Any], dict[str, Tensor]]


class Attacker(Protocol):
    """Attacks one client; its ``repr`` is all that its outcome depends on."""

    @property
    def options(self) -> Mapping[str, Any]:
        """What differs from the attack's own defaults."""

    def adapts(self, observation: Observation) -> bool:
        """Whether it makes use of knowing the defences that an observation grants the knowledge of."""

    def __call__(self, observation: Observation, truth: Truth, *, seed: int, threshold: float, report: Report) -> Found:
        """Attack, and score what came back; from ``threshold`` dB on, a sample counts as recovered."""


@dataclass(frozen=True, repr=False)
class Rebuilds:
    """An attack of :mod:`leakgauge.attacks`, by name."""

    name: str
    options: dict[str, Any] = field(default_factory=dict)

    def __repr__(self) -> str:
        return repr(attacks.build(self.name, **self.options))

    def adapts(self, observation: Observation) -> bool:
        """Whether it allows for defences that it knows."""
        return adapts(attacks.build(self.name, **self.options), observation)

    def __call__(self, observation: Observation, truth: Truth, *, seed: int, threshold: float, report: Report) -> Found:
        """Rebuild the samples, and compare them with the true ones."""
        result = attacks.build(self.name, **self.options)(observation, seed=seed, progress=report)
        if result.outcome.kind == "interrupted":
            raise KeyboardInterrupt
        scored = score(result, truth, threshold=threshold)
        rows = {name: {key: _plain(value) for key, value in scored[name].to_row().items()} for name in scored}
        document = {
            "scores": rows,
            "outcome": str(result.outcome),
            "loss": _plain(result.loss),
            "seconds": result.seconds,
            "attack": result.attack,
            "client": result.client,
            "threat_model": observation.threat_model(),
            "notes": list(scored.notes),
        }
        tensors = {"original": truth.inputs, "reconstructed": scored.pairing.apply(result.samples.float())}
        for name in ("psnr", "ssim", "features"):
            if name in scored and (values := scored[name].per_sample) is not None:
                tensors[name] = values.float()
        reference, _ = other_samples(truth)
        if reference is not None and len(reference):
            tensors["guess"] = reference.mean(0).float()
        if result.trace is not None:
            tensors["losses"] = result.trace.losses.float()
        return document, tensors


@dataclass(frozen=True, repr=False)
class InfersColumn:
    """The inference of a sensitive column (:mod:`leakgauge.workflows.audit.hidden_column`); defences make it do nothing else."""

    column: str
    options: dict[str, Any] = field(default_factory=dict)

    def __repr__(self) -> str:
        return f"{hidden_column.NAME}({self.column!r})"

    def adapts(self, observation: Observation) -> bool:
        """Never."""
        return False

    def __call__(self, observation: Observation, truth: Truth, *, seed: int, threshold: float, report: Report) -> Found:
        """Infer the column, and compare it with the true one."""
        return hidden_column.infer_column(observation, truth, self.column, report), {}


def read_attacker(name: Any, options: Mapping[str, Any], sensitive: str | None, where: str) -> Attacker:
    """The attacker of that name on data with that sensitive column, if it has one; mistakes are said with ``where``."""
    if name == hidden_column.NAME:
        if sensitive is None or options:
            column = 'name a sensitive column: [data] options = { sensitive = "..." }'
            remedy = "it has no options" if options else column
            raise InvalidInput(f"{where}: {name} does not apply here: {remedy}")
        return InfersColumn(sensitive)
    if name not in attacks.ATTACKS:
        raise UnknownName(f"attack ({where})", name, [*attacks.ATTACKS, hidden_column.NAME])
    try:
        attacks.build(name, **options)
    except LeakgaugeError as problem:
        raise InvalidInput(f"{where}: {problem}") from problem
    return Rebuilds(name, dict(options))


def _plain(value: Any) -> Any:
    """Numbers that JSON can hold."""
    return None if isinstance(value, float) and not math.isfinite(value) else value
