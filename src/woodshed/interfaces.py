"""The protocols, on one page: what each part of an attempt promises to the others."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, Literal, Protocol, runtime_checkable

from woodshed.model import (
    Agent,
    ChangeSet,
    EnvironmentSpec,
    EventKind,
    SandboxPolicy,
    SnapshotManifest,
    StopReason,
    Task,
    Usage,
    Verdict,
)
from woodshed.model.exchange import ModelRequest as ModelRequest
from woodshed.model.exchange import ModelResponse as ModelResponse
from woodshed.model.exchange import ToolSpec as ToolSpec
from woodshed.model.sandbox import ExecResult as ExecResult
from woodshed.model.sandbox import FileEvent as FileEvent
from woodshed.model.sandbox import FileInfo as FileInfo
from woodshed.model.sandbox import Pressure as Pressure
from woodshed.model.sandbox import SandboxStats as SandboxStats
from woodshed.model.sandbox import Spool as Spool

Stream = Callable[[Literal["stdout", "stderr"], bytes], None]
Emit = Callable[[EventKind, Mapping[str, Any]], None]
"""Appends one event to the attempt's log. Returns at once; never raises for what it is given."""


@runtime_checkable
class Process(Protocol):
    """A background command that lives on after the call that started it, until killed or the sandbox closes."""

    id: int

    async def wait(self) -> int:
        """The exit code, once it ended. Raises SandboxDied."""

    async def signal(self, number: int) -> None:
        """Send a signal to its process group. Nothing happens when it has ended."""

    async def write(self, data: bytes) -> None:
        """Feed its standard input, waiting while it does not read. Raises OSError (EPIPE) when it takes no more."""

    def close_stdin(self) -> None:
        """Its standard input ends. Idempotent."""

    async def kill(self) -> None:
        """End it and its descendants in its session. Idempotent."""


class Terminal(Protocol):
    """A command on a terminal made inside the sandbox."""

    process: Process

    async def read(self, max_bytes: int = 65536) -> bytes:
        """The next output; empty when the command has ended and all was read."""

    async def write(self, data: bytes) -> None:
        """Type."""

    def resize(self, rows: int, columns: int) -> None:
        """The window's new size; the command gets SIGWINCH."""

    async def close(self) -> None:
        """Hang up and end the command. Idempotent."""


class Session(Protocol):
    """One shell that stays: its directory, variables and functions hold from command to command."""

    async def run(
        self, command: str, *, timeout_s: float | None = None, stream: Stream | None = None,
        output_bytes: int | None = None,
    ) -> ExecResult:
        """Run one command in it, with nothing on standard input. One at a time.

        At ``timeout_s`` what the command started is killed and the shell lives on where it can; where it cannot, a new
        one takes its place in the same directory, without the variables, and the result says so on stderr.
        """

    async def close(self) -> None:
        """End the shell and what runs in it. Idempotent."""


Admit = Callable[[int], Awaitable[None]]
"""Serves one connection until it ends, given the descriptor of its socket, which does not block and is its to close."""


class Listener(Protocol):
    """A port of a sandbox's loopback that leads to this process."""

    port: int

    async def close(self) -> None:
        """Nothing more comes in, and what is being served is cut off. Idempotent."""


class BlobSink(Protocol):
    """Content-addressed storage: bytes in, sha256 out."""

    def put(self, content: bytes | BinaryIO) -> str:
        """Store the whole content; the sha256 in hex. Storing the same twice costs nothing. Raises StoreFault."""

    def open(self, sha256: str) -> BinaryIO:
        """The content. Raises StoreFault when absent."""


