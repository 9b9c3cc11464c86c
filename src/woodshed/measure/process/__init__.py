"""Process measures: how an attempt went, from its events alone. No model is asked. Formulas: docs/measures.md."""

from woodshed.measure.process.card import AgentCard, Counted, by_agent, card
from woodshed.measure.process.confirmed import Claimed, cell
from woodshed.measure.process.facts import Edited, Facts

__all__ = ["AgentCard", "Claimed", "Counted", "Edited", "Facts", "by_agent", "card", "cell"]
