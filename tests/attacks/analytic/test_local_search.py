"""The search goes on until all samples are found, or until too many searches in a row find nothing new."""

import pytest
import torch

from leakgauge.attacks.analytic.local_layers import LocalLayers
from leakgauge.attacks.analytic.local_search import _find_all
from leakgauge.federation.client import fedavg
from tests.attacks.analytic.cases import DIGITS, dense

LAYERS = LocalLayers.of(fedavg(dense(96, 48), DIGITS.share(range(6)), lr=0.02, epochs=2, batch_size=2, seed=0)[0])


class Counts:
    """Findings whose number after each search is given."""

    def __init__(self, counts):
        self.layers, self.counts, self.searches = LAYERS, counts, 0

    def search_once(self):
        self.searches += 1

    def kept(self):
        count = 0 if not self.searches else self.counts[min(self.searches, len(self.counts)) - 1]
        return torch.zeros(count, 65), torch.zeros(count)


@pytest.mark.parametrize(
    ("counts", "searches"), [([6], 1), ([2, 4, 6], 3), ([3], 4), ([0], 3), ([2, 2, 5], 6)], ids=str
)
def test_searches_end_when_all_is_found_or_three_find_nothing_new(counts, searches):
    findings, seen = Counts(counts), []
    assert not _find_all(findings, 3, lambda step, total, loss: seen.append((step, total)))
    assert findings.searches == searches
    assert seen[-1] == (counts[-1], 6)
