"""The thread beside the main loop, where a library's short blocking calls are made one after another."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

import pytest

from woodshed.engine.aside import Aside, InOrder


@pytest.fixture
def beside() -> Iterator[Aside]:
    made = Aside("beside", InOrder())
    yield made
    made.close()


async def test_blocking_work_is_done_by_the_thread_itself_in_order(beside: Aside) -> None:
    """What goes to a pool elsewhere is called at once in the one thread, even when another executor was set."""
    seen: list[tuple[int, str]] = []

    def note(number: int) -> int:
        seen.append((number, threading.current_thread().name))
        return number

    async def work(number: int) -> int:
        return await asyncio.to_thread(note, number)

    assert await asyncio.gather(*(beside.call(work(number)) for number in range(5))) == list(range(5))
    assert seen == [(number, "beside") for number in range(5)]


async def test_an_error_there_is_raised_here(beside: Aside) -> None:
    """A blocking call's exception reaches the caller, and the loop goes on."""

    async def fail() -> None:
        await asyncio.to_thread(int, "no number")

    with pytest.raises(ValueError, match="no number"):
        await beside.call(fail())
    assert await beside.call(asyncio.sleep(0, "still here")) == "still here"


async def test_cancelling_the_wait_cancels_the_work(beside: Aside) -> None:
    """Whoever is cancelled while waiting leaves nothing running there."""
    began, ended = threading.Event(), threading.Event()

    async def work() -> None:
        began.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    waiting = asyncio.ensure_future(beside.call(work()))
    await asyncio.to_thread(began.wait)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert await asyncio.to_thread(ended.wait, 10)


async def test_closing_ends_the_thread_and_may_be_repeated() -> None:
    """After close the thread is gone."""
    made = Aside("brief", InOrder())
    made.close()
    made.close()
    assert "brief" not in [thread.name for thread in threading.enumerate()]
