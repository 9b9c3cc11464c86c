"""The key of a service: given by a setting, or made once and kept in a file that is its owner's alone."""

from __future__ import annotations

import os
import secrets
import stat
from pathlib import Path

from woodshed import settings
from woodshed.errors import UsageError

FILE = "serve.key"
SHORTEST = 16


def service_key(home: Path) -> tuple[str, Path | None]:
    """The key, and the file that holds it; None where the setting gives it, which then stands there no more.

    Programs that this process starts would inherit it. Raises UsageError for a key that is short, or has signs that
    a header cannot carry, and for a file that others may read.
    """
    setting = settings.SERVE_KEY
    if given := settings.setting(setting):
        os.environ.pop(f"WOODSHED_{setting.upper()}", None)
        _check(given, f"WOODSHED_{setting.upper()}")
        return given, None
    file = home / FILE
    try:
        return _kept(file), file
    except OSError as error:
        raise UsageError(f"cannot be used: {error.strerror}", file=file,
                         remedy="Remove it, or set WOODSHED_SERVE_KEY.") from None


def _kept(file: Path) -> str:
    try:
        made = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except FileExistsError:
        return _read(file)
    with os.fdopen(made, "w") as opened:
        opened.write(secrets.token_urlsafe(32) + "\n")
        opened.flush()
        os.fsync(made)
    return _read(file)


def _read(file: Path) -> str:
    with os.fdopen(os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC), "r", errors="replace") as opened:
        info = os.fstat(opened.fileno())
        if not stat.S_ISREG(info.st_mode) or info.st_uid != os.geteuid() or info.st_mode & 0o077:
            raise UsageError("others may read it, or it is not yours", file=file,
                             remedy="Remove it, and start again; then a new key is made.")
        key = opened.read(1000).strip()
    _check(key, str(file))
    return key


def _check(key: str, where: str) -> None:
    if len(key) < SHORTEST or not all("!" <= sign <= "~" for sign in key):
        raise UsageError(f"no key: at least {SHORTEST} signs of printable ASCII, without spaces", field=where,
                         remedy="Take one from: openssl rand -base64 32")
