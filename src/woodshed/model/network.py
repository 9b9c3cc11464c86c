"""NetworkPolicy: which hosts a sandbox may reach, and how. Records only; ``docs/network.md`` explains them."""

from __future__ import annotations

import ipaddress
import re

from pydantic import Field, ValidationInfo, field_validator

from woodshed.model.record import Record

SAFE_METHODS = ("GET", "HEAD", "OPTIONS")
"""What ``read_only`` leaves: the methods that ask for nothing to change (RFC 9110, section 9.2.1), without TRACE."""
_LABEL = re.compile(r"[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?")
_METHOD = re.compile(r"[A-Z]{1,32}")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_LONGEST_NAME, _MOST_PORTS = 253, 64


class SecretRule(Record):
    """The sandbox has a placeholder in the variable ``name``; on the way to the rule's host it becomes the secret.

    The secret is the content of ``file`` or of the variable ``env`` of the process that makes the sandbox, read when it
    is made. Exactly one of the two is given.
    """

    name: str
    env: str | None = None
    file: str | None = None

    @field_validator("name", "env")
    @classmethod
    def _variable(cls, name: str | None) -> str | None:
        if name is not None and not _VARIABLE.fullmatch(name):
            raise ValueError(f"{name!r} is no variable's name")
        return name

    @field_validator("file")
    @classmethod
    def _absolute(cls, path: str | None) -> str | None:
        if path is not None and (not path.startswith("/") or "\0" in path):
            raise ValueError("not an absolute path")
        return path

    @property
    def source(self) -> tuple[str | None, str | None]:
        """Where the secret comes from."""
        return self.env, self.file


class HostRule(Record):
    """One host, or all below ``*.`` a name, or every public one (``*``), that may be reached on ``ports``.

    Without more, TLS passes as the sandbox speaks it, its SNI checked, and plain HTTP request by request. ``methods``,
    ``read_only`` and ``secrets`` need requests that can be read: ``upstream_tls`` (the sandbox speaks plain HTTP, TLS
    begins here) or ``intercept`` (TLS of a certificate authority that this sandbox alone trusts). ``raw`` lets any
    protocol pass. ``private``: the name may lead to private addresses. ``address``: it leads there, whatever DNS says.
    """

    host: str
    ports: tuple[int, ...] = (80, 443)
    upstream_tls: bool = False
    intercept: bool = False
    raw: bool = False
    methods: tuple[str, ...] | None = None
    read_only: bool = False
    private: bool = False
    address: str | None = None
    ca_file: str | None = None
    max_sent_bytes: int | None = Field(default=None, gt=0, description="by the sandbox, over its life")
    max_received_bytes: int | None = Field(default=None, gt=0, description="by the sandbox, over its life")
    secrets: tuple[SecretRule, ...] = ()

    @field_validator("host")
    @classmethod
    def _name(cls, host: str) -> str:
        name = host.lower()
        if name == "*":
            return name
        _check_host(name.removesuffix(".").removeprefix("*."))
        return name.removesuffix(".")

    @field_validator("ports")
    @classmethod
    def _ports(cls, ports: tuple[int, ...]) -> tuple[int, ...]:
        if not ports or len(set(ports)) != len(ports):
            raise ValueError("ports are one or more different numbers")
        if wrong := [port for port in ports if not 0 < port < 65536 or port == 53]:
            raise ValueError(f"{wrong[0]} cannot be a port here: they are 1 to 65535, without 53, which answers names")
        return ports

    @field_validator("raw")
    @classmethod
    def _nothing_read(cls, raw: bool, info: ValidationInfo) -> bool:
        if raw and _read(info):
            raise ValueError("with raw nothing is read: leave out upstream_tls and intercept")
        return raw

    @field_validator("methods")
    @classmethod
    def _methods(cls, methods: tuple[str, ...] | None, info: ValidationInfo) -> tuple[str, ...] | None:
        if methods is None:
            return None
        if wrong := [method for method in methods if not _METHOD.fullmatch(method) or method == "CONNECT"]:
            raise ValueError(f"{wrong[0]!r} is no method that may pass: write them in capitals; CONNECT never passes")
        if not _read(info):
            raise ValueError(_UNREAD)
        return methods

    @field_validator("read_only")
    @classmethod
    def _read_only(cls, read_only: bool, info: ValidationInfo) -> bool:
        if read_only and info.data.get("methods") is not None:
            raise ValueError(f"methods are given too: read_only stands for {', '.join(SAFE_METHODS)}")
        if read_only and not _read(info):
            raise ValueError(_UNREAD)
        return read_only

    @field_validator("private")
    @classmethod
    def _named(cls, private: bool, info: ValidationInfo) -> bool:
        if private and _wild(info):
            raise ValueError("only a host that is named may be private")
        return private

    @field_validator("address")
    @classmethod
    def _pinned(cls, address: str | None, info: ValidationInfo) -> str | None:
        if address is not None:
            if _wild(info):
                raise ValueError("only a host that is named can have an address")
            split_address(address)
        return address

    @field_validator("ca_file")
    @classmethod
    def _trusted(cls, path: str | None, info: ValidationInfo) -> str | None:
        if path is not None and not _read(info):
            raise ValueError("TLS is checked by the sandbox itself here; it is ours with upstream_tls or intercept")
        if path is not None and not path.startswith("/"):
            raise ValueError("not an absolute path")
        return path

    @field_validator("secrets")
    @classmethod
    def _kept(cls, secrets: tuple[SecretRule, ...], info: ValidationInfo) -> tuple[SecretRule, ...]:
        if secrets and _wild(info):
            raise ValueError("each host that gets a secret is named: a pattern cannot have one")
        if secrets and not _read(info):
            raise ValueError(_UNREAD)
        for secret in secrets:
            if (secret.env is None) == (secret.file is None):
                raise ValueError(f"{secret.name}: give one of env and file, where the secret is")
        return secrets

    @property
    def allowed_methods(self) -> tuple[str, ...] | None:
        """None: all but CONNECT."""
        return SAFE_METHODS if self.read_only else self.methods


