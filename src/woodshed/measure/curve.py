"""Curves: lines over a common axis as one SVG file that stands alone. Numbers in, markup out; texts are escaped."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape

_WIDTH, _HEIGHT = 760, 400
_LEFT, _RIGHT, _TOP, _BOTTOM = 60, 20, 60, 50
_COLOURS = ("#0b6e4f", "#c8553d", "#3d5a98", "#8a6d1d", "#6b4a8a")
_STEPS = (1.0, 2.0, 2.5, 5.0, 10.0)
_LEAST = 1e-9
"""An axis that ends before is drawn as one that ends at 1: its numbers would lose themselves in a float's last bits."""


@dataclass(frozen=True, slots=True)
class Line:
    """A name and points (x, y, low, high), whose interval is drawn where it is told; x goes up."""

    name: str
    points: tuple[tuple[float, float, float | None, float | None], ...]


def curves(lines: Sequence[Line], *, title: str, across: str, up: str, most: float = 1.0) -> str:
    """The drawing; ``across`` and ``up`` name the axes, of which the second goes from 0 to ``most``.

    Raises ValueError where there is nothing to draw, or a number is not finite.
    """
    numbers = [one for line in lines for point in line.points for one in point if one is not None]
    if not numbers or not all(map(math.isfinite, numbers)):
        raise ValueError("a curve needs points, and all of them finite")
    furthest = max(point[0] for line in lines for point in line.points)
    scale = _Scale(furthest if furthest >= _LEAST else 1.0, most)
    parts = [f'<text x="{_LEFT}" y="20" font-size="15">{escape(title)}</text>', *_axes(scale, across, up)]
    for number, line in enumerate(lines):
        colour = _COLOURS[number % len(_COLOURS)]
        parts += [*_drawn(line, scale, colour),
                  f'<text x="{_LEFT + number * 230}" y="42" fill="{colour}">{escape(line.name)}</text>']
    return (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" '
            f'aria-label="{escape(title)}" font-family="sans-serif" font-size="12">'
            f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="#ffffff"/>{"".join(parts)}</svg>\n')


@dataclass(frozen=True, slots=True)
class _Scale:
    furthest: float
    most: float

    def x(self, value: float) -> float:
        return round(_LEFT + value / self.furthest * (_WIDTH - _LEFT - _RIGHT), 1)

    def y(self, value: float) -> float:
        share = min(1.0, max(0.0, value / self.most))
        return round(_HEIGHT - _BOTTOM - share * (_HEIGHT - _TOP - _BOTTOM), 1)


def _axes(scale: _Scale, across: str, up: str) -> Iterator[str]:
    for value in _ticks(scale.most):
        y = scale.y(value)
        yield f'<line x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y}" y2="{y}" stroke="#dddddd"/>'
        yield f'<text x="{_LEFT - 8}" y="{y + 4}" text-anchor="end">{value:g}</text>'
    for value in _ticks(scale.furthest):
        yield f'<text x="{scale.x(value)}" y="{_HEIGHT - _BOTTOM + 18}" text-anchor="middle">{value:g}</text>'
    yield f'<text x="{_WIDTH - _RIGHT}" y="{_HEIGHT - 10}" text-anchor="end">{escape(across)}</text>'
    yield f'<text x="{_WIDTH - _RIGHT}" y="20" text-anchor="end">{escape(up)}</text>'


def _drawn(line: Line, scale: _Scale, colour: str) -> Iterator[str]:
    told = [(x, low, high) for x, _, low, high in line.points if low is not None and high is not None]
    if told:
        there = [f"{scale.x(x)},{scale.y(high)}" for x, _, high in told]
        back = [f"{scale.x(x)},{scale.y(low)}" for x, low, _ in reversed(told)]
        yield f'<polygon points="{" ".join([*there, *back])}" fill="{colour}" opacity="0.15"/>'
    path = " ".join(f"{scale.x(x)},{scale.y(y)}" for x, y, _, _ in line.points)
    yield f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>'
    for x, y, _, _ in line.points:
        yield f'<circle cx="{scale.x(x)}" cy="{scale.y(y)}" r="3" fill="{colour}"/>'


def _ticks(most: float) -> list[float]:
    """About five round numbers from 0 to ``most``."""
    rough = most / 5
    unit: float = 10.0 ** math.floor(math.log10(rough))
    step = next(unit * one for one in _STEPS if unit * one >= rough * 0.999)
    return [step * number for number in range(int(most / step * 1.0001) + 1)]
