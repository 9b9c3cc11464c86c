"""The licence of a repository's files, by its licence file or else by what its project says. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping

from woodshed.tasks.mine.project import Project

UNDECLARED = "undeclared"
_FILES = re.compile(r"(?:LICEN[CS]E|COPYING|UNLICENSE)(?:[-.](?:txt|md|rst))?", re.IGNORECASE)
_HEAD = 4000
"""Characters of a file that are looked at: titles and grants of all these licences stand there."""
_TEXTS = (
    ("Apache-2.0", r"apache license,? version 2\.0"),
    ("AGPL-3.0", r"gnu affero general public license,? version 3"),
    ("LGPL-3.0", r"gnu lesser general public license,? version 3"),
    ("LGPL-2.1", r"gnu lesser general public license,? version 2\.1"),
    ("GPL-3.0", r"gnu general public license,? version 3"),
    ("GPL-2.0", r"gnu general public license,? version 2"),
    ("MPL-2.0", r"mozilla public license,? version 2\.0"),
    ("Unlicense", r"this is free and unencumbered software released into the public domain"),
    ("BSD-3-Clause", r"redistribution and use in source and binary forms.*neither the name"),
    ("BSD-2-Clause", r"redistribution and use in source and binary forms"),
    ("ISC", r"permission to use, copy, modify, and/?(?:or)? distribute this software"),
    ("MIT", r"permission is hereby granted, free of charge, to any person obtaining a copy"),
)
"""SPDX names, by words of the texts that SPDX lists for them. What stands first in a file counts, here and there."""
_NAME = re.compile(r"[\w .+()/,-]{1,60}")


def licence(project: Project) -> str:
    """SPDX's name where the licence file's text is known, or what the project calls it; else ``undeclared``."""
    for path in sorted(path for path in project.paths if _FILES.fullmatch(path)):
        text = " ".join((project.read(path) or b"")[:_HEAD].decode("utf-8", "replace").lower().split())
        found = [(match.start(), name) for name, words in _TEXTS if (match := re.search(words, text)) is not None]
        if found:
            return min(found, key=lambda one: one[0])[1]
    said = [*_declared(project.pyproject), project.setup("license")]
    return next((name.strip() for name in said if isinstance(name, str) and _NAME.fullmatch(name.strip())), UNDECLARED)


def _declared(pyproject: Mapping[str, object]) -> list[object]:
    """What a pyproject.toml calls it: a string, or a table's text; Poetry's own."""
    found: list[object] = []
    for names in (("project",), ("tool", "poetry")):
        table: object = pyproject
        for name in names:
            table = table.get(name) if isinstance(table, Mapping) else None
        named = table.get("license") if isinstance(table, Mapping) else None
        found.append(named.get("text") if isinstance(named, Mapping) else named)
    return found
