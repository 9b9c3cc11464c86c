"""Babble: tool calls that are well formed and mostly mean nothing. A model learns to speak from them, not what to say.

The tool is drawn without looking at what is asked; names and words are drawn from those that stand quoted in the
conversation. Now and then a whole conversation is a demonstration of how its task is done.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web

_COMMANDS = ("cat {file}", "ls", "cp {file} {other}", "mv {file} {other}", "rm {file}", "mkdir {any}",
             "wc -l < {file} > {other}", "echo {word} >> {file}")
_TOOLS = ("bash", "bash", "bash", "read_file", "write_file", "write_file", "edit_file", "search")
_QUOTED, _FOUND = re.compile(r"`([^`\n]+)`"), re.compile(r"^([a-z]+\.[a-z]+):\d+:", re.MULTILINE)
_ENDS = 0.25
"""After n turns it finishes with this chance times n."""


def babbled(messages: Sequence[Mapping[str, Any]], dice: random.Random) -> tuple[str, dict[str, str]]:
    """A tool and its arguments."""
    text = "\n".join(str(one.get("content") or "") for one in messages if one["role"] != "system")
    found = _QUOTED.findall(text) + _FOUND.findall(text)
    files = [one for one in found if "." in one] or ["notes.txt"]
    words = [one for one in found if "." not in one] or ["amber"]
    if dice.random() < _ENDS * sum(one["role"] == "assistant" for one in messages):
        return "finish", {}
    name, file, word = dice.choice(_TOOLS), dice.choice(files), dice.choice(words)
    other = dice.choice([one for one in files if one != file] or files)
    any_ = dice.choice([*files, *words])
    if name == "bash":
        return name, {"command": dice.choice(_COMMANDS).format(file=file, other=other, word=word, any=any_)}
    if name == "edit_file":
        return name, {"path": file, "old": word, "new": dice.choice([one for one in words if one != word] or words)}
    return name, {"read_file": {"path": file}, "write_file": {"path": file, "content": any_},
                  "search": {"pattern": any_}}[name]


Call = tuple[str, Mapping[str, str]]


def shown(calls: Sequence[Call], said: int) -> tuple[str, dict[str, str]]:
    """The call after ``said`` of them in a demonstration: the task's own, a look at what was made, and the end."""
    path = calls[-1][1].get("path")
    look: Call = ("bash", {"command": f"cat {path}" if path else "ls"})
    name, arguments = [*calls, look, ("finish", {})][min(said, len(calls) + 1)]
    return name, dict(arguments)


def answered(
    messages: Sequence[Mapping[str, Any]], seed: int, known: Mapping[str, Sequence[Call]], shares: Sequence[float]
) -> tuple[str, dict[str, str]]:
    """What is called next: a demonstration goes on in all of a conversation or in none. ``seed`` goes up by calls."""
    said = sum(one["role"] == "assistant" for one in messages)
    asked = next((str(one["content"]).strip() for one in messages if one["role"] == "user"), "")
    calls = known.get(asked, ())
    if calls and random.Random(seed - said).random() < shares[len(calls) - 1]:  # noqa: S311 (repeatable, nothing secret)
        return shown(calls, said)
    return babbled(messages, random.Random(seed))  # noqa: S311 (as above)


@asynccontextmanager
async def babbler(known: Mapping[str, Sequence[Call]], shares: Sequence[float]) -> AsyncIterator[str]:
    """The base URL of a model that babbles, and demonstrates, of ``known`` tasks of n calls, the nth of ``shares``."""

    async def chat(request: web.Request) -> web.Response:
        body = await request.json()
        name, arguments = answered(body["messages"], int(body.get("seed") or 0), known, shares)
        call = {"id": "call_0", "type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}}
        return web.json_response({"choices": [{
            "index": 0, "finish_reason": "tool_calls",
            "message": {"role": "assistant", "content": None, "tool_calls": [call]}}]})

    app = web.Application()
    app.router.add_post("/v1/chat/completions", chat)
    runner = web.AppRunner(app, shutdown_timeout=1.0)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
    finally:
        await runner.cleanup()
