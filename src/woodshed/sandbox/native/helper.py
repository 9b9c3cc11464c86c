"""A helper of a box from the engine's side: a child of its first process that moves files (``inside/transfer.py``)."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import threading
from collections.abc import Callable
from contextlib import suppress

from woodshed.errors import UsageError
from woodshed.sandbox.native.inside import frames, wire
from woodshed.sandbox.native.link import Link, Reply


class Helper:
    """It has one end of the data, and a pipe to tell why it failed."""

    def __init__(self, link: Link, message: wire.Message, data: int, path: str) -> None:
        """Starts it; ``data`` stays the caller's. Raises SandboxDied."""
        self._link, self._path, self._id = link, path, link.next_id()
        self._reason, inner = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            self._ended: asyncio.Future[Reply] = link.request({**message, "id": self._id}, [data, inner])
        except BaseException:
            os.close(self._reason)
            raise
        finally:
            os.close(inner)

    async def beside(self, work: Callable[[], None], fd: int) -> Exception | None:
        """Do ``work`` in a thread of its own, then close ``fd``; what it raised. Cancelled: the helper ends first."""
        def whole() -> None:
            try:
                work()
            finally:
                os.close(fd)

        done = _in_thread(whole)
        try:
            await asyncio.shield(done)
        except asyncio.CancelledError:
            self.forget()
            await _settled(done)  # soon: nobody is at the other end
            raise
        except Exception as error:
            return error
        return None

    async def ended(self, failure: Exception | None = None) -> None:
        """Wait for its end. Raises its reason, or ``failure``, or OSError: EDQUOT at a limit, EIO where it was killed.

        Raises SandboxDied.
        """
        if failure is not None:
            self._drop()
        try:
            end, _ = await self._ended
            if end["exit"] == 0 and failure is None:
                return
            if isinstance(failure, OSError) and failure.errno == errno.EIO:
                failure = self._why(end) or failure  # cut off, and that is why
            raise failure or self._why(end) or OSError(errno.EIO, "the transfer was killed", self._path)
        except asyncio.CancelledError:
            self._drop()
            raise
        finally:
            self._close()

    def forget(self) -> None:
        """End it, and hear no more of it."""
        self._drop()
        self._close()

    def _why(self, end: wire.Message) -> Exception | None:
        if "errno" in end:
            return OSError(end["errno"], end["reason"], self._path)
        if hits := end.get("hits"):
            return OSError(errno.EDQUOT, f"the sandbox reached its limit ({', '.join(hits)})", self._path)
        with suppress(BlockingIOError):
            if said := os.read(self._reason, 1 << 16):
                number, text = json.loads(said)
                if number == frames.REFUSED:
                    return UsageError(f"cannot be unpacked: {text}", field="source",
                                      remedy="Send a plain tar archive of files, folders and links.")
                return OSError(number, text, self._path)
        return None

    def _drop(self) -> None:
        if not self._link.dead and not self._ended.done():
            self._link.send({"op": "drop", "target": self._id})

    def _close(self) -> None:
        if self._reason >= 0:
            os.close(self._reason)
            self._reason = -1


def _in_thread(work: Callable[[], None]) -> asyncio.Future[None]:
    loop = asyncio.get_running_loop()
    done: asyncio.Future[None] = loop.create_future()

    def settle(error: Exception | None) -> None:
        if done.done():
            return
        if error is None:
            done.set_result(None)
        else:
            done.set_exception(error)

    def run() -> None:
        failure: Exception | None = None
        try:
            work()
        except Exception as error:
            failure = error
        with suppress(RuntimeError):  # the loop is closed: nobody waits
            loop.call_soon_threadsafe(settle, failure)

    threading.Thread(target=run, name="woodshed-transfer", daemon=True).start()
    return done


async def _settled(done: asyncio.Future[None]) -> None:
    with suppress(Exception):
        await done
