"""User satisfaction: what it was like to wait for this agent, and whether what came was accepted. Pure."""

from __future__ import annotations

import json
import math
import re

from woodshed.measure.process.facts import Facts, Made, Turn
from woodshed.model import EventKind
from woodshed.model.process import Citation, Dimension, Measure

_LOOKED_AT = 4000  # characters of a message that a pattern is tried on: the text is hostile
_ASKS = re.compile(
    r"\b(?:(?:shall|should|may|can|could) I\b|do you (?:want|wish|agree|mind)|would you (?:like|prefer|mind)"
    r"|is (?:that|this|it) (?:ok|okay|all right|fine)|(?:are you|is everyone) (?:ok|okay|fine) with"
    r"|want me to|which (?:one )?(?:do|would|should) (?:you|I))[^?!\n]{0,300}\?"
    r"|\bplease (?:confirm|approve|let me know (?:if|whether|how) (?:I|you))\b"
    r"|\b(?:waiting|wait) for your (?:confirmation|approval|answer|reply|go-ahead)\b", re.IGNORECASE)
_CONCRETE = re.compile(
    r"`[^`\n]+`|\d|[\w-]+/[\w./-]+|\b\w+\.[A-Za-z]{1,4}\b|\b\w+_\w+\b|\b\w+\(\)|\"[^\"\n]{2,}\"|'[^'\n]{2,}'"
    r"|\b(?:error|exception|test|function|class|method|bug|line|fails?|passed?|because)\b", re.IGNORECASE)
_TIMES = re.compile(r"\d+\.\d+")  # how long it took is told of many a check, and differs each time
_WORD_OF_THE_PROTOCOL = frozenset({"", "done", "done."})


def measured(facts: Facts) -> list[Measure]:
    """``accepted``, ``unasked``, ``unrepeated``, ``clear_statuses``, ``rating``, and the time to the first edit."""
    return [_accepted(facts), _unasked(facts), _unrepeated(facts), _clear(facts), _rating(facts), *_first(facts)]


def _of(name: str, value: float | None, why: str, cited: list[Citation] | None = None, **more: str) -> Measure:
    return Measure.model_validate({"name": name, "dimension": Dimension.SATISFACTION, "value": value, "why": why,
                                   "cited": tuple(cited or ()), **more})


def _accepted(facts: Facts) -> Measure:
    if facts.verdict is None:
        return _of("accepted", None, "there is no valid verdict")
    if facts.verdict.passed:
        return _of("accepted", 1.0, "the verifier accepted the work")
    last = max((event.seq for event in facts.of(EventKind.VERDICT)), default=None)
    why = facts.verdict.detail.split("\n")[0][:200] or "its reward is not 1"
    cited = [Citation(seq=last, why=f"not accepted: {why}")]
    return _of("accepted", 0.0, "the verifier did not accept the work", cited)


def _unasked(facts: Facts) -> Measure:
    """1 minus the share of turns that ask for leave instead of acting."""
    if not facts.turns:
        return _of("unasked", None, "no model spoke")
    asking = [(turn, found) for turn in facts.turns if not turn.calls
              and (found := _ASKS.search(turn.message[:_LOOKED_AT])) is not None]
    cited = [_turn(turn, f"asked instead of acting: {_line(found.group())}") for turn, found in asking]
    return _of("unasked", 1 - len(asking) / len(facts.turns),
               f"{len(asking)} of {len(facts.turns)} turns asked for leave", cited)


def _unrepeated(facts: Facts) -> Measure:
    """1 minus the share of calls made a third time or more, with the same result and no edit in between."""
    if not facts.calls:
        return _of("unrepeated", None, "no call was made")
    seen: dict[str, int] = {}
    cited = []
    for made in facts.calls:
        key = _same(made)
        seen[key] = seen.get(key, 0) + 1
        if seen[key] > 2:
            cited.append(made.cited(f"the same call with the same result, time {seen[key]}: {made.shown}"))
        elif made.edits and seen[key] == 1:
            seen = {key: 1}
    return _of("unrepeated", 1 - len(cited) / len(facts.calls),
               f"{len(cited)} of {len(facts.calls)} calls were further repetitions", cited)


def _same(made: Made) -> str:
    result = (made.seen.exit_code, _TIMES.sub("", made.seen.content)) if made.seen is not None else None
    return json.dumps([made.call.name, made.call.arguments, made.call.raw, result], sort_keys=True)


def _clear(facts: Facts) -> Measure:
    """The share of turns without a call whose text names something: a file, a figure, a test, a cause."""
    told = [turn for turn in facts.turns if not turn.calls
            and turn.message.strip().lower() not in _WORD_OF_THE_PROTOCOL]
    told_last = _summary(facts)
    if not told and told_last is None:
        return _of("clear_statuses", None, "it gave no status in words")
    vague = [turn for turn in told if not _CONCRETE.search(turn.message[:_LOOKED_AT])]
    cited = [_turn(turn, f"a status that names nothing: {_line(turn.message)}") for turn in vague]
    if told_last is not None and not _CONCRETE.search(told_last[1]):
        cited.append(told_last[0].cited(f"a closing word that names nothing: {_line(told_last[1])}"))
    total = len(told) + (told_last is not None)
    return _of("clear_statuses", 1 - len(cited) / total, f"{total - len(cited)} of {total} statuses name something",
               cited)


def _summary(facts: Facts) -> tuple[Made, str] | None:
    """The last call of ``finish`` and what it says; None where it says nothing."""
    for made in reversed(facts.calls):
        if made.own and made.call.name == "finish" and made.call.error is None:
            text = str(made.call.arguments.get("summary", "")).strip()
            return (made, text[:_LOOKED_AT]) if text.lower() not in _WORD_OF_THE_PROTOCOL else None
    return None


def _rating(facts: Facts) -> Measure:
    """What people gave, 1 to 5, as a share: their mean less one, over four."""
    if not facts.ratings:
        return _of("rating", None, "nobody rated it")
    mean = math.fsum(rating.stars for rating in facts.ratings) / len(facts.ratings)
    cited = [Citation(why=f"{rating.stars} of 5" + (f": {_line(rating.note)}" if rating.note else ""))
             for rating in facts.ratings if rating.stars < 5]
    return _of("rating", (mean - 1) / 4, f"{mean:.1f} of 5 from {len(facts.ratings)}", cited)


def _first(facts: Facts) -> list[Measure]:
    """Calls and seconds until the first edit: how long one waits for something useful."""
    first = next((made for made in facts.calls if made.edits and _worked(made)), None)
    if first is None:
        return [_of(name, None, facts.no_edit, unit=unit)
                for name, unit in (("first_edit_call", "calls"), ("first_edit_s", "seconds"))]
    why = f"the first edit: {first.shown}"
    return [_of("first_edit_call", float(first.number), why, unit="calls"),
            _of("first_edit_s", round(first.seconds, 3), why, unit="seconds")]


def _worked(made: Made) -> bool:
    return made.seen is not None and made.seen.exit_code in (0, None) and not made.seen.interrupted


def _turn(turn: Turn, why: str) -> Citation:
    return Citation(seq=turn.seq, step=turn.step, why=why)


def _line(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= 100 else text[:99] + "…"
