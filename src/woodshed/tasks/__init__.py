"""Task folders: load, validate, write, import."""

from woodshed.tasks.load import find_tasks, load_task, task_folders

__all__ = ["find_tasks", "load_task", "task_folders"]
