"""The desk of bytes through the whole house: names, versions, labels, zones, lineage, deletion, sums."""

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from blake3 import blake3

import falaj
from falaj.core.argument_binding import bind_arguments
from falaj.core.byte_stream import ByteStream
from falaj.core.context import SYSTEM_TENANT, Actor
from falaj.core.errors import Conflict, CorruptData, Denied, Invalid, NotFound
from falaj.core.event import Event
from falaj.core.label import Label
from falaj.core.operation import list_operations
from falaj.server import LocalClient
from falaj.store.blob_store import PART_CHUNKS
from falaj.store.sealed_format import CHUNK_BYTES
from falaj.store.service import StorageService
from tests.store.blobhouse import noise, stream


@pytest.fixture
def here(tmp_path: Path) -> Iterator[LocalClient]:
    made = falaj.connect(str(tmp_path))
    made.zones.add(
        "sharjah", region="AE-SH", jurisdiction="AE", regimes=("AE-PDPL",), max_class=2, store=f"dir:{tmp_path}/sharjah"
    )
    made.zones.add("dublin", region="IE-D", jurisdiction="IE", max_class=0, store=f"dir:{tmp_path}/dublin")
    yield made
    made.close()


def events(here: LocalClient, verb: str) -> list[Event]:
    return [fact.event for fact in here.house.ledger.tail(tenant=SYSTEM_TENANT, verb=verb)]


def somebody(here: LocalClient, name: str, *roles: str, **more: str) -> LocalClient:
    """Another person of the same house."""
    return LocalClient(here.house, Actor(name, SYSTEM_TENANT, roles=frozenset(roles), **{"jurisdiction": "AE", **more}))  # type: ignore[arg-type]


def test_put_and_get(here: LocalClient) -> None:
    ref = here.store.put("blob:fraud/sample", b"hello", label="AE-PDPL,confidential", media="text/plain")
    assert str(ref) == "blob:fraud/sample@v1"
    got = here.store.get("blob:fraud/sample")
    assert (got.size, got.read()) == (5, b"hello")
    entry = here.store.show(ref)
    assert (entry.digest, entry.size_bytes, entry.media) == ("b3:" + blake3(b"hello").hexdigest(), 5, "text/plain")
    assert entry.label == Label(regimes=frozenset({"AE-PDPL"}), classification=1)
    assert here.store.get(ref, start=1, stop=3).read() == b"el"


def test_a_named_request_finds_its_first_outcome(here: LocalClient) -> None:
    def put(request: str, data: bytes) -> object:
        ctx = here.house.context(here.actor, request_id=request)
        verb = list_operations(StorageService)["put"]
        return here.house.call("store", "put", ctx, bind_arguments(verb, ("blob:p/n", ByteStream([data])), {}))

    first = put("one", b"x")
    assert put("one", b"x") == first
    assert str(put("two", b"x")) == "blob:p/n@v2"
    with pytest.raises(Conflict):
        put("one", b"something else")


def test_a_large_blob_goes_through(here: LocalClient) -> None:
    size = 2 * PART_CHUNKS * CHUNK_BYTES + 12345
    ref = here.store.put("blob:fraud/large", ByteStream(stream(size)))
    assert b"".join(here.store.get(ref)) == b"".join(stream(size))


def test_versions_count_up_and_the_newest_is_meant(here: LocalClient) -> None:
    for i in range(3):
        assert here.store.put("blob:p/n", b"%d" % i).version == f"v{i + 1}"
    assert here.store.get("blob:p/n").read() == b"2"
    assert here.store.get("blob:p/n@v1").read() == b"0"
    assert [str(e.ref) for e in here.store.list().entries] == ["blob:p/n@v3"]
    assert [str(e.ref) for e in here.store.list(project="p", name="n").entries] == [
        "blob:p/n@v1",
        "blob:p/n@v2",
        "blob:p/n@v3",
    ]


def test_lineage_and_labels_follow_the_inputs(here: LocalClient) -> None:
    source = here.store.put("blob:p/source", b"a", label="AE-PDPL,sensitive")
    made = here.store.put("blob:p/made", b"b", inputs=("blob:p/source",))
    assert here.store.show(made).label.classification == 2
    (event,) = [e for e in events(here, "store.put") if e.subject == made and not e.body.get("phase")]
    assert event.inputs == (source,)
    assert event.body["digest"] == here.store.show(made).digest


