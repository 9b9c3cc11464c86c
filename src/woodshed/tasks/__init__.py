"""Task folders: load, validate, import."""
