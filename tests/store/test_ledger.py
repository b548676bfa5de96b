"""The ledger on a real SQLite file: transactions, joining, sealing, outcomes, groups."""

import os
import sqlite3
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from falaj.backends.sql import statements
from falaj.backends.sqlite import SqliteLedgerStore
from falaj.core.context import Actor, CallContext, PolicyDecision
from falaj.core.errors import Conflict, CorruptData, Invalid, NotFound, StaleRevision, Unavailable, UnrecordedChange
from falaj.core.label import Label
from falaj.core.policy_scope import PolicyScope
from falaj.core.ports import LedgerStore, RecordKey
from falaj.core.ref import Ref
from falaj.store.envelope import decrypt_record
from falaj.store.ledger import Ledger, LedgerWriter

THING = Ref.parse("thing:p/a")


class OneKey:
    """A Cipher with a single key; the house's own is tested with the keys."""

    def __init__(self) -> None:
        self._aead = AESGCM(bytes(32))

    def seal(self, tenant: str, zone: str, data: bytes, aad: bytes) -> bytes:
        nonce = os.urandom(12)
        return nonce + self._aead.encrypt(nonce, data, f"{tenant}/{zone}/".encode() + aad)

    def unseal(self, tenant: str, zone: str, ciphertext: bytes, aad: bytes) -> bytes:
        try:
            return self._aead.decrypt(ciphertext[:12], ciphertext[12:], f"{tenant}/{zone}/".encode() + aad)
        except InvalidTag as error:
            raise CorruptData("does not open") from error


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqliteLedgerStore]:
    made = SqliteLedgerStore(f"sqlite:{tmp_path}/home/ledger.db", {"busy_s": 5})
    yield made
    made.close()


@pytest.fixture
def ledger(store: SqliteLedgerStore) -> Ledger:
    return Ledger(store, OneKey())


@pytest.fixture
def ctx() -> CallContext:
    return CallContext(
        Actor("ann", "acme", behalf="bob"), "uae", decision=PolicyDecision(True, ("role-write",), "sha:1")
    )


def add(ledger: Ledger, ctx: CallContext, name: str = "a", **body: object) -> None:
    with ledger.write(ctx) as tx:
        record = tx.put(THING.bare if name == "a" else Ref("thing", "p", name), body)
        tx.emit("add", record.ref)


def test_a_record_and_its_event_are_one(ledger: Ledger, ctx: CallContext) -> None:
    label = Label.parse("AE-PDPL,sensitive")
    with ledger.write(ctx) as tx:
        made = tx.put(THING, {"x": [1, {"y": None}]}, label=label, terms={"color": "red"}, restricted=True)
        said = tx.emit("add", made.ref, (Ref.parse("data:p/d@v1"),), size=3, name="é\n\"'")
    with ledger.read(ctx) as tx:
        held = tx.need(THING)
        assert held == made
        assert tx.get(made.ref) == held
        assert tx.find("thing", terms={"color": "red"}).records == (held,)
        assert tx.cells("thing") == {PolicyScope.of("thing", "p", "uae", label, True).encode()}
    assert (held.body, held.label, held.zone, held.author, held.restricted) == (
        {"x": [1, {"y": None}]},
        label,
        "uae",
        "ann",
        True,
    )
    assert str(held.ref) == "thing:p/a@r1"
    (fact,) = ledger.tail()
    assert fact.event == replace(said, at=fact.event.at)
    assert abs(fact.event.at - said.at) < 1e-5
    assert fact.raw == said.encode()
    assert (fact.event.behalf, fact.event.policy, fact.event.rules, fact.event.request) == (
        "bob",
        "sha:1",
        ("role-write",),
        ctx.request,
    )
    assert ledger.leaves("", tenant="acme", zone="uae", limit=9) == [(fact.pos, fact.leaf, said.at)]
    assert ledger.logs() == [("acme", "uae")]
    assert ledger.store.list_kinds("acme") == ["thing"]
    assert ledger.store.list_kinds("nobody") == []


