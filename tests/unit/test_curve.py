"""Curves: what is drawn is what was measured."""

from __future__ import annotations

import xml.etree.ElementTree as ET

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from woodshed.measure.curve import Line, curves

SVG = "{http://www.w3.org/2000/svg}"
RATE = st.floats(0, 1)
POINTS = st.lists(st.tuples(st.floats(0, 1e6), RATE, st.none() | RATE, st.none() | RATE), min_size=1, max_size=9)


@given(st.lists(st.builds(lambda name, points: Line(name, tuple(points)), st.text("ab<&\"'"), POINTS), min_size=1,
                max_size=4), st.text("ab<&\"'"))
@example([Line("a", ((5e-324, 0.0, None, None),))], "the least float")
@example([Line("a", ((0.0, 1.0, None, None), (1e-310, 0.0, 0.0, 1.0)))], "not even a normal one")
def test_every_point_is_drawn_and_every_text_is_text(lines: list[Line], title: str) -> None:
    """Any lines make a drawing that parses: a dot for each point, inside of it, and names as they were given."""
    drawn = ET.fromstring(curves(lines, title=title, across="attempts", up="rate"))
    dots = drawn.findall(f"{SVG}circle")
    assert len(dots) == sum(len(line.points) for line in lines)
    assert all(0 <= float(dot.attrib["cx"]) <= 760 and 0 <= float(dot.attrib["cy"]) <= 400 for dot in dots)
    assert {title, *(line.name for line in lines)} <= {text.text or "" for text in drawn.findall(f"{SVG}text")}


def test_higher_is_drawn_higher_and_later_further_right() -> None:
    """And the band stands where there are intervals, from low to high."""
    line = Line("a", ((0.0, 0.1, 0.05, 0.2), (100.0, 0.9, 0.8, 1.0)))
    drawn = ET.fromstring(curves([line], title="t", across="x", up="y"))
    first, second = [(float(dot.attrib["cx"]), float(dot.attrib["cy"])) for dot in drawn.findall(f"{SVG}circle")]
    assert first[0] < second[0]
    assert first[1] > second[1]
    band = [tuple(map(float, pair.split(","))) for pair in drawn.findall(f"{SVG}polygon")[0].attrib["points"].split()]
    assert [x for x, _ in band] == [first[0], second[0], second[0], first[0]]
    assert band[0][1] < first[1] < band[3][1]


def test_nothing_to_draw_is_refused() -> None:
    """No points, and numbers that are none, are an error and not an empty picture."""
    for lines in ([], [Line("a", ())], [Line("a", ((0.0, float("nan"), None, None),))]):
        with pytest.raises(ValueError, match="finite"):
            curves(lines, title="t", across="x", up="y")
