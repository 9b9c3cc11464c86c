from pathlib import Path

WORKSPACE = Path("/workspace")

CONTENT = "[server]\nhost = localhost\nport = 8080\n"


def test_the_copy_has_the_content() -> None:
    """config.ini has what the example has."""
    assert (WORKSPACE / "config.ini").read_text() == CONTENT


def test_the_original_stays() -> None:
    """A copy leaves the example where and as it was."""
    assert (WORKSPACE / "config.example.ini").read_text() == CONTENT
