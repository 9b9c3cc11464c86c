"""Logins of registries as ``docker login`` and ``podman login`` leave them: read, never written, never shown."""

from __future__ import annotations

import base64
import binascii
import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from woodshed.errors import UsageError
from woodshed.sandbox.images.reference import HUB

_HUB_KEYS = ("https://index.docker.io/v1/", "index.docker.io", "docker.io", "registry-1.docker.io")


@dataclass(frozen=True, slots=True)
class Login:
    """A name and a password. Its text shows neither."""

    user: str = field(repr=False)
    password: str = field(repr=False)

    def basic(self) -> str:
        """The value of an Authorization header (RFC 7617)."""
        return "Basic " + base64.b64encode(f"{self.user}:{self.password}".encode()).decode()


@dataclass(frozen=True, slots=True)
class Found:
    """What is known of a registry: a login, or the name of a program that would know one."""

    login: Login | None = None
    helper: str = ""


def files() -> list[Path]:
    """Where logins may lie, in the order in which they count."""
    chosen = [Path(os.environ["REGISTRY_AUTH_FILE"])] if os.environ.get("REGISTRY_AUTH_FILE") else []
    docker = Path(os.environ.get("DOCKER_CONFIG") or Path.home() / ".docker")
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    return [*chosen, docker / "config.json", *([Path(runtime) / "containers/auth.json"] if runtime else [])]


def find(registry: str) -> Found:
    """The login of ``registry``. Raises UsageError for a file that is damaged; its content is not told."""
    helper = ""
    for file in files():
        try:
            value = json.loads(file.read_bytes())
        except OSError:
            continue
        except (ValueError, RecursionError):
            raise UsageError("is no JSON", file=file, remedy="Mend it, or log in again.") from None
        if not isinstance(value, dict):
            continue
        if (login := _login(value.get("auths"), registry, file)) is not None:
            return Found(login)
        helpers = value.get("credHelpers")
        named = next((helpers[key] for key in _keys(registry) if key in helpers), "") if isinstance(
            helpers, dict) else ""
        helper = helper or str(named or value.get("credsStore") or "")
    return Found(helper=helper)


def _keys(registry: str) -> tuple[str, ...]:
    if registry == HUB:
        return _HUB_KEYS
    return registry, f"https://{registry}", f"https://{registry}/", f"https://{registry}/v1/", f"https://{registry}/v2/"


def _login(auths: Any, registry: str, file: Path) -> Login | None:
    if not isinstance(auths, dict):
        return None
    for key in _keys(registry):
        entry = auths.get(key)
        if not isinstance(entry, dict):
            continue
        if entry.get("identitytoken"):
            raise UsageError(f"holds an identity token for {registry}, which is not supported", file=file,
                             remedy="Log in with a password or an access token.")
        if isinstance(text := entry.get("auth"), str) and text:
            try:
                user, colon, password = base64.b64decode(text, validate=True).decode().partition(":")
            except (binascii.Error, UnicodeDecodeError):
                colon = ""
            if not colon:
                raise UsageError(f"holds a login for {registry} that cannot be read", file=file,
                                 remedy="Log in again.")
            return Login(user, password.rstrip("\0"))
        if isinstance(entry.get("username"), str) and isinstance(entry.get("password"), str):
            return Login(entry["username"], entry["password"])
    return None
