"""The audit desk over a ledger with real keys: listing, proofs, packs, witnesses, lineage, each within its tenant."""

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from falaj.audit import AuditService, signed_note, verify_pack
from falaj.audit.log_sealing import make_checkpoint_key
from falaj.audit.witness import CheckpointWitness
from falaj.core.byte_stream import ByteStream
from falaj.core.context import CallContext
from falaj.core.errors import Conflict, CorruptData, Denied, Invalid, NotFound
from falaj.core.label import Label
from falaj.core.operation import list_operations
from falaj.core.ports import EventRow
from falaj.core.ref import Ref
from falaj.govern.key_table import KeySlot
from tests.audit.house import verify
from tests.govern.keyhouse import House


class Desk:
    """A house with keys, a clock and the audit desk."""

    def __init__(self, folder: Path) -> None:
        self.house = House(folder, start=1_760_000_000.0)
        self.ledger = self.house.ledger
        self.audit = AuditService(self.ledger, self.house.ring, "test")

    def ctx(self, tenant: str = "acme", **more: Any) -> CallContext:
        self.house.time += 0.01
        return replace(self.house.ctx(tenant), **more)

    def make(self, name: str, *inputs: str, verb: str = "catalog.publish", tenant: str = "acme", **more: Any) -> Ref:
        with self.ledger.write(self.ctx(tenant)) as tx:
            record = tx.put(Ref.parse(name), {"n": 1}, label=more.pop("label", None))
            tx.emit(verb, record.ref, tuple(Ref.parse(one) for one in inputs), **more)
        return record.ref

    def export(self, folder: Path, **more: Any) -> Path:
        path = folder / "pack.zip"
        path.write_bytes(b"".join(self.audit.export(self.ctx(), **more)))
        return path


class Tampered:
    """A store in whose database someone has changed the event about d3, or taken it out."""

    def __init__(self, store: Any, change: Callable[[EventRow], EventRow | None]) -> None:
        self._store, self._change = store, change

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def events(self, *args: Any, **filters: Any) -> list[EventRow]:
        rows = [self._change(row) if row.subject.name == "d3" else row for row in self._store.events(*args, **filters)]
        return [row for row in rows if row is not None]

    def bundles(self, after: str, **where: Any) -> Iterator[tuple[str, list[EventRow]]]:
        rows = self.events(after, **where)
        yield from [(rows[-1].pos, rows)] if rows else ()


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path)


def test_the_log_is_newest_first_and_pages(desk: Desk) -> None:
    for n in range(700):
        desk.make(f"dataset:fraud/d{n}@v1", verb="a.rare" if n % 200 == 7 else "a.common")
        if n % 150 == 0:
            desk.audit.seal(desk.ctx())
    every = desk.ledger.tail(tenant="acme", zone="uae", limit=5000)
    names = [fact.event.id for fact in reversed(every)]
    seen: list[str] = []
    page = desk.audit.log(desk.ctx(), limit=37)
    while True:
        seen += [entry.id for entry in page.entries]
        if not page.older:
            break
        page = desk.audit.log(desk.ctx(), limit=37, older=page.older)
    assert seen == names
    rare = desk.audit.log(desk.ctx(), verb="a.rare")
    assert [entry.subject.name for entry in rare.entries] == ["d607", "d407", "d207", "d7"]
    assert rare.older == ""
    two = desk.audit.log(desk.ctx(), verb="a.rare", limit=2)
    rest = desk.audit.log(desk.ctx(), verb="a.rare", limit=2, older=two.older)
    assert [entry.subject.name for entry in rest.entries] == ["d207", "d7"]
    about = desk.audit.log(desk.ctx(), about="dataset:fraud/d30")
    assert [str(entry.subject) for entry in about.entries] == ["dataset:fraud/d30@v1"]
    request = every[20].event.request
    assert {entry.request for entry in desk.audit.log(desk.ctx(), about=request).entries} == {request}


def test_the_log_by_time(desk: Desk) -> None:
    desk.make("dataset:fraud/old@v1")
    desk.audit.seal(desk.ctx())
    desk.house.time += 10_000
    middle = desk.house.time
    desk.make("dataset:fraud/new@v1")
    assert [e.subject.name for e in desk.audit.log(desk.ctx(), since=middle, verb="catalog.publish").entries] == ["new"]
    older = desk.audit.log(desk.ctx(), older=str(middle), verb="catalog.publish")
    assert [e.subject.name for e in older.entries] == ["old"]
    with pytest.raises(Invalid):
        desk.audit.log(desk.ctx(), older="yesterday")
    with pytest.raises(Invalid):
        desk.audit.log(desk.ctx(), limit=0)


