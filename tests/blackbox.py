"""Agents of others through the command line: a small one, a model that answers as told, and what was recorded.

The small agent knows nothing of us: it speaks to an OpenAI-compatible server, and runs what the model says.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from loopback import Asked, listening
from woodshed.model import Event
from woodshed.services.home import opened

AGENT = '''\
import json, os, subprocess, sys, time, urllib.error, urllib.request

mode = sys.argv[2] if len(sys.argv) > 2 else ""
messages = [{"role": "system", "content": "You fix things."},
            {"role": "user", "content": open(sys.argv[1]).read()}]
tool = {"type": "function", "function": {"name": "bash", "parameters": {
    "type": "object", "properties": {"command": {"type": "string"}}}}}

def ask():
    body = json.dumps({"model": "any", "messages": messages, "tools": [tool]}).encode()
    request = urllib.request.Request(os.environ["OPENAI_BASE_URL"] + "/chat/completions", body, {
        "Authorization": "Bearer " + os.environ["OPENAI_API_KEY"], "Content-Type": "application/json"})
    try:
        return json.load(urllib.request.urlopen(request))["choices"][0]["message"]
    except urllib.error.HTTPError as error:
        print(error.code, error.read().decode())
        if mode == "stubborn":
            time.sleep(600)
        sys.exit(3)

while True:
    message = ask()
    messages.append(message)
    if not message.get("tool_calls"):
        print(message["content"])
        sys.exit(4 if mode == "gives-up" else 0)
    for call in message["tool_calls"]:
        command = json.loads(call["function"]["arguments"])["command"]
        done = subprocess.run(["sh", "-c", command], capture_output=True, text=True)
        messages.append({"role": "tool", "tool_call_id": call["id"],
                         "content": f"exit code: {done.returncode}\\n{done.stdout}{done.stderr}"})
'''

ANTHROPIC = '''\
import json, os, subprocess, sys, urllib.request

messages = [{"role": "user", "content": open(sys.argv[1]).read()}]
tool = {"name": "bash", "input_schema": {"type": "object", "properties": {"command": {"type": "string"}}}}
while True:
    body = json.dumps({"model": "any", "max_tokens": 99, "messages": messages, "tools": [tool]}).encode()
    request = urllib.request.Request(os.environ["ANTHROPIC_BASE_URL"] + "/v1/messages", body, {
        "x-api-key": os.environ["ANTHROPIC_API_KEY"], "anthropic-version": "2023-06-01"})
    answer = json.load(urllib.request.urlopen(request))
    messages.append({"role": "assistant", "content": answer["content"]})
    if answer["stop_reason"] != "tool_use":
        sys.exit(0)
    results = []
    for block in answer["content"]:
        if block["type"] == "tool_use":
            done = subprocess.run(["sh", "-c", block["input"]["command"]], capture_output=True, text=True)
            results.append({"type": "tool_result", "tool_use_id": block["id"],
                            "content": f"exit code: {done.returncode}\\n{done.stdout}{done.stderr}"})
    messages.append({"role": "user", "content": results})
'''


@contextmanager
def answering(*messages: dict[str, Any]) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """A server that gives ``messages`` in turn, then the last one again: its address for --model, and what it heard."""
    heard: list[dict[str, Any]] = []

    def post(asked: Asked) -> None:
        heard.append(json.loads(asked.body()))
        message = {"role": "assistant", **messages[min(len(heard), len(messages)) - 1]}
        asked.say(json.dumps({"choices": [{"message": message, "finish_reason": "stop"}],
                              "usage": {"prompt_tokens": 7, "completion_tokens": 3}}).encode())

    with listening(post) as url:
        yield f"tiny@{url}/v1", heard


def calling(name: str, **arguments: Any) -> dict[str, Any]:
    """A message that calls one tool."""
    function = {"name": name, "arguments": json.dumps(arguments)}
    return {"content": "", "tool_calls": [{"id": "c1", "type": "function", "function": function}]}


def recorded(run: str, home: Path) -> list[Event]:
    """The events of a run's only attempt."""
    with opened(home) as place:
        [attempt] = place.store.attempts(run)
        return place.store.events(attempt.id)
