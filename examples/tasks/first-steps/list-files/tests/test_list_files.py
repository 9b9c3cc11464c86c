from pathlib import Path

WORKSPACE = Path("/workspace")

FILES = {"README.md", "app.py", "data.csv", "notes.txt"}
HARMLESS = {"listing.txt", "", ".."}  # `ls` sees its own output file, `ls -a` the dots


def listed() -> set[str]:
    """The base names in listing.txt: one a line (the last column of `ls -l`), or all in one line."""
    lines = [line for line in (WORKSPACE / "listing.txt").read_text().splitlines() if not line.startswith("total ")]
    words = lines[0].split() if len(lines) == 1 else [line.split()[-1] for line in lines if line.strip()]
    return {Path(word.rstrip(",:")).name for word in words}


def test_every_file_is_listed() -> None:
    """Each file that was there at the start is in the listing."""
    assert listed() >= FILES


def test_nothing_else_is_listed() -> None:
    """The listing holds no name that is not in the directory."""
    assert listed() <= FILES | HARMLESS


def test_the_files_are_untouched() -> None:
    """Listing changes nothing."""
    assert (WORKSPACE / "notes.txt").read_text() == "Order more paper.\n"
    assert all((WORKSPACE / name).is_file() for name in FILES)
