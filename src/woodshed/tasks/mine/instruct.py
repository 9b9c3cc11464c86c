"""The instruction of a mined task: what the commit's message and its tests say, and no line of the fix. Pure.

The message is text of strangers for an agent to read: control, invisible and HTML-hidden characters are dropped, what
belongs to the bookkeeping of a project (trailers, references to reviews) as well, and every line that repeats the fix.
"""

from __future__ import annotations

import ast
import re
import unicodedata
from collections.abc import Collection, Iterable, Iterator, Sequence

from woodshed.tasks.mine.select import Candidate

MAX_BODY = 4_000
MAX_NAMED = 40
MAX_CALLS = 20
_TRAILER = re.compile(
    r"(signed-off-by|co-authored-by|reviewed-by|acked-by|tested-by|reported-by|change-id|cc|git-svn-id|"
    r"differential revision)\s*:.*|"
    r"(closes|fixes|resolves|refs?|see|bug|issue|link|pr|pull-request)\s*:?\s*(#|gh-|https?:)\S+\.?|"
    r"\(cherry picked from commit [0-9a-f]+\)",
    re.IGNORECASE,
)
_REFERENCE = re.compile(r"\s*\(?(?:#\d+|GH-\d+)\)?(?=\s|$|[.,;:])")
_COMMENT = re.compile(r"<!--.*?(?:-->|\Z)", re.DOTALL)
_TRIVIAL = frozenset({"continue", "return None", "return True", "return False", "return self", "finally:", "return {}"})
_SPAN = re.compile(r"`+([^`\n]{6,300})`+")
_CODE = re.compile(r"[=(\[{]")
_LEAST = 8
"""Characters of a line, spaces apart, from which on repeating it tells something of the fix."""


def instruction(
    candidate: Candidate, *, name: str, own: Collection[str], failing: Sequence[str], described: str | None = None
) -> str:
    """The Markdown that an agent is told.

    ``failing`` are the ids of the tests that fail before and pass after, ``own`` the project's top-level modules.
    ``described`` is what someone who never saw the fix says of it; it stands in the place of the message's body.

    No line that the fix adds is in it (see :func:`leaks`).
    """
    fix = fix_lines(candidate)
    known = "\n".join(edit.after.decode("utf-8", "replace") for edit in candidate.tests if edit.after is not None)
    title, body = _message(candidate.commit.message, fix, known)
    words = _described(described, fix, known)
    parts = [f"# {title or 'Make the failing tests pass'}\n"]
    if words:
        parts.append(words + "\n")
    elif body:
        parts.append("What the team wrote of this change:\n\n" + "".join(f"> {line}".rstrip() + "\n"
                                                                         for line in body.splitlines()))
    parts.append(f"The source of `{name}` lies in the current folder. Change it so that this holds. Tests that you do "
                 "not see\njudge the result; every test that passes today must still pass.\n")
    if calls := [call for call in _calls(candidate, own) if not leaks(call, fix)][:MAX_CALLS]:
        parts.append("What these tests use:\n\n" + "".join(f"- `{call}`\n" for call in calls))
    shown = [test for test in map(_plain, failing) if not leaks(test, fix)]
    if shown:
        more = f"- and {len(shown) - MAX_NAMED} more\n" if len(shown) > MAX_NAMED else ""
        parts.append("Tests that do not pass yet:\n\n" + "".join(f"- `{test}`\n" for test in shown[:MAX_NAMED]) + more)
    return "\n".join(parts)


def fix_lines(candidate: Candidate) -> tuple[str, ...]:
    """The lines that the fix adds to the source, spaces squeezed, without those that say nothing by themselves."""
    lines: dict[str, None] = {}
    for edit in candidate.source:
        before = {_squeezed(line) for line in (edit.before or b"").decode("utf-8", "replace").splitlines()}
        for line in edit.lines()[1]:
            text = _squeezed(line)
            if text not in before and len(text.replace(" ", "")) >= _LEAST and text not in _TRIVIAL:
                lines[text] = None
    return tuple(lines)


def leaks(text: str, fix: Iterable[str]) -> list[str]:
    """The lines of the fix that stand in ``text``, however they are spaced."""
    squeezed = _squeezed(text)
    return [line for line in fix if line in squeezed]


