"""Data and heavy libraries of many tests, loaded when a test first uses them and not at collection."""

from functools import cache
from importlib import import_module
from typing import Any

from leakgauge import data
from leakgauge.core.observation import Observation
from leakgauge.core.truth import Truth
from leakgauge.data import Dataset
from leakgauge.testing import Case, Network, small_case


@cache
def digits() -> Dataset:
    """Return scikit-learn's digits."""
    return data.load("digits")


@cache
def shared_case(kind: Case = "gradient", network: Network = "lenet") -> tuple[Observation, Truth]:
    """Return a small case, the same objects at every call."""
    return small_case(kind, network=network)


class LazyModule:
    """A module that is imported when a test first reads a public name from it.

    Collection reads special names such as ``__wrapped__`` from every object of a test module. They import nothing.

    Args:
        name: The full name of the module.
    """

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> Any:
        if name.startswith(("_", "pytest")):
            raise AttributeError(name)
        return getattr(import_module(self._name), name)


def key_pair() -> tuple[bytes, bytes]:
    """Return a new private key and its public key, as an auditor makes them with OpenSSL."""
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

    key = X25519PrivateKey.generate()
    private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return private, key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
