"""The verdict whether data leaks, from the measured success of attacks. All commands use this module.

A privacy verdict is about the worst case. One client whose samples are rebuilt is a leak, whatever the mean is.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

import torch

from leakgauge.core.measure import Measure
from leakgauge.evaluation.intervals import mean_interval, wilson_interval
from leakgauge.evaluation.metrics.registry import METRICS

#: For the metrics of samples: how far above chance one client must be to count by itself, and all on average. For
#: features, this is a share of the features that a guess has wrong.
CLEAR = {"psnr": (3.0, 0.5), "features": (0.4, 0.05)}
#: One sample counts as recovered by itself from this PSNR on, in dB, and from this far above chance on.
ONE_SAMPLE = (30.0, 10.0)
#: One sample also counts as recovered if it is this far above the best single sample of many guesses, for the metrics
#: of samples, and has at least the second value. For images, the threshold of the audit holds too.
BEYOND_ONE = {"psnr": (5.0, 20.0), "features": (0.25, 0.9)}
#: With fewer clients than this, each client must be beyond a lucky guess by itself.
FEW = 3
#: The metrics of labels.
LABELS = ("label_errors", "target_error")
#: The metrics of what is inferred about records.
ATTRIBUTES = ("attribute_accuracy", "source_accuracy")
#: The metric of the set of tokens that a client has, such as its words.
TOKENS = ("tokens",)
#: The share of a client's tokens that must be in the right samples. A client's tokens that were dealt to its samples at
#: random are a leak of the set of tokens, and not of the samples.
MOST_TOKENS = 0.5


class Verdict(Enum):
    """The conclusion from the attacks on one set-up.

    The members are ordered from the most leakage to the least leakage. The value of a member is the text that tables
    show.
    """

    RECOVERS_DATA = "recovers data"
    RECOVERS_ATTRIBUTES = "recovers labels or attributes only"
    UNEXPLAINED = "recipe does not fit"
    INCONCLUSIVE = "inconclusive"
    NOTHING_ABOVE_CHANCE = "nothing above chance"
    NOT_SCORED = "not scored"

    @property
    def leaks(self) -> bool | None:
        """Whether the clients' data leaks, or ``None`` if the verdict does not decide this."""
        if self in (Verdict.UNEXPLAINED, Verdict.INCONCLUSIVE, Verdict.NOT_SCORED):
            return None
        return self is not Verdict.NOTHING_ABOVE_CHANCE

    @property
    def sentence(self) -> str:
        """The verdict as a sentence for people."""
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
        "Labels, words, a sensitive column or the owners of records can be inferred from what clients send. "
        "Their samples did not come back by these attacks."
    ),
    Verdict.UNEXPLAINED: (
        "The recipe does not explain what the clients sent, so attacks that use it had no chance. This is no all-clear."
    ),
    Verdict.INCONCLUSIVE: (
        "These attacks found nothing, but they are too weak to judge this set-up, or had too little time. A stronger "
        "attack may find data. This is no all-clear."
    ),
    Verdict.NOTHING_ABOVE_CHANCE: (
        "Nothing came back beyond what guessing gives. This holds for the attacks that were tried here."
    ),
    Verdict.NOT_SCORED: "Not scored. Pass the clients' data with --data to measure how much of it came back.",
}


@dataclass(frozen=True, eq=False)
class Finding:
    """The measures of one attack on one set-up, and the verdict on these measures.

    Args:
        attack: The name of the attack.
        setup: The title of the attacked set-up, such as the title of a defence.
        measures: A mapping from the name of each metric to its measure.
        verdict: The verdict on these measures.
        knows_defence: Whether the attacker knew the defence.
        reason: A sentence about the evidence for the verdict, or about the evidence that is missing.
    """

    attack: str
    setup: str
    measures: Mapping[str, Measure]
    verdict: Verdict
    knows_defence: bool = False
    reason: str = ""

    @property
    def about_samples(self) -> bool:
        """Whether the attack rebuilds samples."""
        return any(metric in self.measures for metric in CLEAR)

    @property
    def returned_nothing(self) -> bool:
        """Whether the attack returned no samples, for example because an exact attack could prove no sample."""
        return any(self.measures[metric].worst == 0 for metric in CLEAR if metric in self.measures)

    @property
    def title(self) -> str:
        """The title of the set-up, and a remark if the attacker knew the defence."""
        return f"{self.setup}, defence known" if self.knows_defence else self.setup