def test_a_label_is_never_lowered_by_a_new_version(here: LocalClient) -> None:
    here.store.put("blob:p/n", b"a", label="AE-PDPL,sensitive")
    assert here.store.show(here.store.put("blob:p/n", b"b")).label.classification == 2
    assert here.store.show("blob:p/n@v1").label.classification == 2


@pytest.mark.parametrize("name", ["dataset:p/n", "blob:p/n@v1", "blob:p/n@latest"])
def test_only_bare_blob_names_can_be_put(here: LocalClient, name: str) -> None:
    with pytest.raises(Invalid):
        here.store.put(name, b"x")


@pytest.mark.parametrize("name", ["blob:p/n", "blob:p/n@v1", "blob:p/n@champion", "blob:p/n@r1"])
def test_what_is_not_there_is_not_found(here: LocalClient, name: str) -> None:
    for call in (here.store.get, here.store.show, here.store.delete):
        with pytest.raises(NotFound):
            call(name)


class TestCopy:
    """Bytes cross a border only where their label may."""

    def test_inside_the_country(self, here: LocalClient) -> None:
        ref = here.store.put("blob:p/n", b"x" * 1000, label="AE-PDPL,sensitive")
        entry = here.store.copy(ref, to="sharjah")
        assert entry.zones == ("home", "sharjah")
        assert here.store.show("blob:p/n").zones == ("home", "sharjah")
        assert here.store.copy(ref, to="sharjah").zones == ("home", "sharjah")
        told = [
            (e.body["phase"], e.body.get("source"), e.body.get("to"))
            for e in events(here, "store.copy")
            if e.subject == ref
        ]
        assert told[:4] == [
            ("intent", None, None),
            ("begin", "home", "sharjah"),
            ("done", "home", "sharjah"),
            ("outcome", None, None),
        ]

    def test_abroad_is_denied_and_nothing_moves(self, here: LocalClient, tmp_path: Path) -> None:
        here.store.put("blob:p/n", b"x" * 1000, label="AE-PDPL,sensitive")
        with pytest.raises(Denied):
            here.store.copy("blob:p/n", to="dublin")
        with pytest.raises(Denied):
            here.store.put("blob:p/other", b"x", label="AE-PDPL,sensitive", zone="dublin")
        assert not (tmp_path / "dublin").exists()
        assert here.store.show("blob:p/n").zones == ("home",)

    def test_open_bytes_may_go(self, here: LocalClient) -> None:
        here.store.put("blob:p/n", b"open")
        assert here.store.copy("blob:p/n", to="dublin").zones == ("home", "dublin")

    def test_straight_into_another_zone(self, here: LocalClient, tmp_path: Path) -> None:
        here.store.put("blob:p/n", b"there", label="AE-PDPL", zone="sharjah")
        assert here.store.show("blob:p/n").zones == ("sharjah",)
        assert here.store.get("blob:p/n").read() == b"there"
        assert [f for f in (tmp_path / "sharjah" / "objects").rglob("*") if f.is_file()]


class TestDelete:
    """A version that is deleted is gone for readers at once, and its bytes when nothing needs them."""

    def test_the_version_before_is_the_newest_again(self, here: LocalClient) -> None:
        here.store.put("blob:p/n", b"1")
        here.store.put("blob:p/n", b"2")
        assert here.store.delete("blob:p/n", reason="wrong").version == "v2"
        assert here.store.get("blob:p/n").read() == b"1"
        for call in (here.store.get, here.store.show, here.store.delete):
            with pytest.raises(NotFound):
                call("blob:p/n@v2")
        assert here.store.put("blob:p/n", b"3").version == "v3"
        (event,) = events(here, "store.delete")
        assert (str(event.subject), event.body["reason"]) == ("blob:p/n@v2", "wrong")

    def test_the_last_one(self, here: LocalClient) -> None:
        here.store.put("blob:p/n", b"1")
        here.store.delete("blob:p/n@v1")
        assert here.store.list().entries == ()
        with pytest.raises(NotFound):
            here.store.get("blob:p/n")
        assert here.store.put("blob:p/n", b"1").version == "v2"
        assert here.store.get("blob:p/n").read() == b"1"

    def test_a_hold_and_a_retention_keep_it(self, here: LocalClient) -> None:
        here.store.put("blob:p/held", b"1", label="hold=case-7")
        here.store.put("blob:p/kept", b"1", label={"min_retain_s": 10**9})
        for name in ("blob:p/held", "blob:p/kept"):
            with pytest.raises(Denied):
                here.store.delete(name)
            assert here.store.get(name).read() == b"1"

    def test_what_need_not_be_kept_goes_by_any_clock(self, here: LocalClient) -> None:
        ref = here.store.put("blob:p/ahead", b"1")
        behind = replace(here.house.context(here.actor), now=lambda: time.time() - 1800)
        here.house.call("store", "delete", behind, {"name": ref})
        assert here.store.list().entries == ()

    def test_bytes_go_when_nothing_needs_them(self, here: LocalClient) -> None:
        here.store.put("blob:p/a", b"same")
        here.store.put("blob:p/b", b"same")
        here.store.delete("blob:p/a")
        collector, ctx = here.house.desks["store"].collector, here.house.context(here.actor)
        collector._grace_s = -1.0
        for _ in range(4):
            collector.collect(ctx)
        assert here.store.get("blob:p/b").read() == b"same"
        here.store.delete("blob:p/b")
        assert sum(collector.collect(ctx).deleted for _ in range(4)) == 1


