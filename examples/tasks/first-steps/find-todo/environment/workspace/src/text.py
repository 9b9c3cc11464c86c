def title(text: str) -> str:
    return text.title()
