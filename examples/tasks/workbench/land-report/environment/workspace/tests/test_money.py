from reporting.money import to_cents


def test_halves_are_rounded_up() -> None:
    assert to_cents("0.125") == 13
    assert to_cents("10.00", "0.9215") == 922
