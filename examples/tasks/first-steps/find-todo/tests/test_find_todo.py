from pathlib import Path

WORKSPACE = Path("/workspace")

EXPECTED = {"main.py", "store.py"}


def found() -> list[str]:
    """The base names in todo.txt; base names are unique under src."""
    return [Path(line.strip()).name for line in (WORKSPACE / "todo.txt").read_text().splitlines() if line.strip()]


def test_every_match_is_named() -> None:
    """Both files with a TODO are named, the one in the sub-folder too."""
    assert set(found()) >= EXPECTED


def test_no_other_file_is_named() -> None:
    """Files without a TODO are not named."""
    assert set(found()) <= EXPECTED
