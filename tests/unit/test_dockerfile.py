"""Dockerfiles as data: directives, continuations, here-documents, expansion, stages, ignored files."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from woodshed import dockerfile
from woodshed.dockerfile import Beyond, Ignored, pattern, words
from woodshed.dockerfile.stages import machine
from woodshed.errors import UsageError


def read(text: str, **arguments: str) -> dockerfile.Dockerfile:
    return dockerfile.read(text, "Dockerfile", arguments)


def steps(text: str) -> list[dockerfile.Instruction]:
    return list(read("FROM x\n" + text).stages[0].steps)


def test_comments_continuations_and_case() -> None:
    """Comments and empty lines within a continued instruction are left out; keywords are known in any case."""
    (run, env) = steps("# a comment\nrun echo a \\\n  # not this\n\n   b \\\n   c\n  ENV a=b\n")
    assert (run.keyword, run.text, run.line) == ("RUN", "echo a    b    c", 3)
    assert (env.keyword, env.line) == ("ENV", 8)


def test_two_escapes_at_the_end_continue_nothing() -> None:
    """An escaped escape is no continuation."""
    assert [step.text for step in steps("RUN echo a\\\\\nRUN b\n")] == ["echo a\\\\", "b"]


def test_the_escape_directive_replaces_the_backslash() -> None:
    """With ``# escape=``` a backslash is a character like others."""
    (stage,) = read("# escape=`\nFROM x\nRUN a `\n b\nCOPY c:\\d e\n").stages
    assert [step.text for step in stage.steps] == ["a  b", "c:\\d e"]


@pytest.mark.parametrize(("text", "line", "why"), [
    ("FROM x\nFETCH y", 2, "no instruction"),
    ("RUN x\nFROM y", 1, "before the first FROM"),
    ("FROM x\nRUN", 2, "needs something"),
    ("FROM x y z", 1, "FROM IMAGE"),
    ("FROM x AS a/b", 1, "no name of a stage"),
    ("FROM $nothing", 1, "names no image"),
    ("FROM --platfrom=a x", 1, "no --platfrom"),
    ("FROM x\nRUN <<END\necho\n", 2, "does not end"),
    ("# escape=x\nFROM x", 1, "escape is"),
    ("ARG 1=2\nFROM x", 1, "no name of an argument"),
    ("# escape=\\\n# escape=`\nFROM x", 2, "twice"),
    ("ARG a=${b#c}\nFROM x", 1, "no expansion known"),
    ("ARG a=${b\nFROM x", 1, "names no variable|without its"),
    ("ARG a='b\nFROM x", 1, "does not end"),
])
def test_mistakes_have_a_line(text: str, line: int, why: str) -> None:
    """Each mistake is told with file and line."""
    with pytest.raises(UsageError, match=why) as caught:
        read(text)
    assert (caught.value.file, caught.value.field) == ("Dockerfile", f"line {line}")


def test_what_another_builder_might_do_is_told_apart() -> None:
    """Another syntax and unknown expansions are beyond us, not wrong."""
    for text in ("# syntax=example/other:1\nFROM x", "ARG a=b\nARG c=${a%%x}\nFROM x"):
        with pytest.raises(Beyond):
            read(text)
    assert read("# syntax=docker/dockerfile:1.7\nFROM x").stages[0].base == "x"


@pytest.mark.parametrize(("text", "why"), [("", "no FROM"), ("# nothing\n", "no FROM"), ("a\0b", "no text")])
def test_no_dockerfile(text: str, why: str) -> None:
    """A file that is none is refused."""
    with pytest.raises(UsageError, match=why):
        read(text)


def test_heredocs() -> None:
    """A document's body is whole, tabs are taken off with ``<<-``, and quotes around its end mean as it stands."""
    run, copy = steps("RUN <<-ONE cat > x\n\ta $b\n\tONE\nCOPY <<'T W' <<S /to/\n$c\nT W\nd\nS\n")
    assert [(doc.name, doc.body, doc.raw) for doc in run.heredocs] == [("ONE", "a $b\n", False)]
    assert run.source == "<<-ONE cat > x\na $b\nONE\n"
    assert [(doc.name, doc.body, doc.raw) for doc in copy.heredocs] == [("T W", "$c\n", True), ("S", "d\n", False)]


def test_a_quoted_heredoc_is_none() -> None:
    """What looks like a document within quotes is text for the shell."""
    (run,) = steps('RUN echo "<<EOF"\n')
    assert run.heredocs == ()


def test_flags_and_json() -> None:
    """Flags before the arguments are apart; a JSON list is read, and what only looks like one is shell."""
    run, copy, odd = steps('RUN --mount=type=cache,target=/c --network=none ["a", "b c"]\nCOPY --link --from=a b c\n'
                           "RUN [ -e x ]\n")
    assert run.flags == (("mount", "type=cache,target=/c"), ("network", "none"))
    assert run.array == ["a", "b c"]
    assert copy.flags == (("link", "true"), ("from", "a"))
    assert odd.array is None


