"""Credentials are pointed at and never written out."""

from pathlib import Path

import pytest

from falaj.core.credential import read_credential
from falaj.core.errors import Invalid


def test_a_pointer_gives_what_it_points_at(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("A_PIN", "1234")
    (tmp_path / "pin").write_text("5678\nsecond line\n")
    assert read_credential("env:A_PIN", "pin") == "1234"
    assert read_credential(f"file:{tmp_path}/pin", "pin") == "5678"


@pytest.mark.parametrize(
    "pointer", ["", "hunter2", "env:", "file:", "env", "http://x", "env:NOT_SET_ANYWHERE", "file:/nowhere/at/all"]
)
def test_anything_else_is_refused_and_not_repeated(pointer: str) -> None:
    with pytest.raises(Invalid) as refused:
        read_credential(pointer, "pin")
    assert "hunter2" not in str(refused.value)
    assert "/nowhere" not in str(refused.value)
