"""Quarterly figures of the shop."""
