from pathlib import Path

WORKSPACE = Path("/workspace")

PRINTED = ["paper 2", "pens 14", "stamps 30", "sum 46"]


def test_the_output_is_saved() -> None:
    """out.txt holds the lines that the script prints, in their order."""
    assert [line.strip() for line in (WORKSPACE / "out.txt").read_text().splitlines() if line.strip()] == PRINTED


def test_the_inputs_are_untouched() -> None:
    """The script and its data are as they were."""
    assert (WORKSPACE / "stock.csv").read_text() == "paper,2\npens,14\nstamps,30\n"
    assert "print" in (WORKSPACE / "report.py").read_text()
