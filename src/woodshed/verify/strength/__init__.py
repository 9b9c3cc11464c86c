"""Variants of a task's reference that its verifier should fail: the share that it does fail is its strength."""

from woodshed.verify.strength.generate import variants
from woodshed.verify.strength.variant import Files, Kind, Variant

__all__ = ["Files", "Kind", "Variant", "variants"]
