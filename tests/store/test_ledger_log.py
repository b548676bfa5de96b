"""The log of a SQLite store from inside: bundles, marks that come later, and keys made while sealing."""

import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from falaj.backends import sqlite_log
from falaj.backends.sqlite import SqliteLedgerStore
from falaj.core.context import Actor, CallContext
from falaj.core.errors import CorruptData
from falaj.core.ports import EventRow
from falaj.core.ref import Ref
from falaj.store.ledger import Ledger

THING = Ref.parse("thing:p/a@r1")


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    made = Ledger(SqliteLedgerStore(f"sqlite:{tmp_path}/ledger.db", {"busy_s": 5}))
    yield made
    made.close()


def say(ledger: Ledger, count: int, start: int = 0, tenant: str = "acme", zone: str = "uae") -> None:
    """`count` events in one transaction."""
    with ledger.write(CallContext(Actor(f"a{start}", tenant), zone, request=f"req{start}")) as tx:
        for n in range(start, start + count):
            tx.emit("say", Ref("thing", "p", f"n{n}", "r1"), n=n)


def numbers(ledger: Ledger, after: str = "", limit: int = 100_000, **where: str) -> list[int]:
    return [int(fact.event.body["n"]) for fact in ledger.tail(after, limit=limit, **where)]


def count(tmp_path: Path, table: str) -> int:
    raw = sqlite3.connect(tmp_path / "ledger.db")
    ((found,),) = raw.execute(f"SELECT count(*) FROM {table}").fetchall()  # noqa: S608
    raw.close()
    return int(found)


def test_a_large_commit_is_found_by_every_question_before_and_after_its_marks(ledger: Ledger, tmp_path: Path) -> None:
    say(ledger, 500)
    assert count(tmp_path, "events") < 20, "bundled"
    assert count(tmp_path, "marks") == 0, "left for later"
    for _ in range(3):
        assert numbers(ledger, name="n77") == [77]
        assert numbers(ledger, request="req0", verb="say") == list(range(500))
        assert numbers(ledger, request="req0", limit=3) == [0, 1, 2]
        middle = ledger.tail(name="n250")[0]
        assert numbers(ledger, middle.pos, actor="a0", limit=2) == [251, 252]
        assert [f.event.id for f in ledger.tail(id=middle.event.id)] == [middle.event.id]
        assert numbers(ledger, name="n77", tenant="other") == []
        say(ledger, 1, start=1000 + count(tmp_path, "marks"), tenant="other")
    assert 0 < count(tmp_path, "marks") < 503, "small commits bring some of the missing ones"


def test_so_many_missing_marks_are_written_first(ledger: Ledger, tmp_path: Path) -> None:
    for start in range(0, 10_000, 1000):
        say(ledger, 1000, start)
    assert count(tmp_path, "marks") == 0
    assert numbers(ledger, name="n9999") == [9999]
    assert count(tmp_path, "marks") >= 10_000 - 4096
    with ledger.group():
        say(ledger, 5000, 10_000)
        assert numbers(ledger, name="n5") == [5], "inside a group nobody waits for the writer"
    assert numbers(ledger, name="n14999") == [14_999]


def test_edges_are_noted_on_the_way_and_never_missed(ledger: Ledger, tmp_path: Path) -> None:
    """Also where a program that knew nothing of edges wrote in between."""

    def made(start: int, count: int) -> None:
        with ledger.write(CallContext(Actor("a", "acme"), "uae")) as tx:
            for n in range(start, start + count):
                tx.emit("make", Ref("thing", "p", f"n{n}", "r1"), inputs=(THING,) if n % 10 == 0 else (), n=n)

    for start in range(0, 3000, 500):
        made(start, 500)
    assert count(tmp_path, "edges") >= 200, "noted without anybody having asked"
    raw = sqlite3.connect(tmp_path / "ledger.db")
    raw.execute("DELETE FROM edges WHERE n > 1500")
    raw.execute("UPDATE meta SET value = 1500 WHERE name = 'edged'")
    raw.commit()
    raw.close()
    made(3000, 3)
    assert numbers(ledger, tenant="acme", inputs="any") == list(range(0, 3003, 10))
    for start in range(3003, 9003, 2000):
        made(start, 2000)
    assert numbers(ledger, tenant="acme", inputs="any") == list(range(0, 9003, 10))
    assert count(tmp_path, "edges") >= 500


