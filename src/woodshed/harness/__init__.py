"""The programs that run the loop."""
