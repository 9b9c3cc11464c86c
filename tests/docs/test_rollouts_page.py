"""The page of the rollout service: its examples run, every field is told, and every route has an example."""

from __future__ import annotations

import asyncio
import re
import shutil
from pathlib import Path

import pytest

from servekit import KEY, an_offer, blank_home, end, talking
from woodshed.api.app import application
from woodshed.model import AttemptState
from woodshed.model.delivery import Asked, Delivered
from woodshed.services.acted import ActedAttempts
from woodshed.services.home import Home

PAGE = (Path(__file__).parents[2] / "docs" / "rollouts.md").read_text()
SHELL = re.findall(r"```bash\n(.*?)```", PAGE, re.DOTALL)


async def works(home: Home) -> None:
    """Every attempt that is asked for ends well, a moment later."""
    while True:
        for run in home.store.runs():
            for attempt in home.store.attempts(run.id, AttemptState.PENDING):
                await asyncio.to_thread(end, home, [attempt.id], 1.0)
        await asyncio.sleep(0.02)


async def test_the_examples_run(tmp_path: Path) -> None:
    """One after the other, in one shell, against a service."""
    if shutil.which("curl") is None:
        pytest.skip("curl is not installed")
    with blank_home(tmp_path / "home") as home:
        async with talking(home) as talks:
            working = asyncio.create_task(works(home))
            shell = await asyncio.create_subprocess_exec(
                "bash", "-euo", "pipefail", "-c", "\n".join(SHELL), env={"PATH": "/usr/bin:/bin", "URL": talks.url,
                                                                       "KEY": KEY},
                stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT)
            said, _ = await shell.communicate()
            working.cancel()
            counts = home.store.rollouts.census("default")
    assert shell.returncode == 0, said.decode()
    assert b"event: end" in said
    assert counts == {"acked": 2}


def test_every_route_and_field_is_told(tmp_path: Path) -> None:
    """Of the contract: each path stands on the page, and each field of a request and of a group."""
    with blank_home(tmp_path / "home") as home:
        contract = application(home, an_offer(), KEY, ActedAttempts(home, an_offer()))._app.openapi()  # type: ignore[attr-defined]  # behind the guard
    for path in contract["paths"]:
        shown = path.replace("{id}", "(?:ID|\\$id)").replace("{endpoint}", "\\w+")
        assert re.search(shown + r"(?=[\"?` ])", PAGE), path
    for name in (*Asked.model_fields, *Delivered.model_fields):
        assert f"`{name}`" in PAGE or f'"{name}"' in PAGE, name
