"""Backup and restore between real engines, while writers go on, and what happens to a damaged file."""

import itertools
import threading
from collections.abc import Callable
from contextlib import closing
from hashlib import sha256
from pathlib import Path

import psycopg
import pytest
from hypothesis import given
from hypothesis import strategies as st

from falaj.backends import postgres
from falaj.backends.postgres import PostgresLedgerStore
from falaj.backends.sqlite import SqliteLedgerStore
from falaj.core.context import Actor, CallContext
from falaj.core.errors import Conflict, CorruptData, Invalid, Unavailable
from falaj.core.merkle_frontier import MerkleFrontier
from falaj.core.ref import Ref
from falaj.store.backup import backup, check, restore
from falaj.store.ledger import Ledger

Open = Callable[[str], Ledger]


@pytest.fixture
def fresh(tmp_path: Path, request: pytest.FixtureRequest) -> Open:
    """A new empty ledger on the engine of that name."""
    numbers = itertools.count()

    def make(engine: str) -> Ledger:
        if engine == "sqlite":
            made = Ledger(SqliteLedgerStore(f"sqlite:{tmp_path}/{next(numbers)}.db"))
        else:
            made = Ledger(PostgresLedgerStore(request.getfixturevalue("new_postgres")(), {"connections": 4}))
        request.addfinalizer(made.close)
        return made

    return make


def fill(ledger: Ledger, count: int, start: int = 0) -> None:
    for n in range(start, start + count):
        ctx = CallContext(Actor("ann", f"tenant{n % 2}"), f"zone{n % 3}")
        with ledger.write(ctx) as tx:
            record = tx.put(
                Ref("thing", "p", f"n{n}"), {"n": n, "text": "é\0" if n % 2 else "z"}, terms={"parity": str(n % 2)}
            )
            tx.emit("add", record.ref, (Ref.parse("a:b/c@v1"),), n=n)


def everything(ledger: Ledger) -> tuple[object, ...]:
    records = []
    for tenant in ("tenant0", "tenant1"):
        ctx = CallContext(Actor("x", tenant), "zone0")
        with ledger.read(ctx) as tx:
            records.append((tx.find("thing", limit=1000).records, tx.find("thing", terms={"parity": "1"}).records))
    return records, [(f.raw, f.leaf, f.pos) for f in ledger.tail()]


@pytest.mark.parametrize(
    ("source", "target"), [(a, b) for a in ("sqlite", "postgresql") for b in ("sqlite", "postgresql")]
)
def test_from_any_engine_to_any(source: str, target: str, fresh: Open, tmp_path: Path) -> None:
    old, new = fresh(source), fresh(target)
    fill(old, 12)
    assert old.lease("l", "me", 10, 100.0) == 1
    said: list[int] = []
    written = backup(old, str(tmp_path / "b.zip"), said.append)
    assert written.rows == {"records": 12, "events": 12, "leases": 1}
    assert said[-1] == 25
    assert (tmp_path / "b.zip").stat().st_mode & 0o777 == 0o600
    brought = restore(new, str(tmp_path / "b.zip"))
    assert brought == written == check(str(tmp_path / "b.zip"))
    assert everything(new) == everything(old), "cursors too: whoever follows the log goes on where they were"
    cursor = old.tail()[-1].pos
    fill(new, 3, start=12)
    after = new.tail(cursor)
    assert [f.event.body["n"] for f in after] == [12, 13, 14]
    assert new.lease("l", "you", 10, 200.0) == 2, "fencing tokens go on growing"


def test_there_and_back_keeps_every_cursor(fresh: Open, tmp_path: Path) -> None:
    ledger = fresh("sqlite")
    seen: list[str] = []
    for step, engine in enumerate(("postgresql", "sqlite", "postgresql", "postgresql", "sqlite")):
        fill(ledger, 4, start=step * 4)
        seen += [f.pos for f in ledger.tail(seen[-1] if seen else "")]
        path = str(tmp_path / f"{step}.zip")
        backup(ledger, path)
        ledger = fresh(engine)
        restore(ledger, path)
        assert [f.pos for f in ledger.tail()] == seen == sorted(seen)
        for n, pos in enumerate(seen):
            assert len(ledger.tail(pos)) == len(seen) - n - 1
    assert [f.event.body["n"] for f in ledger.tail()] == list(range(20))


def test_a_backup_under_load_is_one_moment(fresh: Open, tmp_path: Path) -> None:
    ledger, new = fresh("sqlite"), fresh("sqlite")
    fill(ledger, 50)
    stop = threading.Event()

    def write() -> None:
        for n in itertools.count(1000):
            if stop.is_set():
                return
            fill(ledger, 1, start=n)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        reports = [backup(ledger, str(tmp_path / f"{i}.zip")) for i in range(3)]
    finally:
        stop.set()
        writer.join()
    for report in reports:
        assert report.rows["records"] == report.rows["events"]
    restore(new, str(tmp_path / "2.zip"))
    assert len(new.tail(limit=10_000)) == reports[2].rows["events"]


