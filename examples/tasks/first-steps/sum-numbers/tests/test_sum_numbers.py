from pathlib import Path

WORKSPACE = Path("/workspace")


def test_the_sum_is_right() -> None:
    """total.txt holds the sum and nothing else."""
    words = (WORKSPACE / "total.txt").read_text().split()
    assert len(words) == 1
    assert float(words[0]) == 371


def test_the_numbers_are_untouched() -> None:
    """The input is as it was."""
    assert (WORKSPACE / "numbers.txt").read_text().split() == ["12", "7", "150", "-8", "43", "96", "71"]
