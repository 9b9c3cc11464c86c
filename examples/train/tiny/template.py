"""The chat template: a conversation as ids, and ids that were sampled as an answer. Pure.

A conversation that the model's own calls went into begins with exactly the ids that were sampled, as long as they are
well formed: arguments keep their order, and every value is written as it was.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from tiny.text import ARG, CALL, END, IS, MODEL, RESULT, TOOLS, USER, Vocabulary

Chat = Mapping[str, Any]


def prompt(words: Vocabulary, messages: Sequence[Chat], tools: Sequence[Chat]) -> list[int]:
    """The ids of a conversation that the model is to answer.

    Of the tools their names stand there, of the system's message nothing: this model reads neither manuals nor schemas.
    """
    ids = [TOOLS, *words.encode(" ".join(str(tool["function"]["name"]) for tool in tools)), END] if tools else []
    for message in messages:
        if message["role"] == "assistant":
            ids += [MODEL, *_said(words, message), END]
        elif message["role"] in ("user", "tool"):
            ids += [USER if message["role"] == "user" else RESULT, *words.encode(_text(message)), END]
    return [*ids, MODEL]


def answer(words: Vocabulary, sampled: Sequence[int], tools: Sequence[Chat]) -> dict[str, Any]:
    """The assistant's message that was sampled: its calls, or its text where it is not written as calls are."""
    ids = list(sampled[:-1] if sampled and sampled[-1] == END else sampled)
    calls = _calls(words, ids, {str(tool["function"]["name"]): tool["function"] for tool in tools})
    if calls is None:
        return {"role": "assistant", "content": words.decode(ids)}
    return {"role": "assistant", "content": None, "tool_calls": [
        {"id": f"call_{number}", "type": "function",
         "function": {"name": name, "arguments": json.dumps(arguments, ensure_ascii=False)}}
        for number, (name, arguments) in enumerate(calls)]}


def _text(message: Chat) -> str:
    content = message.get("content")
    return content if isinstance(content, str) else "".join(str(part.get("text", "")) for part in content or ())


def _said(words: Vocabulary, message: Chat) -> list[int]:
    ids = words.encode(_text(message))
    for call in message.get("tool_calls") or ():
        function = call["function"]
        given = function["arguments"]
        ids += [CALL, *words.encode(str(function["name"]))]
        for name, value in (json.loads(given) if isinstance(given, str) else given).items():
            ids += [ARG, *words.encode(name), IS]
            ids += words.encode(value if isinstance(value, str) else json.dumps(value))
    return ids


def _calls(
    words: Vocabulary, ids: Sequence[int], tools: Mapping[str, Chat]
) -> list[tuple[str, dict[str, Any]]] | None:
    """Names and arguments; None where ``ids`` are not calls and nothing else."""
    if not ids or ids[0] != CALL:
        return None
    found = []
    for part in _split(ids[1:], CALL):
        name, *given = _split(part, ARG)
        pairs = [_split(one, IS) for one in given]
        if any(mark < len((END, TOOLS, USER, MODEL, RESULT)) for mark in part) or any(len(pair) != 2 for pair in pairs):
            return None
        called = words.decode(name)
        types = tools.get(called, {}).get("parameters", {}).get("properties", {})
        found.append((called, {key: _value(words.decode(value), types.get(key, {}).get("type"))
                               for key, value in ((words.decode(key), value) for key, value in pairs)}))
    return found


def _value(text: str, kind: Any) -> Any:
    if kind in ("integer", "number", "boolean"):
        try:
            return json.loads(text)
        except ValueError:
            return text
    return text


def _split(ids: Sequence[int], mark: int) -> list[list[int]]:
    parts: list[list[int]] = [[]]
    for one in ids:
        if one == mark:
            parts.append([])
        else:
            parts[-1].append(one)
    return parts
