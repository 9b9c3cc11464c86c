"""Passwords are stored as salted scrypt hashes: ``salt$hash``, both in hex."""

from __future__ import annotations

import hashlib
import hmac
import secrets


def hash_password(password: str) -> str:
    """The string to store for ``password``."""
    salt = secrets.token_bytes(16)
    return f"{salt.hex()}${_scrypt(password, salt).hex()}"


def check_password(password: str, stored: str) -> bool:
    """Whether ``password`` is the one that ``stored`` was made from. Takes the same time for every password."""
    salt, _, expected = stored.partition("$")
    return hmac.compare_digest(_scrypt(password, bytes.fromhex(salt)), bytes.fromhex(expected))


def _scrypt(password: str, salt: bytes) -> bytes:
    return hashlib.scrypt(password.encode(), salt=salt, n=2**12, r=8, p=1)
