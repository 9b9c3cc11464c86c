"""References: which blobs anything recorded still names. Marks too much rather than too little.

A blob is named by its digest in some text of some table, whichever; or in a list that is a blob itself (a checkpoint),
which is named there. So nothing has to say where it keeps digests, and what another version of Woodshed wrote counts.
"""

from __future__ import annotations

import re

import sqlalchemy as sa

from woodshed.store.tables import metadata

_DIGEST = re.compile(r"(?<![0-9a-f])[0-9a-f]{64}(?![0-9a-f])")
_BYTES = re.compile(rb"(?<![0-9a-f])[0-9a-f]{64}(?![0-9a-f])")
_ROWS = 1000


def named(connection: sa.Connection, among: set[str]) -> set[str]:
    """Those of ``among`` that stand in any text of the database."""
    found: set[str] = set()
    for table in metadata.sorted_tables:
        texts = [column for column in table.columns if isinstance(column.type, sa.String)]  # Text is one
        for row in connection.execution_options(yield_per=_ROWS).execute(sa.select(*texts)):
            for text in row:
                if text is not None and len(text) >= 64:
                    found.update(among.intersection(_DIGEST.findall(text)))
    return found


def identity(engine: sa.Engine) -> str:
    """What names a database to those who share blobs: its file, or its server's host and port and its name there."""
    url = engine.url
    return f"{url.get_backend_name()}:{url.host or ''}:{url.port or ''}/{url.database}"


def listed(content: bytes, among: set[str]) -> set[str]:
    """Those of ``among`` that a blob of this content lists, where it is a list."""
    if content.lstrip()[:1] not in (b"{", b"["):
        return set()
    return among.intersection(digest.decode() for digest in _BYTES.findall(content))