def test_a_backup_waits_for_who_began_before_the_end_of_the_log(
    new_postgres: Callable[[], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their events come before some that are there already: the backup would not be the beginning of the log."""
    url, other = new_postgres(), new_postgres()
    with (
        closing(Ledger(PostgresLedgerStore(url, {"connections": 4}))) as ledger,
        psycopg.connect(url) as late,
        psycopg.connect(other) as elsewhere,
    ):
        for connection in (late, elsewhere):
            connection.execute("SELECT pg_current_xact_id()")
        fill(ledger, 3)
        monkeypatch.setattr(postgres, "_MAX_LOCK_TRIES", 3)
        with pytest.raises(Unavailable, match="final"):
            backup(ledger, tmp_path / "early")
        late.commit()
        assert backup(ledger, tmp_path / "whole").rows["events"] == 3, "another database kept it waiting"


@pytest.mark.parametrize("engine", ["sqlite", "postgresql"])
def test_only_into_an_empty_store_and_all_or_nothing(engine: str, fresh: Open, tmp_path: Path) -> None:
    old = fresh("sqlite")
    fill(old, 5)
    path = tmp_path / "b.zip"
    backup(old, str(path))
    with pytest.raises(Conflict):
        restore(old, str(path))
    new = fresh(engine)
    for damage in (flip_in_a_row, other_roots, cut_short, more_behind):
        bad = tmp_path / f"{damage.__name__}.zip"
        damage(path, bad)
        with pytest.raises(CorruptData):
            check(str(bad))
        with pytest.raises(CorruptData):
            restore(new, str(bad))
        assert new.tail() == []
    restore(new, str(path))
    assert everything(new)[0] == everything(old)[0]


def test_what_is_no_backup_is_refused(fresh: Open, tmp_path: Path) -> None:
    new = fresh("sqlite")
    with pytest.raises(Invalid):
        restore(new, str(tmp_path / "none.zip"))
    (tmp_path / "text").write_text("hello")
    with pytest.raises(CorruptData):
        restore(new, str(tmp_path / "text"))
    (tmp_path / "later").write_bytes(b"falaj-backup-3\n" + bytes(100))
    with pytest.raises(Invalid):
        restore(new, str(tmp_path / "later"))


def test_what_events_share_is_written_once_and_comes_back(fresh: Open, tmp_path: Path) -> None:
    """Events of one transaction are sealed together, and each row gives out all of it."""
    old, new = fresh("sqlite"), fresh("postgresql")
    with old.write(CallContext(Actor("ann", "t"), "z")) as tx:
        for n in range(64):
            tx.emit("add", Ref("thing", "p", f"n{n}", "r1"), text="x" * 1000)
    whole = sum(len(row.data) for row in old.store.events())
    assert backup(old, str(tmp_path / "b")).size_bytes < whole / 20
    restore(new, str(tmp_path / "b"))
    assert [f.raw for f in new.tail()] == [f.raw for f in old.tail()]


def test_a_restored_log_answers_by_act_and_by_inputs(fresh: Open, tmp_path: Path) -> None:
    old, new = fresh("sqlite"), fresh("sqlite")
    fill(old, 200)
    backup(old, str(tmp_path / "b"))
    restore(new, str(tmp_path / "b"))
    for asked in ({"verb": "add"}, {"kind": "thing", "name": "n3"}, {"verb": "add", "inputs": "yes"}):
        found = [f.raw for f in new.tail(tenant="tenant1", **asked)]
        assert found == [f.raw for f in old.tail(tenant="tenant1", **asked)]
        assert found


def test_a_failed_backup_leaves_no_file(fresh: Open, tmp_path: Path) -> None:
    old = fresh("sqlite")
    fill(old, 1)
    with pytest.raises(Unavailable):
        backup(old, str(tmp_path / "no" / "folder" / "b.zip"))
    old.close()
    with pytest.raises(Unavailable):
        backup(old, str(tmp_path / "b.zip"))
    assert not [path for path in tmp_path.iterdir() if ".zip" in path.name]


@given(st.lists(st.binary(min_size=32, max_size=32), max_size=40))
def test_the_root_is_rfc_6962s(leaves: list[bytes]) -> None:
    grown = MerkleFrontier()
    for leaf in leaves:
        grown.append(leaf)
    assert grown.root() == by_definition(leaves)
    assert grown.size == len(leaves)


def by_definition(leaves: list[bytes]) -> bytes:
    if not leaves:
        return sha256(b"").digest()
    if len(leaves) == 1:
        return leaves[0]
    split = 1 << ((len(leaves) - 1).bit_length() - 1)
    return sha256(b"\x01" + by_definition(leaves[:split]) + by_definition(leaves[split:])).digest()


def flip_in_a_row(source: Path, target: Path) -> None:
    target.write_bytes(source.read_bytes().replace(b"add", b"ade", 1))


def other_roots(source: Path, target: Path) -> None:
    head, _, end = source.read_bytes().rpartition(b'"root": "')
    target.write_bytes(head + b'"root": "' + (b"0" if end[:1] != b"0" else b"1") + end[1:])


def cut_short(source: Path, target: Path) -> None:
    data = source.read_bytes()
    target.write_bytes(data[: len(data) // 2])


def more_behind(source: Path, target: Path) -> None:
    target.write_bytes(source.read_bytes() + b"x")