def judge(scores: Sequence[Mapping[str, Measure]], *, labels_granted: bool = False) -> Verdict:
    """Return the verdict on one attack.

    Args:
        scores: For each attacked client, a mapping from the name of each metric to its measure.
        labels_granted: Whether the attacker was given the labels. Right labels are then not counted as leakage.
    """
    if not scores:
        return Verdict.NOT_SCORED
    if any(_samples_leak(scores, metric, *limits) for metric, limits in CLEAR.items()):
        return Verdict.RECOVERS_DATA
    if any(_one_sample_leaks(score) for score in scores):
        return Verdict.RECOVERS_DATA
    if any(_is_unknown(measure) for score in scores for measure in score.values()):
        return Verdict.INCONCLUSIVE
    inferred = (*TOKENS, *ATTRIBUTES) if labels_granted else (*LABELS, *TOKENS, *ATTRIBUTES)
    if any(_inferred(scores, metric) for metric in inferred):
        return Verdict.RECOVERS_ATTRIBUTES
    return Verdict.NOTHING_ABOVE_CHANCE


def _is_unknown(measure: Measure) -> bool:
    """Return whether a value or its chance level is not a number, so that the two cannot be compared."""
    return math.isnan(measure.value) or (measure.chance is not None and math.isnan(measure.chance))


def judge_against_shuffled(
    scores: Sequence[Mapping[str, Measure]], shuffled: Sequence[Mapping[str, Measure]], *, labels_granted: bool = False
) -> tuple[Verdict, str]:
    """Return the verdict on an attack with public data, and a sentence about its control with shuffled messages.

    The control is the same attack on the messages of other people. If it finds something, the chance level is too low,
    and the attack shows nothing.

    Args:
        scores: For each attacked client, a mapping from the name of each metric to its measure.
        shuffled: The same for the messages of other people. It is empty if there is no such control.
        labels_granted: Whether the attacker was given the labels.
    """
    verdict = judge(scores, labels_granted=labels_granted)
    if not any(shuffled):
        return verdict, ""
    control = judge([one for one in shuffled if one], labels_granted=True)
    metric = next((name for name in CLEAR if name in shuffled[0]), None)
    figures = ""
    if metric is not None:
        measure = over_clients([{metric: one[metric]} for one in shuffled if one])[metric]
        figures = f" ({metric} {measure.value:.3g}, chance {measure.chance or 0:.3g})"
    if control is Verdict.RECOVERS_DATA:
        sentence = f"The control with messages of other people finds something too{figures}, so this shows nothing."
        return (Verdict.INCONCLUSIVE if verdict is Verdict.RECOVERS_DATA else verdict), sentence
    return verdict, f"With messages of other people, the same attack finds nothing{figures}."


def judge_share(right: Sequence[torch.Tensor], chance: float, *, confidence: float = 0.999) -> Verdict:
    """Return the verdict on the share of records for which an attack is right.

    Several attacks are tried on the same records. By luck, one of these attacks may do well even if all of them only
    guess. The required confidence is therefore high.

    Args:
        right: Whether the attack is right, for each record of each client.
        chance: The share of records for which a guess without any message is right.
        confidence: The confidence of Wilson's interval.
    """
    total = float(sum(part.sum() for part in right))
    low = wilson_interval(total, sum(len(part) for part in right), confidence).low
    above = low is not None and low > chance
    return Verdict.RECOVERS_ATTRIBUTES if above else Verdict.NOTHING_ABOVE_CHANCE


def worst_of(verdicts: Iterable[Verdict]) -> Verdict:
    """Return the verdict with the most leakage, which is the verdict on all attacks together."""
    order = list(Verdict)
    return min(verdicts, key=order.index, default=Verdict.NOT_SCORED)


