"""Starts and ends the server process of a local model, and says what went wrong when it does not live."""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import select
import signal
import subprocess
import sys
import time
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType

import aiohttp

from woodshed.errors import EnvironmentFault, UsageError
from woodshed.gateway.local import header, template
from woodshed.gateway.local.choose import resolve, weights
from woodshed.gateway.local.cores import usable_cores
from woodshed.model import ModelSpec, Sampling

START_TIMEOUT_S = 300.0  # a 1 GB file from a slow disk, on contended cores
KEY_VARIABLE = "WOODSHED_LOCAL_KEY"
_CHILD = Path(__file__).with_name("child.py")
_TAIL_LINES = 12


class LocalServer:
    """One llama.cpp server for one model, bound to 127.0.0.1 on a free port, with a key of this process.

    An async context manager that gives the base URL. ``reference`` is a catalog name, a .gguf path, or None for the
    default; up to ``parallel`` requests are answered at once, each with the model's whole context. ``lora`` is a GGUF
    file with an adapter, put over the weights (``trainers/lora.py`` writes them). The server ends with :meth:`stop`
    and, whatever happens, with this process. Its log lies in HOME/logs. The key stands in the environment variable
    :data:`KEY_VARIABLE` of this process, which ``ModelSpec.key_variable`` names; never in arguments or files.
    """

    def __init__(
        self, reference: str | None, home: Path, *, parallel: int | None = None, threads: int | None = None,
        lora: Path | None = None,
    ) -> None:
        self.model = resolve(reference)
        self.parallel = max(1, min(parallel or self.model.slots, self.model.slots))
        self.threads = threads or usable_cores()
        self.lora = lora
        self.base_url = ""
        self.log = home / "logs" / f"local-{os.getpid()}-{secrets.token_hex(4)}.log"
        self._home = home
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int | None:
        """The server's process id while it runs."""
        return self._process.pid if self._process and self._process.poll() is None else None

    def spec(self, sampling: Sampling | None = None) -> ModelSpec:
        """The endpoint as a record. Only valid after :meth:`start`, in this process and its children."""
        if not self.base_url:
            raise UsageError("the local model is not running", remedy="Start the server first.")
        return ModelSpec(
            name=self.model.name, base_url=self.base_url, key_variable=KEY_VARIABLE,
            sampling=sampling or Sampling(), context_tokens=self.model.context_tokens,
        )

    async def start(self, timeout_s: float = START_TIMEOUT_S) -> str:
        """Load the weights and serve; the base URL (ending in ``/v1``) once the server answers /health.

        Raises UsageError when the extra is missing or the file is no GGUF, EnvironmentFault when the server dies.
        """
        if find_spec("xllamacpp") is None:
            raise UsageError("a local model needs the extra 'local'", remedy="pip install 'woodshed[local]'")
        path = weights(self.model, self._home)
        head = await asyncio.to_thread(header.read, path)
        try:
            process = self._launch(path, template.derived(head, path.name))
            address = await asyncio.to_thread(self._address, process, timeout_s)
            await self._healthy(address, timeout_s)
        except BaseException:
            await self.stop()
            raise
        self.base_url = f"{address}/v1"
        return self.base_url

    async def stop(self) -> None:
        """End the server and wait until it is gone. Idempotent."""
        process, self._process, self.base_url = self._process, None, ""
        if process is not None:
            process.kill()  # it holds no state: nothing is lost, and nothing can make it linger
            await asyncio.to_thread(process.wait)
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    pipe.close()

    def check(self) -> None:
        """Return when the server runs. Raises EnvironmentFault with its exit and the end of its log otherwise."""
        if self._process is None or self._process.poll() is not None:
            raise self._death(self._process)

    async def __aenter__(self) -> str:
        return await self.start()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    def _orders(self, path: Path, chat: str | None) -> bytes:
        orders = {
            "model": str(path), "context_tokens": self.model.context_tokens, "parallel": self.parallel,
            "threads": self.threads, "template": chat or "", "key": _key(), "parent": os.getpid(),
            "lora": str(self.lora) if self.lora is not None else "",
        }
        return json.dumps(orders).encode() + b"\n"

    def _launch(self, path: Path, chat: str | None) -> subprocess.Popen[bytes]:
        """Start the process and hand it its orders. Not in a thread, so that a cancelled start knows what to end."""
        self.log.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(self.log, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            process = self._process = subprocess.Popen(
                [sys.executable, "-P", str(_CHILD)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=descriptor,
                env={"OMP_WAIT_POLICY": "passive", **os.environ},  # as cpuparams.poll, which OpenMP builds ignore
                start_new_session=True,  # a Ctrl-C in the terminal is ours to handle, not the server's
            )
        finally:
            os.close(descriptor)
        assert process.stdin is not None
        with suppress(OSError):  # it died before reading: the missing address tells
            process.stdin.write(self._orders(path, chat))
            process.stdin.flush()
        return process

    def _address(self, process: subprocess.Popen[bytes], timeout_s: float) -> str:
        """Where the process says it listens. Blocking."""
        line = _line_within(process, timeout_s)
        if line:
            address: str = json.loads(line)["address"]
            return address
        with suppress(subprocess.TimeoutExpired):  # it closed stdout: it is ending
            process.wait(2)
            raise self._death(process)
        raise EnvironmentFault(f"the local model did not load within {timeout_s:.0f} s. {self._log_tail()}")

    async def _healthy(self, address: str, timeout_s: float) -> None:
        """Wait until /health answers 200."""
        deadline = time.monotonic() + timeout_s
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=10)) as session:
            while True:
                self.check()
                try:
                    async with session.get(f"{address}/health") as answer:
                        if answer.status == 200:
                            return
                except (aiohttp.ClientError, TimeoutError):
                    pass
                if time.monotonic() > deadline:
                    raise EnvironmentFault(f"the local model loaded but does not answer. {self._log_tail()}")
                await asyncio.sleep(0.1)

    def _death(self, process: subprocess.Popen[bytes] | None) -> EnvironmentFault:
        if process is None:
            return EnvironmentFault("the local model's server is not running")
        code = process.returncode
        how = f"exit code {code}"
        if code < 0:
            name = signal.Signals(-code).name if -code in set(signal.Signals) else str(-code)
            how = f"signal {name}" + _MEANING.get(name, "")
        return EnvironmentFault(f"the local model's server ended ({how}). {self._log_tail()}")

    def _log_tail(self) -> str:
        try:
            lines = self.log.read_text(errors="replace").splitlines()[-_TAIL_LINES:]
        except OSError:
            lines = []
        return f"End of {self.log}:\n" + "\n".join(lines or ["(empty)"])


_MEANING = {
    "SIGILL": ": this CPU lacks AVX2, which the prebuilt server needs",
    "SIGKILL": ": most likely the kernel, out of memory; a smaller model or fewer slots need less",
}


def _key() -> str:
    """This process's key for the servers it starts, made at the first start."""
    if not os.environ.get(KEY_VARIABLE):
        os.environ[KEY_VARIABLE] = secrets.token_urlsafe(24)
    return os.environ[KEY_VARIABLE]


def _line_within(process: subprocess.Popen[bytes], timeout_s: float) -> bytes:
    """The first line of its stdout; empty when it closed stdout or said nothing in time."""
    assert process.stdout is not None
    poll, deadline, line = select.poll(), time.monotonic() + timeout_s, b""
    poll.register(process.stdout, select.POLLIN)
    while not line.endswith(b"\n") and (left := deadline - time.monotonic()) > 0 and poll.poll(left * 1000):
        if not (chunk := os.read(process.stdout.fileno(), 4096)):
            return b""
        line += chunk
    return line if line.endswith(b"\n") else b""
