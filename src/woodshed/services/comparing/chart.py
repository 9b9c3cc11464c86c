"""Charts: small drawings as inline SVG. Numbers in, markup out; every text is escaped."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

WIDTH, ROW, LEFT, RIGHT = 760, 26, 300, 70
_NAME_CHARS = 42


def intervals(
    rows: Sequence[tuple[str, float | None, float | None, float | None]], *, low: float, high: float, zero: bool,
    title: str,
) -> str:
    """A point and its interval for each of (name, value, from, to), on one scale; a line at 0 where ``zero``."""
    span = (high - low) or 1.0

    def x(value: float) -> float:
        return LEFT + (min(high, max(low, value)) - low) / span * (WIDTH - LEFT - RIGHT)

    parts = [f'<line class="zero" x1="{x(0):.1f}" x2="{x(0):.1f}" y1="4" y2="{len(rows) * ROW + 4}"/>'] if zero else []
    for number, (name, value, start, end) in enumerate(rows):
        y = number * ROW + ROW / 2 + 4
        parts.append(_name(name, y))
        parts.append(f'<line class="rail" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y}" y2="{y}"/>')
        if start is not None and end is not None:
            parts.append(f'<line class="span" x1="{x(start):.1f}" x2="{x(end):.1f}" y1="{y}" y2="{y}"/>')
        if value is not None:
            parts.append(f'<circle class="dot" cx="{x(value):.1f}" cy="{y}" r="5"/>')
        said = "–" if value is None else f"{100 * value:+.1f}" if zero else f"{100 * value:.1f} %"
        parts.append(f'<text x="{WIDTH - RIGHT + 10}" y="{y + 4}">{said}</text>')
    return _svg(parts, len(rows) * ROW + 8, title)


def bars(rows: Sequence[tuple[str, float | None]], title: str) -> str:
    """A bar for each of (name, value from 0 to 1); a dash for None."""
    parts = []
    for number, (name, value) in enumerate(rows):
        y = number * ROW + ROW / 2 + 4
        parts.append(_name(name, y))
        parts.append(f'<rect class="rail" x="{LEFT}" y="{y - 7}" width="{WIDTH - LEFT - RIGHT}" height="14" rx="3"/>')
        if value is not None:
            width = max(0.0, min(1.0, value)) * (WIDTH - LEFT - RIGHT)
            parts.append(f'<rect class="bar" x="{LEFT}" y="{y - 7}" width="{width:.1f}" height="14" rx="3"/>')
        said = "–" if value is None else f"{value:.2f}"
        parts.append(f'<text x="{WIDTH - RIGHT + 10}" y="{y + 4}">{said}</text>')
    return _svg(parts, len(rows) * ROW + 8, title)


def _name(name: str, y: float) -> str:
    short = name if len(name) <= _NAME_CHARS else name[:_NAME_CHARS - 1] + "…"
    return f'<text class="name" x="{LEFT - 12}" y="{y + 4}">{escape(short)}<title>{escape(name)}</title></text>'


def _svg(parts: Sequence[str], height: float, title: str) -> str:
    return (f'<svg viewBox="0 0 {WIDTH} {height:.0f}" role="img" aria-label="{escape(title)}">'
            f"{''.join(parts)}</svg>")
