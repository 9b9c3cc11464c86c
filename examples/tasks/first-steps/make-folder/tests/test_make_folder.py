from pathlib import Path

WORKSPACE = Path("/workspace")


def test_the_folder_exists() -> None:
    """build/out is a folder."""
    assert (WORKSPACE / "build" / "out").is_dir()


def test_the_project_is_untouched() -> None:
    """The file that was there is still there."""
    assert (WORKSPACE / "Makefile").read_text().startswith("all:")
