"""Attacks that read many rounds of a client: its own model (LMRA), and what that model gives away.

>>> from leakscope import inference  # doctest: +SKIP
>>> model = inference.Distilled()(observations)          # many rounds of one client  # doctest: +SKIP
>>> inference.attribute.by_model(model, records).choice  # doctest: +SKIP
"""

from leakscope.inference import attribute, sample, source
from leakscope.inference.attribute import Attributes, PublicRecords
from leakscope.inference.distilled import Distilled
from leakscope.inference.learned import Learned
from leakscope.inference.local_model import Exact, GlobalModel, LastReturned, LeastSquares, Secant
from leakscope.inference.messages import LocalModel, LocalModelAttack, Messages
from leakscope.inference.methods import METHODS, build
from leakscope.inference.sample import ClassSamples
from leakscope.inference.source import Sources

__all__ = [
    "METHODS",
    "Attributes",
    "ClassSamples",
    "Distilled",
    "Exact",
    "GlobalModel",
    "LastReturned",
    "Learned",
    "LeastSquares",
    "LocalModel",
    "LocalModelAttack",
    "Messages",
    "PublicRecords",
    "Secant",
    "Sources",
    "attribute",
    "build",
    "sample",
    "source",
]
