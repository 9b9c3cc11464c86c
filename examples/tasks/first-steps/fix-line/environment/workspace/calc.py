def add(a: int, b: int) -> int:
    return a - b


def subtract(left: int, right: int) -> int:
    return left - right
