"""Laws of the formats: archives of artifacts stay below their root, unknown rewards stay unknown, trees survive git."""

from __future__ import annotations

import io
import os
import subprocess
import tarfile
import tempfile
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from swerows import ENV, git
from woodshed.errors import Cause
from woodshed.model import Assurance, ChangeKind, Valid
from woodshed.model.stepwise import combined, short_of
from woodshed.sandbox.conformance import MemoryBlobs
from woodshed.tasks.git import opened
from woodshed.tasks.nodeids import file_of, report_id
from woodshed.verify.live import _entries, _left_out

PARTS = st.sampled_from(["out", "a", "b", "..", ".", "", "é", "odd\udcff", "new\nline"])
MEMBERS = st.lists(st.tuples(
    st.lists(PARTS, min_size=1, max_size=5).map("/".join), st.booleans(),
    st.sampled_from([tarfile.REGTYPE, tarfile.DIRTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE,
                     tarfile.CHRTYPE]),
    st.sampled_from(["/etc/passwd", "../../x", "out/a", "a"]), st.integers(0, 0o7777), st.binary(max_size=9),
), max_size=10)


@given(MEMBERS, st.sampled_from(["/out", "/site/out", "/logs/artifacts/out"]))
@settings(max_examples=150)
def test_no_archive_leads_out_of_its_root(
    members: list[tuple[str, bool, bytes, str, int, bytes]], root: str
) -> None:
    """Whatever a sandbox calls its files, what crosses to a verifier lies below the artifact, with plain modes."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT, errors="surrogateescape") as archive:
        for name, absolute, kind, link, mode, content in members:
            member = tarfile.TarInfo("/" + name if absolute else name)
            member.type, member.linkname, member.mode = kind, link, mode
            member.size = len(content) if kind == tarfile.REGTYPE else 0
            archive.addfile(member, io.BytesIO(content) if kind == tarfile.REGTYPE else None)
    packed.seek(0)
    blobs = MemoryBlobs()
    found = _entries(packed, root, blobs, 100)
    assert found is not None
    for path, change in found.items():
        assert path == change.path
        assert path == root or (path.startswith(root + "/") and ".." not in path.split("/"))
        assert change.kind in (ChangeKind.FILE, ChangeKind.DIRECTORY, ChangeKind.SYMLINK)
        assert (change.sha256 is not None) == (change.kind is ChangeKind.FILE)
    packed.seek(0)
    assert (_entries(packed, root, blobs, 0) is None) == bool(members)


@given(st.lists(st.sampled_from(["a", "b.log", "c"]), min_size=1, max_size=4))
def test_patterns_leave_out_a_file_wherever_it_lies(parts: list[str]) -> None:
    """A name that a pattern fits, of a file or of a folder above it, is left out; nothing outside the source is."""
    path = "/out/" + "/".join(parts)
    assert _left_out(path, {"/out": ("*.log",)}) == ("b.log" in parts)
    assert not _left_out(path, {"/other": ("*",)})


REWARDS = st.dictionaries(st.sampled_from(["reward", "style", "speed"]), st.none() | st.floats(0, 1), max_size=3)
CAUSES = st.sampled_from([None, Cause.AGENT, Cause.TAMPER, Cause.BUDGET])


HOW = st.sampled_from(["mean", "final"])


@given(st.lists(st.tuples(REWARDS, CAUSES), min_size=1, max_size=4), st.integers(0, 3), HOW)
def test_what_is_unknown_stays_unknown(
    steps: list[tuple[dict[str, float | None], Cause | None]], unreached: int, how: str
) -> None:
    """No None becomes a number, tampering in one step is 0 for all, and ending early never pays."""
    judged = {}
    for index, (rewards, cause) in enumerate(steps):
        own = {"reward": 0.5, **rewards}
        own = dict.fromkeys(own, 0.0) if cause is Cause.TAMPER else own
        judged[f"s{index}"] = Valid(rewards=own, total=own["reward"], cause=cause, assurance=Assurance.CANARY)
    names = [f"s{index}" for index in range(len(steps) + unreached)]
    made = combined(judged, names, "mean" if how == "mean" else "final")
    if any(verdict.cause is Cause.TAMPER for verdict in judged.values()):
        assert made.total == 0
        assert set(made.rewards.values()) == {0.0}
        return
    for step, verdict in judged.items():
        for name, value in verdict.rewards.items():
            assert made.rewards[f"{step}/{name}"] == value
    relevant = judged.values() if how == "mean" else [judged[names[-1]]] if names[-1] in judged else []
    unknown = any(verdict.total is None for verdict in relevant)
    assert (made.total is None) == unknown
    assert made.total == made.rewards["reward"]
    if made.total is not None and unreached:
        assert made.total <= len(judged) / len(names) + 1e-9 if how == "mean" else made.total == 0
    for verdict in judged.values():
        assert (short_of(verdict, {"speed": 0.0}) is None) == (verdict.rewards.get("speed") is not None)


NAMES = st.sampled_from(["a", "b", "ü", "sp ace", "new\nline", "-rf", "odd\udcff", "Makefile"])
TREES = st.dictionaries(
    st.lists(NAMES, min_size=1, max_size=3).map("/".join),
    st.tuples(st.sampled_from(["file", "run", "link"]), st.binary(max_size=20)), min_size=1, max_size=6,
).filter(lambda tree: not any(other.startswith(path + "/") for path in tree for other in tree))


@given(TREES)
@settings(max_examples=8)
def test_a_committed_tree_is_exported_as_it_was(tree: dict[str, tuple[str, bytes]]) -> None:
    """Contents, executable bits, links and names of any bytes: what was committed is what lies there."""
    with tempfile.TemporaryDirectory() as scratch:
        repo, out = Path(scratch, "repo"), Path(scratch, "out")
        repo.mkdir()
        out.mkdir()
        subprocess.run(["git", "init", "-q", "-b", "main", repo], check=True, env=ENV)
        for path, (kind, content) in tree.items():
            place = repo / path
            place.parent.mkdir(parents=True, exist_ok=True)
            if kind == "link":
                place.symlink_to(os.fsdecode(b"to-" + content.replace(b"\0", b"0")))
            else:
                place.write_bytes(content)
                place.chmod(0o755 if kind == "run" else 0o644)
        git(repo, "add", "-A", "-f")
        git(repo, "commit", "-q", "-m", "x")
        with opened(repo) as repository:
            entries = repository.export(repository.commit("main"), out)
        assert {entry.path for entry in entries} == set(tree)
        for path, (kind, content) in tree.items():
            place, before = out / path, repo / path
            assert place.is_symlink() == (kind == "link")
            if kind == "link":
                assert place.readlink() == before.readlink()
            else:
                assert place.read_bytes() == content
                assert place.stat().st_mode & 0o777 == (0o755 if kind == "run" else 0o644)


@given(st.text(max_size=40))
def test_an_id_is_whole_or_none(text: str) -> None:
    """Whatever stands in a row, an id has a module and a name, and the file it names is a Python file."""
    made = report_id(text)
    if made is not None:
        module, _, name = made.partition("::")
        assert module
        assert name
        assert file_of(text).endswith(".py")
        assert "\n" not in made
