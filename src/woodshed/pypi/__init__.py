"""Files of the user's Python index, fetched and opened without running any package's code."""

from woodshed.pypi.archive import Archive, Member, extract, open_archive
from woodshed.pypi.download import Kind, Progress, fetch

__all__ = ["Archive", "Kind", "Member", "Progress", "extract", "fetch", "open_archive"]