def _message(message: str, fix: Sequence[str], known: str) -> tuple[str, str]:
    """(title, body) of a commit message, fit to be read by an agent."""
    lines = _COMMENT.sub("", _visible(message)).strip().splitlines()
    title = _REFERENCE.sub("", lines[0]).strip(" .#")[:200] if lines else ""
    if _tells(title, fix, known):
        title = ""
    kept, fenced, indented = [], False, False
    for raw in lines[1:]:
        line = raw.rstrip()
        if line.lstrip().startswith(("```", "~~~")):
            fenced = not fenced
            continue
        indented = line.startswith(("diff --git", "@@ ", "--- ", "+++ ")) or (indented and line[:1] in "+- ")
        if fenced or indented or _TRAILER.fullmatch(line.strip()) or _tells(line, fix, known):
            continue
        kept.append(_REFERENCE.sub("", line))
    body = re.sub(r"\n{3,}", "\n\n", "\n".join(kept)).strip()[:MAX_BODY]
    return title, "" if leaks(body, fix) else body  # a line of the fix may be broken over two of the message


def _described(text: str | None, fix: Sequence[str], known: str) -> str:
    """What a model said, without headings; nothing where it repeats the fix."""
    plain = _COMMENT.sub("", _visible(text or "")).strip()[:MAX_BODY]
    lines = [re.sub(r"^#+\s*", "", line.rstrip()) for line in plain.splitlines()]
    told = "\n".join(lines).strip()
    return "" if leaks(told, fix) or any(_tells(line, fix, known) for line in lines) else told


def _tells(line: str, fix: Sequence[str], known: str) -> bool:
    """True where a line of a message repeats a line of the fix, or quotes a piece of code that only the fix has."""
    if leaks(line, fix):
        return True
    return any(_CODE.search(span) and span not in _squeezed(known) and any(span in wanted for wanted in fix)
               for span in _spans(line))


def _spans(line: str) -> Iterator[str]:
    """Pieces of a line that may be code: what stands in backticks, and words with brackets or signs in them."""
    yield from map(_squeezed, _SPAN.findall(line))
    for word in line.split():
        plain = word.strip("`'\",.;:!?")
        if len(plain) >= _LEAST - 2:
            yield plain
            yield plain.strip("()")
            yield plain.removesuffix(")")


def _visible(text: str) -> str:
    """Without control and invisible characters (which could hide words from people), line ends made plain."""
    plain = text.replace("\r\n", "\n").replace("\r", "\n").replace("\t", "    ")
    return "".join(c for c in plain if c == "\n" or unicodedata.category(c) not in ("Cc", "Cf", "Cs", "Co", "Cn", "Zl"))


def _plain(text: str) -> str:
    return _visible(text).replace("\n", " ").replace("`", "'")[:300]


def _squeezed(text: str) -> str:
    return " ".join(text.split())


def _calls(candidate: Candidate, own: Collection[str]) -> Iterator[str]:
    """How the changed tests call what is new in them: names and shapes, no values of theirs."""
    seen: dict[str, None] = {}
    for edit in candidate.tests:
        if edit.path.endswith(".py") and edit.after is not None:
            before = _called(edit.before, own)
            seen |= {call: None for call in _called(edit.after, own) if call not in before}
    yield from sorted(seen)


def _called(content: bytes | None, own: Collection[str]) -> dict[str, None]:
    """Calls of what a test module imports from elsewhere, each as ``name(…, key=…)``."""
    try:
        tree = ast.parse(content or b"")
        imported = dict(_imported(tree, own))
        found: dict[str, None] = {}
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and (shape := _shape(node, imported)):
                found[shape] = None
        for name in imported.values():
            if not any(shape.startswith((name + "(", name + ".")) for shape in found):
                found[name] = None
        return found
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return {}


def _imported(tree: ast.Module, own: Collection[str]) -> Iterator[tuple[str, str]]:
    """(local name, full name) of what a module imports from the project itself."""
    for node in tree.body:
        if isinstance(node, ast.ImportFrom) and node.module:
            if node.level or node.module.partition(".")[0] in own:
                for alias in node.names:
                    yield alias.asname or alias.name, f"{node.module}.{alias.name}"
        elif isinstance(node, ast.Import):
            for alias in node.names:
                top = alias.name.partition(".")[0]
                if top in own:
                    yield alias.asname or top, alias.name if alias.asname else top


def _shape(node: ast.Call, imported: dict[str, str]) -> str:
    names: list[str] = []
    function: ast.expr = node.func
    while isinstance(function, ast.Attribute):
        names.insert(0, function.attr)
        function = function.value
    if not isinstance(function, ast.Name) or function.id not in imported:
        return ""
    arguments = ["*…" if isinstance(argument, ast.Starred) else "…" for argument in node.args]
    arguments += [f"{keyword.arg}=…" if keyword.arg else "**…" for keyword in node.keywords]
    return f"{'.'.join([imported[function.id], *names])}({', '.join(arguments)})"

