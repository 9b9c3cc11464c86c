from calc import add, subtract


def test_add_adds() -> None:
    """The fixed function adds, whatever the signs."""
    assert [add(2, 3), add(-4, 1), add(0, 0)] == [5, -3, 0]


def test_subtract_still_subtracts() -> None:
    """The neighbour, which was right, is unchanged."""
    assert [subtract(7, 2), subtract(2, 7)] == [5, -5]
