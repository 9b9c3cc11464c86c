"""Reports of the shop."""