@runtime_checkable
class Sandbox(Protocol):
    """A live isolated place. Every path is resolved inside it: no link, FIFO or device reaches the host.

    Methods raise SandboxDied when it is gone, and Unsupported for what the engine does not have.
    """

    id: str
    image_digest: str

    async def exec(
        self, command: str | Sequence[str], *, cwd: str | None = None, env: Mapping[str, str] | None = None,
        user: int | None = None, timeout_s: float | None = None, stdin: bytes | None = None,
        stream: Stream | None = None, output_bytes: int | None = None,
    ) -> ExecResult:
        """Run to the end. A string goes to ``/bin/sh -c`` (bash when there is one); a sequence is an argv.

        ``cwd`` defaults to the workdir; ``env`` adds to the sandbox's own; without ``user`` it runs as the image's USER
        (EnvironmentSpec.user), root where none is named. Returns when the command itself ended, even
        if a descendant keeps stdout open (it lives on in the background). At ``timeout_s`` its whole tree is killed.
        A command that cannot be found gives exit code 127 with the reason on stderr, as in a shell.
        """

    async def start(
        self, command: str | Sequence[str], *, cwd: str | None = None, env: Mapping[str, str] | None = None,
        user: int | None = None, stdin: bool = False, stream: Stream | None = None,
    ) -> Process:
        """Start in the background. Its output goes to ``stream``, or is discarded; with ``stdin`` it can be fed."""

    async def pty(
        self, command: str | Sequence[str] = (), *, rows: int = 24, columns: int = 80, cwd: str | None = None,
        env: Mapping[str, str] | None = None, user: int | None = None,
    ) -> Terminal:
        """Start a command (a login shell by default) on a terminal."""

    async def session(
        self, *, cwd: str | None = None, env: Mapping[str, str] | None = None, user: int | None = None
    ) -> Session:
        """A shell that stays."""

    async def listen(self, admit: Admit, *, port: int = 0) -> Listener:
        """A door at ``127.0.0.1:port`` of the sandbox's own loopback: each connection made there goes to ``admit``.

        Nothing else of the host is reached by it, and no other sandbox reaches it. With port 0 the kernel chooses.
        It closes with the sandbox, and is not part of a snapshot. Raises SandboxDied, OSError (EADDRINUSE).
        """

    async def read(self, path: str, *, max_bytes: int = 10_000_000) -> bytes:
        """Content of a regular file. Raises FileNotFoundError, IsADirectoryError, PermissionError, OSError (EFBIG)."""

    async def write(self, path: str, content: bytes, *, mode: int = 0o644) -> None:
        """Replace a file's content, parents made as needed. Refuses devices and FIFOs (OSError)."""

    async def list(self, path: str) -> list[FileInfo]:
        """Entries of a directory, by name. Raises FileNotFoundError, NotADirectoryError."""

    async def stat(self, path: str) -> FileInfo:
        """What stands at ``path``, not followed. Raises FileNotFoundError."""

    async def upload(self, source: Path, target: str) -> None:
        """Copy a host file or folder to ``target``. Symlinks are copied as links, never followed on the host."""

    async def download(self, path: str, target: Path, *, max_bytes: int = 1_000_000_000) -> None:
        """Copy a file or folder to ``target`` of the host, which must not exist. Links arrive as links.

        Modes lose setuid, setgid and sticky; what is no file, directory or link is left out. Nothing is written
        outside ``target``. Raises FileNotFoundError, FileExistsError, OSError (EFBIG, with nothing left at ``target``).
        """

    async def upload_tar(self, source: BinaryIO, target: str) -> None:
        """Unpack a tar stream below ``target``, inside; it never rests on the host. Raises OSError, UsageError."""

    async def download_tar(self, path: str, sink: BinaryIO, *, max_bytes: int = 1_000_000_000) -> None:
        """Write a tar stream of ``path`` and all below it, as the sandbox makes it: hostile. Raises OSError."""

    def watch(self, path: str) -> AsyncIterator[FileEvent]:
        """Events at and below a directory, until the iterator is closed. Raises FileNotFoundError, SandboxDied."""

    async def kill_all(self) -> None:
        """End every process but the sandbox's own first. Afterwards nothing inside runs. Raises SandboxDied."""

    async def changes(self, sink: BlobSink, *, roots: Sequence[str] = ("/",)) -> ChangeSet:
        """What differs from the start below ``roots``. Call it after kill_all. Bounded by the policy's limits."""

    async def snapshot(self) -> Snapshot:
        """Its files as they are now, for :meth:`SandboxEngine.fork`; the sandbox goes on from there.

        Where nothing runs but its first process this takes milliseconds; otherwise what runs is frozen while the
        changes are copied. Processes, /tmp, /run and /dev/shm are no part of it.
        """

    async def freeze(self) -> None:
        """Nothing inside runs until :meth:`thaw`. Idempotent."""

    async def thaw(self) -> None:
        """Everything goes on. Idempotent."""

    async def stats(self) -> SandboxStats:
        """What it has used so far."""

    async def close(self) -> None:
        """Leave nothing: no process, mount, cgroup, directory. Idempotent; never raises for a dead sandbox."""


@runtime_checkable
class Governed(Protocol):
    """What a sandbox of an engine with the capability ``network`` has besides."""

    def on_decision(self, tell: Callable[[Mapping[str, Any]], None]) -> None:
        """``tell`` every decision of its network policy, those made before first: data of ``EventKind.POLICY``.

        Called in the event loop; it returns at once. The last one given is the one that is told.
        """


