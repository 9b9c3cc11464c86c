"""Whatever runs do beside it, the sweeping of blobs takes what nothing named for a day, and never anything else."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
import time
from pathlib import Path
from unittest.mock import patch

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from woodshed.store import blobs as blobs_module
from woodshed.store.blobs import Blobs
from woodshed.store.sweeping import OLD_S, sweep

CONTENTS = [f"content {number}".encode() for number in range(6)]
HOUR = 3600.0


class Sweeping(RuleBasedStateMachine):
    """Blobs that are stored, named, listed by others, forgotten and swept, over days."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="woodshed-sweep-"))
        self.blobs = Blobs(self.folder)
        self.passed = 0.0
        self.named: set[str] = set()
        self.lists: dict[str, set[str]] = {}
        self.stored_at: dict[str, float] = {}

    def teardown(self) -> None:
        shutil.rmtree(self.folder)

    @rule(content=st.sampled_from(CONTENTS), name=st.booleans())
    def store(self, content: bytes, name: bool) -> None:
        """A run stores something, which it may or may not come to name."""
        digest = self.blobs.put(content)
        self.stored_at[digest] = self.passed
        if name:
            self.named.add(digest)

    @precondition(lambda self: self.stored_at)
    @rule(data=st.data())
    def checkpoint(self, data: st.DataObject) -> None:
        """A list of blobs that are there is stored as a blob, and named."""
        inside = data.draw(st.sets(st.sampled_from(sorted(self.present())))) if self.present() else set()
        digest = self.blobs.put(json.dumps({"changes": sorted(inside)}).encode())
        self.stored_at[digest] = self.passed
        self.lists[digest] = inside
        self.named.add(digest)

    @precondition(lambda self: self.named)
    @rule(data=st.data())
    def forget(self, data: st.DataObject) -> None:
        """What named it is gone."""
        self.named.discard(data.draw(st.sampled_from(sorted(self.named))))

    @rule(hours=st.sampled_from([1, 5, 30]))
    def wait(self, hours: int) -> None:
        """Time passes: every file is so much older."""
        self.passed += hours * HOUR
        for path in self.folder.glob("??/*"):
            at = path.stat().st_mtime - hours * HOUR
            os.utime(path, (at, at))

    @rule(again=st.sampled_from(CONTENTS))
    def sweep(self, again: bytes) -> None:
        """It sweeps; in the very moment in which it looks at what is named, a run stores an old content again."""
        before, kept = self.present(), self.wanted()
        stored: list[str] = []

        def named(among: set[str]) -> set[str]:
            found = self.named & among
            stored.append(self.blobs.put(again))
            return found

        sweep(self.blobs, named)
        for digest in stored:
            self.stored_at[digest] = self.passed
        for digest in before | set(stored):
            young = self.passed - self.stored_at[digest] < OLD_S - HOUR
            if digest in kept or young or digest in stored:
                assert digest in self.present(), "named, listed, young or just stored: it stays"
            elif self.passed - self.stored_at[digest] > OLD_S + HOUR:
                assert digest not in self.present(), "old and not named: it goes"

    def present(self) -> set[str]:
        return {path.parent.name + path.name for path in self.folder.glob("??/*")}

    def wanted(self) -> set[str]:
        found, todo = set(self.named), list(self.named)
        while todo:
            new = self.lists.get(todo.pop(), set()) - found
            found |= new
            todo += new
        return found

    @invariant()
    def what_is_there_is_whole(self) -> None:
        """Every blob has the digest that it is named by."""
        for path in self.folder.glob("??/*"):
            assert hashlib.sha256(path.read_bytes()).hexdigest() == path.parent.name + path.name


Sweeping.TestCase.settings = settings(max_examples=30, stateful_step_count=20, deadline=None)
TestSweeping = Sweeping.TestCase


def test_without_its_youth_a_blob_stored_again_would_be_lost(tmp_path: Path) -> None:
    """The control: a store that does not make an old blob young loses it to a sweep that looked before it was named."""
    blobs = Blobs(tmp_path)
    digest = blobs.put(b"old")
    os.utime(blobs.path(digest), (time.time() - 2 * OLD_S,) * 2)

    def named(among: set[str]) -> set[str]:
        blobs.put(b"old")
        return set()

    with patch.object(blobs_module, "_YOUNG_S", float("inf")):
        assert sweep(blobs, named).blobs == 1
    digest = blobs.put(b"old")
    os.utime(blobs.path(digest), (time.time() - 2 * OLD_S,) * 2)
    assert sweep(blobs, named).blobs == 0
