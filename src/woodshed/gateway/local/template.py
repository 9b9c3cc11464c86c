"""The chat template a model is served with, so that the tool calls it really writes are read as tool calls.

Qwen2.5-Coder's own template tells it to write ``<tool_call>`` tags, but the small Coder models write a fenced JSON
block instead (0 of 10 calls parsed with the stock template, 10 of 10 with this one: docs/models.md). llama.cpp derives
its parser from the template, so changing the markers there changes both what is asked and what is understood.
"""

from __future__ import annotations

import re

from woodshed.gateway.local.header import Header

_INSTRUCTION = (
    "To call a function, reply with only a json object with function name and arguments inside a ```json code block:"
    '\\n```json\\n{\\"name\\": <function-name>, \\"arguments\\": <args-json-object>}\\n```<|im_end|>\\n'
)
# Three places of Qwen2.5's template speak of the tags: the instruction after the list of tools, and the opening and
# the closing of a past call. All three must be there exactly once, or the template is another one and stays as it is.
_ASKED = re.compile(r'(\{\{- "\\n</tools>\\n\\n)For each function call.*?</tool_call><\|im_end\|>\\n(" \}\})', re.S)
_OPENED = "'\\n<tool_call>\\n{\"name\": \"'"
_CLOSED = "'}\\n</tool_call>'"


def fenced(stock: str) -> str | None:
    """Qwen2.5's ``stock`` template with fenced JSON blocks for tool calls; None when it is not that template."""
    if len(_ASKED.findall(stock)) != 1 or stock.count(_OPENED) != 1 or stock.count(_CLOSED) != 1:
        return None
    asked = _ASKED.sub(lambda found: found[1] + _INSTRUCTION + found[2], stock)
    opened = asked.replace(_OPENED, "'\\n```json\\n{\"name\": \"'")
    return opened.replace(_CLOSED, "'}\\n```'")


def derived(header: Header, filename: str = "") -> str | None:
    """The template to serve the model with, or None for its own: only Qwen2.5-Coder needs another one."""
    coder = "coder" in f"{header.name} {filename}".lower()
    return fenced(header.template) if header.architecture == "qwen2" and coder else None
