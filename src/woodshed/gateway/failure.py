"""What a failing endpoint's answer means: an HTTP status and a body become one class of errors.py."""

from __future__ import annotations

import re
from collections.abc import Callable
from email.utils import parsedate_to_datetime

from woodshed.errors import ContextExceeded, ModelFault, ModelRateLimited, ModelRefused, ModelUnreachable
from woodshed.gateway.parsing import loads
from woodshed.gateway.wire import excerpt
from woodshed.model import ModelSpec, printable

_FULL = re.compile(
    rb"context_length_exceeded|exceed_context_size|exceeds? the available context|maximum context length"
    rb"|context (?:length|window|size)[^.]{0,40}(?:exceed|too (?:small|long))|prompt is too long"
    rb"|longer than the (?:maximum )?(?:model|context)|max_model_len|maximum model length", re.IGNORECASE)
"""How llama.cpp, vLLM, SGLang, OpenAI and Anthropic-compatible servers say that the conversation no longer fits."""

_UNPARSED = re.compile(r"Failed to parse input at pos \d+: ?(.{0,4000})"
                       r"|The model produced output that does not match the expected \S+ format()", re.DOTALL)
"""How llama.cpp says (with status 500) that the model wrote what its parser cannot read: since the middle of 2026
(ggml-org/llama.cpp#26381) without what that was."""

_REMEDY = {
    400: "The server refuses this request: check the model's name, its sampling options, and that it supports tools.",
    401: "Check the key in the environment variable {key}.",
    403: "The key in the environment variable {key} may not use this model.",
    404: "Check base_url (it ends before /chat/completions; or in /responses, /completions) and the model's name.",
    413: "The request is too large for this server.",
    422: "The server refuses this request: check the model's name and its sampling options.",
}
_OVERLOAD = frozenset({429, 503, 529})


def failure(status: int, headers: Callable[[str], str | None], payload: bytes, spec: ModelSpec,
            now: float) -> ModelFault:
    """The fault that an answer other than 2xx is. ``headers`` looks one up; ``now`` is seconds since the epoch."""
    said = f"{spec.name} at {spec.base_url}: HTTP {status}: {excerpt(payload)}"
    if status in _OVERLOAD:
        return ModelRateLimited(said, retry_after_s(headers("Retry-After"), now))
    if status in (408, 425) or status >= 500:
        return ModelUnreachable(said)
    if 300 <= status < 400:
        target = headers("Location")
        return ModelRefused(f"{said}. It redirects to {target}: set base_url to that place, if you trust it.")
    if status in (400, 413, 422) and _FULL.search(payload):
        return ContextExceeded(said)
    remedy = _REMEDY.get(status, "The server refuses this request for good.")
    refused = ModelRefused(f"{said}. {remedy.format(key=spec.key_variable or '(none is named: set key_variable)')}")
    refused.status = status
    return refused


def unparsed(status: int, payload: bytes) -> str | None:
    """What the model wrote, as far as it is told, where the server fails because it cannot read it; else None.

    That is the model's doing, so it is an answer for the loop to explain, and no fault of the endpoint: an agent must
    not be able to make its own attempt invalid.
    """
    if status != 500:
        return None
    try:
        said = loads(payload)["error"]["message"]
    except (ValueError, RecursionError, KeyError, TypeError):
        said = payload.decode("utf-8", "replace")
    found = _UNPARSED.search(said) if isinstance(said, str) else None
    return printable(found[1] or "") if found else None


def retry_after_s(value: str | None, now: float) -> float | None:
    """Seconds that a Retry-After header asks for: a number or an HTTP date (RFC 9110, 10.2.3). None if neither."""
    if value is None:
        return None
    text = value.strip()
    if re.fullmatch(r"\d{1,9}(\.\d{1,6})?", text):
        return float(text)
    try:
        return max(0.0, parsedate_to_datetime(text).timestamp() - now)
    except (ValueError, TypeError, OverflowError):
        return None
