r"""Attacks that rebuild the model that a client would train alone (LMRA, Driouich et al., section 3).

Let :math:`u(\theta)` be the update that the client adds to a model :math:`\theta`. If a client receives its own optimum
:math:`\theta^*`, it returns the optimum unchanged, so :math:`u(\theta^*) = 0`. Every attack uses pairs
:math:`(\theta_t, u_t)` of many rounds to find the model at which :math:`u` is zero. The attacks differ in how they
describe :math:`u`. The number of parameters is d.

=====================  ================================================================  ============================
:class:`Exact`         :math:`u = W(\theta^* - \theta)` without noise                    proposition 1, d + 1 rounds
:class:`LeastSquares`  The same with noise. A regression gives :math:`W, W\theta^*`      proposition 3, many rounds
:class:`Secant`        :math:`u` is linear, fitted to the rounds by ridge regression     beyond the paper, any model
:class:`Learned`       :math:`u` is a neural network                                     algorithm 2, equations 7, 8
:class:`Distilled`     :math:`u` is the training on a few dummy samples                  algorithm 2 with our map
:class:`GlobalModel`   No model of :math:`u`. The result is the server's model           baseline, table 1
:class:`LastReturned`  No model of :math:`u`. The result is the client's last model      baseline, table 1
=====================  ================================================================  ============================

>>> from leakgauge.attacks import attribute, local_model  # doctest: +SKIP
>>> model = local_model.Distilled()(observations)  # many rounds of one client  # doctest: +SKIP
>>> attribute.by_model(model, records).choice  # doctest: +SKIP
"""

from leakgauge.attacks.local_model.base import LocalModel, LocalModelAttack
from leakgauge.attacks.local_model.baselines import GlobalModel, LastReturned
from leakgauge.attacks.local_model.by_name import build
from leakgauge.attacks.local_model.distilled import Distilled
from leakgauge.attacks.local_model.learned import Learned
from leakgauge.attacks.local_model.linear import Exact, LeastSquares
from leakgauge.attacks.local_model.messages import Messages
from leakgauge.attacks.local_model.secant import Secant

__all__ = [
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
