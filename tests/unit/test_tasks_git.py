"""Repositories that nobody trusts are read without anything of theirs running."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from woodshed.errors import UsageError
from woodshed.tasks.git import apply_patch, git, is_repository, opened

_ENV = {"PATH": os.environ["PATH"], "HOME": "/nonexistent", "GIT_CONFIG_GLOBAL": "/dev/null",
        "GIT_CONFIG_NOSYSTEM": "1", "GIT_AUTHOR_NAME": "A", "GIT_AUTHOR_EMAIL": "a@example.com",
        "GIT_COMMITTER_NAME": "A", "GIT_COMMITTER_EMAIL": "a@example.com"}


def plain(repo: Path, *args: str) -> str:
    """The ordinary git, as whoever made the repository uses it."""
    return subprocess.run(["git", *args], cwd=repo, env=_ENV, check=True, capture_output=True, text=True).stdout.strip()


def made(folder: Path) -> Path:
    folder.mkdir()
    plain(folder, "init", "-q", "-b", "main")
    (folder / "a.py").write_text("one = 1\n")
    (folder / "run").write_text("#!/bin/sh\n")
    (folder / "run").chmod(0o755)
    (folder / "link").symlink_to("a.py")
    (folder / "sub").mkdir()
    (folder / "sub" / "b.txt").write_text("b\r\n")
    Path(os.fsdecode(os.fsencode(folder) + b"/\xff.bin")).write_bytes(b"\0\1")
    plain(folder, "add", "-A")
    plain(folder, "commit", "-q", "-m", "First")
    return folder


def test_a_tree_is_exported_byte_by_byte(tmp_path: Path) -> None:
    """Contents, the executable bit, links and names that are no UTF-8 arrive as committed, without history."""
    repo, into = made(tmp_path / "repo"), tmp_path / "out"
    into.mkdir()
    with opened(repo) as repository:
        head = repository.commit("main")
        entries = repository.export(head, into)
        assert repository.read(head, "sub/b.txt") == b"b\r\n"
        assert repository.read(head, "sub/none") is None
        assert repository.read(head, "sub") is None
    assert head == plain(repo, "rev-parse", "HEAD")
    assert sorted(os.fsencode(entry.path) for entry in entries) == [b"a.py", b"link", b"run", b"sub/b.txt", b"\xff.bin"]
    assert (into / "run").stat().st_mode & 0o777 == 0o755
    assert (into / "a.py").stat().st_mode & 0o777 == 0o644
    assert (into / "link").readlink() == Path("a.py")
    assert (into / "sub" / "b.txt").read_bytes() == b"b\r\n"
    assert Path(os.fsdecode(os.fsencode(into) + b"/\xff.bin")).read_bytes() == b"\0\1"
    assert not (into / ".git").exists()


def _trap(repo: Path, mark: Path) -> None:
    """Everything in a repository's own hands that makes git start a program, as far as one question reaches it."""
    script = repo / "trap.sh"
    script.write_text(f"#!/bin/sh\necho ran >> {mark}\ncat\n")
    script.chmod(0o755)
    for key in ("core.fsmonitor", "core.pager", "core.sshCommand", "diff.external", "diff.trap.command",
                "diff.trap.textconv", "filter.trap.smudge", "filter.trap.clean", "gpg.program", "alias.log",
                "core.alternateRefsCommand"):
        plain(repo, "config", key, str(script))
    plain(repo, "config", "log.showSignature", "true")
    (repo / ".gitattributes").write_text("* diff=trap filter=trap\n")
    (repo / "a.py").write_text("two = 2\n")
    plain(repo, "-c", "filter.trap.clean=cat", "-c", "core.fsmonitor=false", "add", "a.py", ".gitattributes")
    plain(repo, "-c", "core.fsmonitor=false", "commit", "-q", "-m", "Second")
    mark.unlink(missing_ok=True)


def test_nothing_that_a_repository_configures_runs(tmp_path: Path) -> None:
    """Filters, external diffs, fsmonitor and the like stay untouched; the ordinary git runs them (the control)."""
    repo, mark, into = made(tmp_path / "repo"), tmp_path / "mark", tmp_path / "out"
    _trap(repo, mark)
    into.mkdir()
    with opened(repo) as repository:
        head = repository.commit("HEAD")
        repository.export(head, into)
        text = repository.git("log", "-p", "--textconv", head)
        repository.git("diff", f"{head}~1", head)
        repository.git("show", head)
    assert b"two = 2" in text
    assert (into / "a.py").read_text() == "two = 2\n"
    assert not mark.exists()
    subprocess.run(["git", "diff", "HEAD~1", "HEAD"], cwd=repo, env=_ENV, check=False, capture_output=True)
    assert mark.exists()


def test_only_questions_are_asked(tmp_path: Path) -> None:
    """A subcommand that writes, or an option that names a file or a program, is a mistake of the caller's."""
    repo = made(tmp_path / "repo")
    for args in (("commit", "-m", "x"), ("config", "-l"), ("archive", "HEAD"), ("fetch",), (),
                 ("log", "--output=/tmp/x"), ("diff", "--outp=x"), ("diff", "--ext-diff")):
        with pytest.raises(ValueError, match="git"):
            git(repo, *args)


