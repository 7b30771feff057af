"""Whether a message names the client's words, token ids or categories, whatever an attack makes of them."""

from __future__ import annotations

from typing import Any

from leakgauge.attacks.analytic import embedding_read_off, word_read_off
from leakgauge.attacks.analytic.lookups import lookups_of
from leakgauge.core.observation import Observation


def names_words(observation: Observation) -> str:
    """Return a sentence if the message names the client's words or categories, and otherwise the empty text.

    Args:
        observation: The client's message (gradient or weights), as the server sees it.
    """
    for fits in (embedding_read_off.fits, word_read_off.fits):
        fit = fits(observation)
        if fit.applies:
            return f"{fit.reason[0].upper()}{fit.reason[1:]}."
    return ""


def named_by(observation: Observation) -> dict[str, Any]:
    """Return the options with which a result is scored if the samples are texts or rows of words.

    Args:
        observation: The client's message (gradient or weights), as the server sees it.
    """
    if observation.data.is_image:
        return {}
    if tokens := lookups_of(observation).tokens:
        return {"tokens": tokens}
    return {"rows_of_words": True} if word_read_off.fits(observation).applies else {}
