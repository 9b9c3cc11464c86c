"""Task folders: load, validate, write, import."""

from woodshed.tasks.collection import Progress
from woodshed.tasks.import_humaneval import human_eval, humanevalfix
from woodshed.tasks.import_pypi import Probe, pypi_pair
from woodshed.tasks.load import find_tasks, load_task, task_folders
from woodshed.tasks.runners import node_files, pytest_files, script_files
from woodshed.tasks.write import Draft, write_task

__all__ = [
    "Draft", "Probe", "Progress", "find_tasks", "human_eval", "humanevalfix", "load_task", "node_files", "pypi_pair",
    "pytest_files", "script_files", "task_folders", "write_task",
]
