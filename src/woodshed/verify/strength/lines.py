"""Mutants of single lines, for languages without a parser here. Pure.

Operators follow universalmutator (Groce and others, ICSE 2018: mutation by regular expressions over lines) and the
lists of Stryker for C-like languages. What does not compile is killed by any verifier; comments are never touched.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import accumulate

from woodshed.verify.strength.edit import Edit
from woodshed.verify.strength.languages import OPTIONAL, Family, language, pieces

_LINE_BYTES = 2_000  # longer lines are data or generated


def _swaps(*pairs: tuple[bytes, bytes]) -> dict[bytes, bytes]:
    return dict(pairs) | {b: a for a, b in pairs if b not in dict(pairs)}


_COMPARE = {b"<": (b"<=", b">="), b">": (b">=", b"<="), b"<=": (b"<", b">"), b">=": (b">", b"<"), b"==": (b"!=",),
            b"!=": (b"==",), b"===": (b"!==",), b"!==": (b"===",), b"<>": (b"=",)}
_ARITHMETIC = {b"+": b"-", b"-": b"+", b"*": b"/", b"/": b"*", b"%": b"*", b"+=": b"-=", b"-=": b"+=", b"*=": b"/=",
               b"/=": b"*="}
_WORDS = _swaps((b"true", b"false"), (b"True", b"False"), (b"TRUE", b"FALSE"), (b"and", b"or"), (b"AND", b"OR"),
                (b"break", b"continue"), (b"ASC", b"DESC"), (b"MIN", b"MAX"), (b"any", b"all"), (b"min", b"max"))
_SHELL_TESTS = _swaps((b"-eq", b"-ne"), (b"-lt", b"-le"), (b"-gt", b"-ge"), (b"-z", b"-n"), (b"-f", b"-d"))
_COMPARISON = re.compile(rb"(?<=\s)(?:===|!==|==|!=|<=|>=|<>|<|>)(?=\s)")
_SUM = re.compile(rb"(?<=[\w)\]'\"] )(?:[-+*/]=|[-+*/%])(?= [\w(\['\"-])")
_STEP = re.compile(rb"\+\+|--(?=[;)\w])")
_LOGIC = re.compile(rb"&&|\|\|")
_NOT = re.compile(rb"(?<![\w!=])!(?=[\w(])")
_NAME = re.compile(rb"(?<![\w.$-])[A-Za-z]+(?![\w-])")
_NUMBER = re.compile(rb"(?<![\w.#$])\d{1,9}(?![\w.])")
_OPTION = re.compile(rb"(?<=\s)-(?:eq|ne|lt|le|gt|ge)(?=\s)|(?:(?<=\[ )|(?<=test )|(?<=! ))-[znfd](?=\s)")
_IF = re.compile(rb"\bif\s*(?=\()")
_APPEND = re.compile(rb"(?<=\s)>>(?=\s)")
_DISTINCT = re.compile(rb"\bDISTINCT |\bLEFT (?=JOIN)|\bNOT ", re.IGNORECASE)
_RULES: dict[Family, tuple[str, ...]] = {
    Family.BRACES: ("comparison", "arithmetic", "step", "logic", "not", "word", "number", "condition"),
    Family.SCRIPT: ("comparison", "arithmetic", "logic", "not", "word", "number"),
    Family.SHELL: ("option", "logic", "number", "append", "shell-comparison"),
    Family.SQL: ("comparison", "arithmetic", "word", "number", "clause"),
    Family.DATA: ("word", "number"),
    Family.PLAIN: ("number",),
}
_IMPORTING = re.compile(rb"\s*(?:import|export \* from|#\s*include|use|using|package|require|from|source|\.)\b")
_OPENING = re.compile(rb"[{(\[,:\\]\s*$|\b(?:then|do|else|begin|try)\s*$|(?:&&|\|\||[-+*/=?])\s*$")
_KEYWORD = re.compile(rb"\s*(?:[})\];]+|(?:fi|done|esac|end|else|then|do|begin|default:?|set [-+]\S.*|#!.*)\s*;?\s*$|"
                      rb"(?:const|let|var|val|def|func|fn|function|class|struct|enum|interface|type|impl|module|package|"
                      rb"import|export|using|use|include|elif|else|case|catch|finally|@)\b)")


def line_edits(path: str, content: bytes, changed: frozenset[int]) -> Iterator[Edit]:
    """What may be changed on the lines (from 1) in ``changed``."""
    if b"\0" in content:
        return
    family, lexer = language(path, content)
    starts = [0, *accumulate(len(line) + 1 for line in content.split(b"\n"))]
    spans = [(starts[line - 1], min(starts[line] - 1, len(content))) for line in sorted(changed) if line < len(starts)]
    found = list(pieces(content, lexer))
    for start, end in spans:
        if end - start > _LINE_BYTES or not content[start:end].strip():
            continue
        code = b"".join(content[max(piece.start, start) : min(piece.end, end)] for piece in found
                        if piece.kind != "comment")
        yield from _removed(content, start, end, family, code)
        for piece in found:
            low, high = max(piece.start, start), min(piece.end, end)
            if low >= high or piece.kind == "comment":
                continue
            if piece.kind == "code":
                yield from _in_code(content, low, high, family)
            elif (low, high) == (piece.start, piece.end) and _is_value(content, start, end, low, high):
                yield from _in_string(content, low, high, family)


def _in_code(content: bytes, low: int, high: int, family: Family) -> Iterator[Edit]:
    for rule in _RULES[family]:
        pattern, operator = _PATTERNS[rule]
        for match in pattern.finditer(content, low, high):
            for new in _replacements(rule, match, content, high):
                extent = match.end() if rule != "condition" else match.end() + _balanced(content, match.end(), high)
                yield Edit(operator, match.start(), extent, new)


def _replacements(rule: str, match: re.Match[bytes], content: bytes, high: int) -> tuple[bytes, ...]:
    text = match[0]
    if rule in ("comparison", "shell-comparison"):
        return _COMPARE.get(text, (b"!=",))
    if rule == "number":
        return (b"%d" % (int(text) + 1), *((b"%d" % (int(text) - 1),) if int(text) else ()))
    if rule == "condition":
        length = _balanced(content, match.end(), high)
        return (text + b"(!" + content[match.end() : match.end() + length] + b")",) if length else ()
    if rule in ("not", "clause"):
        return (b"",)
    if rule == "append":
        return (b">",)
    table = {"arithmetic": _ARITHMETIC, "step": {b"++": b"--", b"--": b"++"}, "logic": {b"&&": b"||", b"||": b"&&"},
             "word": _WORDS, "option": _SHELL_TESTS}[rule]
    return (table[text],) if text in table else ()


def _balanced(content: bytes, at: int, high: int) -> int:
    """The length of the bracketed part that begins at ``at``; 0 where it does not close before ``high``."""
    depth = 0
    for offset in range(at, high):
        depth += {0x28: 1, 0x29: -1}.get(content[offset], 0)
        if depth == 0:
            return offset + 1 - at
    return 0


def _is_value(content: bytes, start: int, end: int, low: int, high: int) -> bool:
    """A string that a program uses: no module's name, no literal type (``"a" | "b"``), which is gone once compiled."""
    if _IMPORTING.match(content[start:end]):
        return False
    return not (_UNION_BEFORE.search(content, start, low) or _UNION_AFTER.match(content, high, end))


