"""A rollout service in the test's own loop, on a real socket, and attempts that end as a test wants them to."""

from __future__ import annotations

import asyncio
import json
import queue
import sqlite3
import tempfile
import threading
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, closing, contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import aiohttp

from exportkit import BROKEN, valid
from kit import EXAMPLES
from woodshed.api import serving
from woodshed.model import Invalid, Outcome, StopReason, Valid
from woodshed.model.retry import Broken
from woodshed.services.home import Home, opened
from woodshed.services.offer import Offer, made

KEY = "a-key-of-the-tests-own"


def an_offer(**more: Any) -> Offer:
    """The example tasks, and an endpoint that nobody calls."""
    return made([EXAMPLES], endpoints=["policy=tiny@http://127.0.0.1:9/v1"], **more)


class Talks:
    """Speaks HTTP to one service."""

    def __init__(self, url: str, session: aiohttp.ClientSession) -> None:
        self.url, self.session = url, session

    async def call(
        self, method: str, path: str, body: Any = None, *, key: str | None = KEY,
        headers: Mapping[str, str] | None = None, data: bytes | None = None,
    ) -> tuple[int, Any]:
        """Status and JSON of an answer; its text where it is none."""
        said = dict(headers or {}) if key is None else {"Authorization": f"Bearer {key}", **(headers or {})}
        sent = {"data": data} if data is not None else {"json": body} if body is not None else {}
        async with self.session.request(method, self.url + path, headers=said, **sent) as answer:
            text = await answer.text()
            return answer.status, json.loads(text) if "json" in answer.content_type else text

    async def ask(self, **body: Any) -> dict[str, Any]:
        """A request that is accepted: attempts of one task by the oracle, unless said otherwise."""
        status, told = await self.call("POST", "/v1/rollouts",
                                       {"tasks": "first-steps/write-file", "agent": "oracle", **body})
        assert status in (200, 201), told
        return dict(told)


@asynccontextmanager
async def talking(home: Home, offer: Offer | None = None, **bounds: Any) -> AsyncIterator[Talks]:
    """A service without a worker, over this home. It ends at once, where uvicorn itself would take its time."""
    with serving.listening("127.0.0.1", 0) as listener:
        server = serving.answering(home, offer or an_offer(), KEY, serving.Bounds(**bounds))
        server.config.load()
        server.lifespan = server.config.lifespan_class(server.config)
        await server.startup(sockets=[listener])
        try:
            async with aiohttp.ClientSession() as session:
                yield Talks(serving.address(listener), session)
        finally:
            server.end()
            for accepting in server.servers:
                accepting.close()
            for connection in list(server.server_state.connections):
                connection.transport.close()
            await server.attempts.close()
            await asyncio.gather(*server.server_state.tasks, return_exceptions=True)


@contextmanager
def served_apart(home: Home, **bounds: Any) -> Iterator[str]:
    """The URL of a service in a thread of its own, for tests that share one."""
    told: queue.Queue[str] = queue.Queue()
    over = threading.Event()

    async def serve() -> None:
        async with talking(home, **bounds) as talks:
            told.put(talks.url)
            await asyncio.to_thread(over.wait)

    thread = threading.Thread(target=asyncio.run, args=(serve(),))
    thread.start()
    try:
        yield told.get(timeout=600)
    finally:
        over.set()
        thread.join()


@cache
def _blank() -> bytes:
    """A database in which nothing is, made once: migrations take a while."""
    with tempfile.TemporaryDirectory() as folder:
        with opened(Path(folder)):
            pass
        with closing(sqlite3.connect(Path(folder) / "woodshed.db")) as connection:
            return connection.serialize()


@contextmanager
def blank_home(folder: Path) -> Iterator[Home]:
    """A home in which nothing ever ran."""
    folder.mkdir(mode=0o700, exist_ok=True)
    (folder / "woodshed.db").write_bytes(_blank())
    with opened(folder) as home:
        yield home


def end(home: Home, attempts: Sequence[str], *rewards: float | None) -> None:
    """Each attempt ends as though a worker had done it; None: by no one's doing."""
    for attempt, reward in zip(attempts, rewards, strict=True):
        number = home.store.begin_execution(attempt, "w")
        assert number is not None
        verdict: Valid | Invalid = BROKEN if reward is None else valid(reward)
        broke = Broken(cause=BROKEN.cause, stage="prepare") if reward is None else None
        stop = StopReason.ERROR if reward is None else StopReason.FINISHED
        assert home.store.finish_attempt(attempt, number, Outcome(verdict=verdict, stop=stop, broke=broke))
        home.store.queue.done(attempt)
    home.store.queue.close_exhausted()


def a_task(folder: Path, name: str | None = None) -> Path:
    """A task folder that loads, and does nothing."""
    (folder / "tests").mkdir(parents=True)
    (folder / "environment").mkdir()
    (folder / "instruction.md").write_text("Do it.\n")
    (folder / "tests" / "test.sh").write_text("exit 0\n")
    (folder / "task.toml").write_text(f'version = "1.0"\n[task]\nname = "{name}"\n' if name else 'version = "1.0"\n')
    return folder