def test_what_an_update_does_not_say_is_kept(ledger: Ledger, ctx: CallContext) -> None:
    secret, health = Label.parse("secret"), Label.parse("category=health")
    with ledger.write(ctx) as tx:
        tx.emit("add", tx.put(THING, {"n": 1}, label=secret, restricted=True, terms={"digest": "d1"}).ref)
    later = replace(ctx, actor=Actor("eve", "acme"), zone="elsewhere", label=health)
    with ledger.write(later) as tx:
        tx.emit("change", tx.put(THING, {"n": 2}, rev=1).ref)
    with ledger.read(ctx) as tx:
        held = tx.need(THING)
    assert held.label == secret.join(health), "a context's label can only make it stricter"
    assert (held.author, held.zone, held.restricted, held.terms, held.rev) == ("ann", "uae", True, {"digest": "d1"}, 2)


def test_whoever_holds_a_record_writes_over_it_without_reading(
    ledger: Ledger, ctx: CallContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = Label.parse("secret")
    with ledger.write(ctx) as tx:
        held = tx.put(THING, {"n": 1}, label=secret, restricted=True, terms={"digest": "d1"})
        tx.emit("add", held.ref)
    monkeypatch.setattr(LedgerWriter, "key", lambda self, key: pytest.fail("it was read"))
    later = replace(ctx, actor=Actor("eve", "acme"), zone="elsewhere")
    with ledger.write(later) as tx:
        made = tx.put(held.key, {"n": 2}, rev=held, terms={"digest": "d2"})
        tx.emit("change", made.ref)
    monkeypatch.undo()
    with ledger.read(ctx) as tx:
        assert tx.need(THING) == made
        assert tx.find("thing", terms={"digest": "d2"}).records == (made,)
    assert (made.label, made.author, made.zone, made.restricted, made.rev) == (secret, "ann", "uae", True, 2)
    with pytest.raises(StaleRevision), ledger.write(ctx) as tx:
        tx.put(held.key, {"n": 3}, rev=held)
    with pytest.raises(StaleRevision), ledger.write(ctx) as tx:
        tx.put(Ref("thing", "p", "other"), {"n": 3}, rev=made)
    with ledger.read(ctx) as tx:
        assert tx.need(THING) == made


def test_the_log_says_of_whom_without_being_opened(ledger: Ledger, ctx: CallContext, store: SqliteLedgerStore) -> None:
    add(ledger, ctx)
    with ledger.write(ctx) as tx:
        tx.emit("note", Ref("note", "p", "n", "v1"))
        tx.emit("change", tx.put(THING, {}, rev=1).ref)
    said = [fact for fact in ledger.tail() if fact.event.subject.kind == "thing"]
    blind = Ledger(store)  # it has no key
    assert blind.subjects("", "thing", 9) == [
        (fact.pos, RecordKey("acme", "thing", "p", "a", version))
        for fact, version in zip(said, ("r1", "r2"), strict=True)
    ]
    assert blind.subjects(said[0].pos, "thing", 9) == blind.subjects("", "thing", 9)[1:]


def test_a_group_in_which_nothing_was_committed_wakes_nobody(ledger: Ledger, ctx: CallContext) -> None:
    rang = list[str]()
    ledger.on_commit(lambda: rang.append("rang"))
    with ledger.group(), ledger.read(ctx) as tx:
        assert tx.get(THING) is None
        assert ledger.together is not None
    assert not rang
    assert ledger.together is None
    with ledger.group():
        add(ledger, ctx)
        assert not rang
    assert rang == ["rang"]


def test_a_revision_names_only_the_newest(ledger: Ledger, ctx: CallContext) -> None:
    add(ledger, ctx)
    with ledger.write(ctx) as tx:
        tx.emit("change", tx.put(THING.at("r1"), {}, rev=1).ref)
    with ledger.read(ctx) as tx:
        assert tx.get(THING.at("r1")) is None
        assert tx.need(THING.at("r2")).rev == 2
        with pytest.raises(NotFound):
            tx.need(THING.at("v1"))


def test_conflict_stale_and_silent_change_undo_everything(ledger: Ledger, ctx: CallContext) -> None:
    add(ledger, ctx)
    attempts: list[tuple[type[Exception], Callable[[LedgerWriter], object]]] = [
        (Conflict, lambda tx: tx.put(THING, {})),
        (StaleRevision, lambda tx: tx.put(THING, {}, rev=7)),
        (StaleRevision, lambda tx: tx.delete(THING, 7)),
        (UnrecordedChange, lambda tx: None),
        (Invalid, lambda tx: tx.emit("say", THING)),
        (Invalid, lambda tx: tx.emit("say", THING.at("r1"), x=float("nan"))),
        (Invalid, lambda tx: tx.put(Ref.parse("thing:p/c"), {"x": object()})),
        (Invalid, lambda tx: tx.put(Ref.parse("thing:p/c"), {"x": "\ud800"})),
        (Invalid, lambda tx: tx.put(RecordKey("acme", "thing", "p", "a\0b"), {})),
        (Invalid, lambda tx: tx.put(Ref.parse("thing:p/c"), {}, terms={"long": "x" * 2000})),
        (ZeroDivisionError, lambda tx: 1 / 0),
    ]
    for expected, act in attempts:
        with pytest.raises(expected), ledger.write(ctx) as tx:  # noqa: PT012
            tx.put(Ref.parse("thing:p/b"), {})
            act(tx)
    with ledger.read(ctx) as tx:
        assert [r.key.name for r in tx.find("thing").records] == ["a"]
    assert len(ledger.tail()) == 1


def test_the_first_event_carries_the_facts_of_the_decision(ledger: Ledger, ctx: CallContext) -> None:
    decided = replace(ctx, decision=PolicyDecision(True, ("rule",), "sha:1", facts="f:1"))
    with ledger.write(decided) as tx:
        assert tx.emitted == 0
        with ledger.write(decided) as inner:
            inner.emit("one", THING.at("r1"))
        assert tx.emitted == 1
        tx.emit("two", THING.at("r1"))
    assert [dict(fact.event.body) for fact in ledger.tail()] == [{"facts": "f:1"}, {}]


def test_derived_data_needs_no_event_and_nothing_else_passes_as_such(ledger: Ledger, ctx: CallContext) -> None:
    with ledger.project(ctx) as tx:
        tx.put(Ref.parse("tile:p/a"), {})
    with pytest.raises(UnrecordedChange), ledger.project(ctx) as tx:
        tx.put(THING, {})
    assert ledger.tail() == []


def test_inner_writes_and_reads_join_the_unit(ledger: Ledger, ctx: CallContext) -> None:
    house = CallContext(Actor("house", "house"), "uae")
    with pytest.raises(ZeroDivisionError), ledger.write(ctx) as outer:  # noqa: PT012
        outer.put(THING, {})
        with ledger.write(house) as inner:
            made = inner.put(Ref.parse("thing:p/h"), {})
            inner.emit("add", made.ref)
            assert made.key.tenant == "house"
        with ledger.read(ctx) as tx:
            assert tx.get(THING) is not None, "a read inside sees what the unit wrote"
        raise ZeroDivisionError
    with ledger.read(ctx) as tx:
        assert tx.get(THING) is None
        assert tx.get(Ref.parse("thing:p/h"), tenant="house") is None


def test_half_an_inner_write_cannot_be_committed_by_swallowing_its_error(ledger: Ledger, ctx: CallContext) -> None:
    with pytest.raises(ZeroDivisionError), ledger.write(ctx) as outer:  # noqa: PT012
        outer.emit("begin", THING.at("r1"))
        try:
            with ledger.write(ctx) as inner:
                inner.put(THING, {})
                raise ZeroDivisionError
        except ZeroDivisionError:
            pass
    assert ledger.tail() == []


def test_an_inner_refusal_that_changed_nothing_can_be_handled(ledger: Ledger, ctx: CallContext) -> None:
    add(ledger, ctx)
    with ledger.write(ctx) as outer:
        with pytest.raises(Conflict), ledger.write(ctx) as inner:
            inner.put(THING, {})
        outer.emit("found", outer.need(THING).ref)
    assert [fact.event.verb for fact in ledger.tail()] == ["add", "found"]


def test_callers_hear_how_it_ended(ledger: Ledger, ctx: CallContext) -> None:
    heard: list[object] = []
    ledger.on_commit(lambda: heard.append("commit"))
    with ledger.write(ctx) as tx:
        tx.after(heard.append)
        tx.emit("say", THING.at("r1"))
        assert heard == []
    with pytest.raises(UnrecordedChange), ledger.write(ctx) as tx:  # noqa: PT012
        tx.after(heard.append)
        tx.put(THING, {})
    with ledger.group():
        with ledger.write(ctx) as tx:
            tx.after(heard.append)
            tx.emit("say", THING.at("r1"))
        assert heard == [True, "commit", False], "not before the group is durable"
    assert heard == [True, "commit", False, True, "commit"]


def check_what_comes_first(ledger: Ledger, store: LedgerStore) -> None:
    """On any engine: `before` sees nothing durable, and its error undoes a transaction, or all of a group."""
    ctx, seen = CallContext(Actor("ann", "acme"), "uae"), list[object]()

    def told() -> None:
        seen.append([row.verb for row in store.events()])

    def refuse() -> None:
        raise Unavailable("the other store is away", "call again")

    with ledger.write(ctx) as tx:
        tx.before(told)
        tx.emit("first", Ref.parse("thing:p/a@r1"))
    with ledger.group():
        for name in ("b", "c"):
            with ledger.write(ctx) as tx:
                tx.before(told)
                tx.emit("add", tx.put(Ref.parse(f"thing:p/{name}"), {}).ref)
    assert seen == [[], ["first"], ["first"]]
    with pytest.raises(Unavailable, match="away"), ledger.write(ctx) as tx:  # noqa: PT012
        tx.before(refuse)
        tx.after(seen.append)
        tx.emit("lost", Ref.parse("thing:p/a@r1"))
    with pytest.raises(Unavailable, match="away"), ledger.group():  # noqa: PT012
        for name, callback in (("d", told), ("e", refuse)):
            with ledger.write(ctx) as tx:
                tx.before(callback)
                tx.after(seen.append)
                tx.emit("lost", tx.put(Ref.parse(f"thing:p/{name}"), {}).ref)
    assert seen[3:] == [False, ["first", "add", "add"], False, False]
    assert [row.verb for row in store.events()] == ["first", "add", "add"]
    with ledger.write(ctx) as tx:
        tx.emit("last", tx.put(Ref.parse("thing:p/d"), {}).ref)


def test_what_must_be_durable_first_is_asked_once_all_is_there_and_can_undo_a_group(
    ledger: Ledger, store: SqliteLedgerStore
) -> None:
    check_what_comes_first(ledger, store)


def test_a_repeated_request_finds_its_outcome(ledger: Ledger, ctx: CallContext) -> None:
    keyed = replace(ctx, request="pay-1", keyed=True)
    assert ledger.outcome(keyed, "f1") is None
    with ledger.write(keyed) as tx:
        tx.emit("pay", THING.at("r1"))
        tx.remember('{"paid":1}', "f1")
    assert ledger.outcome(keyed, "f1") == '{"paid":1}'
    with pytest.raises(Conflict):
        ledger.outcome(keyed, "f2")
    for other in (
        replace(keyed, actor=Actor("eve", "acme")),
        replace(keyed, tenant="other"),
        replace(keyed, keyed=False),
    ):
        assert ledger.outcome(other, "f1") is None
    with pytest.raises(StaleRevision), ledger.write(keyed) as tx:  # noqa: PT012
        tx.emit("pay", THING.at("r1"))
        tx.remember('{"paid":2}', "f1")
    with pytest.raises(Conflict), ledger.write(keyed) as tx:
        tx.remember("{}", "f2")
    assert len(ledger.tail()) == 1, "the second try left no trace"


def test_the_same_request_from_many_threads_is_done_once(ledger: Ledger, ctx: CallContext) -> None:
    keyed = replace(ctx, request="once", keyed=True)
    gate = threading.Barrier(6)
    results: list[str] = []

    def call(n: int) -> None:
        gate.wait()
        while (found := ledger.outcome(keyed, "f")) is None:
            try:
                with ledger.write(keyed) as tx:
                    tx.emit("do", THING.at("r1"))
                    tx.remember(str(n), "f")
            except StaleRevision:
                assert ledger.outcome(keyed, "f") is not None, "whoever was refused finds the outcome"
        results.append(found)

    threads = [threading.Thread(target=call, args=(n,)) for n in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert len(results) == 6
    assert len(set(results)) == 1
    assert len(ledger.tail()) == 1


def test_what_stands_beside_the_ciphertext_cannot_be_changed(
    ledger: Ledger, store: SqliteLedgerStore, ctx: CallContext, tmp_path: Path
) -> None:
    with ledger.write(ctx) as tx:
        for name in ("a", "b"):
            tx.emit("add", tx.put(Ref("thing", "p", name), {"secret": name}, label=Label.parse("secret")).ref)
    path = tmp_path / "home" / "ledger.db"
    assert b'"secret":"a"' not in path.read_bytes() + Path(f"{path}-wal").read_bytes()
    open_cell = PolicyScope.of("thing", "p", "uae", Label()).encode()
    tricks = [
        ("UPDATE records SET cell = ? WHERE name = 'a'", (open_cell,)),
        ("UPDATE records SET rev = 5 WHERE name = 'a'", ()),
        ("UPDATE records SET terms = '[[\"x\",\"y\"]]' WHERE name = 'a'", ()),
        ("UPDATE records SET body = (SELECT body FROM records WHERE name = 'b') WHERE name = 'a'", ()),
        ("UPDATE records SET tenant = 'evil' WHERE name = 'a'", ()),
    ]
    with sqlite3.connect(path) as raw:
        for text, values in tricks:
            raw.execute("SAVEPOINT s")
            raw.execute(text, values)
            held = raw.execute("SELECT tenant, rev, cell, body, at, terms FROM records WHERE name = 'a'").fetchone()
            raw.execute("ROLLBACK TO s")
            row = statements.to_stored_row(RecordKey(held[0], "thing", "p", "a"), held[1:])
            assert row is not None
            with pytest.raises(CorruptData):
                decrypt_record(ledger.cipher, row)
    raw.close()


def test_an_altered_event_is_corrupt(ledger: Ledger, ctx: CallContext, tmp_path: Path) -> None:
    ledger.cipher = None
    with ledger.write(ctx) as tx:
        tx.emit("say", THING.at("r1"), n=1)
    raw = sqlite3.connect(tmp_path / "home" / "ledger.db")
    ((body,),) = raw.execute("SELECT body FROM events").fetchall()
    raw.execute("UPDATE events SET body = ?", (body.replace(b'"n":1', b'"n":2'),))
    raw.commit()
    raw.close()
    with pytest.raises(CorruptData):
        ledger.tail()


def test_keys_are_kept_as_they_are(ledger: Ledger, ctx: CallContext, store: SqliteLedgerStore) -> None:
    with ledger.write(ctx) as tx:
        tx.emit("make", tx.put(Ref.parse("key:keys/log.uae"), {"wrapped": "x"}).ref)
    txn = store.begin(write=False)
    held = txn.get(RecordKey("acme", "key", "keys", "log.uae"))
    txn.rollback()
    assert held is not None
    assert b'"wrapped":"x"' in held.body


def test_no_lease_inside_a_transaction(ledger: Ledger, ctx: CallContext) -> None:
    with pytest.raises(Invalid), ledger.write(ctx):
        ledger.lease("l", "me", 10, 0.0)
    with pytest.raises(Invalid), ledger.write(ctx):
        ledger.release("l", "me")
    with pytest.raises(Invalid), ledger.group():
        ledger.lease("l", "me", 10, 0.0)
    assert ledger.lease("l", "me", 10, 0.0) == 1


def test_pages_have_limits(ledger: Ledger, ctx: CallContext) -> None:
    add(ledger, ctx)
    with ledger.read(ctx) as tx:
        for limit in (0, -1, 10_001):
            with pytest.raises(Invalid):
                tx.find("thing", limit=limit)
        assert tx.find("thing", scopes=frozenset()).records == ()


def test_retry_runs_again_after_another_writer(ledger: Ledger, ctx: CallContext) -> None:
    add(ledger, ctx, n=0)
    tries: list[int] = []

    def work(tx: LedgerWriter) -> int:
        tries.append(1)
        record = tx.put(THING, {"n": 1}, rev=1 if len(tries) > 2 else 9)
        tx.emit("change", record.ref)
        return record.rev

    assert ledger.retry(ctx, work) == 2
    assert len(tries) == 3
    with pytest.raises(StaleRevision):
        ledger.retry(ctx, lambda tx: tx.put(THING, {}, rev=9), tries=2)


def test_a_closed_ledger_says_so(ledger: Ledger, ctx: CallContext) -> None:
    ledger.close()
    with pytest.raises(Unavailable), ledger.read(ctx):
        pass
    with pytest.raises(Unavailable):
        ledger.tail()


def test_only_the_owner_may_look_at_the_file(ledger: Ledger, ctx: CallContext, tmp_path: Path) -> None:
    add(ledger, ctx)
    home = tmp_path / "home"
    assert home.stat().st_mode & 0o777 == 0o700
    assert {path.stat().st_mode & 0o777 for path in home.iterdir()} == {0o600}


def test_a_file_that_is_no_database_is_corrupt(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    path.write_bytes(b"not a database, " * 1000)
    with pytest.raises(CorruptData):
        SqliteLedgerStore(f"sqlite:{path}")
    with pytest.raises(Invalid):
        SqliteLedgerStore("sqlite:")
