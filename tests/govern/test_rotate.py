"""Rotation: at any moment everything can be read, and at the end nothing is under a version that has ended (K4)."""

import contextlib
import itertools
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from falaj.backends.sqlite import SqliteLedgerStore
from falaj.core.context import SYSTEM_TENANT
from falaj.core.errors import Conflict, CorruptData, Denied, Invalid, NotFound
from falaj.core.ref import Ref
from falaj.govern.encryption import read_key_version, read_wrapping_version
from falaj.govern.key_service import KeyRotationLoop, KeyService
from falaj.store.reconcile_loop import LoopIteration
from tests.govern.keyhouse import DAY_S, Crashing, House


@pytest.fixture
def house(tmp_path: Path) -> Iterator[House]:
    made = House(tmp_path)
    yield made
    made.close()


def fill(house: House) -> dict[str, bytes]:
    """Records, objects, a subject's payload and every kind of key, in two tenants and two zones."""
    deks = {}
    for tenant in ("acme", "beta"):
        for zone in ("uae", "eu"):
            house.write(f"d-{zone}", {"in": zone}, tenant, zone)
            house.ring.prepare(tenant, zone)
            for n in range(3):
                name = f"{n}{tenant}{zone}"
                deks[name] = house.add_object(name, tenant, zone)
    house.ring.token_signer()
    house.ring.permit_key()
    return deks


def check(house: House, deks: dict[str, bytes], sealed: str) -> None:
    """Everything opens, in a process that remembers nothing."""
    fresh = House(house.home, start=house.time)
    for tenant in ("acme", "beta"):
        for zone in ("uae", "eu"):
            assert fresh.read(f"d-{zone}", tenant, zone) == {"in": zone}
            for n in range(3):
                name = f"{n}{tenant}{zone}"
                wrapped = fresh.object_dek(name, tenant, zone)
                assert fresh.ring.object_key(tenant, zone, wrapped) == deks[name]
    assert fresh.ring.subject_open("acme", "uae", sealed) == b"payload"
    assert len(fresh.ledger.tail(limit=10_000)) > 10
    fresh.close()


def every_wrapped(house: House) -> Iterator[tuple[str, str, str]]:
    """(tenant, key name, wrapped text) of all that any key wraps."""
    for tenant in (SYSTEM_TENANT, "acme", "beta"):
        with house.ledger.read(house.ctx(tenant)) as tx:
            for record in tx.find("key", limit=1000).records:
                yield from ((tenant, record.key.name, text) for text in record.body["versions"].values())
            for record in tx.find("object", limit=1000).records:
                yield tenant, f"object.{record.key.version}", record.body["dek"]


@pytest.mark.parametrize("scope", ["root", "zone", "tenant"])
def test_a_rotation_carries_everything_over_and_ends_the_old_version(house: House, scope: str) -> None:
    deks = fill(house)
    sealed = house.ring.subject_seal("acme", "uae", "person", b"payload")
    bulk = {name: house.object_dek(name, "acme", "uae") for name in ("0acmeuae", "1acmeuae")}
    house.rotations.begin(
        house.ctx(SYSTEM_TENANT if scope != "tenant" else "acme"),
        scope,
        "acme" if scope == "tenant" else SYSTEM_TENANT,
        "" if scope == "root" else "uae",
    )
    check(house, deks, sealed)
    while house.rotations.step(house.house_ctx()):
        check(house, deks, sealed)
    house.time += DAY_S + 1
    while house.rotations.step(house.house_ctx()):
        check(house, deks, sealed)
    check(house, deks, sealed)
    if scope == "root":
        assert [file.name for file in (house.home / "keys").glob("*.key")] == ["falaj.2.key"]
    if scope == "zone":
        assert house.key_body("zone.uae", SYSTEM_TENANT)["versions"].keys() == {"2"}
        under = {t: read_wrapping_version(w) for t, name, w in every_wrapped(house) if name == "tenant.uae"}
        assert under == {SYSTEM_TENANT: 2, "acme": 2, "beta": 2}
        assert house.key_body("zone.eu", SYSTEM_TENANT)["versions"].keys() == {"1"}
    if scope == "tenant":
        body = house.key_body("tenant.uae")
        assert (body["versions"].keys(), body["min"]) == ({"2"}, 2)
        mine = [
            (n, read_wrapping_version(w))
            for t, n, w in every_wrapped(house)
            if t == "acme" and ".uae" in n and not n.startswith("tenant")
        ]
        assert len(mine) > 8
        assert {v for _, v in mine} == {2}
        assert {
            read_wrapping_version(w)
            for t, n, w in every_wrapped(house)
            if t == "beta" and not n.startswith(("zone", "tenant"))
        } == {1}
        with pytest.raises(CorruptData, match="retired"):
            house.ring.object_key("acme", "uae", bulk["0acmeuae"])