def test_an_empty_log_is_empty(desk: Desk) -> None:
    ctx = desk.ctx("empty")
    assert desk.audit.log(ctx).entries == ()
    assert desk.audit.checkpoints(ctx) == ()
    with pytest.raises(NotFound):
        desk.audit.seal(desk.ctx("empty", zone="nowhere"))


def test_nobody_sees_another_tenants_log(desk: Desk) -> None:
    desk.make("dataset:fraud/mine@v1")
    theirs = desk.make("dataset:fraud/theirs@v1", tenant="other")
    foreign = desk.ledger.tail(tenant="other", limit=100)[-1].event
    assert foreign.subject == theirs
    for act in (desk.audit.show, desk.audit.prove):
        with pytest.raises(NotFound) as found:
            act(desk.ctx(), foreign.id)
        with pytest.raises(NotFound) as never:
            act(desk.ctx(), "0" * 32)
        assert found.value.wire() == never.value.wire(), "a foreign event and no event look the same"
    assert all(entry.subject != theirs for entry in desk.audit.log(desk.ctx(), limit=1000).entries)
    with pytest.raises(NotFound):
        desk.audit.show(desk.ctx(), "")


def test_a_proof_at_once_checks_offline(desk: Desk, tmp_path: Path) -> None:
    desk.make("dataset:fraud/d@v1")
    event = desk.ledger.tail(tenant="acme", limit=100)[-1].event
    proof = desk.audit.prove(desk.ctx(), event.id)
    path = tmp_path / "proof.json"
    path.write_text(json.dumps({name: getattr(proof, name) for name in proof.__slots__}))
    key = desk.audit.checkpoints(desk.ctx(), 1)[0].key
    assert verify(path, "--key", key)[0] == 0
    assert json.loads(proof.event)["id"] == event.id


def test_export_and_verify_round_trip(desk: Desk, tmp_path: Path) -> None:
    for n in range(20):
        desk.make(f"dataset:fraud/d{n}@v1")
    some = desk.audit.log(desk.ctx(), verb="catalog.publish", limit=3).entries
    path = desk.export(tmp_path, prove=tuple(entry.id for entry in some))
    code, report = verify(path)
    assert code == 0, report
    verdict = desk.audit.verify(desk.ctx(), ByteStream([path.read_bytes()]))
    assert (verdict.ok, verdict.events, verdict.first) == (True, report["events"], "")
    assert desk.audit.log(desk.ctx(), verb="audit.export").entries, "an export is an event"
    data = bytearray(path.read_bytes())
    data[data.index(b'"verb":"catalog') + 10] ^= 1
    path.write_bytes(data)
    broken = desk.audit.verify(desk.ctx(), ByteStream([bytes(data)]))
    assert not broken.ok
    assert re.search(r"events/0+\.jsonl, line \d+, event \d+: the event was changed: bit 0", broken.first)
    assert verify_pack(path).first == broken.first
    with pytest.raises(Invalid, match="not an evidence pack"):
        desk.audit.verify(desk.ctx(), ByteStream([b"hello"]))


def test_export_of_a_time(desk: Desk, tmp_path: Path) -> None:
    marks = []
    for n in range(4):
        desk.house.time += 1000
        marks.append(desk.house.time)
        desk.make(f"dataset:fraud/d{n}@v1")
        desk.audit.seal(desk.ctx())
    code, report = verify(desk.export(tmp_path, since=marks[1], until=marks[2]))
    assert code == 0, report
    assert report["from"] > 0
    lines = report["events"]
    text = (tmp_path / "pack.zip").read_bytes()
    assert lines < len(desk.ledger.tail(tenant="acme", limit=1000))
    assert b"d1@v1" in text
    assert b"d3@v1" not in text
    with pytest.raises(Invalid):
        desk.audit.export(desk.ctx(), since=2.0, until=1.0)


def test_the_key_of_the_log_changes_under_the_real_keyring(desk: Desk, tmp_path: Path) -> None:
    desk.make("dataset:fraud/a@v1")
    before = desk.audit.seal(desk.ctx())
    with desk.ledger.write(desk.ctx()) as tx:
        record = desk.house.ring.table.grow(tx, KeySlot("acme", "uae", "log"))
        tx.emit("keys.rotate", record.ref)
    desk.make("dataset:fraud/b@v1")
    after = desk.audit.seal(desk.ctx())
    assert after.key != before.key
    code, report = verify(desk.export(tmp_path), "--key", before.key)
    assert code == 0, report