@given(
    st.lists(st.tuples(st.integers(1, 90), st.sampled_from("tu"), st.sampled_from("yz")), min_size=1, max_size=8),
    st.integers(1, 70),
)
@settings(max_examples=25, deadline=None)
def test_every_page_size_reads_every_log_in_order(
    tmp_path_factory: pytest.TempPathFactory, commits: list[tuple[int, str, str]], page: int
) -> None:
    ledger = Ledger(SqliteLedgerStore(f"sqlite:{tmp_path_factory.mktemp('log')}/l.db"))
    said: list[tuple[int, str, str]] = []
    with ledger.group():
        for size, tenant, zone in commits:
            start = len(said)
            say(ledger, size, start, tenant, zone)
            said += [(n, tenant, zone) for n in range(start, start + size)]
    for tenant, zone in {("", ""), ("t", ""), ("t", "y"), ("u", "z")}:
        wanted = [n for n, t, z in said if tenant in ("", t) and zone in ("", z)]
        seen, cursor = [], ""
        while facts := ledger.tail(cursor, tenant=tenant, zone=zone, limit=page):
            assert len(facts) <= page
            seen += [fact.event.body["n"] for fact in facts]
            cursor = facts[-1].pos
        assert seen == wanted
        assert [pos for pos, _, _ in ledger.leaves("", tenant=tenant, zone=zone, limit=10_000)] == [
            fact.pos for fact in ledger.tail(tenant=tenant, zone=zone, limit=10_000)
        ]
        if tenant and zone:
            assert pages(ledger, tenant, zone, page) == [
                (fact.raw, fact.leaf) for fact in ledger.tail(tenant=tenant, zone=zone, limit=10_000)
            ]
    ledger.close()


def pages(ledger: Ledger, tenant: str, zone: str, page: int) -> list[tuple[bytes, bytes]]:
    """The lines of a log with their hashes, read by pages."""
    found, cursor = list[tuple[bytes, bytes]](), ""
    while (part := ledger.lines(cursor, tenant=tenant, zone=zone, limit=page)).raws:
        assert len(part.raws) <= page
        assert part.pos == ledger.tail(cursor, tenant=tenant, zone=zone, limit=page)[-1].pos
        found += zip(part.raws, part.leaves, strict=True)
        cursor = part.pos
    return found


class FirstUse:
    """A Cipher that has to write its key into the ledger when it first seals, as the keyring does."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self.made = False

    def seal(self, tenant: str, zone: str, data: bytes, aad: bytes) -> bytes:
        if not self.made:
            self.made = True
            with self._ledger.write(CallContext(Actor("keys", "house"), zone)) as tx:
                tx.emit("make", tx.put(Ref.parse("key:keys/one"), {}).ref)
        return data[::-1]

    def unseal(self, tenant: str, zone: str, ciphertext: bytes, aad: bytes) -> bytes:
        return ciphertext[::-1]


def test_a_tenants_log_over_zones_is_read_in_order_and_never_sorted(ledger: Ledger, tmp_path: Path) -> None:
    """However long it is, a page of it costs what the page holds."""
    for start, zone in enumerate(("uae", "eu", "uae", "us", "eu")):
        say(ledger, 90, start=start * 1000, zone=zone)
        say(ledger, 3, start=start * 1000 + 500, tenant="other", zone=zone)
    wanted = [start * 1000 + n for start in range(5) for n in range(90)]
    assert numbers(ledger, tenant="acme") == wanted
    middle = ledger.tail(tenant="acme", limit=100)[-1]
    assert numbers(ledger, middle.pos, tenant="acme", limit=7) == wanted[100:107]
    assert numbers(ledger, tenant="nobody") == []
    raw, asked = sqlite3.connect(tmp_path / "ledger.db"), list[str]()
    raw.set_trace_callback(asked.append)
    sqlite_log.read_events(raw, "", 10, {"tenant": "acme"})
    raw.set_trace_callback(None)
    plans = [str(raw.execute(f"EXPLAIN QUERY PLAN {one}").fetchall()) for one in asked if "body" in one]
    raw.close()
    assert len(plans) == 3
    assert not [plan for plan in plans if "TEMP B-TREE" in plan]


def test_a_key_made_while_events_are_sealed_is_part_of_the_transaction(ledger: Ledger) -> None:
    ledger.cipher = FirstUse(ledger)
    say(ledger, 3)
    assert [fact.event.verb for fact in ledger.tail()] == ["say", "say", "say", "make"]
    assert ledger.logs() == [("acme", "uae"), ("house", "uae")]


def test_a_sealing_that_fails_undoes_everything(ledger: Ledger) -> None:
    class Broken(FirstUse):
        def seal(self, tenant: str, zone: str, data: bytes, aad: bytes) -> bytes:
            raise CorruptData("no key")

    ledger.cipher = Broken(ledger)
    with pytest.raises(CorruptData):
        say(ledger, 2)
    ledger.cipher = None
    assert ledger.tail() == []
    say(ledger, 1)
    assert numbers(ledger) == [0]


def test_an_event_in_anothers_place_is_corrupt(ledger: Ledger, tmp_path: Path) -> None:
    say(ledger, 3)
    raw = sqlite3.connect(tmp_path / "ledger.db")
    ((body,),) = raw.execute("SELECT body FROM events").fetchall()
    events = sqlite_log._decode_bundle(body)
    moved: list[EventRow] = [events[0], events[1]._replace(leaf=events[2].leaf, part=2), events[2]]
    raw.execute("UPDATE events SET body = ?", (sqlite_log._encode_bundle(moved),))
    raw.commit()
    raw.close()
    with pytest.raises(CorruptData, match="place"):
        ledger.tail()