def test_objects_of_other_repositories_are_refused(tmp_path: Path) -> None:
    """Alternates and links in the place of objects would lend a task what lies elsewhere on the host."""
    repo = made(tmp_path / "repo")
    plain(tmp_path, "clone", "-q", "--shared", str(repo), "shared")
    with pytest.raises(UsageError, match="other repositories"):
        git(tmp_path / "shared", "log")
    (repo / ".git" / "objects").rename(tmp_path / "elsewhere")
    (repo / ".git" / "objects").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UsageError, match="a link in the place"):
        git(repo, "log")


def test_a_git_file_must_be_named_in_turn(tmp_path: Path) -> None:
    """A linked worktree is read; a .git file that merely points at a repository of the host is not."""
    repo = made(tmp_path / "repo")
    plain(repo, "worktree", "add", "-q", "../tree")
    assert git(tmp_path / "tree", "rev-parse", "HEAD").decode().strip() == plain(repo, "rev-parse", "HEAD")
    forged = tmp_path / "forged"
    forged.mkdir()
    (forged / ".git").write_bytes((tmp_path / "tree" / ".git").read_bytes())
    with pytest.raises(UsageError, match="does not name it"):
        git(forged, "log")
    (forged / ".git").write_text(f"gitdir: {repo}/.git\n")
    with pytest.raises(UsageError, match="does not name it"):
        git(forged, "log")


def test_kinds_of_repositories(tmp_path: Path) -> None:
    """Bare, packed and sha256 repositories are read; replacements are not followed; another folder is refused."""
    repo = made(tmp_path / "repo")
    head = plain(repo, "rev-parse", "HEAD")
    (repo / "a.py").write_text("false\n")
    plain(repo, "commit", "-q", "-am", "Other")
    plain(repo, "replace", head, "HEAD")
    assert git(repo, "log", "-1", "--format=%s", head).decode() == "First\n"
    plain(tmp_path, "clone", "-q", "--bare", str(repo), "bare")
    plain(tmp_path / "bare", "gc", "-q")
    with opened(tmp_path / "bare") as repository:
        assert repository.commit("main") == plain(repo, "rev-parse", "HEAD")
    plain(tmp_path, "init", "-q", "--object-format=sha256", "long")
    (tmp_path / "long" / "x").write_text("x")
    plain(tmp_path / "long", "add", "x")
    plain(tmp_path / "long", "commit", "-q", "-m", "x")
    with opened(tmp_path / "long") as repository:
        assert len(repository.commit("HEAD")) == 64
    assert not is_repository(tmp_path)
    with pytest.raises(UsageError, match="no git repository"):
        git(tmp_path, "log")


def test_names_of_commits_are_names(tmp_path: Path) -> None:
    """An option, a range, or a commit that is not there is refused with the reason."""
    with opened(made(tmp_path / "repo")) as repository:
        for name in ("--all", "main..main", "", "a b", "main\n"):
            with pytest.raises(UsageError, match="no name of a commit"):
                repository.commit(name)
        with pytest.raises(UsageError, match="holds no commit"):
            repository.commit("0" * 40)


def test_hostile_trees_are_refused(tmp_path: Path) -> None:
    """A tree with .git in it, or a path below a link, is written nowhere."""
    repo = made(tmp_path / "repo")
    blob = plain(repo, "rev-parse", "HEAD:a.py")
    below = subprocess.run(["git", "mktree"], cwd=repo, env=_ENV, check=True, capture_output=True, text=True,
                           input=f"100644 blob {blob}\thooks\n").stdout.strip()
    for name in (".git", ".GIT", ".."):
        tree = subprocess.run(["git", "mktree"], cwd=repo, env=_ENV, check=True, capture_output=True, text=True,
                              input=f"040000 tree {below}\t{name}\n").stdout.strip()
        commit = plain(repo, "commit-tree", "-m", "x", tree)
        (tmp_path / "out").mkdir(exist_ok=True)
        with opened(repo) as repository, pytest.raises(UsageError, match="a tree with the path"):
            repository.export(commit, tmp_path / "out")
        assert list((tmp_path / "out").iterdir()) == []


def test_patches_stay_in_their_folder(tmp_path: Path) -> None:
    """A patch applies wholly or not at all, and to nothing outside or behind a link."""
    folder = tmp_path / "tree"
    folder.mkdir()
    (folder / "a.py").write_text("one = 1\n")
    (folder / "away").symlink_to(tmp_path)
    apply_patch(folder, b"--- a/a.py\n+++ b/a.py\n@@ -1 +1 @@\n-one = 1\n+one = 2\n")
    assert (folder / "a.py").read_text() == "one = 2\n"
    new = b"--- /dev/null\n+++ b/%s\n@@ -0,0 +1 @@\n+x\n"
    for path in (b"../evil", b"away/evil", b".git/config"):
        with pytest.raises(UsageError, match="git apply failed"):
            apply_patch(folder, new % path)
    with pytest.raises(UsageError, match="git apply failed"):
        apply_patch(folder, new % b"fine" + b"--- a/a.py\n+++ b/a.py\n@@ -1 +1 @@\n-none\n+x\n")
    assert sorted(path.name for path in folder.iterdir()) == ["a.py", "away"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["tree"]