def test_an_erased_subject_leaves_every_proof_standing(desk: Desk, tmp_path: Path) -> None:
    """K2/A1: the person is gone, the bytes that were hashed are still the same bytes."""
    sealed = desk.house.ring.subject_seal("acme", "uae", "emirates-id-784", b'{"name":"Fatima"}')
    desk.make("dataset:fraud/d@v1", sealed=sealed)
    entry = desk.audit.log(desk.ctx(), verb="catalog.publish").entries[0]
    assert entry.sealed
    desk.audit.seal(desk.ctx())
    desk.house.ring.subject_forget(desk.ctx(), "uae", "emirates-id-784")
    with pytest.raises(NotFound):
        desk.house.ring.subject_open("acme", "uae", sealed)
    path = desk.export(tmp_path, prove=(entry.id,))
    assert verify(path)[0] == 0
    assert b"Fatima" not in path.read_bytes()
    assert b"emirates-id-784" not in path.read_bytes()
    assert desk.audit.check(desk.ctx()).ok


def test_check_reads_the_living_log(desk: Desk) -> None:
    for n in range(5):
        desk.make(f"dataset:fraud/d{n}@v1")
    newest = desk.audit.seal(desk.ctx())
    desk.make("dataset:fraud/later@v1")
    good = desk.audit.check(desk.ctx())
    assert good.ok
    assert good.size == good.sealed + 1
    assert (good.checkpoint, good.root, good.signed) == (newest.number, newest.root, True)
    desk.ledger.store = Tampered(desk.ledger.store, lambda row: row._replace(data=row.data[:-1] + b"x"))
    bad = desk.audit.check(desk.ctx())
    assert not bad.ok
    assert "after" in bad.finding


def test_check_finds_a_checkpoint_that_its_key_did_not_sign(desk: Desk) -> None:
    desk.make("dataset:fraud/a@v1")
    newest = desk.audit.seal(desk.ctx())
    key = make_checkpoint_key(desk.ctx().tenant, desk.ctx().zone, newest.number)
    text, (line,) = signed_note.split_note(newest.note)
    other = signed_note.sign_text(text, newest.origin, Ed25519PrivateKey.generate())
    with desk.ledger.write(desk.ctx()) as tx:
        held = tx.key(key)
        assert held is not None
        tx.put(key, {"note": signed_note.join_note(text, other)}, rev=held.rev)
        tx.emit("forge", held.ref)
    bad = desk.audit.check(desk.ctx())
    assert (bad.ok, bad.signed) == (False, False)
    assert "not signed" in bad.finding
    assert line != other


def test_check_finds_an_event_taken_out_of_the_ledger(desk: Desk) -> None:
    for n in range(5):
        desk.make(f"dataset:fraud/d{n}@v1")
    desk.audit.seal(desk.ctx())
    desk.ledger.store = Tampered(desk.ledger.store, lambda row: None)
    bad = desk.audit.check(desk.ctx())
    assert not bad.ok
    assert "do not lead to the root" in bad.finding
    with pytest.raises(CorruptData):
        b"".join(desk.audit.export(desk.ctx()))


def test_a_witness_cosigns_and_the_pack_carries_it(desk: Desk, tmp_path: Path) -> None:
    desk.make("dataset:fraud/a@v1")
    first = desk.audit.seal(desk.ctx())
    witness = CheckpointWitness("regulator", tmp_path / "w")
    cosigned = witness.cosign(first.note, [], first.key, 1_760_000_000.0)
    with pytest.raises(Invalid, match="registered"):
        desk.audit.cosign(desk.ctx(), cosigned)
    desk.audit.enrol(desk.ctx(), "regulator", witness.public)
    taken = desk.audit.cosign(desk.ctx(), cosigned)
    assert taken.note == cosigned
    desk.make("dataset:fraud/b@v1")
    second = desk.audit.seal(desk.ctx())
    grown = desk.audit.consistency(desk.ctx(), first.size, second.size)
    again = witness.cosign(second.note, grown.hashes, "", 1_760_000_001.0)
    desk.audit.cosign(desk.ctx(), again)
    code, report = verify(desk.export(tmp_path), "--witness", f"regulator:{witness.public}")
    assert code == 0, report
    assert report["witnessed"] == {"regulator": second.size}
    with pytest.raises(Conflict):
        desk.audit.cosign(desk.ctx(), again.replace(f"\n{second.size}\n", f"\n{second.size + 1}\n", 1))
    for name, key in (("falaj/x", witness.public), ("regulator", "AAAA")):
        with pytest.raises(Invalid):
            desk.audit.enrol(desk.ctx(), name, key)


def test_unfinished_acts_are_listed(desk: Desk) -> None:
    """A2 as the auditor sees it: an intent without an outcome is a place to look."""
    for name, phases in (("a", ("intent", "outcome")), ("b", ("intent",)), ("c", ("intent", "outcome"))):
        ctx = desk.ctx()
        for phase in phases:
            with desk.ledger.write(ctx) as tx:
                tx.emit("store.copy", Ref("blob", "fraud", name, "v1"), phase=phase)
    assert desk.audit.unfinished(desk.ctx()) == (), "it may still be running"
    desk.house.time += 100
    assert [i.subject.name for i in desk.audit.unfinished(desk.ctx())] == ["b"]
    with desk.ledger.write(desk.ctx(request=desk.audit.unfinished(desk.ctx())[0].request)) as tx:
        tx.emit("store.copy", Ref("blob", "fraud", "b", "v1"), phase="outcome")
    assert desk.audit.unfinished(desk.ctx()) == ()


