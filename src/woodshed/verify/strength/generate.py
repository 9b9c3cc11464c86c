"""variants(): the wrong end states of a task, by which the strength of its verifier is measured. Pure.

Strength is the share of them that the verifier fails. Operators, formula and limits: ``docs/strength.md``.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from random import Random

from woodshed.verify.strength.hunks import hunks, judged
from woodshed.verify.strength.mutants import mutants
from woodshed.verify.strength.python import compiled, fingerprint
from woodshed.verify.strength.superficial import superficial
from woodshed.verify.strength.variant import Candidate, Files, Kind, Variant, named, realised

Named = tuple[str, Candidate]


def variants(
    start: Mapping[str, bytes], solved: Files, *, seed: int, at_most: int, examples: Sequence[str] = ()
) -> list[Variant]:
    """At most ``at_most`` end states that a verifier should fail, no two alike, in order of kind, path and line.

    ``start`` holds the files of the workspace, ``solved`` what the reference makes of them (paths it does not name stay
    as they are; None deletes). Paths are relative to the workdir. ``examples`` are texts that whoever solves the task
    can see, such as its instruction. Where there are more, ``seed`` chooses, spread over kinds, hunks and lines; the
    same arguments give the same list (on one version of Python, whose compiler tells equal programs). Takes up to a
    second or so for long files. Never raises for any content.
    """
    end: Files = {path: content for path, content in solved.items() if content is not None or path in start}
    paths = judged(start, end)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the compiler, about the mutants
        found = [*hunks(start, end, paths), *mutants(start, end, paths), *superficial(start, end, paths, examples)]
        return _chosen(named(found), start, end, seed, at_most)


def _chosen(
    found: list[Named], start: Mapping[str, bytes], solved: Files, seed: int, at_most: int
) -> list[Variant]:
    """The candidates drawn that turn out to be variants, each end state once.

    Of Python its code is compared: a mutant that compiles to what the reference, or another variant, does is none.
    """
    order = {name: index for index, (name, _) in enumerate(found)}
    end_state = _EndStates(start)
    right = {path: content for path, content in solved.items() if start.get(path) != content}
    seen = {end_state.of(right), end_state.of({})}
    chosen: list[Variant] = []
    for name, candidate in _spread(found, Random(f"woodshed-strength-{seed}")):  # noqa: S311  # a draw, no secret
        if len(chosen) >= at_most:
            break
        variant = realised(candidate, name, start, solved)
        if variant is not None and (state := end_state.of(variant.files)) not in seen:
            seen.add(state)
            chosen.append(variant)
    return sorted(chosen, key=lambda variant: order[variant.name])


class _EndStates:
    """What tells end states apart: of Python files that compile the code, of others the content."""

    def __init__(self, start: Mapping[str, bytes]) -> None:
        self._start = start
        self._codes: dict[bytes, str | None] = {}

    def of(self, files: Files) -> frozenset[tuple[str, bytes | str | None]]:
        """What ``files`` make of the start; equal for equal programs."""
        told = {path: self._told(path, content) for path, content in files.items()}
        return frozenset((path, what) for path, what in told.items() if what != self._told(path, self._start.get(path)))

    def _told(self, path: str, content: bytes | None) -> bytes | str | None:
        if content is None or not path.endswith(".py"):
            return content
        if content not in self._codes:
            code = compiled(content)
            self._codes[content] = None if code is None else fingerprint(code)
        return self._codes[content] or content


def _spread(found: list[Named], random: Random) -> Iterator[Named]:
    """All of them: a kind each in turn, in each kind a block each in turn, in each block a line each in turn.

    Mutants come twice in a turn: there are most of them, and they are the hardest to fail.
    """
    hunks, mutants, superficial = (
        _in_turn([
            _in_turn([iter(random.sample(line, len(line))) for line in _grouped(block, random, lambda one: one.line)])
            for block in _grouped([pair for pair in found if pair[1].kind is kind], random, _block)
        ])
        for kind in (Kind.HUNK, Kind.MUTANT, Kind.SUPERFICIAL)
    )
    return _in_turn([hunks, mutants, superficial, mutants])


def _block(candidate: Candidate) -> object:
    return candidate.path, candidate.block


def _grouped(found: list[Named], random: Random, key: Callable[[Candidate], object]) -> list[list[Named]]:
    """The candidates in groups of equal ``key``, groups in random order."""
    groups: dict[object, list[Named]] = {}
    for pair in found:
        groups.setdefault(key(pair[1]), []).append(pair)
    return random.sample(list(groups.values()), len(groups))


def _in_turn(streams: list[Iterator[Named]]) -> Iterator[Named]:
    """One of each stream, and again, until all have ended."""
    while streams:
        left = []
        for stream in streams:
            pair = next(stream, None)
            if pair is not None:
                yield pair
                left.append(stream)
        streams = left
