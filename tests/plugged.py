"""Agents of a third party's package, as any could be installed: one that sleeps, one that kills whoever runs it."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

from woodshed.errors import EnvironmentFault, HarnessFault, ModelRateLimited
from woodshed.interfaces import Acting
from woodshed.model import StopReason

POINTS = "[woodshed.harnesses]\nsleeps = plugged:Sleeps\nkills = plugged:Kills\nbreaks = plugged:Breaks\n"


def installed(folder: Path) -> dict[str, str]:
    """The environment in which these agents are known: what pip would leave in ``folder``, put on the path."""
    info = folder / "plugged-0.1.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: plugged\nVersion: 0.1\n")
    (info / "entry_points.txt").write_text(POINTS)
    (folder / "plugged.py").write_bytes(Path(__file__).read_bytes())
    return {"PYTHONPATH": os.pathsep.join(filter(None, (str(folder), os.environ.get("PYTHONPATH"))))}


class Sleeps:
    """``sleeps:SECONDS`` does nothing for so long."""

    needs_model = False

    def __init__(self, argument: str | None) -> None:
        self.seconds = float(argument or 1)

    async def act(self, acting: Acting) -> StopReason:
        """Finished, later."""
        await asyncio.sleep(self.seconds)
        return StopReason.FINISHED


class Kills:
    """``kills`` ends the process that it acts in, whichever that is."""

    needs_model = False

    def __init__(self, argument: str | None) -> None:
        assert argument is None

    async def act(self, acting: Acting) -> StopReason:
        """Does not return."""
        os.kill(os.getpid(), signal.SIGKILL)
        await asyncio.sleep(60)
        return StopReason.FINISHED


class Limited:
    """``limited`` is told by its model to come back in ten minutes."""

    needs_model = True

    def __init__(self, argument: str | None) -> None:
        assert argument is None

    async def act(self, acting: Acting) -> StopReason:
        """Raises."""
        raise ModelRateLimited("slow down", retry_after_s=600.0)


class Breaks:
    """``breaks`` breaks by no one's doing, each time."""

    needs_model = False

    def __init__(self, argument: str | None) -> None:
        assert argument is None

    async def act(self, acting: Acting) -> StopReason:
        """Raises."""
        raise HarnessFault("broken, as always")


class Stumbles:
    """``stumbles`` meets a fault of its environment each time, which is worth another try."""

    needs_model = False

    def __init__(self, argument: str | None) -> None:
        assert argument is None

    async def act(self, acting: Acting) -> StopReason:
        """Raises."""
        raise EnvironmentFault("stumbled, as always")
