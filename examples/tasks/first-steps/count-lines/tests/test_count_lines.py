from pathlib import Path

WORKSPACE = Path("/workspace")


def test_the_count_is_right() -> None:
    """count.txt starts with the number of lines; `wc -l` may add the file's name."""
    words = (WORKSPACE / "count.txt").read_text().split()
    assert words in (["17"], ["17", "data.csv"], ["17", "./data.csv"])


def test_the_data_is_untouched() -> None:
    """Counting leaves the file as it was."""
    lines = (WORKSPACE / "data.csv").read_text().splitlines()
    assert (len(lines), lines[0], lines[-1]) == (17, "order,amount", "1016,48")
