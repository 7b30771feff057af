r"""LEAF's synthetic classification data, generated: clients whose true models differ (Caldas et al. 2018).

The recipe (their Appendix A and released generator), with d features, k classes and p clusters of clients:

- once: :math:`Q \in R^{(d+1) \times k \times p}`, entries N(0, 1); each cluster's centre
  :math:`\mu_c \sim N(b_c, I_p)` with :math:`b_c \sim N(0, 1)`;
- a client: a cluster drawn uniformly; its model :math:`W = Q u`, :math:`u \sim N(\mu_c, 0.1^2 I_p)`; its
  inputs :math:`x \sim N(v, \Sigma)` with :math:`v \sim N(b, I_d)`, :math:`b \sim N(0, 1)` and
  :math:`\Sigma = diag(j^{-1.2})`;
- a sample: scores :math:`z = W^T (1, x) + N(0, 0.1^2 I_k)`; its label is the class with the largest softmax.

The released generator takes that softmax over the *samples* of a client, for each class, not over the
classes. This decides the data: with the softmax over classes, most clients hold little but one class. What
is known as LEAF Synthetic is what the generator makes, so we do the same. Our random numbers are not theirs.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from leakgauge.core.checks import at_least
from leakgauge.core.observation import DataSpec
from leakgauge.data.dataset import Dataset


def load(
    *,
    clients: int = 10,
    classes: int = 5,
    features: int = 100,
    clusters: int = 5,
    samples: int | None = 2000,
    binary_attribute: bool = False,
    seed: int = 0,
) -> Dataset:
    """One dataset whose groups are the clients. The defaults are the LMRA paper's, 5 classes LEAF's.

    ``samples`` is each client's number of samples; ``None`` draws it as LEAF does, min(5 + lognormal(3, 2),
    1000). ``binary_attribute`` makes an attribute attack possible, for which the LMRA paper speaks of "one
    synthetic binary attribute" and no more: before labels are drawn, ``feature_0`` (the widest one) becomes 1
    where it is above the client's mean and 0 elsewhere, and is the sensitive column.
    """
    at_least(1, clients=clients, features=features, clusters=clusters, samples=samples)
    at_least(2, classes=classes)
    at_least(0, seed=seed)
    random = np.random.default_rng(seed)
    if samples is None:
        sizes = np.minimum(5 + random.lognormal(3, 2, clients).astype(np.int64), 1000)
    else:
        sizes = np.full(clients, samples)
    mixing = random.standard_normal((features + 1, classes, clusters))
    centres = random.standard_normal((clusters, 1)) + random.standard_normal((clusters, clusters))
    deviations = np.arange(1, features + 1) ** -0.6

    inputs, targets = [], []
    for size in sizes:
        centre = centres[random.integers(clusters)]
        weights = mixing @ (centre + 0.1 * random.standard_normal(clusters))
        mean = random.standard_normal() + random.standard_normal(features)
        rows = mean + deviations * random.standard_normal((size, features))
        if binary_attribute:
            rows[:, 0] = rows[:, 0] > mean[0]
        scores = weights[0] + rows @ weights[1:] + 0.1 * random.standard_normal((size, classes))
        inputs.append(rows)
        targets.append((scores - _log_sum_exp(scores)).argmax(axis=1))
    return Dataset(
        torch.from_numpy(np.concatenate(inputs).astype(np.float32)),
        torch.from_numpy(np.concatenate(targets).astype(np.int64)),
        DataSpec((features,), classes, bounded=False, columns=tuple(f"feature_{j}" for j in range(features))),
        name="leaf_synthetic",
        groups=torch.arange(clients).repeat_interleave(torch.from_numpy(sizes)),
        group_names=tuple(f"client {client}" for client in range(clients)),
        sensitive="feature_0" if binary_attribute else None,
    )


def _log_sum_exp(scores: NDArray[np.float64]) -> NDArray[np.float64]:
    largest = scores.max(axis=0)
    total: NDArray[np.float64] = largest + np.log(np.exp(scores - largest).sum(axis=0))
    return total
