"""Small clients with texts, which are the ids of words, and networks with embeddings."""

import torch
from torch import nn

from leakgauge.core.data_spec import DataSpec
from leakgauge.data import Dataset
from tests.known_answers.networks import of_words
from tests.known_answers.populations import texts

TEXTS = texts()


def reader(body="mean", seed=0, **options):
    """Return a network on texts."""
    torch.manual_seed(seed)
    return of_words(shape=TEXTS.spec.shape, classes=3, body=body, **options)


class Concatenated(nn.Module):
    """A network that concatenates the embeddings of two codes with three numbers."""

    def __init__(self):
        super().__init__()
        self.one, self.other = nn.Embedding(20, 6), nn.Embedding(30, 6)
        self.net = nn.Sequential(nn.Linear(15, 32), nn.Tanh(), nn.Linear(32, 16), nn.Tanh(), nn.Linear(16, 3))

    def forward(self, inputs):
        codes = inputs[:, :2].round().long()
        return self.net(torch.cat([self.one(codes[:, 0]), self.other(codes[:, 1]), inputs[:, 2:]], 1))


def mixed_rows(count):
    """Return rows of two codes and three numbers."""
    draw = torch.Generator().manual_seed(4)
    codes = torch.stack([torch.randint(20, (count,), generator=draw), torch.randint(30, (count,), generator=draw)], 1)
    inputs = torch.cat([codes.float(), torch.randn(count, 3, generator=draw)], 1)
    targets = torch.randint(3, (count,), generator=draw)
    return Dataset(inputs, targets, DataSpec((5,), 3, bounded=False))
