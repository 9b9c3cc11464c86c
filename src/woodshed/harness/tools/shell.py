"""bash, search, run_tests: tools that are one command in the sandbox."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from woodshed.harness.kit import Kit
from woodshed.harness.tools.output import KEPT_BYTES, shown
from woodshed.interfaces import Reach, Sandbox, ToolResult, ToolSpec

QUIET = {"PAGER": "cat", "GIT_PAGER": "cat", "TERM": "dumb", "PIP_PROGRESS_BAR": "off"}
_COMMAND_BYTES = 100_000  # the kernel takes 131,072 bytes in one argument (MAX_ARG_STRLEN)
_MATCHES = 100
_LINE_CHARS = 300


def too_long(tool: str, command: str) -> ToolResult | None:
    """The answer to a command that the kernel would not take."""
    if len(command.encode("utf-8", "replace")) <= _COMMAND_BYTES:
        return None
    return ToolResult(f"{tool}: the command is too long; put long content into a file with write_file.", 2)


@dataclass(frozen=True, slots=True)
class Bash:
    """Runs a shell command."""

    kit: Kit
    reach: ClassVar[Reach] = "sandbox"
    spec = ToolSpec(
        "bash", "Run a shell command in the working directory and return its output.",
        {"type": "object", "properties": {
            "command": {"type": "string", "description": "the shell command"},
            "timeout_s": {"type": "number", "description": "seconds until it is cut off"}},
         "required": ["command"]})

    async def run(self, sandbox: Sandbox, arguments: Mapping[str, Any], *, timeout_s: float) -> ToolResult:
        """Its output and exit code. State of the shell (cd, export) does not outlive it."""
        command = arguments["command"]
        if (wrong := too_long("bash", command)) is not None:
            return wrong
        return shown(await sandbox.exec(command, cwd=self.kit.task.environment.workdir, env=QUIET, timeout_s=timeout_s,
                                        output_bytes=KEPT_BYTES))


@dataclass(frozen=True, slots=True)
class Search:
    """Finds lines by a regular expression."""

    kit: Kit
    reach: ClassVar[Reach] = "files"
    parallel_safe: ClassVar[bool] = True
    spec = ToolSpec(
        "search", "Find lines that match a regular expression (grep -E) in the files below a path.",
        {"type": "object", "properties": {
            "pattern": {"type": "string", "description": "extended regular expression"},
            "path": {"type": "string", "description": "file or folder; default: the working directory"}},
         "required": ["pattern"]})

    async def run(self, sandbox: Sandbox, arguments: Mapping[str, Any], *, timeout_s: float) -> ToolResult:
        """``path:line:text`` of at most 100 matches, long lines cut."""
        argv = ["grep", "-rnIE", "--exclude-dir=.git", "--exclude-dir=node_modules", "-e", arguments["pattern"],
                "--", arguments.get("path") or "."]
        found = await sandbox.exec(argv, cwd=self.kit.task.environment.workdir, timeout_s=timeout_s,
                                   output_bytes=KEPT_BYTES)
        if found.exit_code == 1 and not found.stdout:
            return ToolResult("No line matches.", exit_code=1)
        if found.exit_code > 1 and not found.stdout:
            return shown(found)
        lines = found.stdout.split(b"\n")[:-1]
        text = "\n".join(line.decode("utf-8", "replace")[:_LINE_CHARS] for line in lines[:_MATCHES])
        more = len(lines) > _MATCHES or found.truncated
        return ToolResult(text + ("\n[... more matches; narrow the pattern or the path]" if more else ""),
                          exit_code=0, truncated=more, timed_out=found.timed_out)


_GUESS = """\
if [ -f run_tests.sh ]; then exec bash run_tests.sh
elif [ -f package.json ] && grep -q '"test"[[:space:]]*:' package.json; then exec npm test --silent
elif [ -f Cargo.toml ]; then exec cargo test --quiet
elif [ -f go.mod ]; then exec go test ./...
elif find . -path ./node_modules -prune -o \\( -name 'test_*.py' -o -name '*_test.py' \\) -print | grep -q .; then
  exec python3 -m pytest -q -x
elif { [ -f Makefile ] || [ -f makefile ]; } && grep -Eq '^(test|check):' Makefile makefile 2>/dev/null; then
  if grep -Eq '^test:' Makefile makefile 2>/dev/null; then exec make test; else exec make check; fi
else echo 'No tests are visible here. Run your own check with bash.' >&2; exit 5
fi
"""


@dataclass(frozen=True, slots=True)
class RunTests:
    """Runs the tests that the agent can see: ``test_command`` of the task's metadata, or what the files suggest."""

    kit: Kit
    reach: ClassVar[Reach] = "sandbox"
    spec = ToolSpec(
        "run_tests", "Run the tests that are visible in the working directory.", {"type": "object", "properties": {}})

    async def run(self, sandbox: Sandbox, arguments: Mapping[str, Any], *, timeout_s: float) -> ToolResult:
        """The tests' output and exit code."""
        given = self.kit.task.metadata.get("test_command")
        command = given if isinstance(given, str) and given.strip() else _GUESS
        return shown(await sandbox.exec(command, cwd=self.kit.task.environment.workdir, env=QUIET, timeout_s=timeout_s,
                                        output_bytes=KEPT_BYTES))
