"""One file a migration; forwards only."""
