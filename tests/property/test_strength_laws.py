"""Laws of variants: whatever the contents, they are wrong in exactly the way they say."""

from __future__ import annotations

import ast
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from woodshed.harness.patchfile import applied, read_changes, recorded
from woodshed.verify.strength import Files, Kind, Variant, variants
from woodshed.verify.strength.blocks import blocks, lines_of, put_back
from woodshed.verify.strength.languages import language, pieces

# Lines from which functions are drawn: enough shapes for every operator to have something to do.
LINES = (
    "x = a + b", "x = a - 1", "x = [1, 2, 3]", "x = {'k': a}", "x = a[1:b]", "x = a[:-1]", "x = min(a, b)",
    "x = abs(a)",
    "x = sorted(a, reverse=True)", "x = a < b", "x = a <= 3", "x = not a", "x = -a", "x = a and b or c", "x += 1",
    "x = 'text'", "x = f'{a} of {b}'", "x = a if a > b else b", "x = [i for i in a if i]", "x = c(a, b)", "del x",
    "x = a is None", "x = b in a", "x = 0.5", "x = True", "x = a ** 2 % 7 // 3", "c.append(a)", "raise ValueError(a)",
    "return x", "return None", "return a, b", "print(a, end='')", "x = range(b)", "x = 'ä' + a", "# only a remark", "",
    "if a: x = 1", "while a < b: a += 1", "for x in a: continue", "for x in a: break", "x = (a\n         + b)",
    "try:\n        x = int(a)\n    except (TypeError, ValueError):\n        x = 0", "x = '''two\nlines'''",
)
BODIES = st.lists(st.sampled_from(LINES), min_size=1, max_size=8)
ENDS = st.sampled_from(("\n", "\r\n"))


def function(body: list[str], end: str) -> bytes:
    lines = [f"    {line}" if line else "" for line in body]
    text = "\n".join(["def f(a, b, c):", '    """Of three."""', *lines, "    pass", ""])
    return text.replace("\n", end).encode()


def trees() -> st.SearchStrategy[tuple[dict[str, bytes], Files]]:
    contents = st.one_of(
        st.binary(max_size=60),
        st.text(alphabet="ab\n\r\t #\"'{}()<>=;0é\x0c\u2028", max_size=60).map(lambda text: text.encode()),
        st.builds(function, BODIES, ENDS),
    )
    names = st.sampled_from(("a.py", "b.js", "c.sh", "d.sql", "e.txt", "f.json", "tests/test_a.py", "dir/g.rs", "h",
                             "i.md", "\udcff.py", "j.yaml", "k.lua"))
    return st.tuples(st.dictionaries(names, contents, max_size=5),
                     st.dictionaries(names, st.none() | contents, max_size=5))


def end_state(start: dict[str, bytes], files: Files) -> dict[str, bytes]:
    return {path: content for path, content in {**start, **files}.items() if content is not None}


@given(trees(), st.integers(0, 3), st.integers(0, 30))
def test_any_contents_have_variants_or_none(tree: tuple[dict[str, bytes], Files], seed: int, at_most: int) -> None:
    """Nothing raises; at most as many as asked, names unique, the same list again; no path is invented.

    Every variant differs from the start, from the reference and from every other.
    """
    start, solved = tree
    found = variants(start, solved, seed=seed, at_most=at_most, examples=["f(1, 2, 3) == 4"])
    assert len(found) <= at_most
    assert len({variant.name for variant in found}) == len(found)
    assert found == variants(start, solved, seed=seed, at_most=at_most, examples=["f(1, 2, 3) == 4"])
    states = [end_state(start, variant.files) for variant in found]
    for index, state in enumerate(states):
        assert state not in (start, end_state(start, solved), *states[:index])
        assert set(found[index].files) <= set(start) | set(solved)


@given(BODIES, BODIES, ENDS)
def test_python_mutants_compile_and_keep_to_changed_lines(before: list[str], after: list[str], end: str) -> None:
    """A mutant of Python compiles, is another program than the reference, and leaves unchanged lines alone."""
    start, solved = {"m.py": function(before, end)}, {"m.py": function(after, end)}
    reference = lines_of(solved["m.py"])
    differing = blocks(lines_of(start["m.py"]), reference)
    changed = {line for part in differing for line in range(part.new_start, part.new_end)}
    for variant in variants(start, solved, seed=0, at_most=200):
        content = variant.files.get("m.py", start["m.py"]) or b""
        if variant.kind is Kind.MUTANT:
            compile(content, "m.py", "exec")
            assert ast.dump(ast.parse(content)) != ast.dump(ast.parse(solved["m.py"]))
            parts = blocks(reference, lines_of(content))
            touched = {line for part in parts for line in range(part.old_start, max(part.old_end, part.old_start + 1))}
            assert touched <= changed, (variant.name, variant.patch)


