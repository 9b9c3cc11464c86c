"""Requirement strings are hostile input: only names, versions, extras and markers pass."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass

from packaging.requirements import InvalidRequirement, Requirement

from woodshed.errors import UsageError

_PYTEST = """
iniconfig==2.3.1 --hash=sha256:9121e2c1fdb355232495be3194c8dfe87ccc2d5dee45947b78e68f499790d7a7
packaging==26.4 --hash=sha256:81383611a09c1bc0b08b76e0fd5829d7c6824c65b27a6aee339da133f4233ea2
pip==26.3 --hash=sha256:f3b60b20ffaadd4415ed7957212a38ac63fa4c5fa375bd0f4a797777940fad13
pluggy==1.7.0 --hash=sha256:7dd7b0d8832ba3cb632c306926ded123429211b83641b35dc5c41ad2d34f9bec
pygments==2.21.0 --hash=sha256:2363c69b61c4a97c838da3b130dcd6468f4848992b21a82f2a63ec34377137d9
pytest==9.2.0 --hash=sha256:07acdcf88ec174f907dc01af70bf52d49b014bbab03faeeade31c96b18c2e588
"""


@dataclass(frozen=True, slots=True, order=True)
class Pin:
    """One distribution file: its normalised name, version, and the sha256 of its wheel in hex."""

    name: str
    version: str
    sha256: str

    def __str__(self) -> str:
        return f"{self.name}=={self.version} --hash=sha256:{self.sha256}"

    @classmethod
    def read(cls, line: str) -> Pin:
        """The pin a line of a requirements file holds, in the form that ``str`` gives."""
        what, _, sha256 = line.partition(" --hash=sha256:")
        name, _, version = what.partition("==")
        return cls(name, version, sha256)


BASE = tuple(Pin.read(line) for line in _PYTEST.split("\n") if line)
"""pytest with all it needs on Python 3.11 and newer, and pip: universal wheels as published on PyPI."""


def parse(requirements: Iterable[str], *, field: str = "requirements") -> tuple[str, ...]:
    """The requirements normalised, sorted, without repetition. Raises UsageError naming the first bad one.

    Options, URLs and paths are refused: they would let a task reach files of the host or run code at resolution.
    """
    return tuple(sorted({str(_one(text, field)) for text in requirements}))


def _one(text: str, field: str) -> Requirement:
    remedy = "Write a name with an optional version, such as 'requests==2.32.3' or 'attrs>=24'."
    if any(ord(sign) < 32 for sign in text):
        raise UsageError(f"{text!r} has a control character", field=field, remedy=remedy)
    if text.lstrip().startswith("-"):
        raise UsageError(f"{text!r} is an option of pip, not a requirement", field=field, remedy=remedy)
    try:
        found = Requirement(text)
    except InvalidRequirement as error:
        reason = str(error).split("\n", 1)[0]
        raise UsageError(f"{text!r} is not a requirement ({reason})", field=field, remedy=remedy) from None
    if found.url is not None:
        raise UsageError(f"{text!r} names a URL; requirements come from the configured index", field=field,
                         remedy=remedy)
    if found.name.lower().endswith((".whl", ".zip", ".tar", ".gz", ".tgz", ".bz2", ".tbz", ".xz", ".txz", ".tlz")):
        raise UsageError(f"{text!r} names an archive, not a distribution", field=field, remedy=remedy)
    return found


def key(*parts: str) -> str:
    """The sha256 in hex of ``parts``, each with its length, so that no two lists share a key."""
    total = hashlib.sha256()
    for part in parts:
        data = part.encode(errors="surrogateescape")
        total.update(b"%d:" % len(data) + data)
    return total.hexdigest()