class Snapshot(Protocol):
    """The files of a sandbox at one moment, shared by everything forked from it. Immutable."""

    id: str

    @property
    def digest(self) -> str:
        """Of the image and all layers above it: equal digests are equal files. The first look may read all of them."""

    async def export(self, sink: BlobSink) -> SnapshotManifest:
        """Its layers as blobs in ``sink``, and what names them; :meth:`SandboxEngine.adopt` takes it elsewhere."""

    async def release(self) -> None:
        """It is not needed any more; its layers go when the last sandbox and snapshot upon them has. Idempotent."""


Capability = Literal[
    "network", "users", "memory", "cpus", "disk", "pty", "session", "watch", "freeze", "snapshot", "fork", "export",
    "directories", "commands", "listen",
]
"""What an engine may lack. ``users``: commands as other users than 0. ``memory``, ``cpus``, ``disk``: these limits hold
while commands run. ``directories``, ``commands``: these rules of a SandboxPolicy."""


class SandboxEngine(Protocol):
    """Makes sandboxes. One instance serves a whole process; ``close`` ends every sandbox it made.

    What needs a capability it lacks raises Unsupported; nothing is silently weaker.
    """

    name: str

    @property
    def capabilities(self) -> frozenset[Capability]:
        """What it has on this machine."""

    def check(self, spec: EnvironmentSpec, policy: SandboxPolicy) -> Sequence[str]:
        """Both can be held together here, as far as can be told before; what the policy does not hold though it may

        look so, a sentence each. Raises UsageError for a contradiction, Unsupported.
        """

    async def open(self) -> None:
        """Ready to create: what the first ``create`` would begin with. Raises EnvironmentFault where it cannot be."""

    async def create(
        self,
        spec: EnvironmentSpec,
        policy: SandboxPolicy,
        *,
        restore: tuple[ChangeSet, BlobSink] | None = None,
    ) -> Sandbox:
        """A fresh sandbox of ``spec``, with ``restore`` (captured changes and their blobs) already in place.

        ``spec.setup`` has run. Raises ImageFault, EnvironmentFault, Unsupported.
        """

    async def fork(
        self, snapshot: Snapshot, n: int = 1, *, policy: SandboxPolicy | None = None
    ) -> Sequence[Sandbox]:
        """``n`` sandboxes that start from ``snapshot``, each with changes of its own; the policy is the original's.

        Raises EnvironmentFault (none of the ``n`` is left then), Unsupported for a snapshot of another engine.
        """

    async def adopt(self, manifest: SnapshotManifest, blobs: BlobSink, spec: EnvironmentSpec) -> Snapshot:
        """A snapshot exported elsewhere, upon ``spec``'s image. Raises ImageFault where that is another one."""

    async def close(self) -> None:
        """End all sandboxes and helpers of this engine. Idempotent."""


class ModelClient(Protocol):
    """The only road to a model, bound to one attempt. Made by ``gateway``."""

    async def call(self, request: ModelRequest) -> ModelResponse:
        """Ask. Retries what is worth retrying. Raises a ModelFault."""


class Gate(Protocol):
    """Asked about every call that a program makes through a :class:`ModelDoor`. It does not block and never raises."""

    def before(self, request: ModelRequest) -> ModelRequest | StopReason:
        """The request to make, or the declared limit that forbids any more. Each one let pass is told of once more."""

    def after(self, request: ModelRequest, response: ModelResponse) -> None:
        """It was answered; the program is told so now."""

    def failed(self, fault: Exception | None) -> None:
        """It came to nothing: the fault of it, or None where nobody waited for the answer any more."""

    def broken(self, what: str) -> None:
        """A part of ours could not serve a request, which the program was told: what the record is to say."""


class ModelDoor(Protocol):
    """An OpenAI-compatible server in front of one attempt's model. Made by ``gateway``; docs/gateway.md."""

    key: str
    """Opens it; 256 random bits. It stands in no record."""

    async def admit(self, descriptor: int) -> None:
        """Serve one connection until it ends: see :data:`Admit`."""

    async def close(self) -> None:
        """The key is dead, calls in flight are cut off. Idempotent."""


Serve = Callable[["ModelClient", Gate, str], ModelDoor]
"""Makes the server of a model, which programs are told is called by the last."""


class Interceptor(Protocol):
    """Sees every segment of a request before it leaves and every answer before it is used. An error blocks the call."""

    async def before(self, request: ModelRequest) -> ModelRequest:
        """The request to send instead."""

    async def after(self, request: ModelRequest, response: ModelResponse) -> ModelResponse:
        """The answer to use instead."""


