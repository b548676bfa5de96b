"""The journal: sealed, read by time, kept for its days, and without a person who is to be forgotten."""

from collections.abc import Iterator

import pytest

from falaj.serve.request_journal import (
    MAX_BODY_BYTES,
    NO_BODY_ENCODING,
    SERIES_PREFIX,
    JournalRow,
    RequestJournal,
    binary_encoding,
    parse_binary_encoding,
)
from falaj.serve.sealed_blocks import SealedBlocks
from tests.serve.ground import NOON, REF, WHOSE, logged
from tests.town import Town


@pytest.fixture
def journal(town: Town) -> Iterator[RequestJournal]:
    made = RequestJournal(town.house._open_series, town.house.ledger)
    yield made
    made.delete("bank", REF)


def test_rows_come_back_by_time(journal: RequestJournal) -> None:
    rows = [logged(NOON + number, f"q{number}") for number in range(10)]
    assert journal.append(WHOSE, rows[5:]) == 5
    journal.append(WHOSE, rows[:5])
    assert list(journal.read("bank", REF)) == rows
    assert list(journal.read("bank", REF, NOON + 3, NOON + 7)) == rows[3:7]
    assert list(journal.read("bank", REF, newest_first=True)) == rows[::-1]
    assert list(journal.read("clinic", REF)) == []


def test_what_is_brought_twice_is_kept_once(journal: RequestJournal) -> None:
    rows = [logged(NOON + number, f"q{number}") for number in range(4)]
    assert journal.append(WHOSE, rows[:3], skips_existing=True) == 3
    assert journal.append(WHOSE, [*rows, rows[3]], skips_existing=True) == 1
    assert [row.id for row in journal.read("bank", REF)] == ["q0", "q1", "q2", "q3"]


def test_a_person_is_forgotten_and_the_others_are_not(journal: RequestJournal) -> None:
    journal.append(WHOSE, [logged(NOON + number, f"q{number}", f"c{number % 3}") for number in range(9)])
    journal.append(WHOSE, [logged(NOON + 20, "q20", "c1")])
    assert journal.forget(WHOSE, ["c1", "nobody"]) == 4
    assert {row.key for row in journal.read("bank", REF)} == {"c0", "c2"}
    assert len(list(journal.read("bank", REF))) == 6
    assert journal.forget(WHOSE, ["c1"]) == 0


def test_only_blocks_that_may_name_a_person_are_opened(journal: RequestJournal, town: Town) -> None:
    for number in range(40):
        journal.append(WHOSE, [logged(NOON + number, f"q{number}", f"c{number}")])
    blocks = SealedBlocks(SERIES_PREFIX, JournalRow, town.house._open_series, town.house.ledger)
    bare = blocks.sealed(WHOSE, [logged(NOON + 50, "q50", "c7")], (NOON + 50, NOON + 50))
    blocks.append([bare])  # as it was written before there were marks
    there = blocks.blocks("bank", REF)
    likely = [block for block in there if blocks.may_name(block, ["c7"])]
    assert len(likely) == 2
    assert {row.key for block in likely for row in blocks.rows(block)} == {"c7"}
    assert [one.id for one in there if blocks.may_name(one, ["q9"])] != [bare.id], "ids are marked, too"
    torn = likely[0]._replace(data=likely[0].data[:-40] + bytes(8) + likely[0].data[-32:])
    assert blocks.may_name(torn, ["c1"]), "marks that were altered tell nothing"
    moved = likely[0]._replace(id="another")
    assert blocks.may_name(moved, ["c1"]), "nor do those of another block"
    told: list[str] = []
    assert journal.forget(WHOSE, ["c7"], lambda ids: told.extend(ids) or 0) == 2
    assert told == ["q7", "q50"]
    assert journal.forget(WHOSE, ["c7"], len) == 0


def test_old_ones_go(journal: RequestJournal) -> None:
    journal.append(WHOSE, [logged(NOON, "old")])
    journal.append(WHOSE, [logged(NOON + 86400 * 2, "new")])
    assert journal.expire("bank", REF, 1, NOON + 86400 * 2) == 1
    assert [row.id for row in journal.read("bank", REF)] == ["new"]


def test_a_body_is_kept_whole_or_not_at_all(journal: RequestJournal) -> None:
    journal.append(WHOSE, [logged(NOON, "large", request=b"x" * (MAX_BODY_BYTES + 1)), logged(NOON, "fits")])
    large, fits = sorted(journal.read("bank", REF), key=lambda row: row.id, reverse=True)
    assert (large.encoding, large.request, large.response) == (NO_BODY_ENCODING, b"", b"")
    assert fits.request


def test_large_rows_are_spread_over_blocks(journal: RequestJournal, town: Town) -> None:
    journal.append(WHOSE, [logged(NOON + n, f"q{n}", request=bytes(MAX_BODY_BYTES)) for n in range(20)])
    blocks: SealedBlocks[JournalRow] = SealedBlocks(
        SERIES_PREFIX, JournalRow, town.house._open_series, town.house.ledger
    )
    assert len(blocks.blocks("bank", REF)) == 3
    assert len(list(journal.read("bank", REF))) == 20


def test_a_damaged_block_does_not_hide_the_others(journal: RequestJournal, town: Town) -> None:
    journal.append(WHOSE, [logged(NOON, "good")])
    blocks: SealedBlocks[JournalRow] = SealedBlocks(
        SERIES_PREFIX, JournalRow, town.house._open_series, town.house.ledger
    )
    (good,) = blocks.blocks("bank", REF)
    blocks.append([good._replace(id="moved")])  # sealed under another name
    assert [row.id for row in journal.read("bank", REF)] == ["good"]


def test_lengths_of_binary_bodies() -> None:
    assert parse_binary_encoding(binary_encoding(120, 80)) == (120, 80)
    assert (
        parse_binary_encoding("json")
        == parse_binary_encoding("binary")
        == parse_binary_encoding("binary x 1")
        == (0, 0)
    )
