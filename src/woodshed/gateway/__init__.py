"""The one choke point for every model call."""