def test_arguments_before_from() -> None:
    """ARG before FROM has its default, or the value that is given; FROM may use those of the platform, too."""
    text = "ARG V=1\nARG W=$V-x\nFROM --platform=$BUILDPLATFORM img:${W} AS A\nFROM a as b\n"
    first, second = read(text).stages
    assert (first.base, first.name, first.platform) == ("img:1-x", "a", f"linux/{machine()}")
    assert read(text, V="2").stages[0].base == "img:2-x"
    assert read(text).named(second.base, 1) == first
    assert read(text).target("0") == first
    assert read(text).target("B") == second
    with pytest.raises(UsageError, match="no stage"):
        read(text).target("c")


VARIABLES = {"a": "one", "empty": "", "path": "/x y"}


@pytest.mark.parametrize(("word", "expected"), [
    ("$a-${a}", "one-one"), ("${no}|$no", "|"), ("${no:-x}", "x"), ("${empty:-x}", "x"), ("${empty-x}", ""),
    ("${a:+set}", "set"), ("${empty:+set}", ""), ("${empty+set}", "set"), ("${no:-${a}}", "one"),
    (r"\$a", "$a"), ("'$a'", "$a"), ('"$path"', "/x y"), (r'"\$a \n"', r"$a \n"), ("a$", "a$"), ("$a$a", "oneone"),
    ("${no:-a b}", "a b"), ("'it'\"s\"", "its"), ("$1x", "x"), ("${a?gone}", "one"),
])
def test_expansion(word: str, expected: str) -> None:
    """Variables, defaults, quotes and escapes come out as in BuildKit's lexer."""
    assert words.expand(word, VARIABLES) == expected


def test_required_variables() -> None:
    """``${x:?why}`` says why where there is no value."""
    with pytest.raises(words.Unreadable, match="x: please"):
        words.expand("${x:?please}", {})


def test_pairs() -> None:
    """Both forms of ENV: NAME=value words, quoted or escaped, and NAME with the rest of the line."""
    assert list(words.pairs(r'a=b c="d e" f=g\ h')) == [("a", "b"), ("c", '"d e"'), ("f", r"g\ h")]
    assert list(words.pairs("a   b c = d")) == [("a", "b c = d")]
    for text in ("a", "a=b c", "=b"):
        with pytest.raises(words.Unreadable):
            list(words.pairs(text))


def test_documents_keep_their_quotes() -> None:
    """In a here-document only dollars and their escapes mean anything."""
    assert words.expand_document("\"$a\" '${a}' \\$a \\n \\\\", VARIABLES) == "\"one\" 'one' $a \\n \\"


@given(st.text(max_size=60), st.dictionaries(st.sampled_from(["a", "b"]), st.text(max_size=5)))
def test_any_word_is_expanded_or_refused(text: str, variables: dict[str, str]) -> None:
    """No word makes the lexer fail in another way than by saying so."""
    words.split(text)
    words.expand_document(text, variables) if "${" not in text else None
    with contextlib.suppress(words.Unreadable):
        words.expand(text, variables)


@given(st.text(alphabet="FROMRUNCPYx \\\n#=<$-{}'\"[],a", max_size=200))
def test_any_text_is_read_or_refused(text: str) -> None:
    """Whatever a file holds, it is a Dockerfile or a UsageError."""
    with contextlib.suppress(UsageError):
        read("FROM x\n" + text)


@pytest.mark.parametrize(("text", "expected"), [
    ("FROM x\nWORKDIR /app", "/app"), ("FROM x\nWORKDIR /a\nWORKDIR b", "/a/b"), ("FROM x\nWORKDIR b", None),
    ("FROM x", None), ("FROM x AS a\nWORKDIR /w\nFROM a\nWORKDIR v", "/w/v"),
    ("ARG D=/d\nFROM x\nARG D\nENV E=$D/e\nWORKDIR ${E}", "/d/e"), ("FROM x\nWORKDIR /a/../b/", "/b"),
])
def test_the_working_folder_of_a_dockerfile(text: str, expected: str | None) -> None:
    """WORKDIR of the last stage, as far as the file says it."""
    assert dockerfile.workdir(read(text)) == expected


@pytest.mark.parametrize(("rules", "out", "kept"), [
    ("*.log", ["a.log"], ["sub/a.log", "log"]),
    ("**/*.log", ["a.log", "sub/deep/a.log"], ["a.logs"]),
    ("node_modules", ["node_modules", "node_modules/x/y"], ["sub/node_modules"]),
    ("# no\n/sub/\n", ["sub", "sub/a"], ["a"]),
    ("*\n!keep\n!src/*.py", ["a", "src/a.c"], ["keep", "keep/all", "src/a.py"]),
    ("doc/**\n!doc/README", ["doc/a", "doc/b/c"], ["doc/README"]),
    ("a?c", ["abc"], ["ac", "a/c"]),
    ("[a-c]x\n[^z]y", ["ax", "cx", "ay"], ["dx", "zy"]),
    ("a\\*", ["a*"], ["ab"]),
    ("!a\na", ["a"], ["b"]),
])
def test_ignored_files(rules: str, out: list[str], kept: list[str]) -> None:
    """The last rule that matches a path, or a folder above it, decides."""
    ignored = Ignored(rules)
    assert [path for path in out if path not in ignored] == []
    assert [path for path in kept if path in ignored] == []


