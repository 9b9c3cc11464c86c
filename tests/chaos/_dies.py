"""Runs the command line and kills itself, once, before or after a commit: ``_dies.py before|after NTH PATTERN words…``.

A transaction matches when one of its statements has PATTERN (a regular expression) in it; the NTH that matches is it.
Nothing of the product knows of this: the hooks are SQLAlchemy's, put in by this process of the test's own.
"""

from __future__ import annotations

import os
import re
import signal
import sys
import threading
from typing import Any

from sqlalchemy import event
from sqlalchemy.engine import Engine
from sqlalchemy.engine.default import DefaultDialect

said = threading.local()
matched = 0


def main(when: str, nth: int, pattern: str, words: list[str]) -> None:
    """The command, until its end."""
    dialect: Any = DefaultDialect
    commit, rollback, lock = dialect.do_commit, dialect.do_rollback, threading.Lock()

    def executed(_connection: Any, _cursor: Any, statement: str, *_rest: Any) -> None:
        said.statements = [*getattr(said, "statements", []), " ".join(statement.split())]

    def dies(this: str) -> None:
        if this == when and nth == matched:
            os.kill(os.getpid(), signal.SIGKILL)

    def committed(self: DefaultDialect, connection: Any) -> None:
        global matched
        statements, said.statements = getattr(said, "statements", []), []
        if not any(re.search(pattern, statement) for statement in statements):
            commit(self, connection)
            return
        with lock:
            matched += 1
            dies("before")
            commit(self, connection)
            dies("after")

    def rolled_back(self: DefaultDialect, connection: Any) -> None:
        said.statements = []
        rollback(self, connection)

    event.listen(Engine, "before_cursor_execute", executed)
    dialect.do_commit, dialect.do_rollback = committed, rolled_back  # the moment itself has no event of its own
    sys.argv = ["woodshed", *words]
    from woodshed.cli.app import main as command

    command()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3], sys.argv[4:])
