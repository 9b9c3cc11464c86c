"""``python -m tiny FOLDER``: serve the model of a folder; the first line that it prints is its base URL."""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import threading
from pathlib import Path

import torch

from tiny.engine import Engine
from tiny.server import Server, load, served


async def _serve(folder: Path, port: int, version: str, slots: int, lifeline: bool) -> None:
    network, words = load(folder)
    ended, loop = asyncio.Event(), asyncio.get_running_loop()
    if lifeline:
        def watch() -> None:
            while os.read(0, 4096):  # sys.stdin has a lock, which a thread of the end would still hold
                pass
            loop.call_soon_threadsafe(ended.set)

        threading.Thread(target=watch, daemon=True).start()
    for signum in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(signum, ended.set)
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
    parser.add_argument("--lifeline", action="store_true", help="end when standard input does, as with who began this")
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    asyncio.run(_serve(given.folder, given.port, given.version, given.slots, given.lifeline))


if __name__ == "__main__":
    main()
