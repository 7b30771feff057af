"""The imputation of a hidden column, which is a prediction of the hidden values from the other columns.

Imputation is the baseline of attribute inference.
"""

from __future__ import annotations

import torch
from torch import Tensor

from leakgauge.core.errors import InvalidInput


def imputed(public: Tensor, others: Tensor, values: Tensor) -> Tensor:
    """Return a prediction of the hidden value of each record, (N,).

    A logistic regression makes the prediction. It is fitted to *other* records and uses no message of the client.
    Jayaraman and Evans (CCS 2022) found that attribute inference is often not better than such a prediction.

    Args:
        public: The known columns of the records, (N, columns).
        others: The same columns of other records, (M, columns).
        values: The hidden value of each of the other records, (M,).

    >>> others = torch.tensor([[0.0, 5.0], [1.0, 4.0], [0.0, 4.0], [1.0, 5.0]])
    >>> imputed(torch.tensor([[1.0, 5.0], [0.0, 5.0]]), others, torch.tensor([0, 1, 0, 1]))
    tensor([1, 0])
    """
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler
    from threadpoolctl import threadpool_limits

    if len(others) == 0 or public.shape[1:] != others.shape[1:] or len(others) != len(values):
        raise InvalidInput(
            f"imputation needs other records with the columns of {tuple(public.shape)} and one value for each of them, "
            f"not records of shape {tuple(others.shape)} and {len(values)} values"
        )
    if len(values.unique()) == 1:
        return values[:1].expand(len(public)).clone()
    model = make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000))
    with threadpool_limits(1):  # the last bits depend on the number of threads, and torch's number is another
        model.fit(others.double().cpu().numpy(), values.cpu().numpy())
        return torch.from_numpy(model.predict(public.double().cpu().numpy())).to(values)
