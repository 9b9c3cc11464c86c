"""Text from hostile bytes, bounded: the head and the tail stay, the gap is marked with its size."""

from __future__ import annotations


def decoded(content: bytes) -> str:
    """``content`` as text; bytes that are not UTF-8 become U+FFFD, NUL becomes its picture."""
    return content.decode("utf-8", "replace").replace("\0", "\N{SYMBOL FOR NULL}")


def clip(text: str, limit: int, how: str = "") -> tuple[str, bool]:
    """``text`` in about ``limit`` characters, and whether any were left out. ``how`` says how to read the rest."""
    if len(text) <= limit:
        return text, False
    head, tail = limit * 2 // 3, limit // 3
    gap = len(text) - head - tail
    mark = f"[output {len(text):,} characters; the middle left out; {how}]" if how \
        else f"[... {gap} characters left out ...]"
    return f"{text[:head]}\n{mark}\n{text[len(text) - tail:]}", True
