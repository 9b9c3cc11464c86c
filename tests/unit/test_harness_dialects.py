"""Reading actions from text: what small and large models really write."""

from __future__ import annotations

import pytest

from woodshed.harness.dialects import named
from woodshed.interfaces import ModelResponse


def read(text: str, dialect: str = "text", finish: str = "stop") -> tuple[list[tuple[str, dict[str, object]]], bool]:
    reading = named(dialect).read(ModelResponse(text, finish_reason=finish))
    return [(call.name, call.arguments) for call in reading.calls], reading.done


@pytest.mark.parametrize("text", [
    "```bash\nls -l\n```", "```sh\nls -l\n```", "```\nls -l\n```", "I will look.\n\n```bash\nls -l\n```\nThat is it.",
    "```bash\n$ ls -l\n```", "~~~shell\nls -l\n~~~", "````bash\nls -l\n````", "```bash\nls -l",
    "  ```BASH\nls -l\n  ```",
    "<think>```bash\nrm -rf /\n```</think>```bash\nls -l\n```", "```json\n{\"name\": \"bash\", \"arguments\": "
    "{\"command\": \"ls -l\"}}\n```", "<tool_call>\n{\"name\": \"bash\", \"arguments\": {\"command\": \"ls -l\"}}\n"
    "</tool_call>", "{\"name\": \"bash\", \"arguments\": {\"command\": \"ls -l\"}}",
    "{\"name\": \"bash\", \"parameters\": {\"command\": \"ls -l\"}}",
    "```json\n{\"name\": \"bash\", \"arguments\": \"{\\\"command\\\": \\\"ls -l\\\"}\"}\n```",
    "```bash\r\nls -l\r\n```", "ls -l", "$ ls -l\n", "`ls -l`",
    "Here is the file:\n```python\nprint()\n```\nNow:\n```bash\nls -l\n```",
])
def test_one_command_in_many_clothes(text: str) -> None:
    """However it is dressed, the same command is read."""
    assert read(text) == ([("bash", {"command": "ls -l"})], False)


def test_only_the_first_block_counts() -> None:
    """Later blocks were written without knowing the first one's result; the model is told."""
    reading = named("text").read(ModelResponse("```bash\na\n```\n```bash\nb\n```"))
    assert [call.arguments["command"] for call in reading.calls] == ["a"]
    assert "Only the first of your 2 blocks" in reading.note


def test_heredocs_and_longer_fences_survive() -> None:
    """A command keeps its lines; a longer fence may hold a shorter one."""
    inner = "cat > README.md <<'X'\n```bash\nmake\n```\nX"
    assert read(f"````bash\n{inner}\n````") == ([("bash", {"command": inner})], False)


@pytest.mark.parametrize("text", ["DONE", "done is not it.\nDONE", "**DONE**", "The work is over. \n\nDONE.", "`DONE`"])
def test_done_is_the_end(text: str) -> None:
    """DONE as the last word on a line of its own is the end."""
    assert read(text) == ([], True)


def test_a_finish_block_is_a_call() -> None:
    """A block marked finish calls the tool of that name."""
    assert read("```finish\nAll fixed.\n```") == ([("finish", {"summary": "All fixed."})], False)


@pytest.mark.parametrize(("text", "needle"), [
    ("", "holds no command"),
    ("find the files and list them.", "holds no command"), ("Sorted.", "holds no command"),
    ("I am DONE with it", "holds no command"), ("```python\nprint(1)\n```", "holds no command"),
    ("```bash\n\n```", "block is empty"), ("```json\n{\"name\": \"bash\", }\n```", "not valid JSON"),
    ("```json\n{\"a\": 1}\n```", "needs \"name\""), ("```json\n" + "[" * 50_000 + "\n```", "not valid JSON"),
    ("{\"name\": \"bash\", \"arguments\": [\"ls\"]}", "needs \"name\""),
    ("<think>```bash\nls\n```", "holds no command"),
])
def test_what_is_no_action_is_explained(text: str, needle: str) -> None:
    """No command, a broken one, or one that was only thought: nothing is run and the model learns why."""
    for dialect in ("text", "auto"):
        reading = named(dialect).read(ModelResponse(text))
        assert (reading.calls, reading.done) == ((), False)
        assert needle in reading.complaint
