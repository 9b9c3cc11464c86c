"""Rules and regrades in the store, on SQLite and PostgreSQL: written once, read back the same, never changed."""

from __future__ import annotations

from pathlib import Path

import pytest
import sqlalchemy as sa
from alembic import command

from pgserver import postgresql_server, postgresql_url  # noqa: F401  fixtures, found by name
from rulekit import rules, seen, verdict
from woodshed.errors import Cause, StoreFault
from woodshed.model import Agent, Attempt, Invalid, Run, RunSpec
from woodshed.model.event import now
from woodshed.model.grade import Regrade, Regraded
from woodshed.store import Store
from woodshed.store.ids import new_regrade_id
from woodshed.store.opening import alembic_config, open_engine
from woodshed.verify.rules import graded

RULES = rules({"kind": "tests"}, {"kind": "patch_size"}, {"kind": "check", "command": "true", "measure": "number"})


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/chosen.db"
    found: str = request.getfixturevalue("postgresql_url")
    return found


def test_a_regrade_is_read_back_as_written_and_cannot_be_changed(url: str, tmp_path: Path) -> None:
    """Its rules, verdicts and components are the same; the run keeps its own rules; the database refuses an update."""
    spec = RunSpec(tasks=("/t",), agents=(Agent(name="a", harness="nop"),), rules=RULES)
    run = Run(id="r-1", spec=spec, created_at=now())
    planned = [Attempt(id=f"r-1.{n}", run="r-1", task="t", agent="a", index=n, seed=0) for n in (1, 2)]
    made = Regrade(id=new_regrade_id(), run="r-1", rules=RULES, created_at=now())
    grade = graded(RULES, seen(judged=verdict(3)), {})
    broken = Invalid(cause=Cause.ENVIRONMENT, detail="no sandbox")
    verdicts = [Regraded(regrade=made.id, attempt="r-1.1", execution=1, verdict=grade.applied(),
                         components=grade.components),
                Regraded(regrade=made.id, attempt="r-1.2", execution=2, verdict=broken)]
    with Store(url, tmp_path) as store:
        store.create_run(run, planned)
        assert store.run("r-1").spec.rules == RULES
        assert store.regrades("r-1") == []
        store.add_regrade(made, verdicts)
        assert store.regrades("r-1") == [made]
        assert store.regraded(made.id) == verdicts
        with pytest.raises(StoreFault):
            store.add_regrade(made, [])
    engine = open_engine(url, tmp_path)
    for statement in ("UPDATE regrades SET rules = '{}'", "DELETE FROM regraded"):
        with pytest.raises(sa.exc.DBAPIError, match="append-only"), engine.begin() as connection:
            connection.execute(sa.text(statement))
    engine.dispose()


def test_a_store_from_before_regrades_gets_their_tables_and_keeps_its_runs(tmp_path: Path) -> None:
    """A database of the first schema is migrated when it is opened."""
    engine = sa.create_engine(f"sqlite:///{tmp_path}/woodshed.db")
    with engine.begin() as connection:
        command.upgrade(alembic_config(connection), "0001")
        connection.execute(sa.text("INSERT INTO runs (id, project, spec, state, created_at) VALUES ('r-1', 'default', "
                                   "'{\"tasks\": [\"/t\"], \"agents\": []}', 'finished', '2026-11-30T00:00:00+00:00')"))
    engine.dispose()
    with Store(None, tmp_path) as store:
        assert store.run("r-1").spec.rules is None
        assert store.regrades("r-1") == []
