"""The chat formats of Mistral, where the system prompt and the tools move, and of gpt-oss, where turns have headers.

Sources: mistral-common (tokenizers v3, v11 and v13), whose text a test holds against ours; the OpenAI Harmony response
format (openai/harmony, docs/format.md), likewise against openai-harmony.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence

from woodshed.harness.dialects.chats.turns import Turns, name_of
from woodshed.harness.dialects.families import FAMILIES
from woodshed.harness.dialects.families.family import as_json
from woodshed.interfaces import ToolSpec

_CALL_ID = re.compile(r"\[CALL_ID\]([^\[]*)\[ARGS\]")
_OLD_ID = re.compile(r'"id": ?"([a-zA-Z0-9]{9})"')
_ENDS = ("<|call|>", "<|end|>", "<|return|>")
_NEXT_TO = re.compile(r" to=(?!assistant)")
_MARKS = ("[INST]", "[/INST]", "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]",
          "[TOOL_CALLS]", "[TOOL_RESULTS]", "[/TOOL_RESULTS]", "[TOOL_CONTENT]", "[CALL_ID]", "[ARGS]", "<s>", "</s>")


def _offered(tools: Sequence[ToolSpec]) -> str:
    return json.dumps([as_json(tool) for tool in tools], ensure_ascii=False)


def _nothing(system: str, tools: Sequence[ToolSpec]) -> str:
    return ""


def _tools_before(system: str, tools: Sequence[ToolSpec]) -> str:
    return f"[AVAILABLE_TOOLS] {_offered(tools)}[/AVAILABLE_TOOLS]" if tools else ""


def _system_inside(system: str, tools: Sequence[ToolSpec]) -> str:
    return f"{system}\n\n" if system else ""


def _later_tools_before(system: str, tools: Sequence[ToolSpec]) -> str:
    return f"[AVAILABLE_TOOLS]{_offered(tools)}[/AVAILABLE_TOOLS]" if tools else ""


def _result(content: str, answer: str, index: int) -> str:
    """With the id that the model gave the call, or in its place the number of the call in nine digits."""
    ids = _OLD_ID.findall(answer)
    told = {"content": content, "call_id": ids[index] if index < len(ids) else f"{index + 1:09d}"}
    return f"[TOOL_RESULTS] {json.dumps(told, ensure_ascii=False)}[/TOOL_RESULTS]"


def _later_result(content: str, answer: str, index: int) -> str:
    """With an id where the model gave one, as v11 has it; without, as v13."""
    ids = _CALL_ID.findall(answer)
    ident = f"{ids[index].strip()}[TOOL_CONTENT]" if index < len(ids) else ""
    return f"[TOOL_RESULTS]{ident}{content}[/TOOL_RESULTS]"


def _developer(system: str, tools: Sequence[ToolSpec]) -> str:
    """What openai-harmony writes where nothing but instructions and tools is given: no date."""
    head, _, declared = FAMILIES["gpt-oss"].manual(tools).partition("\n\n") if tools else (_CHANNELS, "", "")
    told = "\n\n".join([*([f"# Instructions\n\n{system}"] if system else []), *([declared] if declared else [])])
    developer = f"<|start|>developer<|message|>{told}<|end|>" if told else ""
    return ("<|start|>system<|message|>You are ChatGPT, a large language model trained by OpenAI.\n"
            f"Knowledge cutoff: 2024-06\n\nReasoning: medium\n\n{head}<|end|>{developer}")


def _harmony_result(content: str, answer: str, index: int) -> str:
    name = name_of("gpt-oss", answer, index)
    return (f"<|start|>functions.{name} to=assistant<|channel|>commentary<|message|>{content}<|end|>")


def _harmony_end(answer: str) -> str:
    """A call ends as such; what was final ends in the history like any message. One that was written again has it."""
    if answer.endswith(_ENDS):
        return ""
    return "<|call|>" if _NEXT_TO.search(answer.rpartition("<|start|>")[2].partition("<|message|>")[0]) else "<|end|>"


_CHANNELS = "# Valid channels: analysis, commentary, final. Channel must be included for every message."
MISTRAL = Turns(
    "mistral", ("</s>",), _nothing, ("[INST] ", "[/INST]"), ("", "</s>"), ("", "", ""), _result, _MARKS,
    told=("last", _tools_before, _system_inside))
MISTRAL_V11 = Turns(
    "mistral-v11", ("</s>",), lambda system, tools: f"[SYSTEM_PROMPT]{system}[/SYSTEM_PROMPT]" if system else "",
    ("[INST]", "[/INST]"), ("", "</s>"), ("", "", ""), _later_result, _MARKS,
    told=("first", _later_tools_before, _nothing))
GPT_OSS = Turns(
    "gpt-oss", ("<|return|>", "<|call|>"), _developer, ("<|start|>user<|message|>", "<|end|>"),
    ("<|start|>assistant", ""), ("", "", ""), _harmony_result,
    ("<|start|>", "<|end|>", "<|message|>", "<|channel|>", "<|constrain|>", "<|return|>", "<|call|>"),
    ended=_harmony_end)

ALL: Mapping[str, Turns] = {each.name: each for each in (MISTRAL, MISTRAL_V11, GPT_OSS)}
