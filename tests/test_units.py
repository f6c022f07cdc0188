from __future__ import annotations

import pytest

from windtunnel import units
from windtunnel.errors import BadQuantity


@pytest.mark.parametrize(
    ("text", "unit", "value"),
    [
        ("312 TFLOP/s", "flop/s", 312e12),
        ("4.8 TB/s", "B/s", 4.8e12),
        ("31.5 GB/s", "B/s", 31.5e9),
        ("16 GiB", "B", 16 * 2**30),
        ("16 GB", "B", 16e9),
        ("3.6 GHz", "Hz", 3.6e9),
        ("22.5 ms", "s", 0.0225),
        ("2.5 us", "s", 2.5e-6),
        ("1,024 B", "B", 1024),
        ("700W", "W", 700),
        (3.5e9, "B/s", 3.5e9),
    ],
)
def test_quantities_are_converted_to_base_units(text: str | float, unit: str, value: float) -> None:
    assert units.parse(text, unit) == pytest.approx(value)


@pytest.mark.parametrize(
    ("text", "unit"),
    [("16 parsecs", "B"), ("4.8 TB", "B/s"), ("fast", "s"), ("1e999 s", "s"), ("", "B"), ("12 XB", "B")],
)
def test_the_error_for_a_wrong_quantity_names_it(text: str, unit: str) -> None:
    with pytest.raises(BadQuantity) as caught:
        units.parse(text, unit)
    assert repr(text) in str(caught.value)


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (0.0225, "s", "22.5 ms"),
        (41.2 * 2**30, "B", "41.2 GiB"),
        (0, "B", "0 B"),
        (312e12, "flop/s", "312 TFLOP/s"),
        (2.5e-6, "s", "2.50 us"),
        (7200 * 3, "s", "6.00 h"),
        (999.9e-6, "s", "1.00 ms"),
        (float("nan"), "s", "unknown"),
    ],
)
def test_quantities_are_shown_with_three_digits_and_a_prefix(value: float, unit: str, text: str) -> None:
    assert units.show(value, unit) == text


@pytest.mark.parametrize(
    ("text", "value"),
    [("50", 50), ("-3", -3), ("1e-3", 0.001), ("true", True), ("False", False), ("relu", "relu"), ("", "")],
)
def test_a_word_that_looks_like_a_number_becomes_one(text: str, value: object) -> None:
    assert units.literal(text) == value and type(units.literal(text)) is type(value)


@pytest.mark.parametrize(
    ("text", "ends"),
    [
        ("10..5000", (10, 5000)),
        ("1_000..", (1000, None)),
        ("..0.5", (None, 0.5)),
        ("-1.5..2", (-1.5, 2)),
        ("10", None),
        ("10...20", None),
        ("a..b", None),
    ],
)
def test_a_range_has_two_ends_that_may_be_left_out(text: str, ends: object) -> None:
    assert units.parse_range(text) == ends


@pytest.mark.parametrize("unit", ["s", "B", "B/s", "flop/s", "Hz"])
@pytest.mark.parametrize("value", [1e-9, 0.5, 1.0, 999.0, 1e3, 123456.0, 7.89e12])
def test_a_shown_quantity_can_be_parsed_again(value: float, unit: str) -> None:
    shown = units.show(value, unit)
    if any(word in shown for word in ("min", "h", "days")):
        return
    if value >= 1e-9 and not (unit != "s" and value < 1):
        assert units.parse(shown, unit) == pytest.approx(value, rel=0.006)
