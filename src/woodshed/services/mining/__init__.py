"""Mining: tasks from a git repository's own history. ``mine`` does it; its journal lets it go on where it ended."""

from woodshed.services.mining.mine import Mined, Order, Progress, mine
from woodshed.services.mining.trial import Calibrate, Standing

__all__ = ["Calibrate", "Mined", "Order", "Progress", "Standing", "mine"]