def test_who_may_not_read_gets_no_bytes(here: LocalClient) -> None:
    here.store.put("blob:p/n", b"secret", label="AE-PDPL,sensitive")
    admin = somebody(here, "root", "tenant-admin", "operator")
    assert admin.store.show("blob:p/n").size_bytes == 6
    for call in (lambda: admin.store.get("blob:p/n"), lambda: admin.store.copy("blob:p/n", to="sharjah")):
        with pytest.raises(Denied):
            call()
    stranger = somebody(here, "eve")
    for call in (lambda: stranger.store.get("blob:p/n"), lambda: stranger.store.show("blob:p/n")):
        with pytest.raises(NotFound):
            call()
    elsewhere = LocalClient(
        here.house, Actor("bob", SYSTEM_TENANT, roles=frozenset({"data-scientist"}), projects=frozenset({"q"}))
    )
    with pytest.raises(NotFound):
        elsewhere.store.get("blob:p/n")
    assert elsewhere.store.list().entries == ()
    assert elsewhere.store.usage() == ()


def test_usage_sums_by_project_and_zone(here: LocalClient) -> None:
    here.store.put("blob:a/x", b"12345")
    here.store.put("blob:a/x", b"123")
    here.store.put("blob:b/y", b"1")
    here.store.copy("blob:a/x@v1", to="sharjah")
    rows = [(u.project, u.zone, u.versions, u.size_bytes) for u in here.store.usage()]
    assert rows == [("a", "home", 2, 8), ("a", "sharjah", 1, 5), ("b", "home", 1, 1)]
    assert [u.project for u in here.store.usage(project="b")] == ["b"]
    assert {u.kind for u in here.store.usage()} == {"blob"}


def test_space_counts_shared_bytes_once_and_names_what_will_go(here: LocalClient) -> None:
    here.store.put("blob:a/x", b"12345")
    here.store.put("blob:b/same", b"12345")
    here.store.put("blob:a/large", noise(40 << 20))
    assert [(s.zone, s.state, s.size_bytes) for s in here.store.space()] == [("home", "live", 5 + (40 << 20))]


def test_a_flipped_byte_is_found_by_get_and_named_by_scrub(here: LocalClient, tmp_path: Path) -> None:
    ref = here.store.put("blob:p/n", noise(5000))
    (file,) = [f for f in (tmp_path / "blobs" / "objects").rglob("*") if f.is_file()]
    raw = bytearray(file.read_bytes())
    raw[2500] ^= 1
    file.write_bytes(raw)
    with pytest.raises(CorruptData):
        here.store.get("blob:p/n").read()
    (broken,) = here.store.scrub().broken
    assert broken.refs == (ref,)
    here.store.put("blob:p/again", noise(5000))
    assert here.store.get("blob:p/n").read() == noise(5000)


def test_a_backup_is_whole_and_for_the_house_only(here: LocalClient, tmp_path: Path) -> None:
    from falaj.store.backup import check

    here.store.put("blob:p/n", b"do not show me")
    stream_of = here.store.backup()
    data = stream_of.read()
    assert len(data) == stream_of.size
    (tmp_path / "copy").write_bytes(data)
    assert check(str(tmp_path / "copy")).rows["records"] > 0
    assert b"do not show me" not in data
    tenant = LocalClient(here.house, Actor("op", "acme", roles=frozenset({"operator"}), jurisdiction="AE"))
    with pytest.raises((Denied, NotFound)):
        tenant.store.backup()


def test_every_verb_teaches_by_example() -> None:
    verbs = list_operations(StorageService)
    assert verbs
    for name, verb in verbs.items():
        assert f"falaj store {name}" in verb.doc, name
        assert all(param.help for param in verb.params), name
