"""How many lines turn one text into another: the shortest edit script, within a bound of work. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

STEPS = 10_000_000
"""Of one patch's comparisons, a few seconds. A hostile text can make any exact comparison cost its square."""


class Steps:
    """What work is left for the comparisons of one patch."""

    def __init__(self, left: int = STEPS) -> None:
        self.left = left


def edited(before: bytes, after: bytes, steps: Steps) -> tuple[int, int]:
    """Lines (added, removed) of the shortest edit script; where the steps end, of no more than it.

    Source: E. Myers, "An O(ND) Difference Algorithm and Its Variations", Algorithmica 1 (1986), the greedy algorithm.
    Its length alone is needed: with both texts' lengths it gives both counts.
    """
    old, new = _trimmed(before.splitlines(), after.splitlines())
    script = _distance(old, new, steps)
    if script is not None:
        return (script + len(new) - len(old)) // 2, (script + len(old) - len(new)) // 2
    had, have = Counter(old), Counter(new)
    return max(1, (have - had).total()), max(1, (had - have).total())


def _trimmed(old: list[bytes], new: list[bytes]) -> tuple[list[bytes], list[bytes]]:
    """Both without the lines they begin and end with alike."""
    shorter, head = min(len(old), len(new)), 0
    while head < shorter and old[head] == new[head]:
        head += 1
    tail = 0
    while tail < shorter - head and old[-1 - tail] == new[-1 - tail]:
        tail += 1
    return old[head:len(old) - tail], new[head:len(new) - tail]


def _distance(old: Sequence[bytes], new: Sequence[bytes], steps: Steps) -> int | None:
    """The length of the shortest edit script; None where the steps do not suffice."""
    reach = {1: 0}
    for script in range(len(old) + len(new) + 1):
        for diagonal in range(-script, script + 1, 2):
            down = diagonal == -script or (diagonal != script and reach[diagonal - 1] < reach[diagonal + 1])
            x = reach[diagonal + 1] if down else reach[diagonal - 1] + 1
            y, begun = x - diagonal, x
            while x < len(old) and y < len(new) and old[x] == new[y]:
                x, y = x + 1, y + 1
            reach[diagonal] = x
            steps.left -= 1 + x - begun
            if x >= len(old) and y >= len(new):
                return script
        if steps.left < 0:
            return None
    return None