def test_old_versions_outlive_the_rotation_by_a_day(house: House) -> None:
    fill(house)
    _, before = house.ring.new_object_key("acme", "uae")
    house.rotations.begin(house.ctx(), "tenant", "acme", "uae")
    house.drain()
    house.time += DAY_S - 10
    house.drain()
    assert house.key_body("tenant.uae")["versions"].keys() == {"1", "2"}
    late = house.ring.object_key("acme", "uae", before)
    with house.ledger.project(house.ctx()) as tx:
        from falaj.core.ports import RecordKey

        tx.put(RecordKey("acme", "object", "store", "late", "uae"), {"dek": before})
    house.time += 20
    house.drain()
    assert house.key_body("tenant.uae")["versions"].keys() == {"2"}
    assert house.ring.object_key("acme", "uae", house.object_dek("late")) == late


def test_in_a_hurry_only_the_caches_are_waited_for(house: House) -> None:
    fill(house)
    house.rotations.begin(house.ctx(), "tenant", "acme", "uae")
    house.drain()
    house.rotations.hurry(house.ctx(), "tenant", "acme", "uae")
    house.drain()
    assert house.key_body("tenant.uae")["versions"].keys() == {"1", "2"}
    house.time += 91
    house.drain()
    assert house.key_body("tenant.uae")["versions"].keys() == {"2"}


def test_a_replica_with_an_old_cache_ends_nothing_too_early(house: House) -> None:
    deks = fill(house)
    sealed = house.ring.subject_seal("acme", "uae", "person", b"payload")
    other = House(house.home, start=house.time)
    other.ring.new_object_key("acme", "uae")
    house.rotations.begin(house.ctx(), "tenant", "acme", "uae")
    other.finish_rotations()
    assert other.key_body("tenant.uae")["versions"].keys() == {"2"}
    check(other, deks, sealed)
    other.close()


@pytest.mark.parametrize("scope", ["meta", "secret", "log"])
def test_a_data_key_seals_anew_and_reads_the_old(house: House, scope: str) -> None:
    house.ring.prepare("acme", "uae")
    house.write("a", {"n": 1})
    seal, unseal = (
        (house.ring.secret_seal, house.ring.secret_unseal)
        if scope == "secret"
        else (house.ring.seal, house.ring.unseal)
    )
    old = seal("acme", "uae", b"x", b"")
    signer = house.ring.log_signer("acme", "uae").private_bytes_raw()
    assert house.rotations.begin(house.ctx(), scope, "acme", "uae").phase == "done"
    new = seal("acme", "uae", b"x", b"")
    assert (read_key_version(old), read_key_version(new)) == (1, 1 if scope == "log" else 2)
    assert unseal("acme", "uae", old, b"") == unseal("acme", "uae", new, b"") == b"x"
    assert (house.ring.log_signer("acme", "uae").private_bytes_raw() != signer) is (scope == "log")
    assert house.read("a") == {"n": 1}
    if scope == "log":
        with house.ledger.read(house.ctx()) as tx:
            ids = {tx.need(Ref("log-key", "keys", "log.uae", v)).body["key_id"] for v in ("v1", "v2")}
        assert len(ids) == 2


def test_a_rotation_under_way_is_not_begun_again(house: House) -> None:
    fill(house)
    house.rotations.begin(house.ctx(), "tenant", "acme", "uae")
    with pytest.raises(Conflict):
        house.rotations.begin(house.ctx(), "tenant", "acme", "uae")
    house.rotations.begin(house.ctx("beta"), "tenant", "beta", "uae")
    house.finish_rotations()
    assert house.rotations.begin(house.ctx(), "tenant", "acme", "uae").version == 3


