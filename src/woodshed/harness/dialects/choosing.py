"""Which family a model is of, by its name; and which one an answer's marks are of. Tables as data.

The setting ``dialects`` (``PATTERN=DIALECT`` by commas) is asked before the table.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase

from woodshed.errors import UsageError
from woodshed.harness.dialects.families import FAMILIES, Family, Found
from woodshed.harness.dialects.hearing import Heard, hear
from woodshed.harness.dialects.typed import Types
from woodshed.settings import setting

BY_MODEL: tuple[tuple[str, str], ...] = (
    ("*deepseek*distill*", ""),  # distilled into models that were not taught the format
    ("*qwen3-coder*", "qwen-coder"), ("*qwen3.[5-9]*", "qwen-coder"), ("*qwen*", "hermes"), ("*qwq*", "hermes"),
    ("*hermes*", "hermes"),
    ("*deepseek*v4*", "deepseek-v4"), ("*deepseek*v3.2*", "deepseek-v3.2"), ("*deepseek*v3.1*", "deepseek-v3.1"),
    ("*deepseek*v3*", "deepseek-v3"), ("*deepseek*r1*", "deepseek-v3"),
    ("*llama-4*", "llama-pythonic"), ("*llama-3*", "llama-json"),
    ("*mistral-7b*", "mistral"), ("*mixtral*", "mistral"), ("*mistral-nemo*", "mistral"),
    ("*mistral-large-2407*", "mistral"),
    ("*mistral*", "mistral-v11"), ("*ministral*", "mistral-v11"), ("*magistral*", "mistral-v11"),
    ("*devstral*", "mistral-v11"),
    ("*glm-4.[5-9]*", "glm"), ("*glm-5*", "glm"), ("*kimi-k2*", "kimi"), ("*gpt-oss*", "gpt-oss"),
    ("*functiongemma*", "functiongemma"), ("*gemma-4*", "gemma"), ("*minimax-m2*", "minimax"), ("*lfm2*", "lfm2"),
)
"""Patterns of models' names in small letters, ``_`` as ``-``; the first that fits counts. No family: none is known."""

_BY_MARK: tuple[tuple[str, str], ...] = (
    (r"<tool_call>\s*\{", "hermes"), (r"(?:<tool_call>\s*)?<function=", "qwen-coder"), ("<tool_call>", "glm"),
    ("<｜tool▁call", "deepseek-v3"), ("<｜DSML｜tool_calls", "deepseek-v4"), ("<｜DSML｜", "deepseek-v3.2"),
    (r"\[TOOL_CALLS\]", "mistral"), (r"<\|tool_call(?:s_section)?_begin\|>", "kimi"),
    (r"<\|(?:channel|start|message)\|>| to=functions\.", "gpt-oss"), ("<start_function_call>", "functiongemma"),
    (r"<\|tool_call>", "gemma"), ("<minimax:tool_call>|<invoke ", "minimax"), (r"<\|tool_call_start\|>", "lfm2"),
    (r"<\|python_tag\|>\s*\[|<\|python_start\|>|<function_calls>", "llama-pythonic"),
    (r"<\|python_tag\|>|\{", "llama-json"), (r"\s*\[", "llama-pythonic"),
)
_PATTERNS = tuple((re.compile(pattern), name) for pattern, name in _BY_MARK)
_WEAK = ("llama-json", "llama-pythonic")
"""Their calls begin like JSON or lists that are none, and are looked for where the model's name is a Llama's."""


def family_of(model: str) -> Family | None:
    """The family whose format the model of this name was taught, as far as its name tells.

    Raises UsageError for a setting that is none.
    """
    name = model.lower().replace("_", "-")
    for pattern, dialect in (*_own(), *BY_MODEL):
        if fnmatchcase(name, pattern):
            return FAMILIES.get(dialect)
    return None


def _own() -> Iterator[tuple[str, str]]:
    for entry in filter(None, (part.strip() for part in setting("dialects").split(","))):
        pattern, _, dialect = entry.partition("=")
        if dialect.strip() not in (*FAMILIES, "text"):
            raise UsageError(f"'{entry}' names no dialect", field="WOODSHED_DIALECTS",
                             remedy=f"Write PATTERN=DIALECT. Known: text, {', '.join(FAMILIES)}.")
        yield pattern.strip().lower().replace("_", "-"), dialect.strip()


class AnyFamily:
    """Every family's marks at once, for answers that the server should have parsed and did not.

    ``known`` is the model's own family, if its name tells.
    """

    def __init__(self, known: Family | None) -> None:
        self._known = known or FAMILIES["hermes"]
        asked = [family for name, family in FAMILIES.items() if name not in _WEAK or self._known.name in _WEAK]
        openers = [mark for family in asked for mark in family.openers] + ["<|python_tag|>", "<|python_start|>"]
        self._marks = _Marks(tuple(dict.fromkeys(openers)), "".join(family.first for family in asked))

    def hear(self, text: str, types: Types) -> tuple[Family, Heard]:
        """What ``text`` says and calls, and in whose format."""
        begun = hear(text, self._marks, types)
        body = next((item for item in begun.found if isinstance(item, str)), None)
        if body is None:
            return self._known, begun
        family = next((FAMILIES[name] for pattern, name in _PATTERNS if pattern.match(body)), self._known)
        inside = hear(body, family, types)
        return family, Heard(begun.said + inside.said, inside.found)


@dataclass(frozen=True)
class _Marks:
    """What a call may begin with; what follows is read by whose mark it is."""

    openers: tuple[str, ...]
    first: str
    silent: bool = False

    def read(self, body: str, types: Types) -> Iterator[Found]:
        """All of it, as one."""
        yield body
