"""``python -m woodshed`` is the command line."""

from woodshed.cli import main

main()
