"""The server as a process of its own: started, told to take new weights, ended."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from types import TracebackType
from typing import Self

import aiohttp

HERE = Path(__file__).resolve().parents[1]


class Child:
    """Serves the model of ``folder`` while it is entered; ``url`` is its base. It ends when this process does."""

    def __init__(self, folder: Path, *, slots: int) -> None:
        self.folder, self.url, self._slots = folder, "", slots
        self._process: asyncio.subprocess.Process

    async def __aenter__(self) -> Self:
        self._process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "tiny", str(self.folder), "--slots", str(self._slots), "--lifeline", cwd=HERE,
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE)
        assert self._process.stdout is not None
        self.url = (await self._process.stdout.readline()).decode().strip()
        if not self.url:
            raise RuntimeError(f"the model's server ended with {await self._process.wait()}")
        return self

    async def load(self, path: Path, version: str) -> None:
        """From now on the weights in ``path`` answer, as ``version``."""
        async with aiohttp.ClientSession() as session, session.post(
            self.url.removesuffix("/v1") + "/load_weights", json={"path": str(path), "version": version}
        ) as answer:
            answer.raise_for_status()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process.returncode is None:
            self._process.terminate()
            await self._process.wait()
