"""Words of an instruction: split, with variables put in and quotes taken off, as BuildKit's shell lexer does."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

_SPACE = " \t\r\n"
_NAME = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_")
_SPECIAL = frozenset("@*#?-$!0123456789")
"""Parameters of a shell that no Dockerfile has: they are empty."""


LONGEST = 1 << 17
"""Characters of what variables make of a word: Linux takes no longer variable or argument (MAX_ARG_STRLEN)."""
_DEEPEST = 40


class Unreadable(ValueError):
    """A quote or brace that does not end, or an expansion that is not known; the message says which."""


def split(text: str, escape: str = "\\") -> list[str]:
    """Words as they stand, quotes and escapes kept; a quote that does not end is part of the last word."""
    words, word, quote, at = list[str](), "", "", 0
    while at < len(text):
        char = text[at]
        if not quote and char in _SPACE:
            if word:
                words.append(word)
            word = ""
        elif char == escape and quote != "'" and at + 1 < len(text):
            word += text[at:at + 2]
            at += 1
        else:
            if char in "'\"" and quote in ("", char):
                quote = "" if quote else char
            word += char
        at += 1
    return [*words, word] if word else words


def expand(word: str, variables: Mapping[str, str], escape: str = "\\") -> str:
    """``word`` with its variables put in, and its quotes and escapes taken off. Raises Unreadable."""
    return _Lexer(word, variables, escape).run()


def expand_document(text: str, variables: Mapping[str, str]) -> str:
    """A here-document with its variables put in: quotes are text, and a backslash only escapes ``$`` and itself."""
    return _Lexer(text, variables, "\\").document()


class _Lexer:
    def __init__(self, text: str, variables: Mapping[str, str], escape: str) -> None:
        self._text, self._variables, self._escape = text, variables, escape
        self._at = self._made = self._depth = 0

    def run(self, end: str = "") -> str:
        """Everything up to ``end`` (a closing brace, taken), or the text's own end."""
        out = ""
        while self._at < len(self._text):
            char = self._take()
            if char == end:
                return out
            if char == "'":
                out += self._until("'")
            elif char == '"':
                out += self._quoted()
            elif char == "$":
                out += self._variable()
            elif char == self._escape:
                out += self._take() if self._at < len(self._text) else char
            else:
                out += char
        if end:
            raise Unreadable(f"a ${{ without its }} in {self._text!r}")
        return out

    def document(self) -> str:
        """Everything, as a shell reads a here-document."""
        out = ""
        while self._at < len(self._text):
            char = self._take()
            if char == "$":
                out += self._variable()
            elif char == self._escape and self._text[self._at:self._at + 1] in ("$", self._escape):
                out += self._take()
            else:
                out += char
        return out

    def _take(self) -> str:
        self._at += 1
        return self._text[self._at - 1]

    def _until(self, end: str) -> str:
        stop = self._text.find(end, self._at)
        if stop < 0:
            raise Unreadable(f"a {end} that does not end in {self._text!r}")
        found, self._at = self._text[self._at:stop], stop + 1
        return found

    def _quoted(self) -> str:
        out = ""
        while self._at < len(self._text):
            char = self._take()
            if char == '"':
                return out
            if char == "$":
                out += self._variable()
            elif char == self._escape and self._at < len(self._text):
                after = self._take()
                # Within double quotes only these three lose their escape.
                out += after if after in ('"', "$", self._escape) else char + after
            else:
                out += char
        raise Unreadable(f'a " that does not end in {self._text!r}')

    def _variable(self) -> str:
        if self._at >= len(self._text):
            return "$"
        if self._text[self._at] == "{":
            self._at += 1
            return self._braced()
        if name := self._name():
            return self._put(self._variables.get(name, ""))
        return "$"

    def _put(self, value: str) -> str:
        """``value``, which becomes part of the word: a few lines could double it without end."""
        self._made += len(value)
        if self._made > LONGEST:
            raise Unreadable(f"more than {LONGEST} characters come of {self._text[:80]!r}")
        return value

    def _name(self) -> str:
        start = self._at
        if start < len(self._text) and self._text[start] in _SPECIAL:
            self._at += 1
            return self._text[start]
        while self._at < len(self._text) and self._text[self._at] in _NAME:
            self._at += 1
        return self._text[start:self._at]

    def _braced(self) -> str:
        name = self._name()
        if not name or self._at >= len(self._text):
            raise Unreadable(f"a ${{ that names no variable in {self._text!r}")
        mark = self._take()
        value = self._variables.get(name)
        if mark == "}":
            return self._put(value or "")
        if mark == ":":
            value = value or None  # empty counts as unset
            mark = self._take() if self._at < len(self._text) else ""
        if mark not in ("-", "+", "?"):
            raise Unreadable(f"${{{name}{mark}…}} is no expansion known here (those are :- - :+ + :? ?)")
        self._depth += 1
        if self._depth > _DEEPEST:
            raise Unreadable(f"expansions more than {_DEEPEST} deep in {self._text[:80]!r}")
        word = self.run("}")
        self._depth -= 1
        if mark == "-":
            return word if value is None else self._put(value)
        if mark == "+":
            return "" if value is None else word
        if value is None:
            raise Unreadable(f"{name}: {word or 'is not set'}")
        return self._put(value)


def pairs(text: str, escape: str = "\\") -> Iterator[tuple[str, str]]:
    """``KEY=value`` words, or the older ``KEY the rest of the line``; values as they stand. Raises Unreadable."""
    words = split(text, escape)
    if not words:
        raise Unreadable("names nothing")
    if "=" not in words[0]:
        value = text.strip()[len(words[0]):].strip()
        if not value:
            raise Unreadable(f"{words[0]!r} has no value")
        yield words[0], value
        return
    for word in words:
        name, equals, value = word.partition("=")
        if not equals or not name:
            raise Unreadable(f"{word!r} is not NAME=value")
        yield name, value
