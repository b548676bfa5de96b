"""A ledger that travels as the file it is: into stores that are files and into others, and who may not pass for one."""

import os
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from blake3 import blake3

from falaj.backends.sqlite import SqliteLedgerStore
from falaj.core.context import Actor, CallContext
from falaj.core.errors import CorruptData, FalajError, Invalid, Unavailable
from falaj.core.ports import LedgerFile
from falaj.core.ref import Ref
from falaj.store.backup import RowTally, encode_rows
from falaj.store.backup_target import FORM_ROWS, FORM_SQLITE, PREVIOUS_TARGET_FORMAT
from falaj.store.ledger import Ledger
from tests.store.test_backups import again, as_amal, files, town, town_at
from tests.town import LABEL, Town

__all__ = ["town"]
CTX = CallContext(Actor("amal", "bank"), "ae-dubai")


def some(ledger: Ledger, names: range) -> None:
    for number in names:
        with ledger.write(CTX) as tx:
            made = tx.put(Ref("thing", "fraud", f"n{number}"), {"rows": number, "told": f"secret-{number}-word"})
            tx.emit("bench.step", made.ref, step=number)


def taken(source: SqliteLedgerStore, target: SqliteLedgerStore, ready: Callable[[], None] = lambda: None) -> RowTally:
    tally = RowTally()

    def look(file: LedgerFile) -> None:
        for table, values in file.rows():
            tally.row(table, values)
        for tenant, zone, leaves in file.leaves():
            tally.leaves(tenant, zone, leaves)

    with source.snapshot() as file:
        data = Path(file.path).read_bytes()
    target.adopt(lambda out: os.write(out, data), look, ready)
    return tally


def test_all_of_it_arrives_and_the_log_goes_on_in_a_new_epoch(tmp_path: Path) -> None:
    source, target = SqliteLedgerStore(f"sqlite:{tmp_path}/a.db"), SqliteLedgerStore(f"sqlite:{tmp_path}/b.db")
    some(Ledger(source), range(300))
    tally = taken(source, target)
    assert [*target.dump()] == [*source.dump()]
    by_rows = RowTally()
    for table, values in source.dump():
        by_rows.row(table, values)
    assert (tally.rows, tally.logs()) == (by_rows.rows, by_rows.logs())
    last = target.end()
    some(Ledger(target), range(300, 301))
    (new,) = target.events(last)
    assert new.pos[:8] > source.events(limit=1)[0].pos[:8]
    assert sorted(path.name for path in tmp_path.iterdir() if "." in path.name.removesuffix(".db")) == [
        "a.db-shm", "a.db-wal", "b.db-shm", "b.db-wal",
    ]  # fmt: skip
    source.close()
    target.close()


def test_what_fails_before_it_is_ready_leaves_an_empty_store(tmp_path: Path) -> None:
    source, target = SqliteLedgerStore(f"sqlite:{tmp_path}/a.db"), SqliteLedgerStore(f"sqlite:{tmp_path}/b.db")
    some(Ledger(source), range(50))

    def lost() -> None:
        raise CorruptData("bytes were lost", "")

    with pytest.raises(CorruptData, match="lost"):
        taken(source, target, lost)
    assert [*target.dump()] == []
    taken(source, target)
    with pytest.raises(FalajError, match="not empty"):
        taken(source, target)
    source.close()
    target.close()


def test_of_what_was_deleted_nothing_goes_along(tmp_path: Path) -> None:
    """A key of a person that was destroyed must not lie in the free pages of a backup."""
    source = SqliteLedgerStore(f"sqlite:{tmp_path}/a.db")
    ledger = Ledger(source)
    some(ledger, range(100))
    with source.snapshot() as file:
        assert b"secret-7-word" in Path(file.path).read_bytes()
        assert Path(file.path).stat().st_mode & 0o777 == 0o600
    with ledger.write(CTX) as tx:
        tx.delete(Ref("thing", "fraud", "n7"), rev=1)
        tx.emit("bench.end", Ref("thing", "fraud", "n7", "r1"))
    with source.snapshot() as file:
        found = Path(file.path).read_bytes()
    assert b"secret-7-word" not in found
    assert b"secret-8-word" in found
    source.close()


