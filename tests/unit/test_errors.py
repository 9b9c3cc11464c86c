"""Every failure has an owner, given once at a boundary."""

from __future__ import annotations

import asyncio
import re

import pytest

from woodshed import errors
from woodshed.errors import INVALID_CAUSES, Cause, Paused, UsageError, WoodshedError, boundary


def tree(kind: type[WoodshedError]) -> list[type[WoodshedError]]:
    return [kind, *(leaf for child in kind.__subclasses__() for leaf in tree(child))]


def test_the_drawn_tree_is_the_real_one() -> None:
    """Each class of the module stands in its docstring's drawing, and the drawing names no other."""
    drawing = errors.__doc__ or ""
    ours = {kind.__name__ for kind in tree(WoodshedError) if kind.__module__ == errors.__name__}
    assert [name for name in ours if not re.search(rf"\b{name}\b", drawing)] == []
    drawn = {line.split("─ ")[1].split()[0] for line in drawing.splitlines() if "─ " in line}
    assert drawn <= ours


def test_faults_of_ours_make_attempts_invalid_and_none_is_gradable() -> None:
    """Every class but the usage errors and a run's pause has a cause that invalidates; none allows a grade."""
    for kind in tree(WoodshedError):
        if kind is WoodshedError or issubclass(kind, UsageError | Paused):
            assert kind.cause is None
        else:
            assert kind.cause in INVALID_CAUSES, kind
        assert not kind.gradable


@pytest.mark.parametrize("owner", sorted(INVALID_CAUSES - {Cause.CANCELLED}))
def test_an_unknown_failure_is_attributed_to_the_owner(owner: Cause) -> None:
    """What is no fault of ours becomes one of the boundary's owner, with its origin kept."""
    with pytest.raises(WoodshedError) as caught, boundary(owner, "doing it"):
        raise ZeroDivisionError("by nothing")
    assert caught.value.cause is owner
    assert isinstance(caught.value.__cause__, ZeroDivisionError)
    assert "doing it: ZeroDivisionError: by nothing" in str(caught.value)


def test_a_usage_error_inside_an_attempt_belongs_to_the_owner_and_is_not_retried() -> None:
    """The remedy stays in the message; trying again would not help."""
    with pytest.raises(WoodshedError) as caught, boundary(Cause.ENVIRONMENT, "opening", usage=True):
        raise UsageError("no such image", field="image", remedy="Name another.")
    assert caught.value.cause is Cause.ENVIRONMENT
    assert not caught.value.retryable
    assert "image: no such image. Name another." in str(caught.value)
    assert errors.EnvironmentFault.retryable


@pytest.mark.parametrize("passing", [asyncio.CancelledError, KeyboardInterrupt, errors.SandboxDied])
def test_faults_with_an_owner_and_interruptions_pass_unchanged(passing: type[BaseException]) -> None:
    """A boundary attributes once: what has an owner, or is no failure, goes through as it is."""
    with pytest.raises(passing), boundary(Cause.HARNESS, "acting"):
        raise passing("as it is")


def test_a_usage_error_outside_an_attempt_reaches_whoever_asked() -> None:
    """A boundary that is not told otherwise lets it pass, so that the command can exit 2."""
    with pytest.raises(UsageError), boundary(Cause.ENVIRONMENT, "preparing"):
        raise UsageError("no such image")
