"""Encryption for an auditor: only the private key opens it, and nothing can be changed."""

import sys

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from leakgauge.core.errors import InvalidInput, MissingExtra
from leakgauge.core.sealing import check_public_key, opened, sealed
from tests.shared import key_pair


def test_only_the_private_key_opens_what_was_sealed():
    (private, public), (other, _) = key_pair(), key_pair()
    secret = sealed(b"samples", public, b"round 1")
    assert b"samples" not in secret
    assert opened(secret, private, b"round 1") == b"samples"
    for key, context, content in [
        (other, b"round 1", secret), (private, b"round 2", secret), (private, b"round 1", secret[:-1] + b"x"),
        (private, b"round 1", b""),
    ]:  # fmt: skip
        with pytest.raises(InvalidInput, match="does not open"):
            opened(content, key, context)


def test_keys_of_another_kind_are_refused():
    private, public = key_pair()
    curve = ec.generate_private_key(ec.SECP256R1()).public_key()
    for key in (b"no key", private):
        with pytest.raises(InvalidInput, match="public key cannot be read"):
            check_public_key(key)
    with pytest.raises(InvalidInput, match="not of X25519"):
        check_public_key(curve.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))
    with pytest.raises(InvalidInput, match="private key cannot be read"):
        opened(b"x" * 60, public, b"")


def test_without_the_library_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "cryptography.hazmat.primitives.hpke", None)
    with pytest.raises(MissingExtra, match="keeper"):
        check_public_key(b"")