def _in_string(content: bytes, low: int, high: int, family: Family) -> Iterator[Edit]:
    if family is Family.SHELL and b"$" in content[low:high]:
        return
    inner = content[low + 1 : high - 1]
    yield Edit("string", low + 1, high - 1, b"" if inner else b"XX")


def _removed(content: bytes, start: int, end: int, family: Family, code: bytes) -> Iterator[Edit]:
    """The whole line taken out, where what is left is likely to parse. ``code`` is the line without comments."""
    if family is Family.PLAIN:
        yield Edit("line-removed", start, min(end + 1, len(content)), b"")
        yield from _word_dropped(content, start, end)
        return
    code = code.rstrip()
    body = code.removesuffix(b",") if family in (Family.DATA, Family.SQL) else code
    balanced = all(code.count(opening) == code.count(closing) for opening, closing in _PAIRS)
    if not code or not balanced or _OPENING.search(body) or _KEYWORD.match(code):
        return
    if family is Family.BRACES and (OPTIONAL.match(code) or (not code.endswith(b";") and not _LEAVING.match(code))):
        return
    if family is Family.SQL and not code.endswith((b",", b";")):
        return
    yield Edit("line-removed", start, min(end + 1, len(content)), b"")


def _word_dropped(content: bytes, start: int, end: int) -> Iterator[Edit]:
    words = list(re.finditer(rb"\S+", content[start:end]))
    if len(words) > 1:
        yield Edit("word-removed", start + words[-2].end(), start + words[-1].end(), b"")


_UNION_BEFORE = re.compile(rb"(?:(?<!\|)\||<)\s*\Z")
_UNION_AFTER = re.compile(rb"\s*(?:\|(?!\|)|>)")
_LEAVING = re.compile(rb"\s*(?:return|break|continue|throw)\b")
_PAIRS = ((b"(", b")"), (b"[", b"]"), (b"{", b"}"))
_PATTERNS: dict[str, tuple[re.Pattern[bytes], str]] = {
    "comparison": (_COMPARISON, "comparison"),
    "shell-comparison": (re.compile(rb"(?<=\s)(?:==|!=|=)(?=\s)"), "comparison"),
    "arithmetic": (_SUM, "arithmetic"),
    "step": (_STEP, "arithmetic"),
    "logic": (_LOGIC, "boolean"),
    "not": (_NOT, "not-removed"),
    "word": (_NAME, "word"),
    "number": (_NUMBER, "number"),
    "condition": (_IF, "condition-negated"),
    "option": (_OPTION, "comparison"),
    "append": (_APPEND, "redirection"),
    "clause": (_DISTINCT, "clause-removed"),
}
