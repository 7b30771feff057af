"""The verdict on the figures of attacks, made in one place and shown alike by every command.

A privacy verdict is about the worst case. One client whose samples are rebuilt is a leak, whatever the mean is.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

import torch

from leakgauge.core.measure import Measure
from leakgauge.evaluation.intervals import mean_interval, wilson_interval
from leakgauge.evaluation.metrics.registry import METRICS

#: For the metrics of samples: how far above chance one client must be to count by itself, and all on average.
CLEAR = {"psnr": (3.0, 0.5), "features": (0.2, 0.03)}
#: One sample counts as recovered by itself from this PSNR on, in dB, and from this far above chance on.
ONE_SAMPLE = (30.0, 10.0)
#: The metrics of labels.
LABELS = ("label_errors", "target_error")
#: The metrics of what is inferred about records.
ATTRIBUTES = ("attribute_accuracy", "source_accuracy")


class Verdict(Enum):
    """The conclusion from the attacks on one set-up.

    The members are in order, from the one with the most leakage to the one with the least. The value of a member is its
    text in tables.
    """

    RECOVERS_DATA = "recovers data"
    RECOVERS_ATTRIBUTES = "recovers labels or attributes only"
    INCONCLUSIVE = "inconclusive"
    NOTHING_ABOVE_CHANCE = "nothing above chance"
    NOT_SCORED = "not scored"

    @property
    def leaks(self) -> bool | None:
        """Whether clients' data leaks. ``None`` where that is not known."""
        if self in (Verdict.INCONCLUSIVE, Verdict.NOT_SCORED):
            return None
        return self is not Verdict.NOTHING_ABOVE_CHANCE

    @property
    def sentence(self) -> str:
        """The verdict for people."""
        return _SENTENCES[self]

    @property
    def colour(self) -> str:
        """The colour of the verdict, on pages and in terminals."""
        return {True: "red", False: "green", None: "yellow"}[self.leaks]

    def __str__(self) -> str:
        return self.value


_SENTENCES = {
    Verdict.RECOVERS_DATA: "Clients' samples can be rebuilt from what they send.",
    Verdict.RECOVERS_ATTRIBUTES: (
        "Labels, a sensitive column or the owners of records can be inferred from what clients send. "
        "Their samples did not come back."
    ),
    Verdict.INCONCLUSIVE: (
        "These attacks are too weak for this model. They found nothing here, and nothing on easier versions of this "
        "set-up either, so a stronger attack may succeed."
    ),
    Verdict.NOTHING_ABOVE_CHANCE: (
        "Nothing came back beyond what guessing gives. This holds for the attacks that were tried here."
    ),
    Verdict.NOT_SCORED: "Not scored. Pass the clients' data with --data to measure how much of it came back.",
}


@dataclass(frozen=True, eq=False)
class Finding:
    """The figures of one attack on one set-up, and the verdict on them.

    Args:
        attack: The name of the attack.
        setup: The title of the defence, or of what was attacked.
        measures: The figures by metric.
        verdict: The verdict on these figures.
        knows_defence: Whether the attacker knew the defence.
    """

    attack: str
    setup: str
    measures: Mapping[str, Measure]
    verdict: Verdict
    knows_defence: bool = False

    @property
    def about_samples(self) -> bool:
        """Whether the attack rebuilds samples."""
        return any(metric in self.measures for metric in CLEAR)

    @property
    def returned_nothing(self) -> bool:
        """Whether the attack returned no samples, as exact attacks do if they can prove none."""
        return any(self.measures[metric].worst == 0 for metric in CLEAR if metric in self.measures)

    @property
    def title(self) -> str:
        """The set-up, and who attacked it."""
        return f"{self.setup}, defence known" if self.knows_defence else self.setup


def judge(scores: Sequence[Mapping[str, Measure]], *, labels_granted: bool = False) -> Verdict:
    """Return the verdict on one attack.

    Args:
        scores: The measures of each attacked client, by metric.
        labels_granted: Whether the attacker was given the labels, so that right labels are no finding.
    """
    if not scores:
        return Verdict.NOT_SCORED
    if any(_samples_leak(scores, metric, *limits) for metric, limits in CLEAR.items()):
        return Verdict.RECOVERS_DATA
    if any(_one_sample_leaks(score) for score in scores):
        return Verdict.RECOVERS_DATA
    inferred = ATTRIBUTES if labels_granted else (*LABELS, *ATTRIBUTES)
    if any(_inferred(scores, metric) for metric in inferred):
        return Verdict.RECOVERS_ATTRIBUTES
    return Verdict.NOTHING_ABOVE_CHANCE


