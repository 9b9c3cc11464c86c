"""cheat:NAME: plays one attack on the verifier, without a model. What it earns must be nothing."""

from __future__ import annotations

import time

from woodshed.harness.cheats.suite import named
from woodshed.harness.clip import clip, decoded
from woodshed.interfaces import Acting
from woodshed.model import EventKind, StopReason

_SHOWN = 16_000
_PATIENCE_S = 60.0  # some attacks are on time itself; what they leave is judged all the same


class Cheating:
    """A harness that runs one cheat's script in the workdir. Raises UsageError for a name that is none, listing all."""

    needs_model = False

    def __init__(self, argument: str | None = None) -> None:
        self.cheat = named(argument)

    async def act(self, acting: Acting) -> StopReason:
        """FINISHED, or WALL where the script did not end; whatever it broke inside is judged."""
        script = self.cheat.text(acting.task)
        acting.emit(EventKind.NOTE, {"text": f"cheat:{self.cheat.name}: {self.cheat.line}"})
        acting.emit(EventKind.TOOL_CALL, {"call": "t0001c001", "name": "bash", "arguments": {"command": script}})
        started = time.perf_counter()
        result = await acting.sandbox.exec(
            script, cwd=acting.task.environment.workdir or None, timeout_s=min(acting.deadline_s, _PATIENCE_S)
        )
        acting.usage = acting.usage.model_copy(update={"turns": 1, "tool_calls": 1})
        output, clipped = clip(decoded(result.stdout + result.stderr), _SHOWN)
        acting.emit(EventKind.TOOL_RESULT, {
            "call": "t0001c001", "content": output, "exit_code": result.exit_code,
            "truncated": clipped or result.truncated, "timed_out": result.timed_out,
            "seconds": round(time.perf_counter() - started, 6),
        })
        return StopReason.WALL if result.timed_out else StopReason.FINISHED
