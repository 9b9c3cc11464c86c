"""Where two contents differ, as blocks of lines, and what stands when some of them are put back. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher

_WORK = 4_000_000  # pairs of lines for difflib to compare; beyond it, first to last change are one block
_GLUE = re.compile(rb"[\s(){}\[\],;]*|end;?|fi|done|esac")


@dataclass(frozen=True, slots=True)
class Block:
    """Lines ``old_start:old_end`` of the start became ``new_start:new_end``. From 0, half open."""

    old_start: int
    old_end: int
    new_start: int
    new_end: int


def lines_of(content: bytes) -> list[bytes]:
    """Lines with their ends. Only LF ends a line, as in diff and patch."""
    parts = content.split(b"\n")
    return [part + b"\n" for part in parts[:-1]] + ([parts[-1]] if parts[-1] else [])


def blocks(old: Sequence[bytes], new: Sequence[bytes]) -> list[Block]:
    """The differences in order; those with only blank lines or closing brackets between them are one."""
    head = _alike(old, new)
    tail = _alike(old[head:][::-1], new[head:][::-1])
    before, after = old[head : len(old) - tail], new[head : len(new) - tail]
    if not before and not after:
        return []
    if len(before) * len(after) > _WORK:
        return [Block(head, head + len(before), head, head + len(after))]
    found: list[Block] = []
    for tag, a, b, c, d in SequenceMatcher(None, before, after, autojunk=False).get_opcodes():
        if tag == "equal":
            continue
        block = Block(head + a, head + b, head + c, head + d)
        if found and all(_GLUE.fullmatch(line.strip()) for line in new[found[-1].new_end : block.new_start]):
            found[-1] = joined(found[-1], block)
        else:
            found.append(block)
    return found


def _alike(first: Sequence[bytes], second: Sequence[bytes]) -> int:
    """With how many equal lines both begin."""
    pairs = zip(first, second, strict=False)
    return next((index for index, (one, other) in enumerate(pairs) if one != other), min(len(first), len(second)))


def joined(first: Block, last: Block) -> Block:
    """One block from the beginning of ``first`` to the end of ``last``."""
    return Block(first.old_start, last.old_end, first.new_start, last.new_end)


def put_back(old: Sequence[bytes], new: Sequence[bytes], chosen: Iterable[Block]) -> bytes:
    """``new`` with the chosen blocks, in order, as they were in ``old``."""
    parts: list[bytes] = []
    at = 0
    for block in chosen:
        parts += new[at : block.new_start]
        parts += old[block.old_start : block.old_end]
        at = block.new_end
    return b"".join([*parts, *new[at:]])
