"""What a command does not need, it does not import: seen in a process of its own, by module, not by time."""

from __future__ import annotations

import subprocess
import sys

import pytest

HEAVY = ("aiohttp", "alembic", "cronsim", "dbos", "fastapi", "packaging", "rich.progress", "sqlalchemy", "uvicorn",
         "xllamacpp")


def loaded(code: str) -> set[str]:
    """Which heavy modules stand in a fresh interpreter after ``code``."""
    ask = f"import sys\n{code}\nprint([name for name in {HEAVY!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", ask], capture_output=True, text=True, check=True)
    return {name for name in HEAVY if f"'{name}'" in done.stdout.splitlines()[-1]}


def test_the_command_line_itself_is_light() -> None:
    """Until a command is asked for, no database, HTTP client or durable engine is imported; nor for --version."""
    assert loaded("import woodshed.cli.app") == set()
    ask = "from woodshed.cli.app import app\ntry: app(['--version'])\nexcept SystemExit: pass"
    assert loaded(ask) == set()


def test_a_run_imports_no_http_client_before_an_agent_has_a_model() -> None:
    """``woodshed run`` loads the store; the durable engine and the HTTP client come with their first use."""
    assert loaded("import woodshed.cli.run") & {"aiohttp", "alembic", "dbos", "rich.progress", "xllamacpp"} == set()


def test_who_has_no_cron_schedule_reads_no_cron() -> None:
    """Neither a worker nor the commands of schedules load the cron library before a schedule has an expression."""
    assert loaded("import woodshed.cli.worker, woodshed.cli.schedules") & {"cronsim"} == set()


def test_the_command_of_the_service_reads_no_server_before_it_serves() -> None:
    """Its help needs neither the web framework nor the server, which are an extra."""
    assert loaded("import woodshed.cli.serve") & {"fastapi", "uvicorn"} == set()


@pytest.mark.parametrize("heavy", ["woodshed.cli.model", "dbos"])
def test_the_check_itself_sees_what_is_imported(heavy: str) -> None:
    """The positive control: modules that are heavy are found to be."""
    assert loaded(f"import {heavy}") & {"aiohttp", "dbos"} != set()
