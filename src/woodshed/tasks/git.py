"""git upon repositories that nobody trusts: what they configure is never read, so nothing of theirs can run.

A repository's ``config`` names programs (fsmonitor, hooks, filters, external diffs, signers, remotes' helpers) and
other files. Here git never sees it: each :class:`Repository` is a view, a git directory of our own whose configuration
is ours, with a copy of the refs, that only reads the repository's objects. Nothing is written to the repository,
nothing is fetched, replacements and grafts are not followed, and alternates, which lead to other objects of the host,
are refused. Trees are read blob by blob, so that no attribute of theirs (filters, ``export-subst``, line ends)
changes a byte.
"""

from __future__ import annotations

import os
import re
import resource
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from woodshed.errors import EnvironmentFault, UsageError

TIMEOUT_S = 120.0
MAX_OUTPUT_BYTES = 256_000_000
MAX_BLOB_BYTES = 100_000_000
MAX_TREE_BYTES = 2 * 1024**3
MAX_TREE_FILES = 100_000
_MEMORY_BYTES = 8 * 1024**3
_READING = frozenset({
    "blame", "cat-file", "diff", "diff-tree", "for-each-ref", "log", "ls-tree", "merge-base", "name-rev", "rev-list",
    "rev-parse", "shortlog", "show", "show-ref",
})
"""Subcommands of the view: each only reads."""
_WRITES_FILE = re.compile(r"--out(p(u(t)?)?)?(=.*)?|-O.*|--open-files-in-pager.*|--ext-diff")
"""Options that write a file of the host or start a program."""
_CONFIG = """\
[core]
\trepositoryformatversion = {version}
\tbare = true
\tfsmonitor = false
\thooksPath = /dev/null
\tattributesFile = /dev/null
\texcludesFile = /dev/null
\tcommitGraph = false
\tquotePath = false
[protocol]
\tallow = never
[log]
\tshowSignature = false
[gc]
\tauto = 0
"""
_SHA256 = "[extensions]\n\tobjectFormat = sha256\n"
_FORMAT = re.compile(rb"^\s*objectformat\s*=\s*\"?sha256\"?\s*$", re.IGNORECASE | re.MULTILINE)
_REF = re.compile(rb"(ref: refs/[!-~]{1,400}|[0-9a-f]{40}|[0-9a-f]{64})\n?")
_REF_BYTES, _PACKED_BYTES = 1000, 100_000_000
_NAME = re.compile(r"[0-9A-Za-z_][0-9A-Za-z_./@^~{}+-]{0,250}")
_STDERR_CHARS = 500


@dataclass(frozen=True, slots=True)
class Entry:
    """One path of a tree. ``mode`` is git's: 0o100644, 0o100755, 0o120000 (link), 0o160000 (submodule)."""

    path: str
    mode: int
    id: str
    size: int

    @property
    def link(self) -> bool:
        """True for a symbolic link, whose content is its target."""
        return self.mode == 0o120000

    @property
    def submodule(self) -> bool:
        """True for a submodule, whose content is elsewhere."""
        return self.mode == 0o160000


