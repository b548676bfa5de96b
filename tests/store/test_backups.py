"""Backups on a shelf, by themselves and by hand; the drill that proves them; what a restore lets in, and what not."""

import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest

from falaj.api.platform_metrics import PlatformMetrics
from falaj.cli.restore import restore_from_target
from falaj.core.context import SYSTEM_TENANT
from falaj.core.errors import Conflict, CorruptData, Denied, NotFound, Unavailable
from falaj.core.ports import SupportsDump
from falaj.core.ref import Ref
from falaj.server import LocalClient, Server, load_settings
from falaj.store.backup_manager import LEASE_NAME, BackupLoop
from falaj.store.backup_target import BackupTarget
from falaj.store.reconcile_loop import LoopRunner, system_context
from tests.replica import Replica
from tests.servers.process import wait_until
from tests.town import LABEL, Town, refusal

ROOT = Path(__file__).parents[2]
DAY = 86_400.0


@pytest.fixture
def town(tmp_path: Path) -> Any:
    made = town_at(tmp_path)
    yield made
    made.close()


def town_at(tmp_path: Path, **more: Any) -> Town:
    return Town(tmp_path / "house", **{"backup.to": f"dir:{tmp_path}/shelf", "backup.keep": 2, **more})


def files(tmp_path: Path, start: str = "blobs~") -> list[Path]:
    return sorted(path for path in (tmp_path / "shelf/objects").rglob("*") if path.name.startswith(start))


def again(tmp_path: Path, name: str, backup: str = "", **more: Any) -> tuple[Server, Any]:
    """A house of its own from the shelf, with the root keys brought by hand; and what the restore said."""
    home = tmp_path / name
    home.mkdir(mode=0o700)
    shutil.copytree(tmp_path / "house/keys", home / "keys")
    settings = load_settings(str(home), more)
    report = restore_from_target(settings, f"dir:{tmp_path}/shelf", backup)
    return Server(load_settings(str(home), more)), report


def as_amal(house: Server, town: Town) -> LocalClient:
    return LocalClient(house, house.authenticate(town.tokens["amal"]), "fraud")


def test_only_what_is_new_is_copied_and_only_so_many_are_kept(town: Town, tmp_path: Path) -> None:
    amal, admin = town.as_("amal"), town.as_("admin")
    amal.store.put("blob:fraud/a", os.urandom(17_000_000), label=LABEL)
    first = admin.store.preserve()
    assert (first.blobs, first.left) == (2, 0), "a part and the rest of it"
    before = {path.name: path.stat().st_ino for path in files(tmp_path)}
    amal.store.put("blob:fraud/b", b"b" * 1000, label=LABEL)
    town.as_("salem").store.delete("blob:fraud/a@v1")
    second = admin.store.preserve()
    now = {path.name: path.stat().st_ino for path in files(tmp_path)}
    assert len(now) == 3
    assert before.items() <= now.items(), "what lay there was not written again"
    assert [one.name for one in admin.store.backups()] == [second.name, first.name]
    for day in range(6):  # the collector's grace is hours: have what was deleted go now
        ctx = replace(town.house.system(), tenant="bank", now=partial(sum, (second.at, day * DAY)))
        town.house.storage.collector.collect(ctx)
    assert len(files(tmp_path)) == 3, "a kept ledger names it"
    admin.store.preserve()
    last = admin.store.preserve()
    assert len(admin.store.backups()) == 2
    assert len(files(tmp_path)) == last.blobs == 1, "and no longer"
    assert len(files(tmp_path, "ledger~")) == len(files(tmp_path, "contents~")) == 2
    assert admin.store.drill(all_blobs=True).ok
    assert isinstance(refusal(town.as_("fatima").store.preserve), Denied), "a tenant's admin is not the house"


