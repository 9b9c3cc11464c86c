"""Secrets stay outside: a sandbox has a placeholder, which becomes the secret in the headers of one host's requests.

A response that repeats a secret as it is has it blotted out. A host that returns it in another form (compressed against
our wish, encoded) gives it away: it has the secret, and is trusted with it.
"""

from __future__ import annotations

import base64
import binascii
import os
import secrets as random
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from woodshed.errors import UsageError
from woodshed.model.network import HostRule, NetworkPolicy, SecretRule
from woodshed.sandbox.egress.http import Fields

_LEAST, _LARGEST = 8, 8192
"""Characters of a secret: a shorter one would be blotted out of everything, a longer one is none."""


class Secret:
    """A placeholder and what it stands for. The value is in no repr, and only in :attr:`value`."""

    __slots__ = ("name", "placeholder", "value")

    def __init__(self, name: str, value: bytes) -> None:
        self.name, self.value = name, value
        self.placeholder = b"woodshed-secret-" + random.token_hex(16).encode()

    def __repr__(self) -> str:
        return f"Secret({self.name})"


def read(policy: NetworkPolicy) -> dict[str, Secret]:
    """The secrets of ``policy`` by the variable of the sandbox, with new placeholders.

    Raises UsageError where one is missing or cannot be sent in a header. Blocking, for a moment.
    """
    found: dict[str, Secret] = {}
    for rule in policy.rules:
        for secret in rule.secrets:
            if secret.name not in found:
                found[secret.name] = Secret(secret.name, _value(secret))
    return found


def _value(secret: SecretRule) -> bytes:
    at = f"network.rules.secrets.{secret.name}"
    if secret.file is not None:
        try:
            with Path(secret.file).open("rb") as file:
                value = file.read(_LARGEST + 2).rstrip(b"\r\n")
        except OSError as error:
            raise UsageError(f"{secret.file} cannot be read: {error.strerror}", field=at,
                             remedy="Name a file with the secret alone in it.") from None
    else:
        text = os.environ.get(secret.env or "")
        if text is None:
            raise UsageError(f"the variable {secret.env} is not set", field=at,
                             remedy="Set it where Woodshed runs; the sandbox never has it.")
        value = os.fsencode(text)
    if not _LEAST <= len(value) <= _LARGEST or any(byte < 0x21 or byte == 0x7F for byte in value):
        raise UsageError(f"not {_LEAST} to {_LARGEST} bytes without spaces and control characters", field=at,
                         remedy="Store the secret alone, as it is to be sent.")
    return value


def of_rule(rule: HostRule, known: Mapping[str, Secret]) -> tuple[Secret, ...]:
    """The secrets that requests of ``rule`` get."""
    return tuple(known[secret.name] for secret in rule.secrets)


@dataclass(slots=True)
class Put:
    """A request's fields with secrets in them; the names of those; and every form in which one is sent."""

    fields: Fields
    names: list[str] = field(default_factory=list)
    forms: list[bytes] = field(default_factory=list, repr=False)


def put(fields: Fields, secrets: Iterable[Secret]) -> Put:
    """Secrets for placeholders, also inside the credentials of Basic authorization, which are base64.

    Where a secret could be sent no compressed answer is asked for: what it repeats could not be found.
    """
    secrets = tuple(secrets)
    if not secrets:
        return Put(fields)
    made = Put([], forms=[secret.value for secret in secrets])
    for name, value in fields:
        for secret in secrets:
            changed = _basic(value, secret, made.forms) if name.lower() == b"authorization" else None
            changed = changed or value.replace(secret.placeholder, secret.value)
            if changed != value:
                made.names.append(secret.name)
                value = changed
        if name.lower() != b"accept-encoding":
            made.fields.append((name, value))
    made.fields.append((b"Accept-Encoding", b"identity"))
    return made


def _basic(value: bytes, secret: Secret, forms: list[bytes]) -> bytes | None:
    scheme, _, credentials = value.partition(b" ")
    if scheme.lower() != b"basic":
        return None
    try:
        plain = base64.b64decode(credentials.strip(), validate=True)
    except (binascii.Error, ValueError):
        return None
    if secret.placeholder not in plain:
        return None
    forms.append(base64.b64encode(plain.replace(secret.placeholder, secret.value)))
    return scheme + b" " + forms[-1]


class Blot:
    """Blots secrets out of a stream of bytes, whatever pieces it comes in. The length stays: ``*`` for each byte.

    The end of what came is held back whatever it is. If that were done where a secret could begin alone, the delay
    would tell whoever can have a guess repeated how much of it is right.
    """

    def __init__(self, values: Iterable[bytes]) -> None:
        self._values = tuple(values)
        self._most = max(map(len, self._values), default=1) - 1
        self._held, self._marked = b"", 0  # as it came, and how much of its beginning is of a secret found already

    @property
    def holds(self) -> bool:
        """Whether something is held back."""
        return bool(self._held)

    def pass_on(self, data: bytes) -> bytes:
        """What may be passed on now; as much as could be the beginning of a secret is held back."""
        data = self._held + data
        return self._cut(data, max(0, len(data) - self._most))

    def rest(self) -> bytes:
        """What was held back."""
        return self._cut(self._held, len(self._held))

    def all(self, data: bytes) -> bytes:
        """``data`` by itself, apart from the stream."""
        return Blot(self._values)._cut(data, len(data))

    def _cut(self, data: bytes, at: int) -> bytes:
        """``data`` up to ``at``, blotted; the rest is held. Secrets may overlap."""
        shown, reach = bytearray(data), self._marked
        shown[:reach] = b"*" * reach
        for value in self._values:
            found = data.find(value)
            while found >= 0:
                end = found + len(value)
                shown[found:end] = b"*" * len(value)
                reach = max(reach, end) if found < at else reach
                found = data.find(value, found + 1)
        self._held, self._marked = data[at:], max(0, reach - at)
        return bytes(shown[:at])