def test_what_does_not_exist_cannot_be_rotated(house: House) -> None:
    fill(house)
    with pytest.raises(NotFound):
        house.rotations.begin(house.ctx(), "tenant", "acme", "mars")
    with pytest.raises(NotFound):
        house.rotations.hurry(house.ctx(), "tenant", "acme", "uae")
    with pytest.raises(Invalid):
        house.rotations.begin(house.ctx(), "everything", "acme", "uae")


def test_a_forgotten_subject_stays_forgotten_through_a_rotation(house: House) -> None:
    fill(house)
    gone = house.ring.subject_seal("acme", "uae", "person", b"payload")
    house.rotations.begin(house.ctx(), "tenant", "acme", "uae")
    house.rotations.step(house.house_ctx())
    house.ring.subject_forget(house.ctx(), "uae", "person")
    house.finish_rotations()
    with pytest.raises(NotFound):
        House(house.home).ring.subject_open("acme", "uae", gone)


# any sequence, any crash


ACTS = st.one_of(
    st.tuples(
        st.just("rotate"),
        st.sampled_from(["root", "zone", "tenant", "meta", "secret", "log"]),
        st.sampled_from(["uae", "eu"]),
    ),
    st.tuples(st.just("step"), st.integers(1, 4), st.just("")),
    st.tuples(st.just("object"), st.just(0), st.sampled_from(["uae", "eu"])),
    st.tuples(st.just("write"), st.just(0), st.sampled_from(["uae", "eu"])),
    st.tuples(st.just("wait"), st.sampled_from([31, int(DAY_S) + 1]), st.just("")),
    st.tuples(st.just("die"), st.integers(1, 6), st.sampled_from(["before", "after"])),
)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(acts=st.lists(ACTS, min_size=4, max_size=14))
def test_any_sequence_with_crashes_leaves_all_readable_and_ends_clean(acts: list[tuple[str, Any, str]]) -> None:
    home = Path(tempfile.mkdtemp(prefix="falaj-rotate-"))
    world = _World(home)
    try:
        for act in acts:
            world.do(*act)
            world.check()
        world.end()
    finally:
        world.house.close()
        shutil.rmtree(home)


class Dead(BaseException):
    """The process is gone; what it had in memory is too."""


def _die() -> None:
    raise Dead


