"""The signs that a client can see in the weights that it received, before it trains on them."""

from leakgauge.federation.received.check import ModelCheck, ModelRefused, Sign, check_model
from leakgauge.federation.received.digest import fingerprint

__all__ = ["ModelCheck", "ModelRefused", "Sign", "check_model", "fingerprint"]
