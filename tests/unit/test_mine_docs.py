"""The pages about mining and writing tasks tell the truth: their example holds, their reasons are all there are."""

from __future__ import annotations

import re
from pathlib import Path

from woodshed.services.confirming import confirmed
from woodshed.services.home import opened
from woodshed.tasks import load_task, pytest_files
from woodshed.tasks.mine import Reason
from woodshed.tasks.mine.draft import MAX_TREE_BYTES, MAX_TREE_FILES
from woodshed.tasks.mine.select import MAX_FILES, MAX_LINES

DOCS = Path(__file__).parents[2] / "docs"
FILE = re.compile(r"<!-- file: ([\w./-]+) -->\n```\w+\n(.*?)\n```\n", re.DOTALL)


def test_every_reason_has_its_row() -> None:
    """The table of the mining page is the closed list of reasons, in its order, and its bounds are the code's."""
    page = (DOCS / "mining.md").read_text()
    assert re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE) == [reason.value for reason in Reason]
    assert f"more than {MAX_FILES} source files or {MAX_LINES} lines" in page
    assert f"over {MAX_TREE_BYTES // 1_000_000} MB or {MAX_TREE_FILES} files" in page


async def test_the_example_of_the_page_is_a_task_that_holds(shed_home: Path, tmp_path: Path) -> None:
    """The files shown, laid down as shown, are a task: the reference passes, doing nothing fails, with a probe."""
    shown = dict(FILE.findall((DOCS / "writing-tasks.md").read_text()))
    assert sorted(shown) == ["environment/workspace/slugs.py", "instruction.md", "solution/solve.sh", "task.toml",
                             "tests/test_hidden.py"]
    folder = tmp_path / "slugs"
    files = {name: text.encode() + b"\n" for name, text in shown.items()}
    files |= {f"tests/{name}": content for name, content in pytest_files({}).items()}
    for name, content in files.items():
        place = folder / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(content)
    task = load_task(folder)
    assert "probes" in (folder / "task.toml").read_text()
    with opened(shed_home) as home:
        assert await confirmed(task, home, "native") is None
