"""The check of the threat model finds rows that prove nothing."""

import pytest

from tests.security.threat_model import find_row_faults, read_threats

HEAD = "| threat | answer | where | attack test |\n|---|---|---|---|\n"


@pytest.mark.parametrize(
    ("row", "fault"),
    [
        ("| x | y | `store/blob_store.py` | |", "names no attack test"),
        ("| x | y | `store/blob_store.py` | `tests/security/attacks/test_nothing.py` |", "does not exist"),
        (
            "| x | y | `store/blob_store.py` | `tests/security/test_threat_model.py::test_nothing` |",
            "defines no test_nothing",
        ),
        ("| x | y | `store/nothing.py` | `tests/security/test_threat_model.py` |", "store/nothing.py does not exist"),
    ],
)
def test_row_that_proves_nothing_is_found(row: str, fault: str) -> None:
    (threat,) = read_threats(HEAD + row)
    assert any(fault in text for text in find_row_faults(threat))


def test_row_with_an_existing_test_is_accepted() -> None:
    row = (
        "| x | y | `store/blob_store.py` | "
        "`tests/security/test_threat_model.py::test_row_that_proves_nothing_is_found` |"
    )
    (threat,) = read_threats(HEAD + row)
    assert list(find_row_faults(threat)) == []
