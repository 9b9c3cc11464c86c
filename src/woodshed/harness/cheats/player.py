"""cheat:NAME: plays one attack on the verifier, without a model. What it earns must be nothing."""

from __future__ import annotations

from woodshed.harness.cheats.suite import named
from woodshed.harness.recorded import played
from woodshed.interfaces import Acting
from woodshed.model import EventKind, StopReason

_PATIENCE_S = 60.0  # some attacks are on time itself; what they leave is judged all the same


class Cheating:
    """A harness that runs one cheat's script in the workdir. Raises UsageError for a name that is none, listing all."""

    needs_model = False
    resumable = True

    def __init__(self, argument: str | None = None) -> None:
        self.cheat = named(argument)

    async def act(self, acting: Acting) -> StopReason:
        """FINISHED, or WALL where the script did not end; whatever it broke inside is judged."""
        script = self.cheat.text(acting.task)
        acting.emit(EventKind.NOTE, {"text": f"cheat:{self.cheat.name}: {self.cheat.line}"})
        result = await played(acting, script, shown=script, timeout_s=min(acting.deadline_s, _PATIENCE_S))
        return StopReason.WALL if result.timed_out else StopReason.FINISHED
