"""Encryption of files for an auditor, by HPKE (RFC 9180) with X25519 as in the library ``cryptography``.

A key pair is made with OpenSSL::

    openssl genpkey -algorithm x25519 -out auditor.pem
    openssl pkey -in auditor.pem -pubout -out auditor.pub
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from leakgauge.core.errors import InvalidInput, MissingExtra

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.hpke import Suite


def sealed(content: bytes, public_key: bytes, context: bytes) -> bytes:
    """Encrypt bytes such that only the owner of a private key can read them.

    Args:
        content: The bytes.
        public_key: The public key as PEM.
        context: Readable bytes that the encrypted bytes are tied to.
    """
    return _suite().encrypt(content, _public(public_key), info=context)


def opened(content: bytes, private_key: bytes, context: bytes) -> bytes:
    """Decrypt bytes of :func:`sealed`.

    Args:
        content: The encrypted bytes.
        private_key: The private key as PEM.
        context: The readable bytes that the encrypted bytes are tied to.
    """
    suite = _suite()
    from cryptography.exceptions import InvalidTag
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    try:
        key: Any = load_pem_private_key(private_key, password=None)
    except (ValueError, TypeError) as problem:
        raise InvalidInput(f"the private key cannot be read ({problem}). {_MADE_BY}") from problem
    if not isinstance(key, X25519PrivateKey):
        raise InvalidInput(f"the private key is not of X25519. {_MADE_BY}")
    try:
        return suite.decrypt(content, key, info=context)
    except (InvalidTag, ValueError) as problem:
        raise InvalidInput("the private key does not open these samples, or the file was altered") from problem


def check_public_key(key: bytes) -> None:
    """Raise an error if a public key cannot be used.

    Args:
        key: The public key as PEM.
    """
    _suite()
    _public(key)


_MADE_BY = "Make one with: openssl genpkey -algorithm x25519 -out auditor.pem"


def _suite() -> Suite:
    try:
        from cryptography.hazmat.primitives.hpke import AEAD, KDF, KEM, Suite
    except ImportError as problem:
        raise MissingExtra("encrypting kept samples", "cryptography", "keeper") from problem
    return Suite(KEM.X25519, KDF.HKDF_SHA256, AEAD.AES_256_GCM)


def _public(key: bytes) -> Any:
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PublicKey
    from cryptography.hazmat.primitives.serialization import load_pem_public_key

    try:
        public = load_pem_public_key(key)
    except (ValueError, TypeError) as problem:
        raise InvalidInput(
            f"the auditor's public key cannot be read ({problem}). Make it from the private key with: openssl pkey -in "
            "auditor.pem -pubout"
        ) from problem
    if not isinstance(public, X25519PublicKey):
        raise InvalidInput(f"the auditor's public key is not of X25519. {_MADE_BY}")
    return public