def judge_share(right: Sequence[torch.Tensor], chance: float, *, confidence: float = 0.999) -> Verdict:
    """Return the verdict on the share of records for which an attack is right.

    Several attacks are tried on the same records, and one of them always does best. The confidence is high for this
    reason.

    Args:
        right: Whether the attack is right, for each record of each client.
        chance: The share that is right without any message.
        confidence: The confidence of Wilson's interval.
    """
    total = float(sum(part.sum() for part in right))
    low = wilson_interval(total, sum(len(part) for part in right), confidence).low
    above = low is not None and low > chance
    return Verdict.RECOVERS_ATTRIBUTES if above else Verdict.NOTHING_ABOVE_CHANCE


def worst_of(verdicts: Iterable[Verdict]) -> Verdict:
    """Return the verdict on all attacks together: the worst of them."""
    order = list(Verdict)
    return min(verdicts, key=order.index, default=Verdict.NOT_SCORED)


def together(findings: Sequence[Finding]) -> Verdict:
    """Return the verdict of several attacks on one set-up.

    An attack that succeeded on its positive control is strong enough to support "nothing above chance". It counts over
    attacks that were too weak.

    Args:
        findings: The findings of all attacks on the set-up.
    """
    samples = {finding.verdict for finding in findings if finding.about_samples}
    if Verdict.NOTHING_ABOVE_CHANCE in samples:
        samples.discard(Verdict.INCONCLUSIVE)
    return worst_of([*samples, *(finding.verdict for finding in findings if not finding.about_samples)])


def over_clients(scores: Sequence[Mapping[str, Measure]]) -> dict[str, Measure]:
    """Return the figures over clients, for the metrics that all of them have.

    Args:
        scores: The measures of each client, by metric.
    """
    names = [name for name in METRICS if scores and all(name in score for score in scores)]
    return {name: _over_clients(name, [score[name] for score in scores]) for name in names}


def _over_clients(name: str, measures: Sequence[Measure]) -> Measure:
    metric = METRICS[name]
    values = torch.tensor([one.value for one in measures], dtype=torch.double)
    interval = mean_interval(values, limits=metric.limits)
    chances = [one.chance for one in measures if one.chance is not None]
    return Measure(
        name,
        interval.mean,
        interval.low,
        interval.high,
        chance=sum(chances) / len(chances) if len(chances) == len(measures) else None,
        n=len(measures),
        of="clients",
        direction=metric.direction,
        worst=float(values.max() if metric.direction == "higher" else values.min()),
        unit=metric.unit,
        chance_source=measures[0].chance_source,
    )


def _excess(scores: Sequence[Mapping[str, Measure]], metric: str) -> torch.Tensor | None:
    """Return how far each client is above chance, or ``None`` where not all clients have the metric."""
    found = [score[metric].excess if metric in score else None for score in scores]
    known = [value for value in found if value is not None]
    return torch.tensor(known, dtype=torch.double) if len(known) == len(scores) else None


def _samples_leak(scores: Sequence[Mapping[str, Measure]], metric: str, one: float, mean: float) -> bool:
    above = _excess(scores, metric)
    if above is None:
        return False
    interval = mean_interval(above)
    low = interval.mean if interval.low is None else interval.low
    return float(above.max()) > one or (interval.mean > mean and low > 0)


def _one_sample_leaks(score: Mapping[str, Measure]) -> bool:
    """Return whether at least one sample came back clearly, and more samples than a guess recovers.

    The mean over a client's samples hides a single sample that was rebuilt exactly.
    """
    psnr, recovered = score.get("psnr"), score.get("recovered")
    if psnr is None or recovered is None or psnr.worst is None or psnr.chance is None or recovered.excess is None:
        return False
    least, above = ONE_SAMPLE
    clear = psnr.worst >= least and psnr.worst >= psnr.chance + above
    return clear and recovered.excess * recovered.n >= 0.999


def _inferred(scores: Sequence[Mapping[str, Measure]], metric: str) -> bool:
    gain = _excess(scores, metric)
    if gain is None:
        return False
    interval = mean_interval(gain)
    return (interval.mean if interval.low is None else interval.low) > 0
