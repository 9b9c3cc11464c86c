"""Agents of others, unchanged: each is declared as data (``spec.py``), started in the sandbox, and recorded as ours."""

from woodshed.harness.external.act import External
from woodshed.harness.external.spec import ExternalAgent

__all__ = ["External", "ExternalAgent"]
