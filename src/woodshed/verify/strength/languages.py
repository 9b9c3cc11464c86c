"""What is code, comment and string in languages other than Python, well enough to change one line. Pure.

A lexer by regular expressions, not a parser: it errs on the side of calling something code.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import PurePosixPath


class Family(StrEnum):
    """Languages that are mutated alike."""

    BRACES = "braces"  # C, Java, JavaScript, TypeScript, Go, Rust …
    SHELL = "shell"
    SCRIPT = "script"  # Ruby, Perl, R, Lua …: comments begin with a sign, keywords close blocks
    SQL = "sql"
    DATA = "data"  # JSON, YAML, TOML, INI
    PLAIN = "plain"  # all else: lines of text


@dataclass(frozen=True, slots=True)
class Piece:
    """A run of bytes from ``start`` to ``end`` that is ``code``, ``string`` or ``comment``."""

    kind: str
    start: int
    end: int


_DOUBLE = rb'"(?:\\.|[^"\\\n])*"'
_SINGLE = rb"'(?:\\.|[^'\\\n])*'"
_HASH = rb"(?:(?<=\s)|^|(?<=;))#[^\n]*"


def _lexer(comment: bytes, *strings: bytes) -> re.Pattern[bytes]:
    string = rb"|".join(strings)
    return re.compile(rb"(?P<comment>" + comment + rb")|(?P<string>" + string + rb")", re.DOTALL | re.MULTILINE)


_C_COMMENT = rb"//[^\n]*|/\*.*?(?:\*/|\Z)"
_BRACES = _lexer(_C_COMMENT, _DOUBLE, _SINGLE, rb"`(?:\\.|[^`\\])*`")
_RUST = _lexer(_C_COMMENT, _DOUBLE, rb"'(?:\\.|[^'\\\n])'")  # 'a is a lifetime
_SHELL = _lexer(_HASH, rb'"(?:\\.|[^"\\])*"', rb"'[^']*'")
_SCRIPT = _lexer(_HASH, _DOUBLE, _SINGLE)
_DASHES = _lexer(rb"--[^\n]*", _DOUBLE, _SINGLE)
_SQL = _lexer(rb"--[^\n]*|/\*.*?(?:\*/|\Z)", rb"'(?:''|[^'])*'", _DOUBLE)
_INI = _lexer(rb"^\s*[;#][^\n]*", _DOUBLE)
_JSON = _lexer(_C_COMMENT, _DOUBLE)
_PLAIN = re.compile(rb"(?P<comment>(?!))|(?P<string>(?!))")

_SUFFIXES: dict[str, tuple[Family, re.Pattern[bytes]]] = {}
for _family, _pattern, _names in (
    (Family.BRACES, _BRACES, "c h cc cpp cxx hh hpp hxx java js jsx mjs cjs ts tsx mts cts go cs kt kts scala swift"
                             " dart php groovy zig m mm"),
    (Family.BRACES, _RUST, "rs"),
    (Family.SHELL, _SHELL, "sh bash zsh ksh bats"),
    (Family.SCRIPT, _SCRIPT, "rb pl pm r jl tcl awk ex exs"),
    (Family.SCRIPT, _DASHES, "lua hs"),
    (Family.SQL, _SQL, "sql"),
    (Family.DATA, _SCRIPT, "yaml yml toml"),
    (Family.DATA, _INI, "ini cfg conf properties env"),
    (Family.DATA, _JSON, "json jsonc json5"),
):
    for _name in _names.split():
        _SUFFIXES[f".{_name}"] = (_family, _pattern)

_SHEBANGS = ((re.compile(rb"#![^\n]*\b(?:ba|da|z|k)?sh\b"), (Family.SHELL, _SHELL)),
             (re.compile(rb"#![^\n]*\bnode\b"), (Family.BRACES, _BRACES)),
             (re.compile(rb"#![^\n]*\b(?:ruby|perl|Rscript|awk)\b"), (Family.SCRIPT, _SCRIPT)))
OPTIONAL = re.compile(rb"^[ \t]*(?:readonly )?[\w$]+\?:[^=(){}\n]*;[ \t]*$", re.MULTILINE)
"""A member of a TypeScript interface that may be missing: nothing of it is left when the program runs."""
_LINEWISE = frozenset({Family.SHELL, Family.SCRIPT, Family.DATA})


def language(path: str, content: bytes) -> tuple[Family, re.Pattern[bytes]]:
    """The family of a file and its lexer, by suffix, else by the first line."""
    known = _SUFFIXES.get(PurePosixPath(path).suffix.lower())
    if known is not None:
        return known
    return next((found for pattern, found in _SHEBANGS if pattern.match(content)), (Family.PLAIN, _PLAIN))


def pieces(content: bytes, lexer: re.Pattern[bytes]) -> Iterator[Piece]:
    """``content`` from its beginning to its end, without gaps."""
    at = 0
    for match in lexer.finditer(content):
        if match.start() > at:
            yield Piece("code", at, match.start())
        if match.end() > match.start():
            yield Piece(match.lastgroup or "code", match.start(), match.end())
        at = match.end()
    if at < len(content):
        yield Piece("code", at, len(content))


def same_code(path: str, first: bytes, second: bytes) -> bool:
    """True where the contents differ only in comments, and in blanks that the language does not read."""
    family, lexer = language(path, second)
    if family is Family.PLAIN or b"\0" in first + second:
        return first == second
    return _essence(first, family, lexer) == _essence(second, family, lexer)


def _essence(content: bytes, family: Family, lexer: re.Pattern[bytes]) -> list[bytes]:
    content = OPTIONAL.sub(b"", content) if family is Family.BRACES else content
    found = [piece for piece in pieces(content, lexer) if piece.kind != "comment"]
    kept = [(piece.kind, content[piece.start : piece.end]) for piece in found]
    if family in _LINEWISE:
        lines = b"".join(text for _, text in kept).split(b"\n")
        return [line.rstrip() for line in lines if line.strip()]
    return [word for kind, text in kept for word in ([text] if kind == "string" else text.split())]
