from pathlib import Path

WORKSPACE = Path("/workspace")


def test_the_text_is_there() -> None:
    """hello.txt holds the text and nothing else."""
    assert (WORKSPACE / "hello.txt").read_text().strip() == "hello world"
