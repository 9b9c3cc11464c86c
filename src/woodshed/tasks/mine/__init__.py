"""Mining: which commits of a repository may become tasks, what they say, and what their runs prove. Runs nothing."""

from woodshed.tasks.mine.draft import Material, draft, slug, write
from woodshed.tasks.mine.history import Commit, changes, commits
from woodshed.tasks.mine.instruct import fix_lines, instruction, leaks
from woodshed.tasks.mine.outcome import TIMES, Pair, Ran, Side, judge, settled, speaks_of_network
from woodshed.tasks.mine.paths import TEST_FILES
from woodshed.tasks.mine.project import Project
from woodshed.tasks.mine.reasons import Reason, Rejection
from woodshed.tasks.mine.select import Candidate, screen, select

__all__ = [
    "TEST_FILES", "TIMES", "Candidate", "Commit", "Material", "Pair", "Project", "Ran", "Reason", "Rejection", "Side",
    "changes", "commits", "draft", "fix_lines", "instruction", "judge", "leaks", "screen", "select", "settled", "slug",
    "speaks_of_network", "write",
]
