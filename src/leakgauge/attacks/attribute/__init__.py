r"""Attribute inference (AIA), which infers a hidden column of records from the public columns and targets.

Let :math:`h_\theta` be a model's output, :math:`p_i` the public part of record i, :math:`s` a value of the sensitive
attribute and :math:`y_i` the target (one-hot for a class). In round t, the server sends the model :math:`\theta_t`, and
client c returns :math:`\theta_{c,t}`. :math:`L` is the loss of the client.

===================  ==============================================================================================
:func:`by_model`     :math:`\arg\min_s \lVert h_\theta(p_i, s) - y_i \rVert^2` for each record (LMRA, equation 3)
:func:`by_gradient`  :math:`\arg\max_{s_1 \ldots s_N} \sum_t \cos(\nabla L(\theta_t; (p_i, s_i, y_i)_i), \theta_t -
                     \theta_{c,t})` for all records at once (LMRA, equation 2; Lyu and Chen 2021)
:func:`by_equations` The least-squares solution of the linear equations that the client's gradient gives for the values
                     of all records (beyond the paper)
===================  ==============================================================================================
"""

from leakgauge.attacks.attribute.base import AttributeAttack
from leakgauge.attacks.attribute.equations import by_equations
from leakgauge.attacks.attribute.gradient import by_gradient
from leakgauge.attacks.attribute.model import by_model
from leakgauge.attacks.attribute.records import Attributes, PublicRecords

__all__ = ["AttributeAttack", "Attributes", "PublicRecords", "by_equations", "by_gradient", "by_model"]
