"""Dockerfiles become images without any daemon: every step in a sandbox of ours, and a layer of the store."""
