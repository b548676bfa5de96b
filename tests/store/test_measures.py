"""Measurements on a shelf: however the bytes come, the blocks are those that went, or it is said that they are not."""

from collections.abc import Iterator
from typing import Any

import pytest

from falaj.core.errors import CorruptData
from falaj.core.ports import SeriesBlock
from falaj.store.series_backup import SeriesDump, read_frames

BLOCKS = [SeriesBlock("t", "s", "", f"id-{n}", "z", "", "", 3, 1.0, bytes([n]) * 400_000) for n in range(7)]


class Kept:
    """A store of series that only gives what it holds."""

    def dump(self) -> Iterator[SeriesBlock]:
        return iter(BLOCKS)


def stream() -> bytes:
    kept: Any = Kept()
    return b"".join(SeriesDump(kept))


@pytest.mark.parametrize("size", [1000, 1 << 20, 1 << 30])
def test_blocks_come_back_from_pieces_of_any_size(size: int) -> None:
    whole = stream()
    pieces = [b"", *(whole[at : at + size] for at in range(0, len(whole), size)), b""]
    pieces.insert(1, b"")
    assert [block for frame in read_frames(pieces) for block in frame] == BLOCKS
    assert list(read_frames([b"", b""])) == []


@pytest.mark.parametrize(
    "pieces",
    [
        [stream()[:-1]],
        [stream(), b"\0\0"],
        [stream(), b"\x7f\xff\xff\xff"],
        [stream(), b"\0\0\0\1\xc1"],
    ],
    ids=["short", "half a head", "too long", "no frame"],
)
def test_what_is_no_frame_is_corrupt(pieces: list[bytes]) -> None:
    with pytest.raises(CorruptData, match="measurements of the backup cannot be read"):
        list(read_frames(pieces))
