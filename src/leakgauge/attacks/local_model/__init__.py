"""Attacks that read many rounds of a client: its own model (LMRA), and what that model gives away.

>>> from leakgauge.attacks import attribute, local_model  # doctest: +SKIP
>>> model = local_model.Distilled()(observations)          # many rounds of one client  # doctest: +SKIP
>>> attribute.by_model(model, records).choice  # doctest: +SKIP
"""

from leakgauge.attacks.local_model.by_name import METHODS, build
from leakgauge.attacks.local_model.distilled import Distilled
from leakgauge.attacks.local_model.learned import Learned
from leakgauge.attacks.local_model.messages import LocalModel, LocalModelAttack, Messages
from leakgauge.attacks.local_model.methods import Exact, GlobalModel, LastReturned, LeastSquares, Secant

__all__ = [
    "METHODS",
    "Distilled",
    "Exact",
    "GlobalModel",
    "LastReturned",
    "Learned",
    "LeastSquares",
    "LocalModel",
    "LocalModelAttack",
    "Messages",
    "Secant",
    "build",
]
