"""pip's configuration, read as pip reads it: files, then PIP_* variables, then our own setting ``pip_args``.

Source of names, places and precedence: pip's documentation, "Configuration"
(pip.pypa.io/en/stable/topics/configuration).
"""

from __future__ import annotations

import argparse
import configparser
import os
import shlex
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from woodshed.errors import UsageError
from woodshed.settings import setting

_DEFAULT_INDEX = "https://pypi.org/simple"
_MANY = ("extra-index-url", "find-links", "trusted-host")


@dataclass(frozen=True, slots=True)
class Config:
    """Where files come from and how to reach it. ``indexes`` are in order of preference; ``timeout_s`` per read."""

    indexes: tuple[str, ...] = (_DEFAULT_INDEX,)
    links: tuple[str, ...] = ()
    trusted: frozenset[str] = frozenset()
    cert: str | None = None
    client_cert: str | None = None
    proxy: str | None = None
    timeout_s: float = 15.0
    retries: int = 5


def read() -> Config:
    """The configuration in force. Raises UsageError for a file or number that cannot be parsed."""
    found: dict[str, str] = {}
    for path in _files():
        found |= _file(path)
    for name, value in os.environ.items():
        if name.startswith("PIP_") and value:
            found[_key(name.removeprefix("PIP_"))] = value
    found |= _arguments(found)
    indexes = [found.get("index-url", _DEFAULT_INDEX), *found.get("extra-index-url", "").split()]
    if found.get("no-index", "").lower() in ("1", "true", "yes", "on"):
        indexes = []
    return Config(
        indexes=tuple(url.rstrip("/") for url in indexes),
        links=tuple(found.get("find-links", "").split()),
        trusted=frozenset(found.get("trusted-host", "").lower().split()),
        cert=found.get("cert"),
        client_cert=found.get("client-cert"),
        proxy=found.get("proxy"),
        timeout_s=_number(found, "default-timeout", _number(found, "timeout", 15.0)),
        retries=int(_number(found, "retries", 5.0)),
    )


def _files() -> Iterator[Path]:
    """Lowest precedence first. ``PIP_CONFIG_FILE=/dev/null`` turns all of them off."""
    extra = os.environ.get("PIP_CONFIG_FILE")
    if extra == os.devnull:
        return
    for folder in reversed(os.environ.get("XDG_CONFIG_DIRS", "/etc/xdg").split(":")):
        yield Path(folder) / "pip" / "pip.conf"
    yield Path("/etc/pip.conf")
    with suppress(RuntimeError):  # a user without a home has no configuration there
        yield Path.home() / ".pip" / "pip.conf"
        yield Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "pip" / "pip.conf"
    yield Path(sys.prefix) / "pip.conf"
    if extra:
        yield Path(extra)


def _file(path: Path) -> dict[str, str]:
    parser = configparser.RawConfigParser()
    try:
        parser.read_string(path.read_text(encoding="utf-8"), source=str(path))
    except OSError:
        return {}
    except (configparser.Error, UnicodeDecodeError) as error:
        raise UsageError(f"cannot be parsed: {error}", file=path, remedy="Mend pip's configuration.") from None
    found: dict[str, str] = {}
    for section in ("global", "install", "download"):
        if parser.has_section(section):
            found |= {_key(name): value for name, value in parser.items(section) if value}
    return found


def _key(name: str) -> str:
    return name.lower().replace("_", "-").removeprefix("--")


def _arguments(found: dict[str, str]) -> dict[str, str]:
    """What ``pip_args`` adds: a repeatable option extends what is configured, any other replaces it."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    for name in ("cert", "client-cert", "proxy", "timeout", "retries"):
        parser.add_argument(f"--{name}")
    parser.add_argument("-i", "--index-url", "--pypi-url")
    parser.add_argument("-f", "--find-links", action="append")
    parser.add_argument("--extra-index-url", action="append")
    parser.add_argument("--trusted-host", action="append")
    parser.add_argument("--no-index", action="store_const", const="true")
    given, _ = parser.parse_known_args(shlex.split(setting("pip_args")))
    values: dict[str, str] = {}
    for name, value in vars(given).items():
        key = _key(name)
        if value is not None:
            values[key] = " ".join([found.get(key, ""), *value]).strip() if key in _MANY else value
    return values


def _number(found: dict[str, str], name: str, default: float) -> float:
    try:
        return float(found.get(name, default))
    except ValueError:
        raise UsageError(f"{found[name]!r} is not a number", file="pip's configuration", field=name) from None
