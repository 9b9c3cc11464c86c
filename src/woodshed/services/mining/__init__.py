"""Mining: tasks from a git repository's own history. ``mine`` does it; its journal lets it go on where it ended."""

from woodshed.services.mining.mine import Mined, Order, Progress, mine

__all__ = ["Mined", "Order", "Progress", "mine"]
