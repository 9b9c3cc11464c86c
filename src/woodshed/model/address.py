"""What an endpoint's address says of it."""

from __future__ import annotations


def continues(base_url: str) -> bool:
    """Whether an endpoint is one of raw completions, by its address: it ends in /completions."""
    *_, before, last = ("", *base_url.rstrip("/").split("/"))
    return last == "completions" and before != "chat"