_UNREAD = ("requests can be read only with upstream_tls = true (the sandbox speaks plain HTTP, TLS begins outside) or "
           "intercept = true (a certificate authority for this sandbox)")


class NetworkPolicy(Record):
    """What of the network a sandbox has. Without rules: nothing but its own loopback. False where it has none."""

    rules: tuple[HostRule, ...] = ()
    connections: int = Field(default=64, gt=0, le=4096, description="at once")

    @field_validator("rules")
    @classmethod
    def _each_once(cls, rules: tuple[HostRule, ...]) -> tuple[HostRule, ...]:
        if len({port for rule in rules for port in rule.ports}) > _MOST_PORTS:
            raise ValueError(f"more than {_MOST_PORTS} different ports")
        known: set[tuple[str, int]] = set()
        sources: dict[str, tuple[str | None, str | None]] = {}
        for rule in rules:
            for port in rule.ports:
                if (rule.host, port) in known:
                    raise ValueError(f"two rules for {rule.host} on port {port}")
                known.add((rule.host, port))
            for secret in rule.secrets:
                if sources.setdefault(secret.name, secret.source) != secret.source:
                    raise ValueError(f"the secret {secret.name} comes from two sources")
        return rules

    def __bool__(self) -> bool:
        return bool(self.rules)

    def beside(self, other: NetworkPolicy) -> NetworkPolicy:
        """These rules, and those of ``other`` for hosts that none here names."""
        named = {rule.host for rule in self.rules}
        return self.model_copy(update={"rules": (*self.rules, *(r for r in other.rules if r.host not in named))})

    @property
    def ports(self) -> tuple[int, ...]:
        """What any rule is for, in order."""
        return tuple(sorted({port for rule in self.rules for port in rule.ports}))

    @property
    def secret_names(self) -> frozenset[str]:
        """Variables of the sandbox that hold placeholders."""
        return frozenset(secret.name for rule in self.rules for secret in rule.secrets)


def split_address(address: str) -> tuple[str, int | None]:
    """``IP``, ``IP:PORT`` or ``[IPv6]:PORT`` in its parts. Raises ValueError."""
    text, _, port = address.rpartition(":")
    if not text or (":" in text and not text.endswith("]")):
        text, port = address, ""
    number = int(port) if port.isascii() and port.isdigit() else None
    if port and (number is None or not 0 < number < 65536):
        raise ValueError(f"{address!r} has no port from 1 to 65535")
    text = text.removeprefix("[").removesuffix("]")
    try:
        return str(ipaddress.ip_address(text)), number
    except ValueError:
        raise ValueError(f"{address!r} is no IP address, with or without a port") from None


def _check_host(name: str) -> None:
    if not name.isascii():
        raise ValueError("a name of other letters is written as DNS has it, xn--…")
    if _is_address(name):
        raise ValueError("an address is no host: name the host, and give it the address if need be")
    if len(name) > _LONGEST_NAME or not all(_LABEL.fullmatch(label) for label in name.split(".")):
        raise ValueError(f"{name!r} is no host: write a name, '*.' and a name, or '*'")


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _read(info: ValidationInfo) -> bool:
    return bool(info.data.get("upstream_tls") or info.data.get("intercept"))


def _wild(info: ValidationInfo) -> bool:
    return str(info.data.get("host", "")).startswith("*")
