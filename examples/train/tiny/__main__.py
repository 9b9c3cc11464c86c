"""``python -m tiny FOLDER``: serve the model of a folder; the first line that it prints is its base URL."""

from __future__ import annotations

import argparse
import asyncio
import signal
from pathlib import Path

import torch

from tiny.engine import Engine
from tiny.server import Server, load, served


async def _serve(folder: Path, port: int, version: str, slots: int) -> None:
    network, words = load(folder)
    ended = asyncio.Event()
    for signum in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(signum, ended.set)
    async with served(Server(Engine(network, version=version, slots=slots), words), port) as url:
        print(url, flush=True)
        await ended.wait()


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(prog="tiny", description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--version", default="0", help="of the weights in the folder")
    parser.add_argument("--slots", type=int, default=16, help="prompts at a time")
    parser.add_argument("--threads", type=int, default=1)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    asyncio.run(_serve(given.folder, given.port, given.version, given.slots))


if __name__ == "__main__":
    main()
