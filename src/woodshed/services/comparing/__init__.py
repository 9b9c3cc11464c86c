"""Choosing between agents: several of them on the same tasks, from the store, as figures and as a page."""

from woodshed.services.comparing.gather import Gathered, gathered
from woodshed.services.comparing.page import page
from woodshed.services.comparing.told import told

__all__ = ["Gathered", "gathered", "page", "told"]
