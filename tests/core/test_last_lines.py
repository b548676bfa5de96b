"""The end of a log: whole lines, as many as asked for, found without reading what lies before."""

from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from falaj.core.outbox import find_last_lines


@settings(max_examples=150, deadline=None)
@given(st.lists(st.binary(max_size=6).map(lambda one: one.replace(b"\n", b"")), max_size=12), st.booleans(),
       st.integers(1, 14), st.integers(1, 60))  # fmt: skip
def test_it_is_the_last_lines_or_as_much_of_them_as_is_in_sight(
    tmp_path_factory: object, lines: list[bytes], ended: bool, count: int, most: int
) -> None:
    file = tmp_path_factory.mktemp("log") / "slot-0.log"  # type: ignore[attr-defined]
    data = b"\n".join(lines) + (b"\n" if ended and lines else b"")
    file.write_bytes(data)
    start = find_last_lines(file, count, most)
    whole = data.splitlines(keepends=True) if b"\r" not in data else None
    if b"\n" in data[-most:]:
        assert start in (0, len(data)) or data[start - 1 : start] == b"\n", "a line begins there"
    if whole is not None and sum(map(len, whole[-count:])) < most and not set(data) & set(b"\x0b\x0c\x1c\x1d\x1e\x85"):
        assert data[start:] == b"".join(whole[-count:])


def test_of_nothing_it_is_the_beginning(tmp_path: Path) -> None:
    assert find_last_lines(tmp_path / "gone", 3, 100) == 0
    (tmp_path / "link").symlink_to("/etc/passwd")
    assert find_last_lines(tmp_path / "link", 3, 1) in range(64)
