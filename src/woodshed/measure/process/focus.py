"""Focus: was the right file found, how soon, and how much was done elsewhere? Pure."""

from __future__ import annotations

from woodshed.measure.process.facts import Facts, Made, relative
from woodshed.model.commands import Kind, kind_of
from woodshed.model.process import Citation, Dimension, Measure

_ELSEWHERE_IS_FINE = ("/tmp", "/dev/null", "/dev/stdin", "/dev/stdout", "/dev/stderr")  # noqa: S108  places inside


def measured(facts: Facts) -> list[Measure]:
    """``right_file_call``, ``file_recall``, ``file_precision``, ``relevant_calls``."""
    return [_right_file(facts), *_files(facts), _relevant(facts)]


def _of(name: str, value: float | None, why: str, *cited: Citation, unit: str = "share") -> Measure:
    return Measure.model_validate({"name": name, "dimension": Dimension.FOCUS, "value": value, "why": why,
                                   "cited": cited, "unit": unit})


def _right_file(facts: Facts) -> Measure:
    """The number of the first call that names a file of the reference; None where none did."""
    if facts.reference is None or not facts.reference.touched:
        return _of("right_file_call", None, f"the reference's files are unknown: {facts.why_not('reference')}",
                   unit="calls")
    wanted = facts.reference.touched
    first = next((made for made in facts.calls if any(made.names(path) for path in wanted)), None)
    if first is None:
        names = ", ".join(relative(path, facts.workdir) for path in wanted[:3])
        return _of("right_file_call", None, f"no call names {names}", unit="calls")
    return _of("right_file_call", float(first.number), f"the first to name one: {first.shown}", unit="calls")


def _files(facts: Facts) -> list[Measure]:
    """Of the reference's files those that were changed; of the changed files those of the reference's."""
    missing = next((name for name in ("patch", "reference") if getattr(facts, name) is None), None)
    if missing or facts.patch is None or facts.reference is None:
        why = f"the {missing}'s files are unknown: {facts.why_not(missing or '')}"
        return [_of(name, None, why) for name in ("file_recall", "file_precision")]
    wanted, touched = set(facts.reference.touched), set(facts.patch.touched)
    missed = sorted(wanted - touched)
    beside = sorted(touched - wanted)
    recall = _of("file_recall", 1 - len(missed) / len(wanted), f"{len(wanted) - len(missed)} of {len(wanted)} changed",
                 *(Citation(why=f"never changed: {relative(path, facts.workdir)}") for path in missed)) if wanted else \
        _of("file_recall", None, "the reference changes no file")
    precision = _of("file_precision", 1 - len(beside) / len(touched),
                    f"{len(touched) - len(beside)} of {len(touched)} changed files are the reference's",
                    *(_beside(facts, path) for path in beside)) if touched else \
        _of("file_precision", None, "no file was changed")
    return [recall, precision]


def _beside(facts: Facts, path: str) -> Citation:
    why = f"changed beside the reference's files: {relative(path, facts.workdir)}"
    by = next((made for made in facts.calls if made.edits and made.names(path)), None)
    return by.cited(why) if by is not None else Citation(why=why)


def _relevant(facts: Facts) -> Measure:
    """1 minus the share of calls that look or write outside of the working directory only, and check nothing."""
    if not facts.calls:
        return _of("relevant_calls", None, "no call was made")
    astray = [made for made in facts.calls if _astray(made, facts)]
    return _of("relevant_calls", 1 - len(astray) / len(facts.calls),
               f"{len(facts.calls) - len(astray)} of {len(facts.calls)} calls were about the work",
               *(made.cited(f"outside of {facts.workdir}: {made.shown}") for made in astray))


def _astray(made: Made, facts: Facts) -> bool:
    if made.call.error is not None or made.checks:
        return False
    words = made.words()
    if words and kind_of(words) is Kind.RUN:
        return False  # a program that lies elsewhere may well work here
    paths = [word for word in words[1:] if word.startswith(("/", "~", "..")) or "/../" in word]
    paths = [path for path in paths if not path.startswith(_ELSEWHERE_IS_FINE)]
    if any(made.names(path) for path in (*_known(facts),)):
        return False
    top = facts.workdir.rstrip("/")
    return bool(paths) and not any(path == top or path.startswith(top + "/") for path in paths)


def _known(facts: Facts) -> tuple[str, ...]:
    return (facts.patch.touched if facts.patch else ()) + (facts.reference.touched if facts.reference else ())
