"""Names of images in registries, by Docker's rules.

Source: the distribution project's reference grammar (``NAME[:TAG][@DIGEST]``) and its normalisation for docker.io.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from woodshed.errors import UsageError

HUB = "docker.io"
PREFIX = "docker://"
_PART = r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*"
_REPOSITORY = re.compile(rf"{_PART}(?:/{_PART})*")
_LABEL = r"(?:[a-zA-Z0-9]|[a-zA-Z0-9][a-zA-Z0-9-]*[a-zA-Z0-9])"
_REGISTRY = re.compile(rf"(?:{_LABEL}(?:\.{_LABEL})*|\[[a-fA-F0-9:]+\])(?::[0-9]{{1,5}})?")
_TAG = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}")
DIGEST = re.compile(r"sha256:[a-f0-9]{64}")
_LONGEST = 255


@dataclass(frozen=True, slots=True)
class Reference:
    """One name. With a ``digest`` the tag says nothing; without either the tag is ``latest``."""

    registry: str
    repository: str
    tag: str = "latest"
    digest: str = ""

    @property
    def host(self) -> str:
        """Where its registry answers: Docker Hub has another host than name."""
        return "registry-1.docker.io" if self.registry == HUB else self.registry

    @property
    def wanted(self) -> str:
        """What a registry is asked for: the digest, else the tag."""
        return self.digest or self.tag

    def __str__(self) -> str:
        return f"{self.registry}/{self.repository}" + (f"@{self.digest}" if self.digest else f":{self.tag}")


def parse(text: str, *, field: str = "image") -> Reference:
    """The reference in ``text``; ``docker://`` before it is allowed. Raises UsageError."""
    bare = text.removeprefix(PREFIX)
    name, at, digest = bare.partition("@")
    if at and not DIGEST.fullmatch(digest):
        raise _bad(text, field, f"{digest!r} is no digest", "Write @sha256: and 64 hexadecimal digits.")
    before, colon, tag = name.rpartition(":")
    if colon and "/" not in tag:
        name = before
        if not _TAG.fullmatch(tag):
            raise _bad(text, field, f"{tag!r} is no tag", "Use letters, digits, '.', '_' and '-', at most 128.")
    else:
        tag = "latest"
    first, slash, rest = name.partition("/")
    if slash and ("." in first or ":" in first or first == "localhost" or first.lower() != first):
        registry, repository = first, rest
    else:
        registry, repository = HUB, name
    if registry == "index.docker.io":
        registry = HUB
    if registry == HUB and "/" not in repository:
        repository = f"library/{repository}"
    if not _REGISTRY.fullmatch(registry) or not _REPOSITORY.fullmatch(repository):
        raise _bad(text, field, f"{text!r} is no name of an image",
                   "Write [REGISTRY/]NAME[:TAG][@sha256:…], in lower case.")
    if len(registry) + len(repository) >= _LONGEST:
        raise _bad(text, field, "the name is too long", f"At most {_LONGEST} characters.")
    return Reference(registry, repository, tag, digest)


def _bad(text: str, field: str, message: str, remedy: str) -> UsageError:
    return UsageError(message if text.isprintable() else "unprintable characters", field=field, remedy=remedy)