@pytest.mark.parametrize(
    "act",
    [
        "CREATE TRIGGER t AFTER INSERT ON records BEGIN DELETE FROM events; END",
        "CREATE VIEW v AS SELECT 1",
        "CREATE TABLE more (x)",
        "CREATE TABLE sqlitelike (x)",
        "DROP INDEX records_at",
        "UPDATE meta SET value = 99 WHERE name = 'schema'",
        "DELETE FROM meta",
        "DELETE FROM events WHERE n = (SELECT min(n) FROM events)",
        "DELETE FROM events WHERE n = (SELECT max(n) FROM events)",
    ],
)
def test_a_file_of_strangers_is_refused(act: str, town: Town, tmp_path: Path) -> None:
    """Even with a manifest that fits it."""
    town.as_("amal").store.put("blob:fraud/a", b"a", label=LABEL)
    made = town.as_("admin").store.preserve()
    (path,) = files(tmp_path, "ledger~")
    with sqlite3.connect(path) as raw:
        raw.execute(act)
    raw.close()
    kept = town.house.storage.kept
    assert kept is not None
    told: dict[str, Any] = msgspec.json.decode(b"".join(kept.shelf.store.open(f"backups/{made.name}")))
    assert told["form"] == FORM_SQLITE
    told |= {"ledger_digest": blake3(path.read_bytes()).hexdigest(), "ledger_bytes": path.stat().st_size}
    kept.shelf.store.put(f"backups/{made.name}", [msgspec.json.encode(told)])
    with pytest.raises((CorruptData, Invalid)):
        again(tmp_path, "new")
    assert not kept_rows(tmp_path / "new")


def kept_rows(home: Path) -> list[Any]:
    store = SqliteLedgerStore(f"sqlite:{home}/ledger.db")
    try:
        return [*store.dump()]
    finally:
        store.close()


@pytest.mark.parametrize("size", [0, 10, 5000])
def test_a_file_that_was_cut_or_is_none(size: int, town: Town, tmp_path: Path) -> None:
    town.as_("admin").store.preserve()
    (path,) = files(tmp_path, "ledger~")
    path.write_bytes(path.read_bytes()[:size])
    with pytest.raises(CorruptData, match="not the one it was made with"):
        again(tmp_path, "new")
    assert not kept_rows(tmp_path / "new")


def test_into_a_store_that_is_no_file(tmp_path: Path, new_postgres: Callable[[], str]) -> None:
    here = town_at(tmp_path)
    here.as_("amal").store.put("blob:fraud/a", b"a" * 500, label=LABEL)
    here.as_("admin").store.preserve()
    house, report = again(tmp_path, "new", store=new_postgres())
    assert as_amal(house, here).store.get("blob:fraud/a").read() == b"a" * 500
    assert report.rows["events"] > 10
    house.close()
    here.close()


def test_a_backup_of_the_format_before(town: Town, tmp_path: Path) -> None:
    town.as_("amal").store.put("blob:fraud/a", b"a" * 500, label=LABEL)
    made = town.as_("admin").store.preserve()
    kept, (path,) = town.house.storage.kept, files(tmp_path, "ledger~")
    assert kept is not None
    store, tally = SqliteLedgerStore(f"sqlite:{path}"), RowTally()
    rows = b"".join(encode_rows(store.dump(), tally))
    store.close()
    told = msgspec.json.decode(b"".join(kept.shelf.store.open(f"backups/{made.name}")))
    told |= {"format": PREVIOUS_TARGET_FORMAT, "ledger_bytes": len(rows), "ledger_digest": blake3(rows).hexdigest()}
    assert told.pop("form") != FORM_ROWS
    kept.shelf.store.put(f"ledger/{made.name}", [rows])
    kept.shelf.store.put(f"backups/{made.name}", [msgspec.json.encode(told)])
    house, _ = again(tmp_path, "new")
    assert as_amal(house, town).store.get("blob:fraud/a").read() == b"a" * 500
    house.close()


def test_a_folder_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    source = SqliteLedgerStore(f"sqlite:{tmp_path}/a.db")
    (tmp_path / "a.db.snapshot").mkdir()
    with pytest.raises(Unavailable, match="cannot be written"), source.snapshot():
        pass
    source.close()
