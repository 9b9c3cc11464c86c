from pathlib import Path

WORKSPACE = Path("/workspace")


def test_the_new_name_holds_the_content() -> None:
    """new.txt has what old.txt had."""
    assert (WORKSPACE / "new.txt").read_text() == "Minutes of the meeting on 3 March.\n"


def test_the_old_name_is_gone() -> None:
    """A rename is no copy."""
    assert not (WORKSPACE / "old.txt").exists()
