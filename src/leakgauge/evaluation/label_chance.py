"""The chance level of labels and targets.

The chance level is the value of a metric for an attacker who does not see the update. This attacker knows only how
frequent each label or target is.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from leakgauge.evaluation.chance import Chance, Guess, best
from leakgauge.evaluation.metrics.targets import label_accuracy, label_errors, target_error

#: The number of random guesses of labels.
DRAWS = 200
#: The share of guesses that are as good as a lucky guess.
LUCKY = 0.05


def proportional_counts(frequencies: Tensor, total: int, generator: torch.Generator) -> Tensor:
    """Divide ``total`` into counts in proportion to frequencies, by the method of the largest remainder.

    Args:
        frequencies: The frequency of each class.
        total: The sum of the counts.
        generator: The random generator that chooses between equal remainders.

    >>> proportional_counts(torch.tensor([0.5, 0.3, 0.2]), 4, torch.Generator().manual_seed(0))
    tensor([2, 1, 1])
    """
    exact = total * frequencies.double() / frequencies.double().sum()
    counts = (exact + 1e-9).floor().long()
    lots = torch.rand(len(exact), generator=generator, dtype=torch.float64)
    remainders = (exact - counts).round(decimals=9) + 1e-10 * lots
    counts[remainders.topk(total - int(counts.sum())).indices] += 1
    return counts


def label_error_chance(
    total: int, classes: int, reference_counts: Tensor | None = None, *, draws: int = DRAWS, seed: int = 0
) -> Chance:
    """Return the number of wrong labels that is expected for an attacker without any message.

    Such an attacker knows only the frequencies of classes, and guesses the labels of a random client with ``total``
    samples. One guess divides the labels in proportion to the frequencies, and the other guess draws the labels at
    random. The chance level is the error of the better guess. It does not depend on the labels of the attacked client.

    Args:
        total: The number of the client's samples.
        classes: The number of classes.
        reference_counts: The number of reference samples of each class. Without them, all classes are equally likely.
        draws: The number of random clients, which is also the number of random guesses.
        seed: The seed of the clients and of the guesses.

    >>> label_error_chance(4, 2, torch.tensor([50, 0]))
    Chance(value=0.0, source='labels in proportion to other samples', luck=0.0)
    """
    known = reference_counts is not None and int(reference_counts.sum()) > 0
    frequencies = reference_counts.double() if known and reference_counts is not None else torch.ones(classes)
    generator = torch.Generator().manual_seed(seed)

    def random_counts() -> list[Tensor]:
        drawn = torch.multinomial(frequencies.expand(draws, -1), total, replacement=True, generator=generator)
        return [torch.bincount(labels, minlength=classes) for labels in drawn]

    guesses = random_counts()
    proportional = [proportional_counts(frequencies, total, generator) for _ in range(draws)]
    clients = random_counts()
    origin = "to other samples" if known else "(classes equally likely)"

    def errors(guessed: list[Tensor]) -> Tensor:
        pairs = zip(guessed, clients, strict=True)
        return torch.tensor([label_errors(guess, client, counts=True) for guess, client in pairs], dtype=torch.double)

    levels = {
        f"labels in proportion {origin}": errors(proportional),
        f"random labels {origin}": errors(guesses),
    }
    level = best({source: float(values.mean()) for source, values in levels.items()}, "lower")
    return replace(level, luck=_lucky(levels[level.source]))


def _lucky(errors: Tensor) -> float:
    """Return the error of a lucky guess, which is the 5% quantile of the given errors."""
    return float(errors.quantile(LUCKY, interpolation="lower"))


def label_accuracy_chance(
    true: Tensor, classes: int, reference: Tensor | None = None, guesses: list[Guess] | None = None
) -> Chance:
    """Return the expected share of right labels for an attacker who does not see the update.

    Reference samples are other samples of the same population. The attacker may guess a random class, the most frequent
    class of the reference samples, or the labels of random reference samples. The chance level is the share of right
    labels for the best of these guesses.

    Args:
        true: The labels of the originals, (N,).
        classes: The number of classes.
        reference: The labels of the reference samples.
        guesses: Blind guesses of the samples, some of which are random reference samples. The labels of these reference
            samples are also guessed.

    >>> label_accuracy_chance(torch.tensor([0, 1, 1, 1]), 2, torch.tensor([0, 1, 1]))
    Chance(value=0.75, source='commonest label of other samples', luck=None)
    """
    levels = {"one of equally likely labels": 1 / classes}
    if reference is not None and len(reference):
        commonest = torch.bincount(reference, minlength=classes).argmax()
        levels["commonest label of other samples"] = float((true == commonest).double().mean())
        for guess in guesses or []:
            if guess.rows:
                right = [
                    label_accuracy(quality.pairing.apply(reference[rows], missing=-1), true).mean()
                    for quality, rows in zip(guess.qualities, guess.rows, strict=True)
                ]
                levels["labels of random other samples"] = float(torch.stack(right).mean())
    return best(levels, "higher")


def target_error_chance(true: Tensor, reference: Tensor | None = None, values: int | None = None) -> Chance:
    """Return the expected error of an attacker who guesses targets without the update.

    The same target is guessed for every sample. For numbers, there are three guesses, which are zero, the mean of the
    reference targets and their median. For several labels and for masks, the guesses are the value 0 and, for each
    entry, the most frequent value of the reference targets. The chance level is the error of the best guess. The luck
    is the error of a lucky guess. To find it, random reference targets are guessed for other random reference targets
    many times. The luck is the 5% quantile of the errors.

    Args:
        true: The targets of the originals.
        reference: The targets of the reference samples.
        values: The number of values that each entry can have, or ``None`` for numbers.

    >>> target_error_chance(torch.tensor([1.0, 3.0]), torch.tensor([1.0, 2.0, 9.0]))
    Chance(value=1.0, source='median target of other samples', luck=0.0)
    """
    guesses = {"a target of zero": torch.zeros_like(true[:1])}
    if reference is not None and len(reference):
        if values is not None:
            guesses["most frequent target of other samples"] = reference.mode(0, keepdim=True).values
        else:
            guesses["mean target of other samples"] = reference.double().mean(0, keepdim=True)
            guesses["median target of other samples"] = reference.median(0, keepdim=True).values
    levels = {name: float(target_error(guess.expand_as(true), true, values).mean()) for name, guess in guesses.items()}
    level = best(levels, "lower")
    if reference is None or not len(reference):
        return level
    generator = torch.Generator().manual_seed(0)
    guessed, others = (torch.randint(len(reference), (DRAWS, len(true)), generator=generator) for _ in range(2))
    pairs = zip(guessed, others, strict=True)
    errors = [target_error(reference[one], reference[other], values).mean() for one, other in pairs]
    return replace(level, luck=_lucky(torch.stack(errors)))