@dataclass(frozen=True, slots=True)
class Repository:
    """A repository to read, by :func:`opened`. ``path`` is the user's, for messages; ``view`` our git directory."""

    path: Path
    view: Path
    objects: Path

    def git(self, *args: str, stdin: bytes = b"", ok: Sequence[int] = (0,), timeout_s: float = TIMEOUT_S,
            max_bytes: int = MAX_OUTPUT_BYTES) -> bytes:
        """What ``git ARGS`` prints. Raises UsageError where git fails, prints too much or takes too long.

        Only subcommands that read; names that come from elsewhere stand behind ``--end-of-options`` or pass
        :meth:`commit` first.
        """
        if not args or args[0] not in _READING:
            raise ValueError(f"git {args[0] if args else ''}: not among those that read")
        if any(_WRITES_FILE.fullmatch(arg) for arg in args[1 : args.index("--") if "--" in args else None]):
            raise ValueError(f"git {args[0]}: an option that writes a file or starts a program")
        env = {"GIT_DIR": str(self.view), "GIT_OBJECT_DIRECTORY": str(self.objects)}
        return _run(args, env, self.view, self.path, stdin, ok, timeout_s, max_bytes)

    def commit(self, name: str) -> str:
        """The full id of the commit that ``name`` (an id, branch or tag) is. Raises UsageError."""
        if not _NAME.fullmatch(name) or ".." in name:
            raise UsageError(f"{name[:80]!r} is no name of a commit", file=self.path, remedy="Write its id.")
        try:
            return self.git("rev-parse", "--verify", "--quiet", "--end-of-options", name + "^{commit}").decode().strip()
        except UsageError:
            raise UsageError(f"holds no commit {name!r}", file=self.path,
                             remedy="Fetch it into the repository (git fetch) first, unshallow.") from None

    def entries(self, commit: str) -> list[Entry]:
        """Every path of the tree of ``commit`` (a full id), in git's order. Names that are not UTF-8 are escaped.

        Raises UsageError for a tree that is too large, or holds a path that no tree of files may.
        """
        raw = self.git("ls-tree", "-r", "-l", "-z", "--full-tree", "--end-of-options", commit)
        found = []
        for record in raw.split(b"\0")[:-1]:
            head, _, path = record.partition(b"\t")
            mode, _, sha, size = head.split()
            found.append(Entry(os.fsdecode(path), int(mode, 8), sha.decode(), 0 if size == b"-" else int(size)))
        _check_tree(found, self.path)
        return found

    def blobs(self, ids: Iterable[str], *, max_bytes: int = MAX_OUTPUT_BYTES) -> Iterator[tuple[str, bytes]]:
        """(id, content) of each blob, in order. Raises UsageError for what is no blob here."""
        wanted = list(ids)
        raw = self.git("cat-file", "--batch", stdin="".join(f"{sha}\n" for sha in wanted).encode(), max_bytes=max_bytes)
        at = 0
        for sha in wanted:
            end = raw.find(b"\n", at)
            parts = raw[at:end].split()
            if len(parts) != 3 or parts[1] != b"blob":
                raise UsageError(f"lacks the object {sha}", file=self.path, remedy="Make a full clone of it.")
            size = int(parts[2])
            yield sha, raw[end + 1 : end + 1 + size]
            at = end + 2 + size

    def read(self, commit: str, path: str) -> bytes | None:
        """The content of a file (or a link's target) in the tree of ``commit``; None where there is none."""
        raw = self.git("ls-tree", "-z", "--full-tree", "--end-of-options", commit, "--", f":(literal){path}")
        head = raw.partition(b"\t")[0].split()
        return next(self.blobs([head[2].decode()]))[1] if len(head) == 3 and head[1] == b"blob" else None

    def export(self, commit: str, into: Path) -> list[Entry]:
        """The files of ``commit`` lie in the empty folder ``into``, without history; what was there, too, as entries.

        A submodule becomes an empty folder, as in ``git archive``. Raises UsageError.
        """
        entries = self.entries(commit)
        batch: list[Entry] = []
        size = 0
        for entry in entries:
            if entry.submodule:
                (into / entry.path).mkdir(parents=True, exist_ok=True)
                continue
            if batch and size + entry.size > MAX_OUTPUT_BYTES // 4:
                self._lay(batch, into)
                batch, size = [], 0
            batch.append(entry)
            size += entry.size
        self._lay(batch, into)
        return entries

    def _lay(self, entries: Sequence[Entry], into: Path) -> None:
        for entry, (_, content) in zip(entries, self.blobs(entry.id for entry in entries), strict=True):
            place = into / entry.path
            # No link is on the way: a tree has no path below one of its own links (checked), and ``into`` was empty.
            place.parent.mkdir(parents=True, exist_ok=True)
            if entry.link:
                _link(place, content, self.path)
            else:
                place.write_bytes(content)
                place.chmod(0o755 if entry.mode & 0o100 else 0o644)


def git(repo: Path, *args: str, stdin: bytes = b"", ok: Sequence[int] = (0,), timeout_s: float = TIMEOUT_S) -> bytes:
    """What ``git ARGS`` prints about ``repo``, once; :func:`opened` for more than one question. Raises UsageError."""
    with opened(repo) as repository:
        return repository.git(*args, stdin=stdin, ok=ok, timeout_s=timeout_s)