@pytest.mark.parametrize("rule", ["[", "[a", "[]", "[z-a]", "a\\", "[-]"])
def test_broken_patterns_have_a_line(rule: str) -> None:
    """A pattern that is none is refused with its line."""
    with pytest.raises(UsageError) as caught:
        Ignored(f"fine\n{rule}", Path(".dockerignore"))
    assert caught.value.field == "line 2"


@given(st.text(alphabet="ab/.*", min_size=1, max_size=8))
def test_a_pattern_without_marks_matches_itself_alone(text: str) -> None:
    """Names are literal; nothing of a pattern reaches ``re``."""
    if "*" not in text:
        assert pattern(text).fullmatch(text)
        assert not pattern(text).fullmatch(text.replace(".", "a") + "b")
    if text.count("*") <= 3:
        assert isinstance(pattern(text, deep=True), re.Pattern)


@pytest.mark.parametrize(("rule", "path", "matches"), [
    ("**/a/**/b", "x/a/y/b", True), ("**/a/**/b", "a/b", True), ("**/a/**/b", "a/y/c", False), ("**", "a/b", True),
    ("a/**", "a/b/c", True), ("a/**", "a", False), ("*.py", "a.py", True), ("*.py", "d/a.py", False),
    ("**/*.py", "d/a.py", True), ("**/*.py", "a.py", True), ("a*b*c", "axbxbxc", True), ("a*b*c", "axbxbxcd", False),
    ("*a*a", "aa", True), ("**/x/**/x/y", "x/x/x/y", True), ("d/**/f", "d/f", True), ("d/**/f", "d/a/b/f", True),
    ("**.txt", "a/b.txt", True), ("foo**", "foo/bar", True), ("a*b*c*d", "abcbcdd", True), ("*/*/f", "a/b/f", True),
    ("**/a*/**/b?", "x/ab/c/d/be", True),
])
def test_wildcards(rule: str, path: str, matches: bool) -> None:
    """Each pattern means what it means to Docker, whatever its wildcards have taken on the way."""
    assert bool(pattern(rule, deep=True).fullmatch(path)) is matches


@given(st.lists(st.sampled_from(["a", "b", "*", "?", "/", "**/"]), min_size=1, max_size=9).map("".join),
       st.text(alphabet="ab/", min_size=1, max_size=9))
def test_wildcards_match_as_a_plain_translation_does(rule: str, path: str) -> None:
    """What a wildcard has taken and does not give back changes no answer."""
    if re.search(r"[^/]\*\*|\*\*[^/]|\*\*$|//", rule) or "//" in path or path[0] == "/":
        return
    plain = re.escape(rule).replace(re.escape("**/"), "(?:[^/]*/)*").replace(re.escape("*"), "[^/]*").replace(
        re.escape("?"), "[^/]")
    assert bool(pattern(rule, deep=True).fullmatch(path)) is bool(re.fullmatch(plain, path))


@pytest.mark.parametrize("text", [
    "FROM x AS s0\nWORKDIR /a\n" + "".join(f"FROM s{i} AS s{i + 1}\n" for i in range(3000)),
    "FROM x\nCOPY " + "--a " * 100 + "b c\n",
    "FROM x\nENV A=0123456789\n" + "ENV A=$A$A\n" * 40,
    "FROM x\nENV X=" + "x" * 9000 + "\nENV " + " ".join(f"A{i}=$X" for i in range(2000)) + "\n",
    "FROM x\nARG X=" + "x" * 9000 + "\nARG " + " ".join(f"A{i}=$X" for i in range(2000)) + "\n",
    "FROM x\nWORKDIR " + "${a:-" * 3000 + "}" * 3000 + "\n",
    "FROM x\nWORKDIR /\n" + f"WORKDIR {'a' * 200}\n" * 100,
    "FROM x\n" + "LABEL a=b\n" * 6000,
], ids=["stages", "flags", "doubling", "variables", "arguments", "nesting", "paths", "instructions"])
def test_files_that_would_take_all_memory_or_time(text: str) -> None:
    """Doubling variables, endless nesting and thousands of stages are refused with their line, where a task loads."""
    with pytest.raises(UsageError) as caught:
        dockerfile.workdir(dockerfile.read(text, "Dockerfile"))
    assert str(caught.value.field).startswith("line ")


def test_patterns_that_would_take_all_time() -> None:
    """Many wildcards in a row take no more time than others; a few kinds of them are refused."""
    path = "/".join(["a" * 60] * 60)
    assert path not in Ignored("*a" * 12 + "b\n" + "/".join(["**", "a*a*a*"] * 12) + "/b")
    with pytest.raises(UsageError, match="too many wildcards"):
        Ignored("a**" * 12 + "b")
