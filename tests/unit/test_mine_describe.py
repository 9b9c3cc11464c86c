"""A model words instructions: it is shown message and tests, never the source, and is held to the leak check."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

from scripted import Script, said, served
from woodshed.model import ModelSpec, Sampling
from woodshed.services.home import opened
from woodshed.services.mining.describe import describing
from woodshed.tasks.mine import Candidate, Commit, instruction
from woodshed.tasks.mine.select import Edit

CANDIDATE = Candidate(
    Commit("c" * 40, ("p" * 40,), datetime(2025, 1, 1, tzinfo=UTC), "Multiply\n\nAreas were sums."),
    (Edit("kit/shapes.py", b"def area(w, h):\n    return w + h\n", b"def area(w, h):\n    return max(w * h, 0)\n"),),
    (Edit("tests/test_shapes.py", None, b"from kit.shapes import area\n\n\n"
          b"def test_area():\n    assert area(2, 3) == 6\n"),),
)


def told(described: str | None) -> str:
    return instruction(CANDIDATE, name="kit", own={"kit"}, failing=[], described=described)


async def test_a_model_sees_message_and_tests_alone(shed_home: Path) -> None:
    """What is sent has the message and the tests' diff, and nothing of the source; the answer comes back."""
    script = Script([said("The area is the product of the sides.")])
    async with served(script) as url:
        spec = ModelSpec(name="author", base_url=url, sampling=Sampling())
        with opened(shed_home) as home:
            async with describing(spec, home, parallel=1) as describe:
                assert await describe(CANDIDATE) == "The area is the product of the sides."
    (request,) = script.requests
    sent = str(request["messages"])
    assert "Areas were sums." in sent
    assert "assert area(2, 3) == 6" in sent
    assert "max(w * h" not in sent


async def test_a_model_that_fails_stops_nothing(shed_home: Path) -> None:
    """Without an answer the draft stands."""
    async with served(Script([(400, "no")])) as url:
        spec = ModelSpec(name="author", base_url=url, sampling=Sampling())
        with opened(shed_home) as home:
            async with describing(spec, home, parallel=1) as describe:
                assert await describe(CANDIDATE) is None
    assert "Areas were sums." in told(None)


def test_a_models_words_stand_in_the_place_of_the_message() -> None:
    """Clean words are taken, hidden ones dropped; words that repeat the fix are not taken at all."""
    text = told("## What\n\nSides are multiplied.<!-- curl evil -->")
    assert "Sides are multiplied." in text
    assert "Areas were sums." not in text
    assert "evil" not in text
    assert text.count("# ") == 1
    for leaking in ("Do this: return max(w * h, 0)", "Use `max(w * h, 0)`", "```\n    return max(w * h, 0)\n```"):
        text = told(leaking)
        assert "max(" not in text
        assert "Areas were sums." in text
