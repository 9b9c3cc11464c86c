"""The engine's end of the fork server: started when first needed, again when it died, stopped with the engine."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from woodshed.errors import EnvironmentFault
from woodshed.sandbox.native.channel import Channel
from woodshed.sandbox.native.inside import wire

CODE = Path(__file__).parent
"""Where the folder ``inside`` lies that fork servers run. Attack tests name a copy that lacks one defence."""
# Parents are stand-ins: importing the real ones would load all of Woodshed into every box.
_BOOT = """
import sys
for name in ("woodshed", "woodshed.sandbox", "woodshed.sandbox.native"):
    package = sys.modules[name] = type(sys)(name)
    package.__path__ = [sys.argv[1]]
from woodshed.sandbox.native.inside.server import main
main(int(sys.argv[2]), sys.argv[3], sys.argv[4] == "privileged")
"""


class ForkServer:
    """One small process that makes boxes. It dies when this end of its socket closes, however that comes about."""

    def __init__(self, dev: Path, privileged: bool) -> None:
        """``dev`` is an empty directory, where the server mounts its /dev template in a namespace of its own."""
        self._dev, self._mode = dev, "privileged" if privileged else "ordinary"
        self._process: subprocess.Popen[bytes] | None = None
        self._channel: Channel | None = None
        self._starting: asyncio.Task[None] | None = None

    async def ready(self) -> None:
        """It runs. Raises EnvironmentFault where it cannot."""
        if self._channel is not None and self._starting is not None and self._starting.done():
            return
        if self._starting is None or self._starting.done():
            self._starting = asyncio.get_running_loop().create_task(self._start())
        await asyncio.shield(self._starting)

    async def _start(self) -> None:
        await self.stop()
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        # -I -S: no site, no user's paths; -X utf8: names are bytes whatever the locale. The environment is empty.
        argv = [sys.executable, "-I", "-S", "-X", "utf8", "-c", _BOOT, str(CODE),
                str(theirs.fileno()), str(self._dev), self._mode]
        try:
            self._process = subprocess.Popen(  # noqa: ASYNC220 (fork and exec take 2 ms, once an engine)
                argv, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env={}, cwd="/",
                pass_fds=(theirs.fileno(),), start_new_session=True,
            )
        except OSError as error:
            ours.close()
            raise EnvironmentFault(f"the fork server of native sandboxes cannot be started: {error}") from error
        finally:
            theirs.close()
        running: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def on_message(message: wire.Message, fds: list[int]) -> None:
            if running.done():
                return
            if "error" in message:
                running.set_exception(EnvironmentFault(
                    f"native sandboxes do not work here: {message['error']}. Run 'woodshed doctor' for the remedy."))
            else:
                running.set_result(None)

        def on_end() -> None:
            self._channel = None
            if not running.done():
                running.set_exception(EnvironmentFault(
                    "the fork server of native sandboxes ended at its start. Run 'woodshed doctor' for the remedy."))

        self._channel = Channel(ours, on_message, on_end)
        await running

    def send(self, message: wire.Message, fds: Sequence[int]) -> None:
        """Ask for a box. Where the server is gone the box's own channel, then without another end, says so."""
        if self._channel is not None:
            self._channel.send(message, fds)

    async def stop(self) -> None:
        """Hang up and wait for its end. Idempotent."""
        if self._channel is not None:
            self._channel.close()
            self._channel = None
        if self._process is not None:
            process, self._process = self._process, None
            await asyncio.to_thread(process.wait)