@contextmanager
def opened(repo: Path) -> Iterator[Repository]:
    """``repo`` (a checkout, a linked worktree, or a bare repository) as a :class:`Repository`, while this lasts.

    Refs are as they were when it opened. Raises UsageError for what is no repository, or one that cannot be read so.
    """
    head, common = _directories(repo.expanduser().absolute())
    objects = common / "objects"
    for place in (objects, objects / "pack", objects / "info"):
        if place.is_symlink():
            raise UsageError("a link in the place of its objects", file=place, remedy="Clone it anew.")
    for name in ("alternates", "http-alternates"):
        if (objects / "info" / name).exists():
            raise UsageError("its objects lie in other repositories", file=objects / "info" / name,
                             remedy="Bring them in: git repack -a -d, then remove that file.")
    if (common / "reftable").exists():
        raise UsageError("its refs are a reftable, which is not read here", file=common,
                         remedy="Convert it: git refs migrate --ref-format=files.")
    view = Path(tempfile.mkdtemp(prefix="woodshed-git-"))
    try:
        _make_view(view, head, common)
        yield Repository(repo, view, objects.resolve())
    finally:
        shutil.rmtree(view, ignore_errors=True)


def is_repository(path: Path) -> bool:
    """True for what :func:`opened` would try to read."""
    return (path / ".git").exists() or all((path / name).exists() for name in ("HEAD", "objects", "refs"))


def apply_patch(folder: Path, patch: bytes, *, what: str = "the patch") -> None:
    """``patch`` (of ``git diff``) is applied to the plain files of ``folder``, wholly or not at all.

    git itself refuses paths outside the folder and through links. Raises UsageError saying why it does not apply.
    """
    view = Path(tempfile.mkdtemp(prefix="woodshed-git-"))
    try:
        _bare(view, b"")
        args = ("apply", "--whitespace=nowarn", "-")
        env = {"GIT_DIR": str(view), "GIT_WORK_TREE": str(folder)}
        _run(args, env, folder, what, patch, (0,), TIMEOUT_S, MAX_OUTPUT_BYTES)
    finally:
        shutil.rmtree(view, ignore_errors=True)


def _directories(path: Path) -> tuple[Path, Path]:
    """(directory of HEAD, directory of objects and refs) of the repository at ``path``."""
    inside = path / ".git"
    if inside.is_symlink():
        raise UsageError("a link in the place of its .git", file=inside, remedy="Name the repository it leads to.")
    if inside.is_dir():
        return inside, inside
    if inside.is_file():
        return _worktree(inside)
    if is_repository(path):
        return path, path
    raise UsageError("no git repository", file=path, remedy="Name a clone's folder, or a bare repository.")


def _worktree(file: Path) -> tuple[Path, Path]:
    """A linked worktree. The repository must name it in turn: a file alone could lead to any repository of the host."""
    wrong = UsageError("a .git file whose repository does not name it", file=file, remedy="Name the repository itself.")
    text = _small(file)
    if text is None or not text.startswith(b"gitdir: "):
        raise wrong
    own = (file.parent / os.fsdecode(text.removeprefix(b"gitdir: ").strip())).resolve()
    back, common = _small(own / "gitdir"), _small(own / "commondir")
    if back is None or common is None or Path(os.fsdecode(back.strip())).resolve() != file.resolve():
        raise wrong
    return own, (own / os.fsdecode(common.strip())).resolve()


def _small(file: Path) -> bytes | None:
    """The content of a small regular file that is no link; None otherwise."""
    try:
        if file.is_symlink() or not file.is_file() or file.stat().st_size > _PACKED_BYTES:
            return None
        return file.read_bytes()
    except OSError:
        return None


def _bare(view: Path, config: bytes) -> None:
    sha256 = bool(_FORMAT.search(config))
    (view / "config").write_text(_CONFIG.format(version=int(sha256)) + (_SHA256 if sha256 else ""))
    (view / "HEAD").write_bytes(b"ref: refs/heads/main\n")
    (view / "objects").mkdir()
    (view / "refs").mkdir()


def _make_view(view: Path, head: Path, common: Path) -> None:
    _bare(view, _small(common / "config") or b"")
    for source, name in ((head, "HEAD"), (common, "packed-refs"), (common, "shallow")):
        content = _small(source / name)
        if content is not None and (name != "HEAD" or _REF.fullmatch(content)):
            (view / name).write_bytes(content)
    for folder, below, files in os.walk(common / "refs"):
        below[:] = [name for name in below if not Path(folder, name).is_symlink() and name != "replace"]
        inside = view / "refs" / Path(folder).relative_to(common / "refs")
        inside.mkdir(exist_ok=True)
        for name in files:
            content = _small(Path(folder, name))
            if content is not None and len(content) < _REF_BYTES and _REF.fullmatch(content):
                (inside / name).write_bytes(content)


