"""Whether two versions of a Python file are the same program. Read with ``ast``, never run."""

from __future__ import annotations

import ast
import warnings
from typing import Literal

MAX_BYTES = 2_000_000
Difference = Literal["none", "layout", "docstrings", "code"]


def difference(before: bytes | None, after: bytes | None) -> Difference:
    """How two versions differ. None is an absent file; what does not parse, or is huge, differs in code.

    ``layout``: equal syntax trees, so spaces, comments, quotes and line breaks only. ``docstrings``: equal
    but for those.
    """
    if before == after:
        return "none"
    trees = [_tree(content) for content in (before, after)]
    old, new = trees
    if old is None or new is None:
        return "code"
    try:
        if ast.dump(old) == ast.dump(new):
            return "layout"
        return "docstrings" if ast.dump(_bare(old)) == ast.dump(_bare(new)) else "code"
    except (RecursionError, MemoryError):
        return "code"


def _tree(content: bytes | None) -> ast.Module | None:
    if content is None or len(content) > MAX_BYTES:
        return None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # an invalid escape in theirs is no news of ours
            return ast.parse(content)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _bare(tree: ast.Module) -> ast.Module:
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            first = node.body[0] if node.body else None
            if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) \
                    and isinstance(first.value.value, str):
                node.body = node.body[1:] or [ast.Pass()]
    return tree
