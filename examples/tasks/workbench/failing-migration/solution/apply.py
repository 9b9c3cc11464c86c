"""Make the runner atomic."""

from __future__ import annotations

from pathlib import Path

RUNNER = Path("/workspace/shopdb/migrate.py")
OLD = """    try:
        db.executescript(file.read_text())
        db.execute("INSERT INTO schema_migrations (name, sha256) VALUES (?, ?)", (file.name, _digest(file)))
        db.commit()
    except sqlite3.Error as error:
        raise MigrationFailed(f"{file.name}: {error}") from error
"""
NEW = """    try:
        db.executescript(f"BEGIN IMMEDIATE;\\n{file.read_text()}\\n;")
        db.execute("INSERT INTO schema_migrations (name, sha256) VALUES (?, ?)", (file.name, _digest(file)))
        if dangling := db.execute("PRAGMA foreign_key_check").fetchall():
            raise MigrationFailed(f"{file.name}: foreign keys that point nowhere: {dangling[:5]}")
        db.commit()
    except sqlite3.Error as error:
        raise MigrationFailed(f"{file.name}: {error}") from error
"""
UNENFORCED = """        # SQLite does not enforce foreign keys unless asked to. That is right here: to drop a table that is rebuilt would
        # delete its children. They are checked instead.
"""

text = RUNNER.read_text()
for old, new in [(OLD, NEW), ('        db.execute("PRAGMA foreign_keys = ON")\n', UNENFORCED)]:
    assert text.count(old) == 1, old
    text = text.replace(old, new)
RUNNER.write_text(text)
