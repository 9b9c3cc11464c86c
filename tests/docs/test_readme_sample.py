"""What the README shows of a run is what the commands print now, line by line in form."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from kit import EXAMPLES
from turnwise import Turnwise, serving
from woodshed.cli.run import print_summary
from woodshed.cli.show import _print_trace
from woodshed.model import Agent, ModelSpec
from woodshed.services import report, runs
from woodshed.services.home import opened

ROOT = Path(__file__).parent.parent.parent
FRAME = re.compile(
    r"agent +tasks|r-\S+: |sandboxes: |results: |look closer: |r-\S+\.\d+  |\d+ (?:system|user|agent)\b|▸ |  exit "
    r"|changes$|verdict |\d+ of \d+ expected|stop: ")
"""Lines that are ours; the others are the tasks' and the model's words, and figures of a table."""
CHOSEN = ((r"r-\d{8}-\d{6}-\w+", "RUN"), (r"woodshed/[\w-]+", "TASK"), (r"(?<=results: ).*", "FOLDER"),
          (r"(?<=sandboxes: ).*", "…"), (r"(?<=▸ bash: ).*", "COMMAND"), (r"\d+(?:\.\d+)?", "N"), (r" +", " "))


def shapes(text: str) -> set[str]:
    """The form of each line of ours: what differs from run to run taken out."""
    found = set[str]()
    for line in text.splitlines():
        if FRAME.match(line) or FRAME.match(line.strip()):
            for what, name in CHOSEN:
                line = re.sub(what, name, line)
            found.add(line.strip())
    return found


@pytest.fixture
async def printed(new_home: Callable[[], Path], capsys: pytest.CaptureFixture[str]) -> str:
    """What ``run`` and ``trace`` print of one attempt that passed after two turns."""
    script = Turnwise(1, lambda turn: "echo hello world > hello.txt")
    agent = Agent(name="loop", harness="loop", model=ModelSpec(name="turnwise", base_url="http://127.0.0.1:9/v1"))
    with opened(new_home()) as home, serving(script):
        agent = agent.model_copy(update={"model": ModelSpec(name="turnwise", base_url=script.url)})
        spec, tasks = runs.plan([EXAMPLES / "first-steps" / "write-file"], [agent], attempts=1, concurrency=1, seed=0,
                                engine="native")
        run = await runs.start(home, spec, tasks, lambda tally: None)
        print_summary(report.summary(home, run), Path("somewhere"))
        _print_trace(report.trace(home, "last"))
    return capsys.readouterr().out


async def test_the_sample_has_the_form_of_what_is_printed(printed: str) -> None:
    """Every line of ours in the README's sample is one that the commands print, and none that they print is missing."""
    sample = re.findall(r"^````$(.*?)^````$", (ROOT / "README.md").read_text(), re.DOTALL | re.MULTILINE)[0]
    shown, now = shapes(sample), shapes(printed)
    once = {"▸ finish", "N agent (step N)"}  # the sample's model ends with words, this one by a call
    assert {line for line in now - shown if not line.startswith(tuple(once))} == set()
    assert {line for line in shown - now if not line.startswith("exit N")} == set()
    assert len(shown) >= 10


def test_the_readme_says_how_to_reach_the_command() -> None:
    """Whoever made the demo is told where the command is, in the README before it is used, and by the demo itself."""
    readme = (ROOT / "README.md").read_text()
    use = readme.index("## Use it")
    assert use < readme.index("source .venv/bin/activate") < readme.index("woodshed run examples/tasks --agent oracle")
    assert "source .venv/bin/activate" in (ROOT / "examples" / "demo.sh").read_text().splitlines()[-1]
