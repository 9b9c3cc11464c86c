"""Cycles among services that depend on each other."""

from __future__ import annotations

Graph = dict[str, list[str]]


def find_cycles(graph: Graph) -> list[list[str]]:
    """The cycles, each beginning with the node of it that comes first in ``graph``. Deep graphs are no problem."""
    rank = {name: number for number, name in enumerate(graph)}
    graph = _without_ends(_without_ends(graph), reverse=True)
    cycles = (_way_back(graph, start, rank) for start in graph)
    return [cycle for cycle in cycles if cycle]


def _without_ends(graph: Graph, reverse: bool = False) -> Graph:
    """The graph without nodes that lead to no cycle (``reverse``: that no cycle leads to)."""
    ahead = {name: {other for other in needs if other in graph} for name, needs in graph.items()}
    behind: dict[str, set[str]] = {name: set() for name in graph}
    for name, needs in ahead.items():
        for other in needs:
            behind[other].add(name)
    if reverse:
        ahead, behind = behind, ahead
    ends = [name for name, others in ahead.items() if not others]
    removed = set(ends)
    while ends:
        end = ends.pop()
        for name in behind[end]:
            ahead[name].discard(end)
            if not ahead[name] and name not in removed:
                removed.add(name)
                ends.append(name)
    return {name: needs for name, needs in graph.items() if name not in removed}


def _way_back(graph: Graph, start: str, rank: dict[str, int]) -> list[str]:
    """A shortest way from ``start`` to itself over later nodes only; empty if there is none."""
    came_from: dict[str, str] = {}
    queue = [start]
    for name in queue:
        for other in graph[name]:
            if other == start:
                way = [name]
                while way[-1] != start:
                    way.append(came_from[way[-1]])
                return way[::-1]
            if other in graph and rank[other] > rank[start] and other not in came_from:
                came_from[other] = name
                queue.append(other)
    return []
