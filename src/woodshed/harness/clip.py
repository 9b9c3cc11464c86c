"""Text from hostile bytes, bounded: the head and the tail stay, the gap is marked with its size."""

from __future__ import annotations


def decoded(content: bytes) -> str:
    """``content`` as text; bytes that are not UTF-8 become U+FFFD, NUL becomes its picture."""
    return content.decode("utf-8", "replace").replace("\0", "\N{SYMBOL FOR NULL}")


def clip(text: str, limit: int) -> tuple[str, bool]:
    """``text`` in about ``limit`` characters, and whether any were left out."""
    if len(text) <= limit:
        return text, False
    head, tail = limit * 2 // 3, limit // 3
    gap = len(text) - head - tail
    return f"{text[:head]}\n[... {gap} characters left out ...]\n{text[len(text) - tail:]}", True
