"""A comparison as one page: no script, no network, nothing of anyone's that is not escaped."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

from woodshed.model.counted import counted
from woodshed.services.comparing import chart
from woodshed.version import __version__

DIMENSIONS = {
    "command_reliability": "Command reliability", "user_satisfaction": "User satisfaction",
    "controllability": "Controllability", "confirmed_success": "Confirmed success", "focus": "Focus",
    "craft": "Craft", "safety": "Safety",
}
_STYLE = """
:root { color-scheme: light dark; --ink: #1d2430; --soft: #667085; --line: #d7dce3; --back: #fff; --card: #f6f7f9;
  --main: #2f6fdb; --good: #1a7f4b; --bad: #b4372f; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e9ee; --soft: #98a2b3; --line: #3a4250; --back: #14181f;
  --card: #1c222c; --main: #6ea0f5; --good: #4fbf85; --bad: #ec7b73; } }
* { box-sizing: border-box }
body { margin: 0 auto; padding: 2rem 1.25rem 4rem; max-width: 76rem; background: var(--back); color: var(--ink);
  font: 15px/1.5 system-ui, sans-serif }
h1 { font-size: 1.6rem; margin: 0 0 .25rem } h2 { font-size: 1.15rem; margin: 2.2rem 0 .6rem }
p { margin: .4rem 0 } .soft { color: var(--soft) }
.wide { overflow-x: auto } table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums }
th, td { padding: .35rem .6rem; border-bottom: 1px solid var(--line); text-align: right; white-space: nowrap }
th:first-child, td:first-child, td.left, th.left { text-align: left; white-space: normal;
  overflow-wrap: anywhere; min-width: 12rem }
th { color: var(--soft); font-weight: 600 } .says { background: var(--card); border-left: 4px solid var(--soft);
  border-radius: 4px; padding: .7rem 1rem; margin: .6rem 0; overflow-wrap: anywhere }
.says.decided { border-color: var(--good) } .warn { border-color: var(--bad) }
svg { width: 100%; max-width: 52rem; display: block } svg text { fill: var(--ink); font: 12px system-ui, sans-serif }
svg .name { text-anchor: end } svg .rail { stroke: var(--line); fill: var(--card) } svg .span { stroke: var(--main);
  stroke-width: 3; stroke-linecap: round } svg .dot, svg .bar { fill: var(--main) } svg .zero { stroke: var(--soft);
  stroke-dasharray: 3 3 }
td.win { color: var(--good); font-weight: 600 } td.loss { color: var(--bad) } details { margin: .6rem 0 }
summary { cursor: pointer; color: var(--soft) }
"""


def page(told: Mapping[str, Any]) -> str:
    """The HTML of what :func:`told` gives."""
    agents = told["agents"]
    title = " and ".join(agent["agent"] for agent in agents[:2]) if len(agents) == 2 else f"{len(agents)} agents"
    parts = [
        f"<h1>{escape(title)}, compared</h1>",
        f'<p class="soft">{escape(", ".join(told["runs"]))} · {counted(len(told["tasks"]), "task")}'
        f' · alpha {told["alpha"]:g}'
        f" · Woodshed {escape(__version__)}</p>",
        *(_says(pair["says"], pair["decided"] != "noise") for pair in told["pairs"]),
        *(f'<p class="says warn">{escape(text)}</p>' for text in (*told["warnings"], *told["left_out"])),
        "<h2>Pass rate</h2>",
        chart.intervals([(a["agent"], a["pass_rate"], a["pass_low"], a["pass_high"]) for a in agents],
                        low=0, high=1, zero=False, title="Pass rates with intervals over tasks"),
        _agents(agents, told["currency"]),
        "<h2>Differences in points</h2>", _differences(told["pairs"]), _pairs(told["pairs"]),
        *_factors(told["grid"]), "<h2>How they work</h2>", *_dimensions(agents, told["pairs"]),
        "<h2>Task by task</h2>", _tasks(told["tasks"], agents), _dropped(told["pairs"]),
    ]
    return ('<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
            '<meta name="viewport" content="width=device-width, initial-scale=1">'
            "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">"
            f"<title>{escape(title)}</title><style>{_STYLE}</style></head><body>{''.join(parts)}</body></html>\n")


def _says(text: str, decided: bool) -> str:
    return f'<p class="says{" decided" if decided else ""}">{escape(text)}</p>'


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table; cells are text, but for those that begin with ``<td``."""
    top = "".join(f"<th>{escape(head)}</th>" for head in heads)
    body = "".join("<tr>" + "".join(cell if cell.startswith("<td") else f"<td>{escape(cell)}</td>" for cell in row)
                   + "</tr>" for row in rows)
    return f'<div class="wide"><table><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table></div>'


def percent(value: float | None) -> str:
    """A rate for people."""
    return "–" if value is None else f"{100 * value:.1f} %"


def figure(value: float | None, form: str = ".1f") -> str:
    """A number for people."""
    return "–" if value is None else format(value, form)


