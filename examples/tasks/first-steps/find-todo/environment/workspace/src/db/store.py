def load() -> list[str]:
    return []  # TODO: open the file