class _World:
    """What must be true, kept beside the house."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.house = House(home)
        self.deks: dict[tuple[str, str], bytes] = {}
        self.records: dict[str, str] = {}
        self.names = itertools.count()
        for zone in ("uae", "eu"):
            self.house.ring.prepare("acme", zone)
            self.do("object", 0, zone)
            self.do("write", 0, zone)

    def do(self, act: str, what: Any, zone: str) -> None:
        if act == "die":
            store = SqliteLedgerStore(f"sqlite:{self.home}/ledger.db")
            self.restart(Crashing(store, what, after=zone == "after", die=_die))
            return
        try:
            getattr(self, f"_{act}")(what, zone)
        except Dead:
            self.restart()

    def restart(self, store: Any = None) -> None:
        time = self.house.time
        self.house.close()
        self.house = House(self.home, start=time, store=store)

    def _rotate(self, scope: str, zone: str) -> None:
        tenant = SYSTEM_TENANT if scope in ("root", "zone") else "acme"
        with contextlib.suppress(Conflict):
            self.house.rotations.begin(self.house.ctx(tenant), scope, tenant, "" if scope == "root" else zone)

    def _step(self, count: int, _: str) -> None:
        for _ in range(count):
            self.house.rotations.step(self.house.house_ctx())

    def _object(self, _: int, zone: str) -> None:
        name = f"o{next(self.names)}"
        dek = self.house.add_object(name, zone=zone)
        self.deks[name, zone] = dek

    def _write(self, _: int, zone: str) -> None:
        name = f"r{next(self.names)}"
        self.house.write(name, {"in": zone}, zone=zone)
        self.records[name] = zone

    def _wait(self, seconds: int, _: str) -> None:
        self.house.time += seconds

    def check(self) -> None:
        fresh = House(self.home, start=self.house.time)
        for (name, zone), dek in self.deks.items():
            assert fresh.ring.object_key("acme", zone, fresh.object_dek(name, zone=zone)) == dek
        for name, zone in self.records.items():
            assert fresh.read(name, zone=zone) == {"in": zone}
        fresh.close()

    def end(self) -> None:
        self.restart()
        self.house.finish_rotations()
        self.check()
        assert all(job.phase == "done" for job in self.jobs())
        newest = {
            name: self.house.key_body(name, tenant)["current"]
            for tenant, name, _ in every_wrapped(self.house)
            if name.startswith(("tenant.", "zone."))
        }
        for tenant, name, wrapped in every_wrapped(self.house):
            purpose, zone = name.split(".")[:2]
            if purpose in ("zone", "token", "permit"):
                continue
            if purpose == "tenant":
                assert read_wrapping_version(wrapped) == self.house.key_body(f"zone.{zone}", SYSTEM_TENANT)["current"]
            else:
                assert read_wrapping_version(wrapped) == self.house.key_body(f"tenant.{zone}", tenant)["current"]
        assert newest
        for name in ("zone.uae", "zone.eu"):
            assert len(self.house.key_body(name, SYSTEM_TENANT)["versions"]) == 1

    def jobs(self) -> list[Any]:
        with self.house.ledger.read(self.house.house_ctx()) as tx:
            return [job for _, job in self.house.rotations.find(tx)]


# the desk


def desk(house: House) -> KeyService:
    return KeyService(house.ledger, house.rotations, custody="file")


def test_the_desk_lists_versions_and_ages_and_no_material(house: House) -> None:
    fill(house)
    house.time += 2 * DAY_S
    page = desk(house).list(house.ctx())
    names = {view.key.name: view for view in page.keys}
    assert {"tenant.uae", "meta.eu", "log.uae"} <= set(names)
    view = names["tenant.uae"]
    assert (view.purpose, view.zone, view.current, view.versions, view.under) == ("tenant", "uae", 1, (1,), "zone")
    assert view.age_days == 2.0
    assert page.custody == "file"
    wrapped = {text for _, _, text in every_wrapped(house)}
    assert not any(text.partition(":")[2] in repr(page) for text in wrapped)
    assert [v.key.name for v in desk(house).list(house.ctx(), purpose="log").keys] == ["log.eu", "log.uae"]
    assert desk(house).show(house.ctx(), Ref.parse("key:keys/tenant.uae")).current == 1


def test_a_list_shows_only_cells_that_policy_allows(house: House) -> None:
    from dataclasses import replace

    fill(house)
    assert desk(house).list(replace(house.ctx(), cells=lambda kind: frozenset())).keys == ()


def test_the_desk_rotates_and_the_loop_ends_it(house: House) -> None:
    fill(house)
    keys, loop = desk(house), KeyRotationLoop(house.rotations)
    keys.rotate(house.ctx(), "tenant")
    (job,) = keys.status(house.ctx())
    assert (job.scope, job.zone, job.version, job.phase) == ("tenant", "uae", 2, "sweep")
    assert keys.status(house.ctx("beta")) == ()
    keys.retire(house.ctx(), "tenant")
    turn = LoopIteration(house.house_ctx(), 1, lambda: True)
    house.time += 91
    while loop.step(turn):
        pass
    (job,) = keys.status(house.ctx())
    assert (job.phase, job.finished) == ("done", house.time)
    assert {"keys.rotate", "keys.retire"} <= set(house.verbs("acme"))
    assert "keys.end" in house.verbs(SYSTEM_TENANT)


def test_a_lost_lease_stops_the_loop(house: House) -> None:
    fill(house)
    house.rotations.begin(house.ctx(), "tenant", "acme", "uae")
    assert KeyRotationLoop(house.rotations).step(LoopIteration(house.house_ctx(), 1, lambda: False)) is False
    assert read_wrapping_version(house.object_dek("0acmeuae")) == 1


@pytest.mark.parametrize("scope", ["root", "zone"])
def test_a_tenant_cannot_rotate_what_is_the_houses(house: House, scope: str) -> None:
    fill(house)
    with pytest.raises(Denied):
        desk(house).rotate(house.ctx(), scope)
    assert desk(house).rotate(house.house_ctx(), scope).scope == scope


def test_old_data_keys_are_not_retired(house: House) -> None:
    with pytest.raises(Invalid):
        desk(house).retire(house.ctx(), "meta")
