"""Lines of a Dockerfile become instructions: directives, comments, continuations, here-documents, flags, JSON forms."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NoReturn

from woodshed.dockerfile import words
from woodshed.errors import UsageError

KEYWORDS = frozenset({
    "ADD", "ARG", "CMD", "COPY", "ENTRYPOINT", "ENV", "EXPOSE", "FROM", "HEALTHCHECK", "LABEL", "MAINTAINER", "ONBUILD",
    "RUN", "SHELL", "STOPSIGNAL", "USER", "VOLUME", "WORKDIR",
})
_MOST_FLAGS = 64
_FLAGGED = frozenset({"ADD", "COPY", "FROM", "HEALTHCHECK", "RUN"})
_HERE = frozenset({"ADD", "COPY", "RUN"})
_DIRECTIVE = re.compile(r"^#\s*([A-Za-z][A-Za-z0-9]*)\s*=\s*(.+?)\s*$")
_HEREDOC = re.compile(r"^(\d*)<<(-?)([^<]*)$")
_FLAG = re.compile(r"--([a-z][a-z-]*)(?:=(.*))?", re.DOTALL)
_FRONTENDS = re.compile(r"(docker\.io/)?docker/dockerfile(-upstream)?(:.*)?$")


class Beyond(UsageError):
    """A Dockerfile asks for what is not built here, though Docker might: file, line and a remedy are named."""


@dataclass(frozen=True, slots=True)
class Heredoc:
    """A document within the Dockerfile. ``raw``: its delimiter was quoted, so no variable is put in."""

    name: str
    body: str
    raw: bool
    fd: int = 0


@dataclass(frozen=True, slots=True)
class Instruction:
    """One instruction. ``text`` is what follows keyword and flags, continued lines joined; ``line`` counts from 1.

    ``source`` is RUN's text with its here-documents, as a shell would read it.
    """

    keyword: str
    text: str
    line: int
    flags: tuple[tuple[str, str], ...] = ()
    heredocs: tuple[Heredoc, ...] = ()
    source: str = ""

    @property
    def array(self) -> list[str] | None:
        """The JSON form's strings; None for the shell form."""
        if not self.text.startswith("["):
            return None
        try:
            value = json.loads(self.text)
        except (ValueError, RecursionError):
            return None
        return value if isinstance(value, list) and all(isinstance(word, str) for word in value) else None


def refuse(file: object, line: int, message: str, remedy: str | None = None, *, beyond: bool = False) -> NoReturn:
    """Raise the UsageError that names the line; with ``beyond`` a Beyond."""
    kind = Beyond if beyond else UsageError
    raise kind(message, file=file, field=f"line {line}", remedy=remedy)


class Source:
    """The text of one Dockerfile, read line by line."""

    def __init__(self, text: str, file: object) -> None:
        """Reads the directives at the top. Raises UsageError for one that cannot be followed."""
        self.file, self.escape = file, "\\"
        self._lines = text.removeprefix("\ufeff").replace("\r\n", "\n").split("\n")
        self._at = 0
        self._directives()
        mark = re.escape(self.escape)
        self._continues = re.compile(rf"(^|[^{mark}]){mark}[ \t]*$")

    def _directives(self) -> None:
        seen: set[str] = set()
        while self._at < len(self._lines) and (match := _DIRECTIVE.match(self._lines[self._at].strip())):
            name, value = match[1].lower(), match[2]
            if name not in ("escape", "syntax", "check"):
                return
            self._at += 1
            if name in seen:
                refuse(self.file, self._at, f"the directive {name} is given twice", "Keep one.")
            seen.add(name)
            if name == "escape":
                if value not in ("\\", "`"):
                    refuse(self.file, self._at, f"escape is \\ or `, not {value!r}")
                self.escape = value
            if name == "syntax" and not _FRONTENDS.match(value):
                refuse(self.file, self._at, f"the syntax {value!r} is another language",
                       "Only docker/dockerfile can be read here.", beyond=True)

    def instructions(self) -> Iterator[Instruction]:
        """Every instruction in order. Raises UsageError naming the line."""
        while self._at < len(self._lines):
            line = self._lines[self._at].strip()
            if not line or line.startswith("#"):
                self._at += 1
                continue
            number, whole = self._at + 1, self._joined().strip()
            if whole:
                yield self._instruction(number, whole)

    def _instruction(self, number: int, whole: str) -> Instruction:
        keyword, *after = whole.split(None, 1)
        keyword, rest = keyword.upper(), after[0] if after else ""
        if keyword not in KEYWORDS:
            refuse(self.file, number, f"{keyword[:40]!r} is no instruction", "See Docker's Dockerfile reference.")
        heredocs = self._heredocs(rest, number) if keyword in _HERE and "<<" in rest else ()
        flags, text = self._flags(rest, number) if keyword in _FLAGGED else ((), rest)
        if not text:
            refuse(self.file, number, f"{keyword} needs something after it")
        source = text
        if heredocs and keyword == "RUN":
            source = "".join([text, "\n", *(f"{doc.body}{doc.name}\n" for doc in heredocs)])
        return Instruction(keyword, text, number, flags, heredocs, source)

    def _joined(self) -> str:
        """The next line with those that continue it; comments and empty lines between are left out."""
        line, self._at = self._lines[self._at], self._at + 1
        whole = ""
        while True:
            continued = self._continues.search(line)
            whole += line[:continued.start() + len(continued[1])] if continued else line
            if not continued:
                return whole
            while self._at < len(self._lines) and (
                not (following := self._lines[self._at].strip()) or following.startswith("#")
            ):
                self._at += 1
            if self._at >= len(self._lines):
                return whole
            line, self._at = self._lines[self._at], self._at + 1

    def _flags(self, rest: str, number: int) -> tuple[tuple[tuple[str, str], ...], str]:
        flags: list[tuple[str, str]] = []
        while rest.startswith("--"):
            first = words.split(rest, self.escape)[0]
            match = _FLAG.fullmatch(first)
            if match is None:
                break
            if len(flags) >= _MOST_FLAGS:
                refuse(self.file, number, f"more than {_MOST_FLAGS} flags")
            flags.append((match[1], match[2] if match[2] is not None else "true"))
            rest = rest[len(first):].lstrip()
        return tuple(flags), rest

    # -- here-documents ------------------------------------------------------------------------------------------------

    def _heredocs(self, rest: str, number: int) -> tuple[Heredoc, ...]:
        found = []
        for word in words.split(rest, self.escape):
            match = _HEREDOC.match(word)
            if match is None:
                continue
            quoted = match[3]
            try:
                name = words.expand(quoted, {}, self.escape) if "$" not in quoted else quoted
            except words.Unreadable:
                continue
            if not name:
                continue
            body = self._body(name, number, chomp=match[2] == "-")
            found.append(Heredoc(name, body, raw=name != quoted, fd=int(match[1] or 0)))
        return tuple(found)

    def _body(self, name: str, number: int, *, chomp: bool) -> str:
        body = ""
        while self._at < len(self._lines):
            line, self._at = self._lines[self._at], self._at + 1
            line = line.lstrip("\t") if chomp else line
            if line == name:
                return body
            body += line + "\n"
        refuse(self.file, number, f"the document <<{name} does not end", f"Write {name} alone on a line after it.")


def filled(instruction: Instruction, text: str, variables: Mapping[str, str], file: object, escape: str) -> str:
    """``text`` of ``instruction`` with its variables put in. Raises UsageError naming the line."""
    try:
        return words.expand(text, variables, escape)
    except words.Unreadable as error:
        refuse(file, instruction.line, str(error), beyond="no expansion known" in str(error))