@pytest.fixture
def family(desk: Desk) -> Desk:
    raw = desk.make("dataset:fraud/raw@v1")
    clean = desk.make("dataset:fraud/clean@v1", str(raw))
    secret = desk.make("dataset:other/secret@v1", label=Label(classification=2))
    desk.make("model:fraud/scorer@v1", str(clean), str(secret), verb="jobs.train")
    desk.make("endpoint:fraud/score@v1", "model:fraud/scorer@v1", verb="serve.deploy")
    return desk


def test_lineage_and_impact(family: Desk) -> None:
    ctx = family.ctx()
    graph = family.audit.lineage(ctx, Ref.parse("model:fraud/scorer@v1"))
    assert {node.ref: node.depth for node in graph.nodes} == {
        "model:fraud/scorer@v1": 0,
        "dataset:fraud/clean@v1": -1,
        "dataset:other/secret@v1": -1,
        "dataset:fraud/raw@v1": -2,
        "endpoint:fraud/score@v1": 1,
    }
    impact = family.audit.impact(ctx, Ref.parse("dataset:fraud/raw@v1"))
    assert impact.affected == ("dataset:fraud/clean@v1", "endpoint:fraud/score@v1", "model:fraud/scorer@v1")
    assert impact.by_kind == {"dataset": 1, "endpoint": 1, "model": 1}
    assert impact.zones == ("uae",)
    family.make("report:fraud/later@v1", "model:fraud/scorer@v1")
    assert len(family.audit.impact(ctx, Ref.parse("dataset:fraud/raw@v1")).affected) == 4, "the graph reads on"


def test_lineage_hides_what_the_caller_may_not_see(family: Desk) -> None:
    every = family.ctx().cells

    def cells(kind: str) -> frozenset[str]:
        return frozenset(cell for cell in every(kind) if "other" not in cell)

    ctx = family.ctx(cells=cells)
    for form in ("text", "json", "openlineage", "dot", "svg"):
        drawn = family.audit.draw(ctx, Ref.parse("model:fraud/scorer@v1"), form=form)
        assert "secret" not in drawn
        assert "fraud/clean" in drawn
    hidden = [n for n in family.audit.lineage(ctx, Ref.parse("model:fraud/scorer@v1")).nodes if n.hidden]
    assert len(hidden) == 1
    with pytest.raises(Invalid):
        family.audit.draw(ctx, Ref.parse("model:fraud/scorer@v1"), form="crayon")
    unguarded = CallContext(ctx.actor, zone="uae")
    with pytest.raises(Denied):
        family.audit.lineage(unguarded, Ref.parse("model:fraud/scorer@v1"))


def test_lineage_stays_in_its_tenant(family: Desk) -> None:
    assert family.audit.lineage(family.ctx("stranger"), Ref.parse("model:fraud/scorer@v1")).edges == ()


def test_the_corpus_of_events_holds_no_secret(family: Desk, tmp_path: Path) -> None:
    """A6: tokens, keys and long random texts have no place in an event. Every verb of the desk was called before."""
    desk = family
    for act in (desk.audit.seal, desk.audit.check, desk.audit.checkpoints, desk.audit.unfinished, desk.audit.log):
        act(desk.ctx())
    desk.export(tmp_path)
    witness = CheckpointWitness("regulator", tmp_path / "w")
    desk.audit.enrol(desk.ctx(), "regulator", witness.public)
    secret = re.compile(rb"falaj_[a-z]*_?[A-Za-z0-9]{16,}|eyJ[A-Za-z0-9_-]{10,}|BEGIN [A-Z ]*KEY|secret://|[Pp]assword")
    private = (tmp_path / "w" / "witness.key").read_bytes()
    for fact in desk.ledger.tail(limit=10_000):
        assert not secret.search(fact.raw), fact.raw
        assert private not in fact.raw
        for value in fact.event.body.values():
            known = str(value) == witness.public or fact.event.verb.startswith("keys.")
            assert known or not re.fullmatch(r"[A-Za-z0-9+/=_-]{40,}", str(value)), fact.raw


def test_every_verb_teaches(desk: Desk) -> None:
    verbs = list_operations(AuditService)
    assert {"log", "show", "prove", "consistency", "checkpoints", "export", "verify", "verifier", "seal"} <= set(verbs)
    for name, verb in verbs.items():
        assert "Example:\n" in verb.doc, name
        assert all(param.help for param in verb.params), name
    data = desk.audit.verifier(desk.ctx()).read()
    assert b"def check_segment" in data
