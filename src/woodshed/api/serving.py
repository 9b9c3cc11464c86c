"""Serving: the application on a socket, with a worker beside it that executes what is asked for, until a signal comes.

What is open when this process dies goes on with the next one: nothing of a request lives here.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from ipaddress import ip_address
from typing import Any

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

from woodshed.api.app import application
from woodshed.api.guard import BODY_BYTES, BODY_S
from woodshed.errors import StoreFault, UsageError
from woodshed.services import orphaned, rollouts, working
from woodshed.services.acted import MOST, ActedAttempts
from woodshed.services.home import Home
from woodshed.services.offer import Offer

IDLE_S, LEAVE_S = 60, 2
"""So long a connection may rest, and answers may take when the service ends."""
_TEND_S = 1.0
Tell = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Bounds:
    """What anyone may take of a service: connections at once (more are answered 503), and seconds for a request's head

    and for its body.
    """

    connections: int = 512
    head_s: float = 15.0
    body_s: float = BODY_S


def listening(host: str, port: int, *, remote: bool = False) -> socket.socket:
    """A socket that listens; on this machine's own loopback alone, unless ``remote``. Raises UsageError."""
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        if not remote and not ip_address(str(address[0])).is_loopback:
            raise UsageError(f"{host} can be reached from other machines", field="--host",
                             remedy="Say --allow-remote, and put TLS before it: the key is sent as it is.")
        return socket.create_server(address[:2], family=family, backlog=1024)
    except OSError as error:
        raise UsageError(f"cannot listen at {host}:{port}: {error.strerror or error}", field="--port",
                         remedy="Choose another, or 0 for any.") from None


async def serve(
    home: Home, offer: Offer, key: str, listener: socket.socket, terms: working.Terms | None, tell: Tell,
    *, acted: int = MOST,
) -> None:
    """Serve until SIGTERM or SIGINT: then nothing more begins, and what runs goes on to its end, while groups are

    still handed out. A second signal stops that, too; what was cut off goes on with the next start. ``terms`` are of
    the worker here; None: others do the work. At most so many ``acted`` attempts are open at once; they are cut off at
    the end. Raises what ends the worker.
    """
    server, stop = answering(home, offer, key, acted=acted), _Stop(asyncio.get_running_loop())
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    tending = asyncio.create_task(_tend(home, tell))
    working_ = asyncio.create_task(_work(home, terms, stop, tell))
    try:
        await asyncio.wait([serving, working_], return_when=asyncio.FIRST_COMPLETED)
    finally:
        server.end()
        await server.attempts.close()
        for task in (working_, tending):
            task.cancel()
        await asyncio.gather(serving, working_, tending, return_exceptions=True)
        stop.close()
    if not working_.cancelled() and (error := working_.exception()) is not None:
        raise error


def answering(
    home: Home, offer: Offer, key: str, bounds: Bounds = Bounds(), *, acted: int = MOST
) -> Server:
    """A server of the application, for ``await server.serve(sockets=[…])``. Its ``attempts`` are closed after it."""
    logging.getLogger("uvicorn").setLevel(logging.ERROR)  # what anyone sends is no news
    attempts = ActedAttempts(home, offer, most=acted)
    app = application(home, offer, key, attempts, body_s=bounds.body_s)
    config = uvicorn.Config(
        app, ws=WebSocketsSansIOProtocol, ws_max_size=BODY_BYTES, lifespan="off", log_config=None,
        http=partial(_Patient, bounds.head_s),  # type: ignore[arg-type]  # called like a class, and nothing else
        access_log=False, limit_concurrency=bounds.connections, timeout_keep_alive=IDLE_S,
        timeout_graceful_shutdown=LEAVE_S, server_header=False, date_header=False)
    return Server(config, app.ending, attempts)


async def _work(home: Home, terms: working.Terms | None, stop: _Stop, tell: Tell) -> None:
    """Execute what there is until the end is asked for; a worker that was taken for dead has a successor."""
    if terms is None:
        await stop.asked.wait()
        return
    while not stop.asked.is_set():
        working_ = asyncio.ensure_future(working.work(home, replace(terms, end=stop.asked), tell))
        over = asyncio.ensure_future(stop.over.wait())
        try:
            await asyncio.wait([working_, over], return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (working_, over):
                task.cancel()
            await asyncio.gather(working_, over, return_exceptions=True)
        if not working_.cancelled():
            working_.result()


async def _tend(home: Home, tell: Tell) -> None:
    """What comes by itself, every second; at first, the end of what an earlier service left. A fault of the store is

    told, and it goes on.
    """
    looked = False
    while True:
        try:
            if not looked:
                for run in await asyncio.to_thread(orphaned.end, home):
                    tell(f"{run} is over: {orphaned.DETAIL}")
                looked = True
            await asyncio.to_thread(rollouts.tend, home)
        except StoreFault as fault:
            tell(f"{fault}; trying again")
        await asyncio.sleep(_TEND_S)


class _Stop:
    """Hears signals: the first sets ``asked``, the second ``over``."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.asked, self.over = asyncio.Event(), asyncio.Event()
        self._loop = loop
        for signum in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(signum, self._hear)

    def _hear(self) -> None:
        (self.over if self.asked.is_set() else self.asked).set()

    def close(self) -> None:
        for signum in (signal.SIGINT, signal.SIGTERM):
            self._loop.remove_signal_handler(signum)


class Server(uvicorn.Server):
    """uvicorn's, but signals are ours to hear, and whoever waits for something is answered before it ends."""

    def __init__(self, config: uvicorn.Config, ending: asyncio.Event, attempts: ActedAttempts) -> None:
        super().__init__(config)
        self._ending, self.attempts = ending, attempts

    def end(self) -> None:
        """End soon."""
        self._ending.set()
        self.should_exit = True

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Nothing is captured."""
        yield


class _Patient(H11Protocol):
    """uvicorn's protocol, but whoever opens a connection and does not say what it wants is left, after a while."""

    def __init__(self, head_s: float, **given: Any) -> None:
        super().__init__(**given)
        self._head_s, self._quiet = head_s, False
        self._looking: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn's own
        """Begin to look."""
        super().connection_made(transport)
        self._look_later()

    def connection_lost(self, exc: Exception | None) -> None:
        """Look no more."""
        if self._looking is not None:
            self._looking.cancel()
        super().connection_lost(exc)

    def handle_websocket_upgrade(self, event: Any) -> None:
        """From now on it is a WebSocket's, which has pings."""
        if self._looking is not None:
            self._looking.cancel()
        super().handle_websocket_upgrade(event)

    def _look_later(self) -> None:
        self._looking = self.loop.call_later(self._head_s, self._look)

    def _look(self) -> None:
        """Between two looks a request must have begun; one that rests after an answer is uvicorn's to end."""
        waits = self.cycle is None or self.cycle.response_complete
        rests = self.timeout_keep_alive_task is not None
        if waits and not rests and self._quiet:
            self.transport.close()
            return
        self._quiet = waits and not rests
        self._look_later()


def address(listener: socket.socket) -> str:
    """The URL at which a socket listens."""
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
