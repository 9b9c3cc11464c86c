"""TRL: an ``environment_factory`` whose environments are attempts, acted by the model that TRL samples.

A row of the data set names a task (column ``task``, or its prompt's last message), and may have a ``seed``. Nothing of
TRL is imported. Held against TRL 1.16, as its ``GRPOTrainer`` calls::

    tasks = Dataset.from_list([{"prompt": ASK, "task": "first-steps/write-file"}, ...])
    trainer = GRPOTrainer(model, environment_factory=factory(Client(url, key)), train_dataset=tasks, ...)

All environments of a batch are open at once: the service needs ``--acted`` for as many. An attempt that broke by
nobody's doing has the reward None, which TRL leaves out of its group.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from woodshed.errors import EnvironmentFault
from woodshed.model.agent import AgentLimits
from woodshed.trainers.acting import Actable, Player
from woodshed.trainers.trl import task as named

ASK = [{"role": "user", "content": "Do this with your tools:\n"}]
"""A prompt to which ``reset`` adds the task's instruction."""


class Environment:
    """One environment of TRL's: its public methods are the tools. It is used again for later rollouts."""

    def __init__(self, player: Player) -> None:
        self._player = player

    def reset(self, **row: Any) -> str:
        """A new attempt at the row's task; its instruction, which stands after the prompt."""
        try:
            task, seed = row.get("task") or named(row.get("prompt")), int(row.get("seed") or 0)
            return self._player.begin(task, seed).instruction
        except EnvironmentFault as fault:  # no world: the others of the batch go on, and this one has no reward
            return f"[The sandbox did not open: {fault}]"

    def get_reward(self) -> float | None:
        """The verdict's total; None, and no 0, where there is no verdict to rely upon."""
        try:
            ended = self._player.finish()
        except EnvironmentFault:
            return None
        return None if ended is None else ended.reward

    def bash(self, command: str) -> str:
        """
        Run a command with bash in the working directory, and read what it prints.

        Args:
            command: The command.

        Returns:
            What it printed, and how it ended.
        """
        return self._act("bash", command=command)

    def read_file(self, path: str) -> str:
        """
        Read a text file.

        Args:
            path: The path of the file.

        Returns:
            Its lines, with numbers.
        """
        return self._act("read_file", path=path)

    def write_file(self, path: str, content: str) -> str:
        """
        Write a file; what it held is replaced.

        Args:
            path: The path of the file.
            content: What it is to hold.

        Returns:
            Whether it was written.
        """
        return self._act("write_file", path=path, content=content)

    def finish(self, summary: str, command: str = "") -> str:
        """
        Say that the task is done.

        Args:
            summary: What was done.
            command: The command that was run to see that it works.

        Returns:
            What is missing, or that the attempt is over.
        """
        return self._act("finish", summary=summary, **({"command": command} if command else {}))

    def _act(self, tool: str, **arguments: Any) -> str:
        if self._player.begun is None:
            return "There is no sandbox."
        seen = self._player.act(tool, arguments)
        end = "" if seen.exit_code in (None, 0) else f"\n[exit code {seen.exit_code}]"
        return seen.content + end


def factory(
    actable: Actable, *, limits: AgentLimits | None = None, wait_s: float = 600.0
) -> Callable[[], Environment]:
    """What TRL makes its environments with. ``wait_s`` seconds each waits for a place."""
    return lambda: Environment(Player(actable, limits=limits, wait_s=wait_s))
