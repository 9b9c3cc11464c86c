"""Gymnasium: attempts as a ``gymnasium.Env`` whose actions and observations are texts (extra ``gymnasium``).

An action is a command for bash, or a call of any tool as JSON ``{"tool": …, "arguments": {…}}``; an empty one, or
``{"end": true}``, has what was done verified. The reward comes with the last step. Held against Gymnasium 1.4::

    env = Attempts(Client(url, key), ["first-steps/write-file"])
    text, info = env.reset(seed=1)
    text, reward, terminated, truncated, info = env.step("echo 'hello world' > hello.txt")
"""

from __future__ import annotations

import json
import string
from collections.abc import Sequence
from typing import Any, ClassVar

import gymnasium
from gymnasium.spaces import Text

from woodshed.errors import UsageError
from woodshed.model.acted import Ended
from woodshed.model.agent import AgentLimits
from woodshed.trainers.acting import Actable, Player

LONGEST = 100_000
"""Characters of an action or an observation."""
SIGNS = frozenset(string.printable)
"""Of the spaces, which must name theirs. Other signs are replaced by ``?`` in observations; actions may hold any."""
_LIMITS = frozenset({"turn_limit", "tool_call_limit", "wall_limit"})


class Attempts(gymnasium.Env[str, str]):
    """One attempt after the other. ``reset(options={"task": …})`` names one; else one of ``tasks`` is drawn by seed.

    ``info`` at the end has ``valid``, ``passed``, ``cause``, ``rewards`` and ``attempt``. Where ``valid`` is false, the
    reward is NaN: Gymnasium wants a number, and it is no 0. Leave those attempts out.
    """

    metadata: ClassVar[dict[str, Any]] = {"render_modes": []}

    def __init__(self, actable: Actable, tasks: Sequence[str], *, limits: AgentLimits | None = None,
                 wait_s: float = 600.0) -> None:
        if not tasks:
            raise UsageError("no tasks", field="tasks", remedy="Name some.")
        self._tasks, self._player = list(tasks), Player(actable, limits=limits, wait_s=wait_s)
        self.action_space = Text(LONGEST, min_length=0, charset=SIGNS)
        self.observation_space = Text(LONGEST, min_length=0, charset=SIGNS)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """The instruction of a new attempt, and its ``tools`` as ``info``. Raises what ``begin`` does."""
        super().reset(seed=seed)
        task = (options or {}).get("task") or self._tasks[int(self.np_random.integers(len(self._tasks)))]
        begun = self._player.begin(task, int(self.np_random.integers(2**31)))
        return _text(begun.instruction), {"task": begun.task, "attempt": begun.id,
                                          "tools": [tool.to_json() for tool in begun.tools]}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """What the tool answers. ``truncated`` where a limit ended it. Raises Conflict before the first reset."""
        call = _call(action)
        if call is None:
            ended = self._player.finish()
            return _result("", ended)
        seen = self._player.act(*call)
        return _result(seen.content, seen.ended, exit_code=seen.exit_code)

    def close(self) -> None:
        """Nothing runs any more."""
        self._player.leave()


def _call(action: str) -> tuple[str, dict[str, Any]] | None:
    """The tool that an action means, and its arguments; None for the end."""
    if not action.strip():
        return None
    try:
        said = json.loads(action)
    except ValueError:
        said = None
    if isinstance(said, dict) and said.get("end") is True:
        return None
    if isinstance(said, dict) and isinstance(said.get("tool"), str) and isinstance(said.get("arguments", {}), dict):
        return said["tool"], said.get("arguments", {})
    return "bash", {"command": action}


def _result(content: str, ended: Ended | None, **info: Any) -> tuple[str, float, bool, bool, dict[str, Any]]:
    if ended is None:
        return _text(content), 0.0, False, False, info
    info |= {"valid": ended.valid, "passed": ended.passed, "rewards": ended.rewards, "attempt": ended.attempt,
             "stop": ended.stop, "cause": None if ended.cause is None else ended.cause.value}
    reward = float("nan") if ended.reward is None else ended.reward
    truncated = ended.stop in _LIMITS
    return _text(content), reward, not truncated, truncated, info


def _text(content: str) -> str:
    return "".join(sign if sign in SIGNS else "?" for sign in content[:LONGEST])
