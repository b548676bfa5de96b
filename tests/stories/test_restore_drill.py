"""A house works, is backed up by its own loop, is destroyed, and stands again on the other engine, proved by its log.

On SQLite and folders, and on PostgreSQL and an object store. A damaged backup fails the drill loudly; a second zone
gets what may lie there and nothing else.
"""

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import falaj
from falaj.audit.merkle import verify_consistency
from falaj.audit.service import verify_pack
from falaj.audit.signed_note import decode_base64
from falaj.core.errors import Denied, Unavailable
from tests.replica import FALAJ
from tests.servers.process import wait_until
from tests.servers.seaweed import SeaweedServer
from tests.town import LABEL, Town, refusal

ZONE = "ae-dubai"
DATA = os.urandom(17_500_000)
Ground = tuple[str, dict[str, str]]
"""Where backups go, and the settings of a house."""


@pytest.fixture
def s3(s3_server: SeaweedServer, new_s3: Callable[[], Any], monkeypatch: pytest.MonkeyPatch) -> Callable[[], str]:
    """New buckets, by their addresses; who we are comes from the environment."""
    for name, value in s3_server.environment.items():
        monkeypatch.setenv(name, value)
    return lambda: f"{new_s3().url}?endpoint={s3_server.endpoint}&region=us-east-1&allow_http=true"


@pytest.fixture(params=["laptop", "cluster"])
def grounds(
    request: pytest.FixtureRequest, tmp_path: Path, s3: Callable[[], str], new_postgres: Callable[[], str]
) -> tuple[Ground, Ground]:
    """Where a house stands, and where it shall stand again: on the other engine."""
    small = (f"dir:{tmp_path}/shelf", {"store": "sqlite:{home}/ledger.db", "blobs": "dir:{home}/blobs"})
    large = (s3(), {"store": new_postgres(), "blobs": s3()})
    return (small, large) if request.param == "laptop" else (large, small)


def test_a_house_is_destroyed_and_stands_again(grounds: tuple[Ground, Ground], tmp_path: Path) -> None:
    (shelf, settings), (_, others) = grounds
    town = Town(tmp_path / "house", **settings, **{"backup.to": shelf})
    refs = _work(town, tmp_path)
    town.house.start_loops()
    admin = town.as_("admin")
    wait_until(lambda: len(admin.store.backups()) == 1, 90)
    town.house.stop_loops()
    drilled = admin.store.drill(all_blobs=True)
    assert drilled.ok, drilled
    assert drilled.opened == drilled.blobs > 2
    roots = {(log.tenant, log.zone): log for log in admin.store.backups()[0].logs}
    tokens = town.tokens
    town.close()
    keys = tmp_path / "keys-of-the-safe"
    shutil.copytree(tmp_path / "house/keys", keys)
    shutil.rmtree(tmp_path / "house")

    home = tmp_path / "again"
    home.mkdir(mode=0o700)
    (home / "falaj.toml").write_text(
        "".join(f'{name} = "{value}"\n' for name, value in {**others, "zone": ZONE, "secrets": f"file:{keys}"}.items())
    )
    done = _falaj("restore", shelf, "--at", str(home))
    assert done.returncode == 0, done.stderr
    assert _falaj("restore", shelf, "--at", str(home)).returncode == 6, "a restore went over a house that stands"
    with falaj.connect(str(home), token=tokens["amal"], purpose="fraud") as here:
        assert here.store.get("blob:fraud/sample").read() == DATA
        here.catalog.checkout(refs["dataset"], str(tmp_path / "out"))
        assert (tmp_path / "out/rows.csv").read_text() == "a,b\n1,2\n"
        assert here.store.put("blob:fraud/sample", b"goes on", label=LABEL).version == "v2"
    _proved(home, tokens["omar"], roots["bank", ZONE], tmp_path)


def _work(town: Town, tmp_path: Path) -> dict[str, Any]:
    amal = town.as_("amal")
    amal.store.put("blob:fraud/sample", DATA, label=LABEL)
    folder = tmp_path / "rows"
    folder.mkdir()
    (folder / "rows.csv").write_text("a,b\n1,2\n")
    return {"dataset": amal.catalog.publish("dataset:fraud/rows", str(folder), label=LABEL).ref}