@given(st.lists(st.sampled_from((b"a\n", b"b\n", b"\n", b"}\n", b"c"))),
       st.lists(st.sampled_from((b"a\n", b"d\n", b"\n", b"c"))))
def test_blocks_recombine(old: list[bytes], new: list[bytes]) -> None:
    """No block put back is the reference, all of them are the start, and blocks never touch."""
    old, new = lines_of(b"".join(old)), lines_of(b"".join(new))
    found = blocks(old, new)
    assert put_back(old, new, []) == b"".join(new)
    assert put_back(old, new, found) == b"".join(old)
    for first, second in pairwise(found):
        assert first.new_end < second.new_start
        assert first.old_end < second.old_start


def patched(base: dict[str, bytes], variant: Variant) -> dict[str, bytes]:
    """``base`` with the variant's patch, read and applied as any diff is."""
    with TemporaryDirectory() as folder:
        file = Path(folder) / "variant.diff"
        file.write_text(variant.patch, encoding="utf-8", newline="")
        done = dict(base)
        for change in read_changes(file):
            content = applied(base.get(change.source, b""), change.hunks)
            assert content is not None
            if change.deleted:
                del done[change.path]
            else:
                done[change.path] = content
        return done


@given(st.lists(st.sampled_from((*LINES, "\x0cx = 1", "x = '\u2028'"))), BODIES, ENDS, st.booleans())
@settings(max_examples=40)
def test_a_patch_says_what_the_files_are(before: list[str], after: list[str], end: str, cut: bool) -> None:
    """The patch of a variant, applied to the reference (or the start), gives its files: with any ends of lines."""
    start = {"m.py": function(before, end), "notes.txt": "\n".join(before).encode(), "tests/test_m.py": b"import m\n"}
    solved = {"m.py": function(after, end)[: -1 if cut else None], "notes.txt": "\n".join(after).encode(),
              "new.js": b"f();\n"}
    for variant in variants(start, solved, seed=1, at_most=30):
        base = start if variant.kind is Kind.SUPERFICIAL else {**start, **solved}
        assert patched(base, variant) == end_state(start, variant.files), variant.name


@given(st.binary(max_size=200),
       st.sampled_from(("a.js", "a.sh", "a.rb", "a.sql", "a.json", "a.ini", "a.rs", "a.lua", "a")))
def test_pieces_cover_any_content(content: bytes, path: str) -> None:
    """What a lexer makes of any bytes is those bytes, without a gap."""
    found = list(pieces(content, language(path, content)[1]))
    assert b"".join(content[piece.start : piece.end] for piece in found) == content
    assert all(piece.start < piece.end for piece in found)


@given(st.dictionaries(st.text("abc/ü", min_size=1).filter(lambda name: all(name.split("/"))),
                       st.none() | st.binary(max_size=20)))
def test_a_recorded_set_reads_back(files: dict[str, bytes | None]) -> None:
    """Any files, written as a set, are read as the same changes."""
    with TemporaryDirectory() as folder:
        file = Path(folder) / "set.json"
        file.write_text(recorded(files))
        found = {change.path: None if change.deleted else change.content for change in read_changes(file)}
    assert found == files


@given(st.binary(max_size=300) | st.text(alphabet="-+@ ,01ab/\n\\\"{}:", max_size=200).map(str.encode))
def test_any_file_is_a_patch_or_refused(content: bytes) -> None:
    """No content of a patch file makes anything but changes below the workdir, or a UsageError."""
    from woodshed.errors import UsageError

    with TemporaryDirectory() as folder:
        file = Path(folder) / "any"
        file.write_bytes(content)
        try:
            found = read_changes(file)
        except UsageError:
            return
    for change in found:
        for path in (change.path, change.source):
            assert not path.startswith("/")
            assert ".." not in path.split("/")


@pytest.mark.parametrize("depth", [50, 1000, 100_000])
@pytest.mark.parametrize("shape", ["({})", "[{}]", "-{}", "{}+1", "({}).a", "not {}"])
def test_deep_sources_are_survived(depth: int, shape: str) -> None:
    """Sources nested deeper than any stack give variants or none."""
    head, tail = shape.split("{}")
    text = f"x = {head * depth}1{tail * depth}\n".encode()
    made = variants({"a.py": b"x = 1\n"}, {"a.py": text}, seed=0, at_most=5)
    assert len(made) <= 5
    assert all(set(variant.files) == {"a.py"} and variant.files["a.py"] != text for variant in made)
