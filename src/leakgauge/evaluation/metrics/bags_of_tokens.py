"""The metrics for tokens, which are whole numbers that a model looks up in one embedding, as the words of a text.

Many models take tokens in any order, so a message may hold the tokens of a text and not their order. The share of a
text's tokens that came back is therefore counted in any order.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import torch
from torch import Tensor

#: An amount of a word up to this is none.
ABSENT = 1e-6


def overlaps(reconstructed: Tensor, original: Tensor, places: Sequence[int]) -> Tensor:
    """Return how many tokens each pair of samples has in common, in any order, (originals, reconstructions).

    Args:
        reconstructed: The reconstructed samples, (M, values).
        original: The originals, (N, values).
        places: The indices of the values that are tokens.

    >>> overlaps(torch.tensor([[3.0, 3.0, 5.0]]), torch.tensor([[5.0, 3.0, 1.0]]), [0, 1, 2])
    tensor([[2]])
    """
    one, other = whole(reconstructed, places), whole(original, places)
    names = torch.cat([one.flatten(), other.flatten()]).unique()
    mine, true = (_counted(tokens, names) for tokens in (one, other))
    rows = [torch.minimum(mine, row).sum(1) for row in true]
    return torch.stack(rows) if rows else one.new_zeros(0, len(one))


def _counted(tokens: Tensor, names: Tensor) -> Tensor:
    """Return how often each sample has each token, (N, names)."""
    counts = torch.zeros(len(tokens), len(names), dtype=torch.long)
    return counts.scatter_add_(1, torch.searchsorted(names, tokens), torch.ones_like(tokens))


def whole(samples: Tensor, places: Sequence[int]) -> Tensor:
    """Return the tokens of each sample as whole numbers. Values that are not finite become -1.

    Args:
        samples: The samples, (N, *shape).
        places: The indices of the values that are tokens, in the flattened sample.
    """
    values = samples.detach().cpu().double().flatten(1)[:, list(places)]
    return values.nan_to_num(-1.0, -1.0, -1.0).clamp(-1, 2**52).round().long()


def token_agreement(reconstructed: Tensor, original: Tensor) -> float:
    """Return the agreement of two sets of tokens (F1), which is 1 for equal sets and 0 for sets without common tokens.

    Args:
        reconstructed: The tokens of all reconstructed samples.
        original: The tokens of all of the client's samples.

    >>> token_agreement(torch.tensor([1, 2, 2, 9]), torch.tensor([1, 2, 3]))
    0.6666666666666666
    """
    one, other = reconstructed.unique(), original.unique()
    common = int(torch.isin(one, other).sum())
    return 2 * common / max(1, len(one) + len(other))


def commonest_tokens(reference: Tensor, places: Sequence[int]) -> Tensor:
    """Return the sample whose tokens are the likeliest ones, which is the best guess of a bag of tokens.

    The first copy of a token and further copies of it count separately.

    Args:
        reference: Samples of other people.
        places: The indices of the values that are tokens.

    >>> commonest_tokens(torch.tensor([[7.0, 7.0, 1.0], [7.0, 7.0, 2.0], [7.0, 3.0, 2.0]]), [0, 1, 2])
    tensor([7, 7, 2])
    """
    copies: Counter[tuple[int, int]] = Counter()
    for sample in whole(reference, places).tolist():
        for token, count in Counter(sample).items():
            copies.update((token, copy) for copy in range(count))
    return torch.tensor([token for (token, _), _ in copies.most_common(len(places))])


def words(samples: Tensor) -> Tensor:
    """Return the columns in which rows of word counts are not zero.

    >>> words(torch.tensor([[0.0, 2.0, 0.0], [0.0, 1.0, 1.0]]))
    tensor([1, 2])

    Args:
        samples: The rows, (N, columns).
    """
    values = samples.detach().cpu().double().flatten(1).nan_to_num(0.0, 0.0, 0.0).abs()
    return torch.nonzero((values > ABSENT).any(0)).flatten()