@dataclass(frozen=True, slots=True)
class ToolResult:
    """What a tool answers. ``done`` ends the attempt (the ``finish`` tool).

    Where ``content`` is a part of the output, ``characters`` counts the whole, which ``blob`` (its sha256) holds.
    """

    content: str
    exit_code: int | None = None
    truncated: bool = False
    timed_out: bool = False
    done: bool = False
    blob: str | None = None
    characters: int | None = None


Reach = Literal["files", "sandbox", "world"]
"""Where a tool's effects stay: in files of the sandbox, in it and what its network lets out, or anywhere."""
AroundTool = Callable[[Mapping[str, Any], Callable[[], Awaitable[ToolResult]], Reach], Awaitable[ToolResult]]


class Tool(Protocol):
    """A capability of the loop. It may have an attribute ``reach`` (:data:`Reach`); without one it is "world".

    With ``parallel_safe`` it only reads, so that its calls of one answer may be carried out at once.
    """

    spec: ToolSpec

    async def run(self, sandbox: Sandbox, arguments: Mapping[str, Any], *, timeout_s: float) -> ToolResult:
        """Act. Bad arguments are answered in ``content``, never raised. Raises SandboxDied."""


@dataclass(frozen=True, slots=True)
class Said:
    """What somebody says to an agent while it works; ``message`` names it in the store."""

    message: int
    text: str


Hear = Callable[[int, bool], Awaitable[Sequence[Said]]]
"""What is new for the agent after so many of its turns, and whether it has just said that it is done. Each thing once.

It stands in the record with the data of ``EventKind.FEEDBACK``: ``said``, ``step``, ``message``, and ``finish`` where
that is true. Nothing else says that it was heard.
"""


@dataclass(slots=True)
class Acting:
    """What a harness is handed: the task, a live sandbox, a model if the agent has one, and where to record.

    ``deadline_s`` is seconds from now until the wall limit. ``usage`` is kept current by the harness, so that it is
    true even when the attempt is cut off.
    """

    task: Task
    agent: Agent
    sandbox: Sandbox
    model: ModelClient | None
    emit: Emit
    seed: int
    deadline_s: float
    usage: Usage = field(default_factory=Usage)
    blobs: BlobSink | None = None
    """Keeps what is too long for an event."""
    parent: str | None = None
    """The id of the call that delegated this, in a sub-task."""
    serve: Serve | None = None
    """Makes a server of ``model``, for a program of others that runs in the sandbox."""
    around_tool: AroundTool | None = None
    """Of a fine attempt (``harness/resume.py``): records a call, or gives what an earlier execution recorded of it."""
    between_turns: Callable[[], Awaitable[Sequence[str]]] | None = None
    """Of a fine attempt: awaited before each turn; what the model must be told then."""
    remarks: Callable[[int], Sequence[int] | None] | None = None
    """Of an attempt with a record: which of the task's remarks it tells of at a turn; None where it ends before."""
    person: ModelClient | None = None
    """Plays the task's person, where it has one: its calls are recorded apart from the agent's."""
    played: Callable[[int, str], str | None] | None = None
    """Likewise: what that person said at a turn and an occasion, empty for nothing; None where the record ends."""
    hear: Hear | None = None
    """Of an attempt that can be spoken to: asked between two turns, and when the agent says that it is done."""


class Harness(Protocol):
    """The program that runs the loop. It acts in the sandbox and says why it stopped; it never judges."""

    needs_model: bool

    async def act(self, acting: Acting) -> StopReason:
        """Act until done or a limit is reached. Raises ModelFault, HarnessFault, SandboxDied."""


@runtime_checkable
class Furnished(Protocol):
    """A harness whose program must stand in the sandbox it acts in; the verifier's never has it."""

    def furnish(self, spec: EnvironmentSpec) -> EnvironmentSpec:
        """The world of a task with the program in it. Raises UsageError, Unsupported."""


class Grader(Protocol):
    """Applies reward rules to the verdict of the one attempt whose events it hears."""

    async def grade(self, task: Task, changes: ChangeSet, verdict: Verdict) -> Verdict:
        """The verdict with the rules' rewards and total; an invalid one as it is.

        Raises EnvironmentFault or VerifierFault when a part of ours died while something was measured for a rule.
        """


class Verifier(Protocol):
    """Judges captured changes in a fresh sandbox."""

    async def verify(
        self, task: Task, changes: ChangeSet, blobs: BlobSink, engine: SandboxEngine, emit: Emit
    ) -> Verdict:
        """The verdict. Whatever only the agent's changes bring about is valid with total 0.

        Raises EnvironmentFault or VerifierFault when a part of ours died; the caller makes that invalid.
        """


