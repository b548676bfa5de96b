"""What things cost in bytes: the figures of docs/operate/sizing.md. Run by `make bench NAME=sizing`.

`disk`: what a folder grows by for an event, a run, a version, a job and a blob. `memory`: what `falaj up`, its
gateway, a replica of a small model and an open event stream hold (PSS: memory that is shared is divided among its
holders). The bars are what the page promises, so that it stays true.
"""

import contextlib
import http.client
import os
import sqlite3
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from bars import bar, told
from scratch import folder

import falaj
from falaj.jobs.records import ENDED_STATES
from falaj.track.records import Metric
from tests.infer.models import mlp
from tests.jobs.lab import until
from tests.people import enroll, enroll_tenant
from tests.replica import Replica
from tests.stories.serving_ground import SCORE, SMALL, platform, published

MANY = int(os.environ.get("MANY", "100"))
STREAMS, POINTS = 16, 100
KIB, MIB = 1 << 10, 1 << 20


def disk() -> None:
    """KiB on disk for one of each, besides the bytes that were given."""
    with folder() as home, Replica(home / "house", {"FALAJ_GATEWAY": ""}) as running:
        here = running.as_(_somebody(running))
        (home / "data").mkdir()
        for name, limit, act in _acts(here, home / "data"):
            many = MANY // 5 if name in ("version", "job") else MANY  # these take the longest
            act(0)
            before, count = _used(home / "house"), _events(running)
            for number in range(1, many + 1):
                act(number)
            grown, events = _used(home / "house") - before, _events(running) - count
            note = f"{events / many:.1f} events each; {grown / max(1, events):.0f} bytes an event"
            bar(f"{name}_kib", grown / many / KIB, "<=", limit, note)
        began, before = time.monotonic(), _used(home / "house")
        while (left := 60 - (time.monotonic() - began)) > 0:
            time.sleep(min(1.0, left))  # what an idle house writes by itself
        bar("idle_mib_a_day", (_used(home / "house") - before) * 1440 / MIB, "<=", 50, "seen for a minute")


def memory() -> None:
    """MiB of each process, and of a stream."""
    with folder() as home, Replica(home / "house", _alone(home)) as running:
        token, pid = _somebody(running), running.process.pid
        here = running.as_(token)
        here.track.create("experiment:bench/sizing")
        for _ in range(50):
            here.track.start("experiment:bench/sizing")
        before = _pss(pid)
        bar("platform_mib", before / MIB, "<=", 400)
        with contextlib.ExitStack() as open_:
            for _ in range(STREAMS):
                open_.enter_context(_stream(running, token))
            until(lambda: _told(running, "falaj_open_event_streams"), lambda value: value >= STREAMS)
            bar("stream_kib", (_pss(pid) - before) / STREAMS / KIB, "<=", 512, f"{STREAMS} open")
    # Replicas run as users of their own, who must be able to reach the folder.
    with tempfile.TemporaryDirectory() as scratch, platform(Path(scratch)) as bank:
        Path(scratch).chmod(0o755)
        model = Path(scratch) / "model"
        model.mkdir()
        mlp(model)
        bank.here.serve.deploy(SCORE, str(published(bank, model)), wait=True, **SMALL)
        bank.door()
        bar("gateway_mib", _largest("gateway", scratch) / MIB, "<=", 200)
        bar("replica_mib", _largest("falaj.infer", scratch) / MIB, "<=", 250, "an ONNX model of 30 kB")


def _alone(home: Path) -> dict[str, str]:
    """A platform without a gateway."""
    return {"FALAJ_GATEWAY": "", "FALAJ_CACHE": str(home / "cache")}


def _somebody(running: Replica) -> str:
    """The token of somebody who may do all of this."""
    boss = running.as_(enroll_tenant(running.as_(), "bank", "fatima"))
    running.as_().clusters.change("local", {"tenants": "bank"})
    made: str = enroll(boss, "mona", ("ml-engineer", "data-scientist", "auditor"), jurisdiction="AE")
    return made


def _acts(here: Any, data: Path) -> Iterator[tuple[str, float, Callable[[int], Any]]]:
    def run(number: int) -> None:
        ref = here.track.start("experiment:bench/sizing", params={"n": str(number)}).ref
        here.track.log(ref, tuple(Metric("loss", 1 / (step + 1), step=step) for step in range(POINTS)))
        here.track.end(ref)

    def version(number: int) -> None:
        (data / "rows.csv").write_text(f"a,b\n{number},2\n")
        here.catalog.publish("dataset:bench/d", str(data))

    here.track.create("experiment:bench/sizing")
    yield "event", 10, lambda number: here.audit.attest(f"sha256:{number:064x}", "sizing")
    yield "run", 40, run
    yield "version", 60, version

    def job(number: int) -> None:
        script = data / "nothing.py"
        script.write_text("print('done')\n")
        made = here.jobs.submit(str(script), name=f"j{number}", project="bench", cpus=0.1, memory="32MiB")
        until(lambda: here.jobs.show(made.ref), lambda one: one.state in ENDED_STATES)

    yield "job", 150, job
    yield "blob", 20, lambda number: here.store.put(f"blob:bench/b{number}", f"{number}".encode())


def _used(home: Path) -> int:
    """Bytes of the disk below a folder, logs of databases folded into their tables first."""
    for base in home.rglob("*-wal"):
        with contextlib.closing(sqlite3.connect(base.with_name(base.name.removesuffix("-wal")), timeout=30)) as db:
            db.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
    total = 0
    for path in home.rglob("*"):
        with contextlib.suppress(OSError):
            # What attempts leave behind is cleared by itself.
            passing = path.name.endswith(("-wal", "-shm")) or "attempts" in path.relative_to(home).parts
            total += path.stat().st_blocks * 512 if path.is_file() and not passing else 0
    return total


def _events(running: Replica) -> float:
    return _told(running, "falaj_ledger_events_total")


def _told(running: Replica, name: str) -> float:
    place = urlsplit(running.url)
    line = http.client.HTTPConnection(str(place.hostname), place.port, timeout=60)
    line.request("GET", "/metrics", headers={"authorization": f"Bearer {running.token}"})
    rows = line.getresponse().read().decode().splitlines()
    line.close()
    return sum(float(row.rpartition(" ")[2]) for row in rows if row.startswith((f"{name}{{", f"{name} ")))


@contextlib.contextmanager
def _stream(running: Replica, token: str) -> Iterator[None]:
    place = urlsplit(running.url)
    line = http.client.HTTPConnection(str(place.hostname), place.port, timeout=60)
    line.request("GET", "/v1/events", headers={"authorization": f"Bearer {token}"})
    answer = line.getresponse()
    if answer.status != 200:
        raise SystemExit(answer.read())
    try:
        yield
    finally:
        line.close()


def _largest(word: str, scratch: str) -> int:
    """The largest process of ours with that word on its command line."""
    found = [0]
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                words = (entry / "cmdline").read_bytes().decode().split("\0")
                ours = scratch in " ".join(words) + (entry / "environ").read_bytes().decode(errors="replace")
                found += [_pss(int(entry.name))] if ours and word in words else []
    return max(found)


def _pss(pid: int) -> int:
    rows = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return next(int(row.split()[1]) for row in rows if row.startswith("Pss:")) * KIB


if __name__ == "__main__":
    told("sizing", [disk, memory], falaj=falaj.__version__)
