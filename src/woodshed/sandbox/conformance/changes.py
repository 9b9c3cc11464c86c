"""Changes: what differs from the start is captured whole, bounded, and makes the same world again."""

from __future__ import annotations

import tempfile
from pathlib import Path

from woodshed.errors import EnvironmentFault
from woodshed.interfaces import SandboxEngine
from woodshed.model import Change, ChangeKind, ChangeSet, Limits, SandboxPolicy
from woodshed.sandbox.conformance.kit import SPEC, Check, MemoryBlobs, by_path, captured, opened, raises, shell

_START = "mkdir -p d/sub t g; echo one >d/one; echo two >d/two; echo s >d/sub/s; echo g >g/file; ln -s one d/link"
_WORK = ("echo new >new; mkdir made; echo x >made/x; rm d/two; mv d/one d/moved; chmod 750 d/sub; rm -rf g; mkdir g;"
         " echo other >g/other; ln -s /etc/passwd link; rm d/link; chmod 600 new; ln new hard")


async def changes_tell_what_differs(engine: SandboxEngine) -> None:
    """New, changed, moved, deleted, replaced and re-moded entries appear once each, parents before children."""
    async with opened(engine, SPEC.model_copy(update={"setup": _START})) as sandbox:
        assert (await captured(sandbox))[0].changes == ()
        await shell(sandbox, _WORK)
        changes, blobs = await captured(sandbox)
        found = by_path(changes)
        kinds = {path.removeprefix("/workspace/"): change.kind.value for path, change in found.items()}
        assert kinds == {
            "new": "file", "hard": "file", "made": "directory", "made/x": "file", "d/two": "deleted",
            "d/one": "deleted", "d/moved": "file", "d/sub": "directory", "g": "opaque", "g/other": "file",
            "link": "symlink", "d/link": "deleted",
        }
        assert found["/workspace/d/sub"].mode == 0o750
        assert found["/workspace/new"].mode == 0o600
        assert found["/workspace/link"].target == "/etc/passwd"
        moved = found["/workspace/d/moved"]
        assert blobs.content[moved.sha256 or ""] == b"one\n"
        assert moved.size == 4
        order = [change.path for change in changes.changes]
        for path in order:
            parent = path.rpartition("/")[0]
            assert parent not in order or order.index(parent) < order.index(path)


async def changes_keep_to_their_roots(engine: SandboxEngine) -> None:
    """Only what lies below a root is captured, and what is no file, directory or link is named, not captured."""
    async with opened(engine) as sandbox:
        await shell(sandbox, "mkdir a b; echo a >a/f; echo b >b/f; mkfifo a/pipe; touch a/suid; chmod 4755 a/suid;"
                             " echo x >/etc/x")
        changes, _ = await captured(sandbox, "/workspace/a")
        assert set(by_path(changes)) == {"/workspace/a", "/workspace/a/f", "/workspace/a/suid"}
        assert by_path(changes)["/workspace/a/suid"].mode == 0o755
        assert sorted(changes.refused) == ["/workspace/a/pipe: fifo", "/workspace/a/suid: setuid"]


async def changes_are_bounded(engine: SandboxEngine) -> None:
    """A sparse or a large file beyond the disk limit, or too many files, cut the capture and name the limit."""
    async with opened(engine, limits=Limits(disk_mb=2)) as sandbox:
        await shell(sandbox, "echo fine >a; head -c 1500000 /dev/zero >b; head -c 1500000 /dev/zero >c")
        changes, blobs = await captured(sandbox, "/workspace")
        assert changes.over_limit == "disk_mb"
        assert sum(len(content) for content in blobs.content.values()) <= 2 << 20
    async with opened(engine, limits=Limits(files=20)) as sandbox:
        await shell(sandbox, "for i in $(seq 40); do touch f$i; done")
        changes, _ = await captured(sandbox, "/workspace")
        assert changes.over_limit == "files"
        assert len(changes.changes) <= 20


async def restored_changes_are_the_same_world(engine: SandboxEngine) -> None:
    """A sandbox restored from captured changes looks the same inside, and captures the same changes again."""
    spec = SPEC.model_copy(update={"setup": _START})
    look = "find . -printf '%p %y %m %l\\n' | sort; find . -type f -exec sha256sum {} + | sort"
    async with opened(engine, spec) as sandbox:
        await shell(sandbox, _WORK)
        seen = await shell(sandbox, look)
        changes, blobs = await captured(sandbox)
    restored = await engine.create(spec, SandboxPolicy(), restore=(changes, blobs))
    try:
        assert await shell(restored, look) == seen
        assert (await captured(restored))[0] == changes
        assert await shell(restored, "echo more >>new && cat new && stat -c %U:%G new") == "new\nmore\nroot:root\n"
    finally:
        await restored.close()


async def a_forged_change_set_stays_inside(engine: SandboxEngine) -> None:
    """Links planted as parents and paths that climb out reach nothing on the host; they are left out or refused."""
    with tempfile.TemporaryDirectory() as folder:
        blobs = MemoryBlobs()
        digest = blobs.put(b"forged")
        link = Change(path="/workspace/l", kind=ChangeKind.SYMLINK, target=folder)
        through = Change(path="/workspace/l/f", kind=ChangeKind.FILE, sha256=digest, size=6)
        sandbox = await engine.create(SPEC, SandboxPolicy(), restore=(ChangeSet(changes=(link, through)), blobs))
        assert await shell(sandbox, "readlink l; ls -A l/ 2>/dev/null; true") == f"{folder}\n"
        await sandbox.close()
        for path in ("/workspace/../../x", "workspace/x", "//x", "/"):
            climbing = ChangeSet(changes=(Change(path=path, kind=ChangeKind.FILE, sha256=digest, size=6),))
            await raises(EnvironmentFault, engine.create(SPEC, SandboxPolicy(), restore=(climbing, blobs)))
        assert list(Path(folder).iterdir()) == []


async def what_a_tool_of_the_host_runs_is_flagged(engine: SandboxEngine) -> None:
    """Hooks, configuration that runs something, editor tasks and links in their place are named, and no others."""
    async with opened(engine) as sandbox:
        await shell(sandbox, "mkdir -p .GIT/hooks .vscode src .husky/_; echo x >.GIT/hooks/pre-commit;"
                             " printf '[core]\\n\\tfsmonitor = ./run\\n' >.GIT/config; echo '{}' >.vscode/tasks.json;"
                             " echo x >src/main.py; ln -s src .idea;"
                             " mkdir plain; printf '[core]\\nbare=false\\n' >plain/config")
        changes, _ = await captured(sandbox, "/workspace")
        assert {flag.partition(": ")[0].removeprefix("/workspace/") for flag in changes.flagged} == {
            ".GIT/hooks/pre-commit", ".GIT/config", ".vscode/tasks.json", ".idea"}
        assert set(by_path(changes)) >= {"/workspace/src/main.py", "/workspace/plain/config", "/workspace/.GIT/config"}


CHECKS: tuple[Check, ...] = (
    changes_tell_what_differs, changes_keep_to_their_roots, changes_are_bounded, restored_changes_are_the_same_world,
    a_forged_change_set_stays_inside, what_a_tool_of_the_host_runs_is_flagged,
)
