"""The trainers' edge: exports and adapters."""
