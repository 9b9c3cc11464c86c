"""Given: files that a user names are read whole and bounded; what cannot be read is refused by its name."""

from __future__ import annotations

import os
from pathlib import Path

from woodshed.errors import UsageError


def content(file: Path, most_bytes: int, *, remedy: str = "Is this the right file?") -> bytes:
    """All of ``file``. Raises UsageError where it cannot be read or is larger than ``most_bytes`` (with ``remedy``)."""
    try:
        with file.open("rb") as opened:
            large = os.fstat(opened.fileno()).st_size > most_bytes
            found = b"" if large else opened.read(most_bytes + 1)  # of a pipe, no size is known before
    except OSError as error:
        raise unread(error, file) from None
    if large or len(found) > most_bytes:
        raise UsageError(f"larger than {most_bytes} bytes", file=file, remedy=remedy)
    return found


def text(file: Path, most_bytes: int, *, remedy: str = "Is this the right file?") -> str:
    """The same, of a text in UTF-8. Raises UsageError for any other, too."""
    try:
        return content(file, most_bytes, remedy=remedy).decode("utf-8")
    except UnicodeDecodeError as error:
        raise no_text(error, file) from None


def unread(error: OSError, file: Path) -> UsageError:
    """``file`` cannot be read."""
    return UsageError(f"cannot be read: {error.strerror or error}", file=file, remedy="Check the path, and its rights.")


def no_text(error: UnicodeDecodeError, file: object) -> UsageError:
    """``file`` (or a line of one) is in some other encoding, or no text at all."""
    return UsageError(f"not UTF-8 (byte {error.start})", file=file, remedy="Save it as UTF-8.")
