"""Laws of token records: what was generated is learnt exactly once, packing loses nothing, order does not count."""

from __future__ import annotations

import hashlib
import random
from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from woodshed.model.drift import Course
from woodshed.model.rollout import CallRecord, CaptureLevel
from woodshed.model.tokens import Packer, Tokens, Unpacker, shared
from woodshed.trainers.stitch import stitch

IDS = st.lists(st.integers(0, 5), min_size=1, max_size=6).map(tuple)
ANY_ID = st.integers(0, 2**31 - 1)


def record(name: int, prompt: tuple[int, ...], completion: tuple[int, ...], parent: str | None = None) -> CallRecord:
    return CallRecord(
        rollout="a-1", attempt="a", execution=1, call=f"m{name:05d}", parent=parent, model="m",
        prompt_token_ids=prompt, completion_token_ids=completion, logprobs=tuple(-0.5 - one for one in completion),
        loss_mask=(1,) * len(completion), finish_reason="stop", capture_level=CaptureLevel.LOGPROBS)


@st.composite
def conversations(draw: st.DrawFn) -> list[CallRecord]:
    """Several conversations at once: they go on, are written again (compaction), ask again, and have parents."""
    open_: dict[str | None, tuple[int, ...]] = {}
    made: list[CallRecord] = []
    for number in range(1, draw(st.integers(1, 9)) + 1):
        parent = draw(st.sampled_from([None, None, "t1", "t2"]))
        before = open_.get(parent)
        how = draw(st.sampled_from(["on", "on", "compacted", "again"])) if before else "new"
        if how == "on" and before:
            prompt = before + draw(st.lists(st.integers(0, 5), max_size=4).map(tuple))
        elif how == "again" and before:
            prompt = before[: draw(st.integers(1, len(before)))]
        else:
            prompt = draw(IDS)
        completion = draw(IDS)
        made.append(record(number, prompt, completion, parent))
        open_[parent] = prompt + completion
    return made


@given(conversations())
@settings(max_examples=60, deadline=None)
def test_a_course_tells_what_stitching_finds(calls: list[CallRecord]) -> None:
    """How each prompt goes on is told as its call comes, and the rows say the same later, while all are remembered."""
    calls, course = calls[:4], Course()
    told = Counter(course.of(Tokens(call.prompt_token_ids, call.completion_token_ids), call.parent) for call in calls)
    assert {kind: count for kind, count in told.items() if kind is not None} == stitch(calls).drift


@given(conversations())
@settings(max_examples=60, deadline=None)
def test_every_sampled_id_is_learnt_exactly_once(calls: list[CallRecord]) -> None:
    """The ids with mask 1 are those of all completions, in the order of their calls, each in the row of its call."""
    rows = stitch(calls).rows
    by_call = {call.call: call for call in calls}
    assert Counter(name for row in rows for name in row.calls) == Counter(list(by_call))
    for row in rows:
        learnt = tuple(one for one, mask in zip(row.token_ids, row.loss_mask, strict=True) if mask)
        assert learnt == tuple(one for name in row.calls for one in by_call[name].completion_token_ids or ())
        assert row.logprobs is not None
        told = tuple(p for p, mask in zip(row.logprobs, row.loss_mask, strict=True) if mask)
        assert told == tuple(one for name in row.calls for one in by_call[name].logprobs or ())


@given(conversations())
@settings(max_examples=40, deadline=None)
def test_a_row_is_what_the_model_saw(calls: list[CallRecord]) -> None:
    """Up to the end of each completion, a row is the prompt and completion of that call; parents never mix."""
    by_call = {call.call: call for call in calls}
    for row in stitch(calls).rows:
        assert {by_call[name].parent for name in row.calls} == {row.parent}
        for name in row.calls:
            whole = (*(by_call[name].prompt_token_ids or ()), *(by_call[name].completion_token_ids or ()))
            assert row.token_ids[: len(whole)] == whole
        assert row.token_ids == whole
        assert row.prompt_length == len(by_call[row.calls[0]].prompt_token_ids or ())


@given(conversations(), st.randoms(use_true_random=False))
@settings(max_examples=40, deadline=None)
def test_order_and_repetition_do_not_count(calls: list[CallRecord], chance: random.Random) -> None:
    """Records that come in any order, some of them several times, make the same rows and the same tally."""
    again = [*calls, *chance.choices(calls, k=chance.randint(0, 5))]
    chance.shuffle(again)
    assert stitch(again) == stitch(calls)
    assert sum(stitch(calls).drift.values()) == len(calls)


@given(st.lists(st.tuples(st.sampled_from([None, "t1"]), st.booleans(), st.lists(ANY_ID, max_size=700),
                          st.lists(ANY_ID, max_size=300)), max_size=5))
@settings(max_examples=40, deadline=None)
def test_packing_loses_nothing(calls: list[tuple[str | None, bool, list[int], list[int]]]) -> None:
    """What was packed into events and blobs is read again as it was, long or short, going on or not."""
    kept: dict[str, bytes] = {}

    def put(content: bytes) -> str:
        kept[hashlib.sha256(content).hexdigest()] = content
        return hashlib.sha256(content).hexdigest()

    packer, unpacker, last = Packer(put), Unpacker(kept.__getitem__), dict[str | None, tuple[int, ...]]()
    for number, (parent, on, prompt, completion) in enumerate(calls):
        before = last.get(parent, ()) if on else ()
        tokens = Tokens((*before, *prompt), tuple(completion), tuple(-one / 7 for one in completion), "v1")
        last[parent] = tokens.whole
        written = packer.packed(f"m{number}", tokens, parent=parent)
        assert unpacker.unpacked(f"m{number}", written) == tokens


@given(st.lists(st.integers(0, 2)), st.lists(st.integers(0, 2)))
def test_shared_counts_what_both_begin_with(one: list[int], other: list[int]) -> None:
    """The halving search finds what a plain look at each pair finds."""
    plain = next((n for n, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
    assert shared(one, other) == plain
