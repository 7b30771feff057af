"""What a hidden column's neighbours tell of it, without any message: the guess that attribute inference has to beat."""

from __future__ import annotations

import torch
from torch import Tensor

from leakgauge.core.errors import InvalidInput


def imputed(public: Tensor, others: Tensor, values: Tensor) -> Tensor:
    """The hidden value of each record as a logistic regression on *other* records gives it, (N,).

    ``public`` is what is known of the records, (N, columns), ``others`` the same of records whose hidden ``values``
    are known. Jayaraman and Evans (CCS 2022) found that attribute inference often does no better than this.

    >>> others = torch.tensor([[0.0, 5.0], [1.0, 4.0], [0.0, 4.0], [1.0, 5.0]])
    >>> imputed(torch.tensor([[1.0, 5.0], [0.0, 5.0]]), others, torch.tensor([0, 1, 0, 1]))
    tensor([1, 0])
    """
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    if len(others) == 0 or public.shape[1:] != others.shape[1:] or len(others) != len(values):
        raise InvalidInput(
            f"what columns tell is learned from other records with the same columns and their values, not from "
            f"{tuple(others.shape)} and {len(values)} values for {tuple(public.shape)}"
        )
    if len(values.unique()) == 1:
        return values[:1].expand(len(public)).clone()
    model = make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000))
    model.fit(others.double().cpu().numpy(), values.cpu().numpy())
    return torch.from_numpy(model.predict(public.double().cpu().numpy())).to(values)
