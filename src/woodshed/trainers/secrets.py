"""Secrets are masked before anything leaves. Recognised by shape, and by value where the run lent one. Pure.

A mask says what kind stood there, and nothing of it. Ids of tokens cannot be masked: whoever exports them asks first
whether the text of a rollout holds a secret (:meth:`Masker.kinds`).
Shapes are those that the issuers document (GitHub, GitLab, Slack, AWS, Google, Stripe, npm, PyPI, Hugging Face, OpenAI,
Anthropic), RFC 7519 for tokens of three parts, RFC 7468 for PEM.
"""

from __future__ import annotations

import base64
import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import quote

SHORTEST = 6
"""A lent value that is shorter is no secret, but a word."""

_REMEMBERED = 16_000_000
"""Characters of texts that are kept with what they became: a conversation's are asked about with each of its calls."""

_SHAPES = {
    "private_key": r"-----BEGIN [A-Z ]{0,40}PRIVATE KEY-----.*?(?:-----END [A-Z ]{0,40}PRIVATE KEY-----|\Z)",
    "jwt": r"\beyJ[A-Za-z0-9_-]{8,}\.eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}",
    "aws_key": r"\b(?:AKIA|ASIA)[0-9A-Z]{16}\b",
    "github_token": r"\b(?:gh[pousr]_[A-Za-z0-9]{36,255}|github_pat_[A-Za-z0-9_]{22,255})",
    "gitlab_token": r"\bglpat-[A-Za-z0-9_-]{20,255}",
    "slack_token": r"\bxox[abeoprs]-[A-Za-z0-9-]{10,255}",
    "google_key": r"\bAIza[0-9A-Za-z_-]{35}",
    "stripe_key": r"\b[rs]k_(?:live|test)_[0-9A-Za-z]{16,255}",
    "npm_token": r"\bnpm_[A-Za-z0-9]{36}\b",
    "pypi_token": r"\bpypi-[A-Za-z0-9_-]{40,1000}",
    "huggingface_token": r"\bhf_[A-Za-z0-9]{30,255}\b",
    "api_key": r"\bsk-(?:ant-|proj-|svcacct-)?(?=[A-Za-z_-]{0,200}[0-9])[A-Za-z0-9_-]{20,255}",
}
_AFTER = {
    "url_password": r"\b[a-z][a-z0-9+.-]{1,20}://[^\s/:@'\"<>]{0,256}:(?P<%s>[^\s/@'\"<>]{1,256})@",
    "authorization": r"(?i:\bauthorization[\"']?\s{0,5}[:=]\s{0,5}[\"']?(?:bearer|basic|token)\s{1,5})"
                     r"(?P<%s>[^\s'\",]{8,4000})",
    "assigned": r"(?i:password|passwd|secret|api[_-]?key|access[_-]?key|access[_-]?token|auth[_-]?token)"
                r"[\"']?\s{0,5}[:=]\s{0,5}[\"']?(?P<%s>(?=[A-Za-z+/_=-]{0,200}[0-9])(?=[0-9+/_=-]{0,200}[A-Za-z])"
                r"[A-Za-z0-9+/_=-]{16,500})",
}
"""Where only a part is the secret: the group of that name."""


class Masker:
    """Masks text and whatever holds it, and counts what it masked by kind in ``found``.

    ``values`` are secrets by name, as a run lent them: they are found as they are, and as JSON, a URL or base64 would
    write them.
    """

    def __init__(self, values: Mapping[str, str] | None = None) -> None:
        self.found: Counter[str] = Counter()
        lent = {form: f"variable:{name}" for name, value in (values or {}).items() for form in _forms(value)}
        self._lent = lent
        known = "|".join(re.escape(form) for form in sorted(lent, key=len, reverse=True))
        shapes = [f"(?P<{kind}>{shape})" for kind, shape in _SHAPES.items()]
        shapes += [shape % kind for kind, shape in _AFTER.items()]
        if known:
            shapes.insert(0, f"(?P<lent>{known})")
        self._pattern = re.compile("|".join(shapes), re.DOTALL)
        self._seen: dict[str, tuple[str, tuple[str, ...]]] = {}
        self._seen_characters, self._now = 0, list[str]()

    def text(self, text: str) -> str:
        """The text, each secret in it replaced by ``[masked:KIND]``."""
        if (known := self._seen.get(text)) is None:
            if self._seen_characters > _REMEMBERED:
                self._seen.clear()
                self._seen_characters = 0
            self._now = []
            known = self._seen[text] = self._pattern.sub(self._mask, text), tuple(self._now)
            self._seen_characters += 2 * len(text)
        self.found.update(known[1])
        return known[0]

    def masked(self, value: Any) -> Any:
        """JSON values with every text in them masked, names of keys included."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, dict):
            return {self.text(key) if isinstance(key, str) else key: self.masked(one) for key, one in value.items()}
        return [self.masked(one) for one in value] if isinstance(value, list | tuple) else value

    def kinds(self, values: Iterable[Any]) -> set[str]:
        """What kinds of secrets stand in any text of ``values``; nothing is counted."""
        counted, self.found = self.found, Counter()
        try:
            for value in values:
                self.masked(value)
            return set(self.found)
        finally:
            self.found = counted

    def _mask(self, match: re.Match[str]) -> str:
        kind = match.lastgroup or ""
        secret = match.group(kind)
        name = self._lent[secret] if kind == "lent" else kind
        self._now.append(name)
        start, end = match.span(kind)
        before, after = match.string[match.start():start], match.string[end: match.end()]
        return f"{before}[masked:{name}]{after}"


def _forms(value: str) -> set[str]:
    if len(value.strip()) < SHORTEST:
        return set()
    raw = value.encode("utf-8", "surrogateescape")
    return {value, json.dumps(value)[1:-1], json.dumps(value, ensure_ascii=False)[1:-1], quote(value, safe=""),
            base64.b64encode(raw).decode().rstrip("=")}