def _agents(agents: Sequence[Mapping[str, Any]], currency: str) -> str:
    k = max((max(map(int, agent["at_k"]), default=1) for agent in agents), default=1)
    more = [f"pass@{k}", f"pass^{k}"] if k > 1 else []
    return _table(
        ["agent", "attempts", "valid", "valid, exact interval", "passed", "pass rate", *more, "seconds", "tokens",
         "tokens/success", *([f"{currency}/success"] if currency else []), "claimed, false"],
        ([_cell(a["agent"]), str(a["attempts"]), percent(a["valid_rate"]),
          f"{100 * a['valid_low']:.0f}–{100 * a['valid_high']:.0f} %", str(a["passed"]), percent(a["pass_rate"]),
          *([percent(_at(a["at_k"], k)), percent(_at(a["of_k"], k))] if k > 1 else []),
          figure(a["values"].get("seconds")), figure(a["values"].get("tokens"), ".0f"),
          figure(a["tokens_per_success"], ".0f"),
          *([figure(a["micros_per_success"] and a["micros_per_success"] / 1e6, ".4f")] if currency else []),
          str(a["claims"].get("claimed_false", 0))] for a in agents))


def _at(by_k: Mapping[Any, float], k: int) -> float | None:
    return by_k.get(k, by_k.get(str(k)))


def _cell(text: str) -> str:
    return f'<td class="left">{escape(text)}</td>'


def _differences(pairs: Sequence[Mapping[str, Any]]) -> str:
    bound = max((abs(x) for pair in pairs for x in (pair["low"], pair["high"], pair["difference"]) if x is not None),
                default=1.0) or 1.0
    return chart.intervals([(f"{p['a']} − {p['b']}", p["difference"], p["low"], p["high"]) for p in pairs],
                           low=-bound, high=bound, zero=True, title="Differences with intervals")


def _pairs(pairs: Sequence[Mapping[str, Any]]) -> str:
    return _table(
        ["pair", "tasks", "pairs of attempts", "wins", "losses", "ties", "p", "p, all pairs", "p, these tasks",
         "p, sign test", "decided"],
        ([_cell(f"{p['a']} against {p['b']}" + (f" (same {p['same']})" if p["same"] else "")), str(p["tasks"]),
          str(p["tries"]), str(p["wins"]), str(p["losses"]), str(p["ties"]), *(f"{p[name]:.3g}" for name in (
              "p", "p_adjusted", "p_these", "p_sign")),
          p["decided"] if p["decided"] == "noise" else p[p["decided"]]] for p in pairs))


def _factors(grid: Mapping[str, Any] | None) -> list[str]:
    if grid is None:
        return []
    table = _table(["pass rate", *grid["models"]],
                   ([_cell(h), *(percent(grid["rates"][h][m]) for m in grid["models"])] for h in grid["harnesses"]))
    effects = _table(["factor", "against", "tasks", "points", "interval", "p, all"],
                     ([_cell(f"{e['factor']} {e['a']}"), e["b"], str(e["tasks"]), f"{100 * e['difference']:+.1f}",
                       _span(e), f"{e['p_adjusted']:.3g}"] for e in grid["effects"]))
    return ["<h2>Harness and model</h2>", table, effects]


def _span(row: Mapping[str, Any]) -> str:
    return "–" if row["low"] is None else f"{100 * row['low']:.1f} to {100 * row['high']:.1f}"


def _dimensions(agents: Sequence[Mapping[str, Any]], pairs: Sequence[Mapping[str, Any]]) -> list[str]:
    charts = [f"<h3>{name}</h3>" + chart.bars([(a["agent"], a["values"].get(key)) for a in agents], name)
              for key, name in DIMENSIONS.items() if any(a["values"].get(key) is not None for a in agents)]
    rows = [_score(f"{pair['a']} − {pair['b']}", key, score) for pair in pairs for key, score in pair["values"].items()]
    return [*charts, _table(["pair", "figure", "tasks", "first", "second", "difference", "interval", "p"], rows)]


def _score(pair: str, key: str, row: Mapping[str, Any]) -> list[str]:
    interval = "–" if row["low"] is None else f"{row['low']:+.3g} to {row['high']:+.3g}"
    return [_cell(pair), DIMENSIONS.get(key, key), str(row["tasks"]), f"{row['a']:,.4g}", f"{row['b']:,.4g}",
            f"{row['difference']:+.3g}", interval, f"{row['p']:.3g}"]


def _tasks(tasks: Sequence[Mapping[str, Any]], agents: Sequence[Mapping[str, Any]]) -> str:
    names = [agent["agent"] for agent in agents]
    rows = []
    for row in tasks:
        shares = {name: passed / n for name, (passed, n) in row["rates"].items() if n}
        best, worst = max(shares.values(), default=0.0), min(shares.values(), default=0.0)
        rows.append([_cell(row["task"]), *(_rate(row["rates"][name], best, worst) for name in names)])
    return _table(["task", *names], rows)


def _rate(counts: tuple[int, int], best: float, worst: float) -> str:
    passed, n = counts
    if not n:
        return "<td>–</td>"
    kind = "" if best == worst else ' class="win"' if passed / n == best else ' class="loss"' if passed / n == worst \
        else ""
    return f"<td{kind}>{passed} of {n}</td>"


def _dropped(pairs: Sequence[Mapping[str, Any]]) -> str:
    rows = [[_cell(f"{p['a']} against {p['b']}"), d["task"], str(d["index"] + 1), d["why"]]
            for p in pairs for d in p["dropped"]]
    if not rows:
        return ""
    return (f"<details><summary>{len(rows)} pairs of attempts left out: invalid ones are never counted as failures"
            f"</summary>{_table(['pair', 'task', 'attempt', 'why'], rows)}</details>")
