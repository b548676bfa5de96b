"""An identifier is recognised however it is written, and never inside a longer one."""

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from falaj.privacy.search.person_pattern import PersonPattern

EMIRATES_ID = "784-1990-1234567-1"
ARABIC = EMIRATES_ID.translate({ord(str(digit)): chr(0x660 + digit) for digit in range(10)})
NAMES = [
    (EMIRATES_ID, "id 784-1990-1234567-1."), (EMIRATES_ID, "784199012345671"), (EMIRATES_ID, "784 1990 1234567 1"),
    (EMIRATES_ID, ARABIC), ("784199012345671", "x=784-1990-1234567-1"),
    ("AE07 0331 2345 6789 0123 456", "iban AE070331234567890123456"), ("+971 50 123 4567", "call +971501234567"),
    ("c1@example.ae", "mail C1@Example.ae now"), ("patient-3", "about patient-3, again"),
]  # fmt: skip
OTHERS = [
    (EMIRATES_ID, "1784199012345671"), (EMIRATES_ID, "7841990123456712"), (EMIRATES_ID, "784-1990-1234567-2"),
    ("patient-3", "patient-30"), ("patient-3", "inpatient-3"), ("c1@example.ae", "cc1@example.ae"), ("73", "73"),
]  # fmt: skip


@pytest.mark.parametrize(("subject", "text"), NAMES)
def test_pattern_matches_the_identifier_in_text_and_in_columns(subject: str, text: str) -> None:
    pattern = PersonPattern(subject)
    assert pattern.is_in(text)
    assert pc.match_substring_regex(pa.array([text]), pattern.contains).to_pylist() == [True]


@pytest.mark.parametrize(("subject", "text"), OTHERS)
def test_pattern_does_not_match_other_identifiers(subject: str, text: str) -> None:
    pattern = PersonPattern(subject)
    assert not pattern.is_in(text)
    if pattern.is_distinctive:
        assert pc.match_substring_regex(pa.array([text]), pattern.contains).to_pylist() == [False]


@pytest.mark.parametrize(("subject", "value"), [("73", 73), ("73", " 73 "), (EMIRATES_ID, 784199012345671)])
def test_value_of_a_declared_column_is_compared_as_a_whole(subject: str, value: object) -> None:
    assert PersonPattern(subject).is_value(value)
    assert not PersonPattern(subject).is_value(f"{value}0")
    assert not PersonPattern(subject).is_value(None)


def test_bytes_are_searched_as_utf_8_and_utf_16() -> None:
    pattern = PersonPattern(EMIRATES_ID)
    for encoding in ("utf-8", "utf-16-le", "utf-16-be"):
        assert pattern.find_in_bytes(b"\0\1" + EMIRATES_ID.encode(encoding) + b"\2") == 2
    assert pattern.find_in_bytes(b"784-1990-1234567-2") == -1


@pytest.mark.parametrize(("subject", "text"), NAMES)
def test_long_text_is_searched_like_a_short_one(subject: str, text: str) -> None:
    assert PersonPattern(subject).is_in(f"{'x ' * 1000}{text}{' y' * 1000}")
    assert not PersonPattern(subject).is_in("x " * 1000)
    assert PersonPattern(subject).is_in(f"{'x ' * 1000}{text} \ud800")