def together(findings: Sequence[Finding]) -> Verdict:
    """Return one verdict on all attacks on one set-up.

    An attack that succeeded on an easier version of the set-up (its positive control) is strong enough to support
    "nothing above chance". Its verdict then replaces the verdicts on attacks that were too weak.

    Args:
        findings: The measures and the verdict of each attack on the set-up.
    """
    samples = {finding.verdict for finding in findings if finding.about_samples}
    if Verdict.NOTHING_ABOVE_CHANCE in samples:
        samples.discard(Verdict.INCONCLUSIVE)
    return worst_of([*samples, *(finding.verdict for finding in findings if not finding.about_samples)])


def over_clients(scores: Sequence[Mapping[str, Measure]]) -> dict[str, Measure]:
    """Return, for each metric that all clients have, the mean over clients with its confidence interval.

    Args:
        scores: For each client, a mapping from the name of each metric to its measure.
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
    """Return the difference of a metric from chance for each client, or ``None`` if a client has no such value.

    For the share of recovered features, the difference is divided by the share of features that a guess gets wrong.
    """
    found = [score[metric].excess if metric in score else None for score in scores]
    known = [value for value in found if value is not None]
    if len(known) < len(scores):
        return None
    excess = torch.tensor(known, dtype=torch.double)
    if metric != "features":
        return excess
    left = torch.tensor([1 - (score[metric].chance or 0.0) for score in scores], dtype=torch.double)
    return excess / left.clamp(min=1e-9)


def _samples_leak(scores: Sequence[Mapping[str, Measure]], metric: str, one: float, mean: float) -> bool:
    if metric == "features":
        scores = [score for score in scores if "tokens" not in score or score[metric].value >= MOST_TOKENS]
    above = _excess(scores, metric)
    if above is None or not len(above):
        return False
    by_itself = any(
        value > one and score[metric].beyond_luck for value, score in zip(above.tolist(), scores, strict=True)
    )
    return by_itself or (float(above.mean()) > mean and _all_above(scores, metric, above))


def _all_above(scores: Sequence[Mapping[str, Measure]], metric: str, above: torch.Tensor) -> bool:
    """Return whether a metric is better for the attacker than chance, and not only by luck.

    With at least :data:`FEW` clients, the interval of the mean decides. With fewer clients, this interval is wide or
    missing. The value of every client must then be better than the value of a lucky guess.
    """
    if len(scores) < FEW:
        return all(score[metric].beyond_luck for score in scores) and bool((above > 0).all())
    low = mean_interval(above).low
    return low is not None and low > 0


def _one_sample_leaks(score: Mapping[str, Measure]) -> bool:
    """Return whether at least one sample was clearly recovered, and more samples were recovered than by a guess.

    This check complements the mean over a client's samples, which hides a single sample that was recovered.
    """
    if any(_one_beyond_luck(score, metric, *limits) for metric, limits in BEYOND_ONE.items()):
        return True
    rows = score.get("rows")
    if rows is not None and rows.excess is not None:
        return rows.beyond_luck and rows.excess * rows.n >= 0.999
    psnr, recovered = score.get("psnr"), score.get("recovered")
    if psnr is None or recovered is None or psnr.worst is None or psnr.chance is None or recovered.excess is None:
        return False
    least, above = ONE_SAMPLE
    clear = psnr.worst >= least and psnr.worst >= psnr.chance + above
    return clear and recovered.excess * recovered.n >= 0.999


def _one_beyond_luck(score: Mapping[str, Measure], metric: str, margin: float, least: float) -> bool:
    """Return whether the best recovered sample is far better than the best single sample of many guesses."""
    measure, recovered = score.get(metric), score.get("recovered")
    if measure is None or measure.worst is None or measure.luck_of_one is None:
        return False
    if recovered is not None and recovered.value == 0:
        return False
    return measure.worst >= max(least, measure.luck_of_one + margin)


def _inferred(scores: Sequence[Mapping[str, Measure]], metric: str) -> bool:
    gain = _excess(scores, metric)
    return gain is not None and _all_above(scores, metric, gain)
