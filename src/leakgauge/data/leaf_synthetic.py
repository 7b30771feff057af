r"""LEAF Synthetic: generated data of clients whose true models differ (Caldas et al. 2018).

The procedure follows Appendix A of that paper and the generator that its authors released. There are d features, k
classes and p clusters of clients:

- Once, draw the entries of :math:`Q \in R^{(d+1) \times k \times p}` from N(0, 1), and each cluster's centre
  :math:`\mu_c \sim N(b_c, I_p)` with :math:`b_c \sim N(0, 1)`.
- For each client, draw a cluster uniformly. The client's model is :math:`W = Q u` with :math:`u \sim N(\mu_c, 0.1^2
  I_p)`. The client's inputs are :math:`x \sim N(v, \Sigma)` with :math:`v \sim N(b, I_d)`, :math:`b \sim N(0, 1)` and
  :math:`\Sigma = diag(j^{-1.2})` for the features :math:`j = 1, \ldots, d`.
- For each sample, the scores are :math:`z = W^T (1, x) + N(0, 0.1^2 I_k)`, and the label is the class with the largest
  softmax.

For each class, the released generator takes that softmax over the *samples* of a client and not over the classes. This
has a large effect. With the softmax over classes, almost all samples of most clients would have the same class. The
name LEAF Synthetic stands for the output of the released generator, so this module takes the softmax over samples too.
The random numbers of this module differ from LEAF's.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from leakgauge.core.checks import whole_number
from leakgauge.core.data_spec import DataSpec
from leakgauge.data.dataset import Dataset
from leakgauge.data.dataset_source import Source


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
    """Generate the data of all clients as one dataset. Each client is a group.

    The defaults are those of Local Model Reconstruction Attacks (LMRA; Driouich et al.), except for the number of
    classes, which is LEAF's default.

    Args:
        clients: The number of clients.
        classes: The number of classes.
        features: The number of features.
        clusters: The number of clusters of clients.
        samples: The number of samples of each client. ``None`` draws the number for each client as LEAF does, which is
            min(5 + lognormal(3, 2), 1000).
        binary_attribute: Whether ``feature_0`` is binary and sensitive, for attribute inference. Before labels are
            drawn, the values of ``feature_0`` become 1 if they are above the client's mean, and 0 otherwise. The paper
            only mentions "one synthetic binary attribute". ``feature_0`` was chosen because it has the largest
            variance.
        seed: The seed of all random draws.
    """
    whole_number("clients", clients)
    whole_number("features", features)
    whole_number("clusters", clusters)
    if samples is not None:
        whole_number("samples", samples)
    whole_number("classes", classes, at_least=2)
    whole_number("seed", seed, at_least=0)
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


SOURCE = Source("leaf_synthetic", "clients whose true models differ, 100 features", "generated", load, position=130)