def _proved(home: Path, token: str, log: Any, tmp_path: Path) -> None:
    """The log goes on where the backup's ended, under one signed root, and the offline verifier agrees."""
    with falaj.connect(str(home), token=token) as here:
        newest = here.audit.seal()
        assert newest.size > log.size
        grown = here.audit.consistency(log.size, newest.size)
        hashes, now = [bytes.fromhex(text) for text in grown.hashes], decode_base64(newest.root)
        assert verify_consistency(log.size, newest.size, bytes.fromhex(log.root), now, hashes)
        assert here.audit.check().ok
        pack = tmp_path / "evidence.zip"
        pack.write_bytes(here.audit.export().read())
    assert verify_pack(pack).ok


def test_a_damaged_backup_fails_the_drill_of_the_command(tmp_path: Path) -> None:
    town = Town(tmp_path / "house", **{"backup.to": f"dir:{tmp_path}/shelf"})
    _work(town, tmp_path)
    town.close()
    home = str(tmp_path / "house")
    (tmp_path / "house/falaj.toml").write_text(f'zone = "{ZONE}"\n[backup]\nto = "dir:{tmp_path}/shelf"\n')
    assert _falaj("store", "preserve", "--at", home).returncode == 0
    good = _falaj("restore", "--drill", "--all-blobs", "--at", home)
    assert good.returncode == 0, good.stderr + good.stdout
    (ledger,) = (tmp_path / "shelf/objects").rglob("ledger~*")
    data = ledger.read_bytes()
    ledger.write_bytes(data[:5000] + bytes([data[5000] ^ 1]) + data[5001:])
    bad = _falaj("restore", "--drill", "--at", home)
    assert bad.returncode == 1
    assert "damaged" in bad.stdout
    with falaj.connect(home, zone=ZONE) as here:
        told = [one.body["ok"] for one in here.audit.log(verb="store.drill").entries if "phase" not in one.body]
        assert [str(one) for one in told] == ["0", "1"], "newest first: both are in the log"
        found = {one.what for one in here.audit.findings().findings}
    assert "the newest restore drill failed" in found


def test_a_second_zone_gets_what_may_lie_there_and_stands(tmp_path: Path) -> None:
    town = Town(tmp_path / "house", **{"backup.to": f"dir:{tmp_path}/shelf", "backup.zone": "eu-west"})
    refs = _work(town, tmp_path)
    folder = tmp_path / "open"
    folder.mkdir()
    (folder / "weather.csv").write_text("day,sun\n1,1\n")
    amal, admin = town.as_("amal"), town.as_("admin")
    weather = amal.catalog.publish("dataset:fraud/weather", str(folder), label="open").ref
    assert isinstance(refusal(admin.store.preserve), Denied), "nobody named that zone as the backup zone"
    admin.zones.change(ZONE, {"backup_zone": "eu-west"})
    made = admin.store.preserve()
    stayed = {left.thing for left in made.left_first}
    assert {"blob:fraud/sample@v1", str(refs["dataset"])} <= stayed
    assert not any("weather" in thing for thing in stayed)
    town.close()

    home = tmp_path / "far"
    home.mkdir(mode=0o700)
    shutil.copytree(tmp_path / "house/keys", home / "keys")
    done = _falaj("restore", f"dir:{tmp_path}/shelf", "--at", str(home), "--zone", "eu-west")
    assert done.returncode == 0, done.stderr
    with falaj.connect(str(home), token=town.tokens["amal"], purpose="fraud") as here:
        here.catalog.checkout(weather, str(tmp_path / "out"))
        assert (tmp_path / "out/weather.csv").read_text() == "day,sun\n1,1\n"
        for read in (
            lambda: here.store.get("blob:fraud/sample").read(),
            lambda: here.catalog.checkout(refs["dataset"], str(tmp_path / "no")),
        ):
            error = refusal(read)
            assert isinstance(error, (Denied, Unavailable)), error
            assert ZONE in error.message
    with falaj.connect(str(home)) as here:
        (told,) = here.audit.log(verb="store.restore").entries
        assert told.body["zone"] == "eu-west"


def _falaj(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*FALAJ, *words], capture_output=True, text=True, check=False, timeout=120)
