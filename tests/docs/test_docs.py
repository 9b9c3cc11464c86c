"""The documents tell the truth: commands exist, settings are listed, files are there, figures were measured."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.main

from woodshed import plugins, settings
from woodshed.cli.app import app

ROOT = Path(__file__).parents[2]
PAGES = sorted([ROOT / "README.md", ROOT / "ARCHITECTURE.md", *(ROOT / "docs").glob("*.md")])
FIGURE = re.compile(r"\d(?:[\d.,]*\d)?\s?(?:×|ms\b|(?:attempts|tokens|cycles)?/s\b)")
SOURCE = re.compile(r"<!-- ([\w./-]+\.json) ([\w.]+) -->")
COMMAND = re.compile(r"^(?:\$ )?woodshed ((?:[a-z][a-z-]*)(?: [a-z][a-z-]*)*)", re.MULTILINE)
ids = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)


def fenced(page: Path) -> set[int]:
    """Numbers of the lines inside fenced blocks. A fence ends with one at least as long as it began with."""
    inside, fence = set(), ""
    for number, line in enumerate(page.read_text().splitlines(), 1):
        mark = re.match(r"`{3,}", line)
        if fence:
            inside.add(number)
            if mark and len(mark.group()) >= len(fence) and not line.strip("`"):
                fence = ""
        elif mark:
            fence = mark.group()
    assert not fence, f"{page.name}: an unclosed block"
    return inside


@ids
def test_every_command_in_the_documents_exists(page: Path) -> None:
    """A ``woodshed …`` line in a code block, or between backticks, names a command that the command line has."""
    blocks = re.findall(r"```(?:\w*)\n(.*?)```", page.read_text(), re.DOTALL)
    blocks += re.findall(r"`(woodshed [^`\n]+)`", page.read_text())
    for words in (match.group(1).split() for block in blocks for match in COMMAND.finditer(block)):
        current: Any = typer.main.get_command(app)
        for word in words:
            if not hasattr(current, "commands"):
                break
            assert word in current.commands, f"{page.name}: woodshed {' '.join(words)}"
            current = current.commands[word]


@ids
def test_every_link_to_a_file_leads_somewhere(page: Path) -> None:
    """A relative link in a document names a file of the repository."""
    for target in re.findall(r"\]\(([^)#:]+?)(?:#[^)]*)?\)", page.read_text()):
        assert (page.parent / target).exists(), f"{page.name}: {target}"


def test_every_page_is_reached_from_the_readme() -> None:
    """Whoever begins there finds each page of ``docs/`` by one link."""
    linked = set(re.findall(r"\]\(docs/([^)#:]+)(?:#[^)]*)?\)", (ROOT / "README.md").read_text()))
    assert sorted({page.name for page in (ROOT / "docs").glob("*.md")} - linked) == []


@ids
def test_every_figure_of_speed_was_measured(page: Path) -> None:
    """A line with a ratio, milliseconds or a rate names the result file and key that hold the same figure;

    and so is every other figure that names one: what stands before the name is what the file says.
    """
    shown = fenced(page)  # what a command printed is no claim of ours
    for number, line in enumerate(page.read_text().splitlines(), 1):
        if number in shown:
            continue
        sources = list(SOURCE.finditer(line))
        assert sources or not FIGURE.search(line), f"{page.name}:{number}: a figure without a result file: {line}"
        for start, source in zip([0, *(one.end() for one in sources)], sources, strict=False):
            value = measured(*source.groups())
            told = [float(text) for text in re.findall(r"\d+(?:\.\d+)?", line[start : source.start()])]
            assert any(f"{value:.{digits}f}" == f"{one:.{digits}f}" for one in told for digits in (1, 2)), (
                f"{page.name}:{number}: {source.group(2)} is {value}, which is not what the line says"
            )


def measured(file: str, path: str) -> float:
    """The number at ``path`` (keys, and positions in lists) of a result file."""
    value: Any = json.loads((ROOT / "benchmarks" / "results" / file).read_text())
    for key in path.split("."):
        value = value[int(key)] if isinstance(value, list) else value[key]
    assert isinstance(value, int | float)
    return value


def commands(group: Any, trail: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    """Every command that can be given, with its words."""
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, (*trail, name))
        else:
            yield " ".join((*trail, name)), command


def test_every_command_speaks_json_and_says_what_it_does() -> None:
    """Each command has --json and help; an interactive shell alone has no object to print."""
    root = typer.main.get_command(app)
    found = dict(commands(root))
    assert {"run", "show", "trace", "doctor", "tasks import humanevalfix", "bench run"} <= found.keys()
    for words, command in found.items():
        flags = {option for parameter in command.params for option in parameter.opts}
        assert "--json" in flags or words == "sandbox shell", words
        assert command.help, words
        told = [str(getattr(parameter, "help", None) or "") for parameter in command.params]
        assert all(told), words
        assert not [text for text in (*told, command.help) if re.search(r"(?<!\\)\[[a-z]", text)], \
            f"{words}: what stands in such brackets is markup, and not shown"


def test_every_command_is_named_in_the_documents() -> None:
    """Each command that can be given stands somewhere in README or ``docs/``, with all its words."""
    told = "\n".join(page.read_text() for page in PAGES)
    missing = [words for words, _ in commands(typer.main.get_command(app))
               if not re.search(rf"woodshed {re.escape(words)}\b(?!-)", told)]
    assert missing == []


def test_every_setting_is_documented() -> None:
    """The settings page lists each setting's variable and help, as the one table has them."""
    page = (ROOT / "docs" / "settings.md").read_text()
    for entry in settings.SETTINGS:
        assert f"`{entry.variable}`" in page
        assert entry.help in page


def test_every_built_in_agent_is_documented() -> None:
    """The harness page names every harness that enters by the plugin door."""
    page = (ROOT / "docs" / "harness.md").read_text()
    for name in plugins.names("harnesses"):
        assert f"`{name}" in page


def test_published_results_say_where_they_come_from() -> None:
    """Every result file has commit, machine, seed and samples."""
    for path in (ROOT / "benchmarks" / "results").glob("*.json"):
        figures = json.loads(path.read_text())
        assert {"commit", "machine", "seed", "samples", "benchmark"} <= figures.keys(), path.name
