COLUMNS = ("id", "todo", "done")
