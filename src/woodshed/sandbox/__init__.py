"""Live isolated places: the native engine, its images, and the suite any engine must pass."""