def test_the_loop_makes_one_when_it_is_due_and_one_replica_works(town: Town, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("falaj.store.backup_manager.MAX_WAIT_S", 0.0)
    kept, now = town.house.storage.kept, [2_000_000_000.0]
    assert kept is not None

    def loops(owner: str) -> LoopRunner:
        ctx = replace(system_context("backup", "ae-dubai"), now=lambda: now[0])
        return LoopRunner(town.house.ledger, owner, [BackupLoop(kept)], lambda name: ctx)

    one, other = loops("one"), loops("other")
    one.run_once()
    other.run_once()
    assert len(kept.all(now[0])) == 1, "the other does not hold the lease, and nothing is due"
    assert isinstance(refusal(lambda: kept.now(replace(town.house.system(), now=lambda: now[0]))), Conflict)
    now[0] += DAY - 60
    one.run_once()
    assert len(kept.all(now[0])) == 1
    now[0] += 120
    other.run_once()
    assert len(kept.all(now[0])) == 2
    assert kept.last(town.house.system())["at"] == now[0]
    now[0] -= 10 * DAY
    third = kept.make(replace(town.house.system(), now=lambda: now[0]), lambda: True)
    assert kept.all(now[0])[0].name == third.name, "a clock that was set back does not make it the oldest"
    events = town.events(SYSTEM_TENANT, verb="store.preserve")
    assert [event.actor for event in events] == ["loop-backup", "loop-backup", "falaj"]


def test_a_backup_by_hand_waits_for_the_one_that_is_being_made(town: Town, monkeypatch: pytest.MonkeyPatch) -> None:
    kept, ledger, tries = town.house.storage.kept, town.house.ledger, list[str]()
    assert kept is not None
    assert ledger.lease("loop:backup", "the loop", 60.0, time.time())
    lease = ledger.lease

    def counted(name: str, owner: str, ttl_s: float, now: float) -> int | None:
        if len(tries) == 2:
            ledger.release("loop:backup", "the loop")
        tries.append(owner)
        return lease(name, owner, ttl_s, now)

    monkeypatch.setattr(ledger, "lease", counted)
    monkeypatch.setattr("falaj.store.backup_manager.WAIT_STEP_S", 0.001)
    kept.now(town.house.system())
    assert len(kept.all(time.time())) == 1
    assert len(tries) >= 3


def test_who_lost_the_lease_makes_no_backup(town: Town, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("falaj.store.backup_manager._RENEW_INTERVAL_S", 0.0)
    kept = town.house.storage.kept
    assert kept is not None
    town.as_("amal").store.put("blob:fraud/a", os.urandom(3_000_000), label=LABEL)
    assert isinstance(refusal(lambda: _slowly(kept, town)), Conflict)
    assert kept.all(0.0) == ()
    assert kept.shelf.names("ledger") == []


def _slowly(kept: Any, town: Town) -> None:
    ctx = town.house.system()
    deadline = 2000
    for _ in range(deadline):  # the beat is a thread: once is enough for it to see that the lease is gone
        kept.make(ctx, lambda: False)


KILLED = """
import os, sys
from falaj.backends.folder_objects import FolderObjectStore
from falaj.server import Server, load_settings
home, shelf, at = sys.argv[1:]
house = Server(load_settings(home, {"zone": "ae-dubai", "backup.to": shelf}))
real, seen = FolderObjectStore.put, [0]
def put(self, key, chunks):
    def dying():
        for chunk in chunks:
            if key.startswith(at):
                os.kill(os.getpid(), 9)
            yield chunk
    return real(self, key, dying())
FolderObjectStore.put = put
house.storage.kept.now(house.system())
"""


@pytest.mark.parametrize("at", ["ledger/", "blobs/", "contents/", "backups/"])
def test_killed_at_any_moment_the_last_whole_backup_is_there(at: str, tmp_path: Path) -> None:
    town = town_at(tmp_path)
    town.as_("amal").store.put("blob:fraud/a", b"a" * 5000, label=LABEL)
    first = town.as_("admin").store.preserve()
    town.as_("amal").store.put("blob:fraud/b", b"b" * 5000, label=LABEL)
    words = [sys.executable, "-c", KILLED, str(tmp_path / "house"), f"dir:{tmp_path}/shelf", at]
    assert subprocess.run(words, cwd=ROOT, check=False).returncode == -signal.SIGKILL
    admin = town.as_("admin")
    assert [one.name for one in admin.store.backups()] == [first.name]
    assert admin.store.drill(all_blobs=True).ok
    town.house.ledger.release(LEASE_NAME, _owner(town))
    second = admin.store.preserve()
    assert second.blobs == 2
    assert admin.store.drill(all_blobs=True).ok
    assert len(files(tmp_path, "ledger~")) == 2, "what the dead one left is gone"
    town.close()


def _owner(town: Town) -> str:
    store = town.house.ledger.store
    assert isinstance(store, SupportsDump)
    return str(next(values[1] for table, values in store.dump() if table == "leases" and values[0] == LEASE_NAME))


def test_a_full_disk_is_one_clear_error_and_nothing_half_written(town: Town) -> None:
    town.as_("amal").store.put("blob:fraud/a", os.urandom(9_000_000), label=LABEL)
    admin = town.as_("admin")
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (8_000_000, before[1]))  # more than the ledger has
    try:
        error = refusal(admin.store.preserve)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert isinstance(error, Unavailable)
    assert "full" in error.message
    assert admin.store.backups() == ()
    kept = town.house.storage.kept
    assert kept is not None
    assert kept.shelf.names("ledger") == kept.shelf.names("contents") == []
    assert admin.store.preserve().blobs == 1, "as soon as there is room"


def test_bytes_that_are_broken_or_gone_are_said_and_hold_up_nothing(town: Town, tmp_path: Path) -> None:
    amal = town.as_("amal")
    for name in "abc":
        amal.store.put(f"blob:fraud/{name}", name.encode() * 5000, label=LABEL)
    one, two, _ = sorted(path for path in (tmp_path / "house/blobs/objects").rglob("*") if path.is_file())
    one.write_bytes(b"x" + one.read_bytes()[1:])
    two.unlink()
    made = town.as_("admin").store.preserve()
    assert (made.blobs, made.left) == (1, 2)
    assert all(left.digest and left.zone == "ae-dubai" and left.why for left in made.left_first)


class TestDrill:
    def test_it_proves_itself_and_says_so_once(
        self, town: Town, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (scratch := tmp_path / "scratch").mkdir()
        monkeypatch.setattr(tempfile, "tempdir", str(scratch))  # others drill at the same time
        town.as_("amal").store.put("blob:fraud/a", b"a" * 5000, label=LABEL)
        admin = town.as_("admin")
        admin.store.preserve()
        found = admin.store.drill()
        assert found.ok, found
        assert (found.logs, found.blobs, found.opened) == (3, 1, 1)
        told = [
            dict(event.body) for event in town.events(SYSTEM_TENANT, verb="store.drill") if "phase" not in event.body
        ]
        assert len(told) == 1
        assert (told[0]["ok"], told[0]["root"], told[0]["rows"]) == (1, found.root, found.rows)
        assert not [*scratch.glob("falaj-drill-*")]

    @pytest.mark.parametrize("what", ["flip", "cut", "missing", "contents", "manifest", "blob", "no blob"])
    def test_a_damaged_backup_fails_it_loudly(self, what: str, town: Town, tmp_path: Path) -> None:
        town.as_("amal").store.put("blob:fraud/a", b"a" * 5000, label=LABEL)
        admin = town.as_("admin")
        admin.store.preserve()
        start = {"contents": "contents~", "manifest": "backups~", "blob": "blobs~", "no blob": "blobs~"}
        (file,) = files(tmp_path, start.get(what, "ledger~"))
        data = file.read_bytes()
        if what in ("missing", "no blob"):
            file.unlink()
        elif what == "cut":
            file.write_bytes(data[: len(data) // 2])
        else:
            file.write_bytes(data[:100] + bytes([data[100] ^ 1]) + data[101:])
        found = admin.store.drill()
        assert not found.ok
        assert found.wrong
        (told,) = [event.body for event in town.events(SYSTEM_TENANT, verb="store.drill") if "phase" not in event.body]
        assert told["ok"] == 0
        assert told["why"]

    def test_the_log_of_another_house_is_not_the_beginning_of_ours(self, town: Town, tmp_path: Path) -> None:
        other = Town(tmp_path / "other", **{"backup.to": f"dir:{tmp_path}/shelf"})
        shutil.rmtree(tmp_path / "other/keys")
        other.as_("admin").store.preserve()
        found = town.as_("admin").store.drill()
        assert not found.ok
        assert any("is not the beginning" in wrong for wrong in found.wrong), found.wrong
        other.close()

    def test_without_a_backup_it_fails(self, town: Town) -> None:
        found = town.as_("admin").store.drill()
        assert not found.ok
        assert "there is no backup" in found.wrong[0]
        assert isinstance(refusal(town.as_("amal").store.drill), Denied)


class TestRestore:
    def test_the_newest_or_a_named_one(self, town: Town, tmp_path: Path) -> None:
        amal, admin = town.as_("amal"), town.as_("admin")
        amal.store.put("blob:fraud/a", os.urandom(17_000_000), label=LABEL)
        whole = amal.store.get("blob:fraud/a").read()
        first = admin.store.preserve()
        amal.store.put("blob:fraud/b", b"b", label=LABEL)
        admin.store.preserve()
        house, report = again(tmp_path, "new")
        assert as_amal(house, town).store.get("blob:fraud/b").read() == b"b"
        assert as_amal(house, town).store.get("blob:fraud/a").read() == whole
        (told,) = house.ledger.tail(tenant=SYSTEM_TENANT, verb="store.restore")
        assert told.event.body["root"] in {log.root for log in report.logs}
        assert report.erased == report.left == 0
        house.close()
        old, _ = again(tmp_path, "old", first.name)
        assert as_amal(old, town).store.get("blob:fraud/a").read() == whole
        assert isinstance(refusal(lambda: as_amal(old, town).store.get("blob:fraud/b")), NotFound)
        old.close()
        with pytest.raises(Conflict):
            restore_from_target(load_settings(str(tmp_path / "old")), f"dir:{tmp_path}/shelf")

    def test_curves_come_back(self, town: Town, tmp_path: Path) -> None:
        amal = town.as_("amal")
        amal.track.create("experiment:fraud/loss")
        run = amal.track.start("experiment:fraud/loss").ref
        amal.track.log(run, metrics=[{"key": "loss", "value": 1.0 / (n + 1), "step": n, "at": 1.0} for n in range(50)])
        curve = amal.track.history(run, "loss")
        made = town.as_("admin").store.preserve()
        assert town.as_("admin").store.drill().ok
        house, report = again(tmp_path, "new")
        assert report.series > 0
        assert as_amal(house, town).track.history(run, "loss") == curve
        house.close()
        (file,) = files(tmp_path, "series~")
        file.write_bytes(file.read_bytes()[:-1])
        with pytest.raises(CorruptData, match="series"):
            again(tmp_path, "another", made.name)
        assert not town.as_("admin").store.drill().ok

    def test_without_the_right_root_keys_nothing_is_restored(self, town: Town, tmp_path: Path) -> None:
        town.as_("admin").store.preserve()
        home = tmp_path / "new"
        with pytest.raises(Unavailable, match="root keys"):
            restore_from_target(load_settings(str(home)), f"dir:{tmp_path}/shelf")
        assert not (home / "falaj.toml").exists()
        (home / "keys").rmdir()
        shutil.copytree(tmp_path / "house/keys", home / "keys")
        restore_from_target(load_settings(str(home)), f"dir:{tmp_path}/shelf")

    def test_lost_bytes_undo_all_of_it(self, town: Town, tmp_path: Path) -> None:
        town.as_("amal").store.put("blob:fraud/a", b"a" * 5000, label=LABEL)
        town.as_("admin").store.preserve()
        (file,) = files(tmp_path)
        data = file.read_bytes()
        file.write_bytes(b"x" + data[1:])
        with pytest.raises(CorruptData):
            again(tmp_path, "new")
        file.write_bytes(data)
        restore_from_target(load_settings(str(tmp_path / "new")), f"dir:{tmp_path}/shelf")

    @pytest.mark.parametrize("later", ["backup", "mark"])
    def test_who_was_forgotten_since_stays_forgotten(self, later: str, town: Town, tmp_path: Path) -> None:
        ring, admin = town.house.keyring, town.as_("admin")
        ctx = replace(town.house.system(), tenant="bank")
        sealed = ring.subject_seal("bank", "ae-dubai", "Maryam", b"her file")
        other = ring.subject_seal("bank", "ae-dubai", "Omar", b"his file")
        old = admin.store.preserve()
        ring.subject_forget(ctx, "ae-dubai", "Maryam")
        kept = town.house.storage.kept
        assert kept is not None
        if later == "backup":
            admin.store.preserve()
        else:
            assert kept.mark_erased(town.house.system()) == 1
            assert kept.mark_erased(town.house.system()) == 0
        house, report = again(tmp_path, "new", old.name)
        assert report.erased == 1
        assert isinstance(refusal(lambda: house.keyring.subject_open("bank", "ae-dubai", sealed)), NotFound)
        assert isinstance(refusal(lambda: house.keyring.subject_seal("bank", "ae-dubai", "Maryam", b"")), Denied)
        assert house.keyring.subject_open("bank", "ae-dubai", other) == b"his file"
        (told,) = house.ledger.tail(tenant="bank", verb="subjects.forget")
        assert told.event.body["zone"] == "ae-dubai"
        assert house.ledger.tail(tenant=SYSTEM_TENANT, verb="store.restore")[0].event.body["erased"] == 1
        house.close()

    def test_an_erasure_that_was_certified_since_is_named(self, town: Town, tmp_path: Path) -> None:
        """Rows that it deleted beside the key are back with the older backup: somebody must do it again."""
        old = town.as_("admin").store.preserve()
        with town.house.ledger.write(replace(town.house.system(), tenant="bank")) as tx:
            tx.emit("privacy.certify", Ref("request", "privacy", "q-1", "r4"), digest="sha256:0", person="p")
        town.as_("admin").store.preserve()
        house, report = again(tmp_path, "new", old.name)
        house.close()
        assert report.repeat == ("bank: q-1",)


class TestSecondZone:
    def test_a_zone_that_nobody_named_gets_nothing(self, tmp_path: Path) -> None:
        town = town_at(tmp_path, **{"backup.zone": "eu-west"})
        error = refusal(town.as_("admin").store.preserve)
        assert isinstance(error, Denied)
        assert "backup_zone=eu-west" in error.hint
        assert files(tmp_path, "ledger~") == []
        town.close()

    def test_what_may_not_lie_there_stays_and_says_so_after_a_restore(self, tmp_path: Path) -> None:
        town = town_at(tmp_path, **{"backup.zone": "eu-west"})
        admin, amal = town.as_("admin"), town.as_("amal")
        admin.zones.change("ae-dubai", {"backup_zone": "eu-west"})
        amal.store.put("blob:fraud/customers", b"their names", label=LABEL)
        amal.store.put("blob:fraud/weather", b"sunny", label="open")
        amal.store.put("blob:fraud/both", b"sunny", label=LABEL)
        big = os.urandom(17_000_000)
        amal.store.put("blob:fraud/map", big, label="open")
        made = admin.store.preserve()
        stayed = {left.thing: left.why for left in made.left_first}
        assert stayed.keys() == {f"blob:fraud/{name}@v1" for name in ("customers", "both", "weather")}
        assert "AE-PDPL" in stayed["blob:fraud/customers@v1"]
        assert "shares bytes" in stayed["blob:fraud/weather@v1"]
        assert made.blobs == 2, "the same bytes under a label that stays do not go under another"
        assert admin.store.drill(all_blobs=True).ok
        town.close()
        with pytest.raises(Denied, match="eu-west"):
            again(tmp_path, "wrong", zone="ae-abudhabi")
        house, report = again(tmp_path, "new", zone="eu-west")
        here = as_amal(house, town)
        assert here.store.get("blob:fraud/map").read() == big
        assert here.store.show("blob:fraud/map").zones == ("ae-dubai", "eu-west")
        for name in ("customers", "both", "weather"):
            error = refusal(lambda name=name: here.store.get(f"blob:fraud/{name}"))
            assert isinstance(error, (Unavailable, Denied)), error
            assert "ae-dubai" in error.message
        assert report.left >= 3
        assert report.zone == "eu-west"
        assert here.store.put("blob:fraud/new", b"after", label="open").version == "v1"
        (told,) = house.ledger.tail(tenant=SYSTEM_TENANT, verb="store.restore")
        assert told.event.body["zone"] == "eu-west"
        house.close()

    def test_killed_on_the_way_it_goes_on_where_it_was(self, tmp_path: Path) -> None:
        town = town_at(tmp_path, **{"backup.zone": "eu-west"})
        town.as_("admin").zones.change("ae-dubai", {"backup_zone": "eu-west"})
        town.as_("amal").store.put("blob:fraud/weather", b"sunny", label="open")
        town.as_("admin").store.preserve()
        town.close()
        home = tmp_path / "new"
        home.mkdir(mode=0o700)
        shutil.copytree(tmp_path / "house/keys", home / "keys")
        words = [sys.executable, "-c", DYING, str(home), f"dir:{tmp_path}/shelf"]
        assert subprocess.run(words, cwd=ROOT, check=False).returncode == -signal.SIGKILL
        settings = load_settings(str(home))
        half = Server(settings)
        error = refusal(lambda: as_amal(half, town).store.get("blob:fraud/weather"))
        assert isinstance(error, Unavailable)
        assert "stayed in zone ae-dubai" in error.message
        half.close()
        assert restore_from_target(settings, f"dir:{tmp_path}/shelf").left == 0
        with pytest.raises(Conflict):
            restore_from_target(settings, f"dir:{tmp_path}/shelf")
        house = Server(settings)
        assert as_amal(house, town).store.get("blob:fraud/weather").read() == b"sunny"
        house.close()


DYING = """
import os, sys
from falaj.api.platform_metrics import PlatformMetrics
from falaj.cli.restore import restore_from_target
from falaj.server import load_settings
from falaj.store.blob_store import BlobStore
BlobStore.carry = lambda *words: os.kill(os.getpid(), 9)
restore_from_target(load_settings(sys.argv[1], {"zone": "eu-west"}), sys.argv[2])
"""


def test_it_is_the_same_over_http(tmp_path: Path) -> None:
    with Replica(tmp_path / "house", {"FALAJ_BACKUP_TO": f"dir:{tmp_path}/shelf"}) as replica:
        admin = replica.as_()
        wait_until(lambda: len(admin.store.backups()) == 1, 60)
        found = admin.store.drill()
    assert found.ok, found
    assert found.logs == 1


def test_the_age_of_the_newest_is_told_beside_everything_else(town: Town) -> None:
    def told() -> dict[str, float]:
        return {one.name: one.rows[0][2] for one in PlatformMetrics(town.house).families() if one.rows}

    assert told()["falaj_backup_newest_timestamp_seconds"] == 0
    town.as_("amal").store.put("blob:fraud/a", b"a", label=LABEL)
    made = town.as_("admin").store.preserve()
    found = told()
    assert found["falaj_backup_newest_timestamp_seconds"] == made.at
    assert found["falaj_backup_every_seconds"] == DAY
    assert found["falaj_blobs_objects"] == 1, "where loops stand is kept beside objects, and is none"


def test_what_lies_on_a_shelf_is_read_with_care(town: Town, tmp_path: Path) -> None:
    made = town.as_("admin").store.preserve()
    kept = town.house.storage.kept
    assert kept is not None
    shelf: BackupTarget = kept.shelf
    for name in ("../x", "no-such", "x" * 100):
        assert refusal(lambda name=name: shelf.manifest(name)).code in ("invalid", "not-found")
    plain = msgspec.json.decode(b"".join(shelf.store.open(f"backups/{made.name}")))
    for change in ({"format": "falaj-shelf-9"}, {"name": "20200101T000000000Z-00000000"}, {"logs": 3}):
        shelf.store.put(f"backups/{made.name}", [msgspec.json.encode({**plain, **change})])
        assert refusal(lambda: shelf.manifest(made.name)).code in ("invalid", "corrupt")
