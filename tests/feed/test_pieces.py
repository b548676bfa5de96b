"""Pieces of a table: what is loaded in one go, and that batches over the edges of windows are whole."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from falaj.feed.feed import Feed
from falaj.feed.order import Ids
from falaj.feed.pieces import Columns, Pieces
from falaj.feed.sources import open_source

COUNTS = [40] * 23 + [17]


class Words:
    """A column that is no array."""

    def __init__(self, numbers: Ids) -> None:
        self.numbers = numbers

    def pick(self, rows: Ids) -> list[str]:
        """As texts."""
        return [f"w{number}" for number in self.numbers[rows].tolist()]


def table(counts: list[int], window: int) -> tuple[Pieces, list[list[int]]]:
    starts, loaded = np.cumsum([0, *counts]).tolist(), []

    def load(pieces: list[int]) -> Columns:
        loaded.append(pieces)
        ids = np.concatenate([np.arange(starts[piece], starts[piece + 1]) for piece in pieces])
        return {"y": ids, "x": ids[:, None] * np.ones(3, np.int64), "w": Words(ids)}

    return Pieces(counts, load, size_bytes=32 * sum(counts), window=window, joined=True), loaded


@pytest.mark.parametrize("counts", [COUNTS, [7, 40, 3, 40, 22, 40, 40, 11, 40]])
def test_batches_over_the_edges_of_windows_and_epochs_are_those_that_were_planned(counts: list[int]) -> None:
    source, _ = table(counts, 4)
    source.chunk = 64
    feed = Feed(source, 24, micro=8, seed=5)
    steps = 3 * sum(counts) // 24
    seen = 0
    for one in feed.stream(0, steps):
        ids = feed.plan.ids(one.step, one.number)
        assert one.batch["y"].tolist() == ids.tolist()
        assert one.batch["x"][:, 2].tolist() == ids.tolist()
        assert one.batch["w"] == [f"w{number}" for number in ids.tolist()]
        seen += 1
    assert seen == 3 * steps


def test_a_window_is_loaded_in_one_go_though_its_first_batch_needs_a_part_of_it() -> None:
    source, loaded = table(COUNTS, 4)
    source.chunk = 8
    list(Feed(source, 8, seed=5).stream(0, sum(COUNTS) // 8))
    assert [len(pieces) for pieces in loaded] == [4] * 6
    assert sorted(piece for pieces in loaded for piece in pieces) == list(range(24))


@pytest.mark.parametrize("anew", [True, False])
def test_a_window_of_which_some_is_held_already_is_one_block_where_rows_are_wide(anew: bool) -> None:
    source, loaded = table(COUNTS, 4)
    assert source.anew
    source.anew = anew
    source._get([0, 1, 2, 3])
    source._tell([2, 5, 6, 3])
    held = source._get([5, 2])
    assert loaded == [[0, 1, 2, 3], [2, 5, 6, 3] if anew else [5, 6]]
    assert (held[0][0] is held[1][0]) == anew
    assert [int(block["y"][base]) for block, base in held] == [200, 80]
    source._get([7, 8, 9, 10])
    source._tell([5, 6])
    source._get([2, 3, 5, 6])
    assert loaded[2:] == [[7, 8, 9, 10]], "where all is held, nothing is loaded"


@pytest.mark.parametrize(("width", "anew"), [(4, False), (2048, True)])
def test_rows_of_a_table_are_wide_or_narrow(width: int, anew: bool, tmp_path: Path) -> None:
    rows = pa.FixedSizeBinaryArray.from_buffers(pa.binary(width), 50, [None, pa.py_buffer(bytes(range(50)) * width)])
    pq.write_table(pa.table({"x": rows}), tmp_path / "x.parquet", row_group_size=10, use_dictionary=False)
    assert open_source(tmp_path / "x.parquet", window=2).anew is anew


def test_without_a_shuffle_only_the_pieces_that_come_are_loaded() -> None:
    source, loaded = table(COUNTS, 4)
    source.chunk = 8
    list(Feed(source, 8, seed=5, shuffle=False).stream(0, 20))
    assert loaded == [[0], [1], [2], [3]]


def test_micro_batches_that_were_taken_in_one_go_share_no_values() -> None:
    source, _ = table(COUNTS, 4)
    batches: list[Any] = [one.batch for one in Feed(source, 8, seed=5).stream(0, 20)]
    before = [batch["x"].clone() for batch in batches]
    batches[3]["x"].fill_(-1)
    assert [batch["x"].equal(one) for batch, one in zip(batches, before, strict=True)].count(False) == 1
