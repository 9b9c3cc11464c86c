"""A Sandbox in a plain temporary directory: no isolation, for tests of logic that needs real files and processes."""

from __future__ import annotations

import asyncio
import hashlib
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from stat import S_IFDIR, S_IFLNK, S_IFMT, S_IFREG
from typing import Any

from woodshed.interfaces import Admit, BlobSink, ExecResult, FileEvent, FileInfo, Listener, Stream
from woodshed.model import Change, ChangeKind, ChangeSet


class Port:
    """A port of the host's own loopback."""

    def __init__(self, listener: socket.socket, admit: Admit) -> None:
        self.port = listener.getsockname()[1]
        self._listener, self._admit, self._serving = listener, admit, set[asyncio.Task[None]]()
        listener.setblocking(False)
        self._accepting = asyncio.create_task(self._accept())

    async def _accept(self) -> None:
        while True:
            end, _ = await asyncio.get_running_loop().sock_accept(self._listener)
            self._serving.add(asyncio.ensure_future(self._admit(end.detach())))

    async def close(self) -> None:
        for task in (self._accepting, *self._serving):
            task.cancel()
        await asyncio.gather(self._accepting, *self._serving, return_exceptions=True)
        self._listener.close()


class LocalBox:
    """Absolute paths below ``/workspace`` and ``/solution`` are mapped into ``root``; others are the host's."""

    id = "local"
    image_digest = "none"

    def __init__(self, root: Path) -> None:
        self.root = root
        (root / "workspace").mkdir(parents=True, exist_ok=True)
        self._start = self._state()

    def host(self, path: str) -> Path:
        return self.root / path.lstrip("/")

    async def exec(
        self, command: str | Sequence[str], *, cwd: str | None = None, env: Mapping[str, str] | None = None,
        user: int | None = None, timeout_s: float | None = None, stdin: bytes | None = None,
        stream: Stream | None = None, output_bytes: int | None = None,
    ) -> ExecResult:
        argv = ["bash", "-c", command] if isinstance(command, str) else list(command)
        argv = [str(self.host(word)) if word.startswith(("/workspace", "/solution")) else word for word in argv]
        return await asyncio.to_thread(self._run, argv, self.host(cwd or "/workspace"), dict(env or {}), timeout_s)

    def _run(self, argv: list[str], cwd: Path, env: dict[str, str], timeout_s: float | None) -> ExecResult:
        started = time.perf_counter()
        process = subprocess.Popen(argv, cwd=cwd, env=os.environ | env, stdin=subprocess.DEVNULL,
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True)
        timed_out = False
        try:
            out, err = process.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            timed_out = True
            os.killpg(process.pid, signal.SIGKILL)
            out, err = process.communicate()
        code = process.returncode if process.returncode >= 0 else 128 - process.returncode
        return ExecResult(code, out, err, timed_out=timed_out, seconds=time.perf_counter() - started)

    async def _none(self, *args: Any, **kwargs: Any) -> Any:
        """No harness under test asks for this."""
        raise NotImplementedError

    async def listen(self, admit: Admit, *, port: int = 0) -> Listener:
        return Port(socket.create_server(("127.0.0.1", port)), admit)

    async def stat(self, path: str) -> FileInfo:
        info = self.host(path).lstat()
        kinds = {S_IFLNK: "symlink", S_IFDIR: "directory", S_IFREG: "file"}
        return FileInfo(Path(path).name, kinds.get(S_IFMT(info.st_mode), "other"),  # type: ignore[arg-type]
                        info.st_size, info.st_mode & 0o7777, info.st_uid, info.st_mtime)

    start = pty = session = download = upload_tar = download_tar = snapshot = freeze = thaw = stats = _none

    def watch(self, path: str) -> AsyncIterator[FileEvent]:
        raise NotImplementedError

    async def read(self, path: str, *, max_bytes: int = 10_000_000) -> bytes:
        return self.host(path).read_bytes()

    async def write(self, path: str, content: bytes, *, mode: int = 0o644) -> None:
        self.host(path).parent.mkdir(parents=True, exist_ok=True)
        self.host(path).write_bytes(content)
        self.host(path).chmod(mode)

    async def list(self, path: str) -> list[FileInfo]:
        entries = sorted(self.host(path).iterdir())
        return [FileInfo(entry.name, "file" if entry.is_file() else "directory", 0, entry.stat().st_mode & 0o777)
                for entry in entries]

    async def upload(self, source: Path, target: str) -> None:
        if source.is_dir():
            shutil.copytree(source, self.host(target), symlinks=True, dirs_exist_ok=True)
        else:
            shutil.copy2(source, self.host(target))

    async def kill_all(self) -> None:
        return None

    async def changes(self, sink: BlobSink, *, roots: Sequence[str] = ("/",)) -> ChangeSet:
        now = self._state()
        found = [Change(path=path, kind=ChangeKind.FILE, sha256=sink.put(content), size=len(content))
                 for path, content in now.items() if self._start.get(path) != content]
        found += [Change(path=path, kind=ChangeKind.DELETED) for path in self._start if path not in now]
        return ChangeSet(changes=tuple(sorted(found, key=lambda change: change.path)))

    async def close(self) -> None:
        return None

    def begin(self, files: Mapping[str, str | bytes]) -> None:
        """Make ``files`` (relative to the workspace) the start."""
        for name, content in files.items():
            path = self.root / "workspace" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content if isinstance(content, bytes) else content.encode())
        self._start = self._state()

    def digest(self) -> str:
        """One hash of everything in the workspace."""
        return hashlib.sha256(repr(sorted(self._state().items())).encode()).hexdigest()

    def _state(self) -> dict[str, bytes]:
        return {f"/{path.relative_to(self.root)}": path.read_bytes()
                for path in (self.root / "workspace").rglob("*") if path.is_file()}
