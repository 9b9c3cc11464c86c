"""The native engine passes the suite every engine must pass, as whoever runs the tests."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from woodshed.sandbox import conformance
from woodshed.sandbox.images import Images
from woodshed.sandbox.native.engine import NativeEngine


@pytest.fixture
async def engine(shed_home: Path, images: Images) -> AsyncIterator[NativeEngine]:
    made = NativeEngine(shed_home, images=images)
    yield made
    await made.close()


@pytest.mark.parametrize("check", conformance.CHECKS, ids=lambda check: check.__name__)
async def test_conformance(engine: NativeEngine, check: conformance.Check, shed_home: Path) -> None:
    """The check holds, and once the engine is closed nothing of it is left in the home."""
    await check(engine)
    await engine.close()
    assert list((shed_home / "sandboxes").iterdir()) == []


async def test_the_runner_reports_what_fails(engine: NativeEngine) -> None:
    """run() gives each check's outcome by name: None where it holds, the reason where it does not."""

    async def sound(_: object) -> None:
        pass

    async def broken(_: object) -> None:
        raise AssertionError("on purpose")

    assert await conformance.run(engine, (sound, broken)) == {"sound": None, "broken": "AssertionError: on purpose"}