def _run(args: Sequence[str], env: dict[str, str], cwd: Path, what: object, stdin: bytes, ok: Sequence[int],
         timeout_s: float, max_bytes: int) -> bytes:
    """One git, bounded in time, memory and output; its environment holds nothing of ours."""
    program = shutil.which("git")
    if program is None:
        raise EnvironmentFault("git is not installed: install it (apt install git), it reads repositories")
    clean = {
        "PATH": os.defpath, "HOME": "/nonexistent", "LC_ALL": "C", "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_CONFIG_SYSTEM": os.devnull, "GIT_CONFIG_GLOBAL": os.devnull, "GIT_ATTR_NOSYSTEM": "1",
        "GIT_TERMINAL_PROMPT": "0", "GIT_OPTIONAL_LOCKS": "0", "GIT_NO_LAZY_FETCH": "1", "GIT_NO_REPLACE_OBJECTS": "1",
        "GIT_ALLOW_PROTOCOL": "none", "GIT_PAGER": "cat", "GIT_ASKPASS": "/bin/false", "SSH_ASKPASS": "/bin/false",
    }
    with tempfile.TemporaryFile() as given, tempfile.TemporaryFile() as said:
        given.write(stdin)
        given.seek(0)
        process = subprocess.Popen([program, "--no-pager", *args], stdin=given, stdout=subprocess.PIPE, stderr=said,
                                   cwd=cwd, env=clean | env)
        assert process.stdout is not None
        late = threading.Event()
        timer = threading.Timer(timeout_s, _kill, (process, late))
        timer.start()
        try:
            with process.stdout as stream:
                _bound(process.pid)
                printed = stream.read(max_bytes + 1)
                if len(printed) <= max_bytes:
                    process.wait()
        finally:
            timer.cancel()
            _kill(process)
            process.wait()
        said.seek(0)
        complaint = said.read(_STDERR_CHARS * 4).decode(errors="replace").strip()[-_STDERR_CHARS:]
    if late.is_set():
        raise UsageError(f"git {args[0]} took longer than {timeout_s:.0f} s", file=what, remedy="Is it damaged?")
    if len(printed) > max_bytes:
        raise UsageError(f"git {args[0]} printed more than {max_bytes} bytes", file=what, remedy="Ask for less of it.")
    if process.returncode not in ok:
        raise UsageError(f"git {args[0]} failed: {complaint or f'exit status {process.returncode}'}", file=what)
    return printed


def _bound(pid: int) -> None:
    try:
        resource.prlimit(pid, resource.RLIMIT_AS, (_MEMORY_BYTES, _MEMORY_BYTES))
    except (OSError, ValueError):  # it has ended already, or a tighter bound holds
        return


def _kill(process: subprocess.Popen[bytes], late: threading.Event | None = None) -> None:
    """End it where it has not ended: it is no one else's id before it is waited for."""
    if process.poll() is None:
        if late is not None:
            late.set()
        process.kill()


def _check_tree(entries: Sequence[Entry], where: Path) -> None:
    links = {entry.path for entry in entries if entry.link or entry.submodule}
    if len(entries) > MAX_TREE_FILES or sum(entry.size for entry in entries) > MAX_TREE_BYTES:
        raise UsageError(f"a tree of more than {MAX_TREE_FILES} files or {MAX_TREE_BYTES >> 30} GB", file=where,
                         remedy="Choose a smaller repository.")
    for entry in entries:
        parts = entry.path.split("/")
        if any(part in ("", ".", "..") or part.lower() == ".git" for part in parts):
            raise UsageError(f"a tree with the path {entry.path[:200]!r}", file=where, remedy="It is damaged.")
        if entry.size > MAX_BLOB_BYTES:
            raise UsageError(f"{entry.path!r} has more than {MAX_BLOB_BYTES} bytes", file=where,
                             remedy="Choose a commit without it.")
        if any("/".join(parts[:count]) in links for count in range(1, len(parts))):
            raise UsageError(f"{entry.path[:200]!r} lies below a link", file=where, remedy="It is damaged.")


def _link(place: Path, target: bytes, where: Path) -> None:
    if not target or b"\0" in target:
        raise UsageError(f"a link without a target ({place.name!r})", file=where, remedy="It is damaged.")
    place.symlink_to(os.fsdecode(target))
