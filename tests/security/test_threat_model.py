"""The threat model and the attacks say the same: each family it calls stopped is tried where it says, and no other."""

from __future__ import annotations

import re
from pathlib import Path

from outer import gather, home_of

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "threat-model.md"
FAMILIES = range(1, 19)
UNTRIED: set[int] = set()
"""What has no attack yet."""
_ROW = re.compile(r"^\| (\d+) \| (.+) \| (.+) \| (.*)\|$", re.MULTILINE)
_DECLARED = re.compile(r"^FAMILIES = \(([\d, ]+)\)$", re.MULTILINE)


def told() -> dict[int, set[str]]:
    """The files that the page names for each family."""
    return {int(number): set(re.findall(r"`(tests/[\w/.]+)`", files)) for number, _, _, files in
            _ROW.findall(PAGE.read_text())}


def tried() -> dict[int, set[str]]:
    """The files that try each family: by the attacks they hold, or by the families they declare."""
    found: dict[int, set[str]] = {}
    for attack in gather().values():
        found.setdefault(attack.family, set()).add(home_of(attack))
    for path in sorted((ROOT / "tests").glob("*/test_*.py")):
        for declared in _DECLARED.findall(path.read_text()):
            for number in declared.replace(" ", "").strip(",").split(","):
                found.setdefault(int(number), set()).add(str(path.relative_to(ROOT)))
    return found


def test_every_family_is_in_the_threat_model() -> None:
    """The table has the eighteen families, in order."""
    assert list(told()) == list(FAMILIES)


def test_the_threat_model_and_the_attacks_agree() -> None:
    """Each family is tried in exactly the files that the page names; only what cannot be tried yet names none."""
    assert {number: files for number, files in told().items() if files} == tried()
    assert {number for number, files in told().items() if not files} == UNTRIED


def test_every_attack_has_a_control() -> None:
    """No attack is without a defence to take away: one that cannot be shown to succeed shows nothing."""
    assert [attack.name for attack in gather().values() if not attack.defences or not all(attack.defences)] == []


def test_the_first_thing_not_stopped_is_the_shared_kernel() -> None:
    """What is not stopped stands before what is, and the kernel first."""
    text = PAGE.read_text()
    assert text.index("## Not stopped") < text.index("## Stopped")
    assert text[text.index("## Not stopped"):].split("\n- ")[1].startswith("**The kernel is shared.**")
