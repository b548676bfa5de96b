"""Pieces of a table: what is loaded in one go, and that batches over the edges of windows are whole."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from falaj.feed.batch_loader import BatchLoader
from falaj.feed.dealing import Window
from falaj.feed.permutation import Ids, ShuffleOrder
from falaj.feed.piece_source import ColumnBlock, PieceSource
from falaj.feed.sources import open_source

COUNTS = [40] * 23 + [17]


class Words:
    """A column that is no array."""

    def __init__(self, numbers: Ids) -> None:
        self.numbers = numbers

    def pick(self, rows: Ids) -> list[str]:
        """As texts."""
        return [f"w{number}" for number in self.numbers[rows].tolist()]


def table(counts: list[int], window: int) -> tuple[PieceSource, list[list[int]]]:
    starts, loaded = np.cumsum([0, *counts]).tolist(), []

    def load(pieces: list[int]) -> ColumnBlock:
        loaded.append(pieces)
        ids = np.concatenate([np.arange(starts[piece], starts[piece + 1]) for piece in pieces])
        return ColumnBlock({"y": ids, "x": ids[:, None] * np.ones(3, np.int64), "w": Words(ids)})

    return PieceSource(counts, load, size_bytes=32 * sum(counts), window=window, loads_together=True), loaded


def told(*pieces: int) -> Window:
    """A window that was looked up; how it is shuffled does not matter here."""
    return Window(list(pieces), np.array([0]), np.array([0]), ShuffleOrder(0, 0))


@pytest.mark.parametrize("counts", [COUNTS, [7, 40, 3, 40, 22, 40, 40, 11, 40]])
def test_batches_over_the_edges_of_windows_and_epochs_are_those_that_were_planned(counts: list[int]) -> None:
    source, _ = table(counts, 4)
    source.chunk = 64
    feed = BatchLoader(source, 24, micro=8, seed=5)
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
    list(BatchLoader(source, 8, seed=5).stream(0, sum(COUNTS) // 8))
    assert [len(pieces) for pieces in loaded] == [4] * 6
    assert sorted(piece for pieces in loaded for piece in pieces) == list(range(24))


def test_a_window_of_which_some_is_held_already_is_one_block() -> None:
    source, loaded = table(COUNTS, 4)
    source._get_blocks([0, 1, 2, 3])
    source._add_window(told(2, 5, 6, 3))
    held = source._get_blocks([5, 2])
    assert loaded == [[0, 1, 2, 3], [2, 5, 6, 3]]
    assert held[0][0] is held[1][0]
    assert [int(block.columns["y"][base]) for block, base in held] == [200, 80]
    source._get_blocks([7, 8, 9, 10])
    source._add_window(told(5, 6))
    source._get_blocks([2, 3, 5, 6])
    assert loaded[2:] == [[7, 8, 9, 10]], "where all is held, nothing is loaded"


def test_only_the_batch_over_an_edge_is_a_lot_of_its_own(tmp_path: Path) -> None:
    pq.write_table(pa.table({"y": np.arange(320)}), tmp_path / "x.parquet", row_group_size=40)
    narrow, (wide, _) = open_source(tmp_path / "x.parquet", window=4), table([40] * 8, 4)
    ids, mixed = np.arange(100, 220).reshape(-1, 8), np.arange(320).reshape(2, 160).T.copy()
    for source in (narrow, wide):
        source._add_window(told(0, 1, 2, 3))
        source._add_window(told(4, 5, 6, 7))
        lots = source.lots(ids)
        assert [number for _, number in lots] == [7, 1, 7]
        assert np.concatenate([lot["y"] for lot, _ in lots]).tolist() == ids.ravel().tolist()
        assert source.take(ids.ravel())["y"].tolist() == ids.ravel().tolist()
        assert [number for _, number in source.lots(np.arange(160).reshape(-1, 8))] == [20]
        (lot,) = source.lots(mixed)
        assert lot[0]["y"].tolist() == mixed.ravel().tolist(), "a shuffle over all blocks is not cut"


@pytest.mark.parametrize(("width", "many"), [(4, True), (2048, False)])
def test_of_narrow_rows_more_are_taken_at_once(width: int, many: bool, tmp_path: Path) -> None:
    rows = pa.FixedSizeBinaryArray.from_buffers(pa.binary(width), 50, [None, pa.py_buffer(bytes(range(50)) * width)])
    pq.write_table(pa.table({"x": rows}), tmp_path / "x.parquet", row_group_size=10, use_dictionary=False)
    assert (open_source(tmp_path / "x.parquet", window=2).chunk > 4096) is many


def test_numbers_of_every_kind_are_taken_as_they_are_and_may_be_written_into(tmp_path: Path) -> None:
    kinds = ["int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "float16", "float32", "float64"]
    held = {kind: np.arange(100).astype(kind) for kind in kinds} | {"flag": np.arange(100) % 3 == 0}
    days = pa.array(np.arange(100, dtype=np.int32), pa.date32())
    gaps = pa.array([None if n == 7 else n / 2 for n in range(100)], pa.float32())
    pq.write_table(pa.table({**held, "day": days, "gaps": gaps}), tmp_path / "x.parquet", row_group_size=10)
    source = open_source(tmp_path / "x.parquet", window=3)
    rows = np.array([99, 0, 7, 50])
    for _ in range(2):
        found = source.take(rows)
        assert list(found) == [*held, "day", "gaps"]
        for name, column in held.items():
            assert found[name].dtype == column.dtype
            assert found[name].tolist() == column[rows].tolist()
            found[name][:] = 1
        assert found["day"].dtype == np.int32
        assert found["day"].tolist() == rows.tolist()
        assert np.array_equal(found["gaps"], np.array([49.5, 0, np.nan, 25], np.float32), equal_nan=True)
    with pytest.raises(IndexError):
        source.take(np.array([100]))


def test_without_a_shuffle_only_the_pieces_that_come_are_loaded() -> None:
    source, loaded = table(COUNTS, 4)
    source.chunk = 8
    list(BatchLoader(source, 8, seed=5, shuffle=False).stream(0, 20))
    assert loaded == [[0], [1], [2], [3]]


def test_micro_batches_that_were_taken_in_one_go_share_no_values() -> None:
    source, _ = table(COUNTS, 4)
    batches: list[Any] = [one.batch for one in BatchLoader(source, 8, seed=5).stream(0, 20)]
    before = [batch["x"].clone() for batch in batches]
    batches[3]["x"].fill_(-1)
    assert [batch["x"].equal(one) for batch, one in zip(batches, before, strict=True)].count(False) == 1


@pytest.fixture
def wide(tmp_path: Path) -> Path:
    """Rows of 2 KB, in row groups of 1,000: two megabytes each, so that memory is used again."""
    values = np.arange(12_300)[:, None].repeat(256, 1)
    rows = pa.FixedSizeListArray.from_arrays(values.ravel(), 256)
    table = pa.table({"x": rows, "y": np.arange(12_300)})
    pq.write_table(table, tmp_path / "x.parquet", row_group_size=1000, use_dictionary=False)
    return tmp_path / "x.parquet"


@pytest.mark.parametrize("micro", [40, 120])
def test_wide_rows_that_were_given_away_stay_as_they_are_though_memory_is_used_again(wide: Path, micro: int) -> None:
    feed = BatchLoader(open_source(wide, window=4), 120, micro=micro, seed=2)
    kept = []
    for one in feed.stream(0, 300):
        ids = feed.plan.ids(one.step, one.number)
        assert one.batch["y"].tolist() == ids.tolist()
        assert (one.batch["x"] == one.batch["y"][:, None]).all()
        if one.step in {3, 40}:
            one.batch["x"] += 1
            kept.append((ids, one.batch))
    assert feed.source._dealer._spare, "memory was given back"
    assert all((batch["x"] == batch["y"][:, None] + 1).all() for _, batch in kept)
    assert all(batch["y"].tolist() == ids.tolist() for ids, batch in kept)


def test_wide_rows_that_are_asked_for_again_are_read_again_and_not_as_somebody_left_them(wide: Path) -> None:
    feed = BatchLoader(open_source(wide, window=4), 120, micro=60, seed=2)
    for first, last, rank, world in ((0, 60, 0, 1), (10, 50, 0, 1), (0, 60, 1, 2), (0, 60, 0, 2), (55, 120, 0, 1)):
        for one in feed.stream(first, last, rank, world):
            assert one.batch["y"].tolist() == feed.plan.ids(one.step, one.number).tolist()
            assert (one.batch["x"] == one.batch["y"][:, None]).all()
            one.batch["x"].fill_(-1)


def test_wide_rows_are_decoded_one_piece_at_a_time_and_each_once_an_epoch(wide: Path) -> None:
    source = open_source(wide, window=4)
    loaded, load = [], source._load
    source._load = lambda pieces: loaded.append(pieces) or load(pieces)
    for _ in BatchLoader(source, 123, seed=2).stream(0, 100):
        pass
    assert sorted(loaded) == [[piece] for piece in range(13)]


def test_wide_rows_with_texts_are_gathered(tmp_path: Path) -> None:
    texts = [str(number) * 300 for number in range(500)]
    pq.write_table(pa.table({"t": texts, "y": np.arange(500)}), tmp_path / "x.parquet", row_group_size=50)
    feed = BatchLoader(open_source(tmp_path / "x.parquet", window=3), 20, seed=2)
    for one in feed.stream(0, 60):
        assert one.batch["t"] == [texts[number] for number in feed.plan.ids(one.step, one.number)]
    assert feed.source._dealer is None
