"""The measure of a client's tokens, and the guesses of tokens without the message."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import Tensor

from leakgauge.core.measure import Measure
from leakgauge.evaluation.chance import Chance, Guess, best
from leakgauge.evaluation.metrics.bags_of_tokens import token_agreement


def token_measure(
    samples: Tensor,
    originals: Tensor,
    read: Callable[[Tensor], Tensor],
    reference: Tensor | None,
    guesses: Sequence[Guess],
) -> Measure:
    """Return the agreement of the set of recovered tokens with the client's set of tokens.

    The guesses without the message are the tokens of random other samples, all tokens of other samples, and as many of
    the commonest ones as the client has.

    Args:
        samples: The reconstructed samples.
        originals: The client's samples.
        read: The function that returns the tokens of samples.
        reference: Samples of other people, from which the guesses draw.
        guesses: The blind guesses of samples.
    """
    true = read(originals)
    value, count = token_agreement(read(samples), true), len(true.unique())
    chance = Chance(0.0, "no tokens", 0.0)
    if reference is not None:
        tokens, times = read(reference).unique(return_counts=True)
        levels = {
            "commonest tokens of other samples": token_agreement(tokens[times.argsort(descending=True)[:count]], true),
            "all tokens of other samples": token_agreement(tokens, true),
        }
        draws = [token_agreement(read(reference[rows]), true) for guess in guesses for rows in guess.rows]
        if draws:
            levels["tokens of random other samples"] = sum(draws) / len(draws)
        level = best(levels, "higher")
        chance = Chance(level.value, level.source, max([*levels.values(), *draws]))
    return Measure(
        "tokens",
        value,
        None,
        None,
        chance=chance.value,
        n=count,
        of="tokens",
        direction="higher",
        worst=value,
        unit="F1",
        chance_source=chance.source,
        luck=chance.luck,
    )
