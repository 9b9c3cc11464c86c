"""The page about verification names every flag and every assurance."""

from __future__ import annotations

import re
from pathlib import Path

from woodshed.model import Assurance

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "verification.md").read_text()


def test_every_flag_is_described() -> None:
    """Each flag a verdict can carry stands in the table."""
    source = "".join(path.read_text() for path in (ROOT / "src" / "woodshed" / "verify").glob("*.py"))
    flags = set(re.findall(r'"(tamper:[a-z_]+)"', source)) | set(re.findall(r'flags=\("([a-z_:]+)"', source))
    flags |= {"missing_ids", "duplicate_ids", "weakens_tests", "outside_capture", "lookalike_path", "canary_error",
              "exit_status", "setup_failed", "no_report", "no_reward", "over:LIMIT"}
    assert len(flags) > 15
    assert {flag for flag in flags if f"`{flag}`" not in PAGE} == set()


def test_every_assurance_is_described() -> None:
    """Each assurance has its row, with its known evasions."""
    assert [name for name in Assurance if f"| `{name}` |" not in PAGE] == []
