"""What is looked at when all is calm: every register, the log, jobs, processes, leases, and the disk days later."""

import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg

from falaj.core.errors import FalajError, NotFound
from tests.servers.process import wait_until
from tests.soak import procs
from tests.soak.client import Notes
from tests.soak.grounds import Ground
from tests.soak.journal import Entry, Key, allowed, breaches, read
from tests.soak.load import ENDPOINT, checked_out, feature_of
from tests.soak.verdict import Check

CALM_S = 150.0
DAYS_S = 3 * 86_400


def settle(ground: Ground) -> list[Check]:
    """End what runs: jobs and flows to their ends, the endpoint's replicas away."""
    here = ground.at("mona")
    checks = []

    def left() -> list[str]:
        jobs = [job for job in here.jobs.list(project="soak", limit=1000).jobs if not job.ref.name.startswith("score")]
        runs = here.flows.runs(limit=1000).runs
        return [f"{one.ref} {one.state} {one.note[:80]}" for one in (*jobs, *runs) if not one.over]

    with closing(here):
        here.features.materialize("view:soak/seen")
        checks.append(_waits("every job and flow came to its end", lambda: not left(), CALM_S))
        checks[0].said += "".join(f"; {one}" for one in left()[:5])
        here.serve.stop(ENDPOINT)
        gone: Callable[[], bool] = lambda: not here.serve.show(ENDPOINT).replicas  # noqa: E731
        checks.append(_waits("the endpoint's replicas ended", gone, CALM_S))
    return checks


def _waits(name: str, holds: Callable[[], bool], deadline_s: float) -> Check:
    began = time.monotonic()

    def tried() -> bool:
        try:
            return holds()
        except FalajError:
            return False

    try:
        wait_until(tried, deadline_s)
    except TimeoutError:
        return Check(name, False, f"not within {deadline_s:.0f} s")
    return Check(name, True, f"after {time.monotonic() - began:.0f} s")


class Look:
    """Reads registers back, by kind. Every answer is a value, None for nothing, or a text that no register may have."""

    def __init__(self, ground: Ground) -> None:
        self.mona, self.omar = ground.at("mona", timeout_s=120), ground.at("omar", timeout_s=120)

    def all(self, keys: Iterable[Key]) -> dict[Key, str | None]:
        """The value of every register."""
        by: dict[str, list[str]] = {}
        for kind, key in keys:
            by.setdefault(kind, []).append(key)
        found: dict[Key, str | None] = {}
        for kind, names in by.items():
            found |= {(kind, name): value for name, value in getattr(self, f"_{kind}s")(names).items()}
        return found

    def _each(self, names: list[str], look: Callable[[str], str | None]) -> dict[str, str | None]:
        found = {}
        for name in names:
            try:
                found[name] = look(name)
            except NotFound:
                found[name] = None
            except FalajError as error:
                found[name] = f"{error.code}: {error}"
        return found

    def _blobs(self, names: list[str]) -> dict[str, str | None]:
        from hashlib import sha256

        def look(name: str) -> str:
            ref, digest = self.mona.store.show(name).ref, sha256(self.mona.store.get(name).read()).hexdigest()
            return digest if ref.version == "v1" else f"{digest} as {ref}"

        return self._each(names, look)

    def _datasets(self, names: list[str]) -> dict[str, str | None]:
        return self._each(names, lambda ref: checked_out(self.mona, ref))

    def _aliass(self, names: list[str]) -> dict[str, str | None]:
        return self._each(names, lambda name: str(self.mona.catalog.show(f"{name}@best").ref.version))

    def _runs(self, names: list[str]) -> dict[str, str | None]:
        return self._each(names, lambda run: str(self.mona.track.show(run).status))

    def _pointss(self, names: list[str]) -> dict[str, str | None]:
        curves: dict[str, dict[int, list[float]]] = {}

        def look(name: str) -> str | None:
            run, _, first = name.partition("|")
            if run not in curves:
                points = curves.setdefault(run, {})
                for one in self.mona.track.history(run, "loss").points:
                    points.setdefault(one.step, []).append(one.value)
            values = [value for step in range(int(first), int(first) + 3) for value in curves[run].get(step, [])]
            return repr(values) if values else None

        return self._each(names, look)

    def _jobs(self, names: list[str]) -> dict[str, str | None]:
        def look(name: str) -> str:
            job = self.mona.jobs.show(name)
            if job.state != "succeeded":
                return str(job.state)
            good = sum(one.outcome.startswith("succeeded") for one in job.attempts)
            versions = self.mona.catalog.list(kind="dataset", project="soak", name=f"out-{job.ref.name}").versions
            made = " ".join(str(one.ref.version) for one in versions)
            return f"succeeded {'once' if good == 1 else f'{good} times'} {made}"

        return self._each(names, look)

    def _features(self, names: list[str]) -> dict[str, str | None]:
        return self._each(names, lambda who: feature_of(self.mona, who))

    def _flows(self, names: list[str]) -> dict[str, str | None]:
        runs: dict[str, list[Any]] = {}
        for run in self.mona.flows.runs(limit=1000).runs:
            runs.setdefault(run.cause, []).append(run)

        def look(cause: str) -> str | None:
            if not (mine := runs.get(cause)):
                return None
            gave = {step.name: step.outputs for step in self.mona.flows.look(mine[0].ref).steps}
            twice = "" if len(mine) == 1 else f" {len(mine)} times"
            return f"{mine[0].state} {gave.get('add')}{twice}"

        return self._each(names, look)

    def _approvals(self, names: list[str]) -> dict[str, str | None]:
        counts = dict.fromkeys(names, 0)
        older = ""
        while True:
            page = self.omar.audit.log(verb="approvals.ask", limit=500, older=older)
            for entry in page.entries:
                digest = str(entry.body.get("digest"))
                counts[digest] = counts.get(digest, 0) + 1
            if not (older := page.older):
                return {name: str(counts[name]) if counts[name] else None for name in names}

    def _checkpoints(self, names: list[str]) -> dict[str, str | None]:
        roots: dict[str, str] = {}
        before = 0
        while points := self.omar.audit.checkpoints(limit=100, before=before):
            roots |= {str(point.size): str(point.root) for point in points}
            before = points[-1].number
            if before <= 1:
                break
        return {name: roots.get(name) for name in names}


def kept(ground: Ground, notes: Notes, when: str) -> Check:
    """Nothing acknowledged is lost, doubled or altered."""
    entries = read(notes.journal.path)
    found = Look(ground).all(allowed(entries))
    return judged(entries, found, f"all that was acknowledged is there{when}")


def judged(entries: list[Entry], found: dict[Key, str | None], name: str) -> Check:
    """The check over registers; the first breaches by name."""
    broken = breaches(entries, found)
    acknowledged = sum(entry.told == "ack" for entry in entries)
    if not broken:
        return Check(name, True, f"{acknowledged} acknowledged writes, {len(allowed(entries))} things")
    return Check(name, False, f"{len(broken)} are not: " + "; ".join(str(one) for one in broken[:8]))


def log_verified(ground: Ground) -> list[Check]:
    """By the platform itself, and by the verifier that auditors keep, in a process without anything of ours."""
    with closing(ground.at("omar", timeout_s=120)) as omar:
        found = omar.audit.check()
        pack, verifier = ground.folder / "evidence.zip", ground.folder / "falaj_verify.py"
        pack.write_bytes(omar.audit.export().read())
        verifier.write_bytes(omar.audit.verifier().read())
    return [Check("the log agrees with its root", found.ok, str(found)[:200]), offline(pack, verifier)]


def offline(pack: Path, verifier: Path) -> Check:
    """What the offline verifier says of a pack."""
    done = subprocess.run(
        [sys.executable, "-I", str(verifier), str(pack)], capture_output=True, text=True, check=False, cwd=pack.parent
    )
    said = (done.stdout + done.stderr).strip().splitlines()
    return Check("the log verifies offline", done.returncode == 0, said[0][:200] if said else "it said nothing")


def no_orphans(ground: Ground, before: set[int]) -> list[Check]:
    """No process of an attempt while all is calm, none that nobody waits for; and none at all once it was ended."""
    replica_pids = [up.pid for up in ground.ups]

    def find_running_services() -> set[int]:
        """Return the pids of running replicas and their services; a nursery replaces its idle launcher at any time."""
        nurseries = procs.nurseries(replica_pids)
        services = {*procs.gateways(replica_pids), *nurseries, *procs.find_idle_launchers(nurseries)}
        return {*replica_pids, *services}

    def left(expected: set[int]) -> list[procs.Proc]:
        unexpected = (process for process in procs.ours() if process.pid not in expected | before)
        return [process for process in unexpected if not _of_servers(ground, process)]

    calm = _waits("no process is left over", lambda: not left(find_running_services()), 60)
    calm.said += "".join(f"; {process}" for process in left(find_running_services())[:5])
    codes = [up.stop() for up in ground.ups]
    gone = _waits("ended, it leaves no process", lambda: not left(set()), 30)
    gone.said += "".join(f"; {process}" for process in left(set())[:5])
    return [calm, Check("it ends when it is told to", all(code == 0 for code in codes), f"codes {codes}"), gone]


def _of_servers(ground: Ground, one: procs.Proc) -> bool:
    roots = {server.pid for server in ground.servers.values()}
    return one.pid in roots or one.parent in roots


def no_leases(ground: Ground) -> Check:
    """Nobody who is gone holds anything for longer than a lease lasts."""
    import sqlite3

    query = "SELECT name, owner, until FROM leases WHERE owner <> ''"
    if ground.servers:
        with psycopg.connect(ground.database) as connection:  # type: ignore[attr-defined]
            rows = connection.execute(query).fetchall()
    else:
        with closing(sqlite3.connect(ground.home / "ledger.db")) as connection:
            rows = connection.execute(query).fetchall()
    held = [f"{name} {until - time.time():+.0f} s" for name, _, until in rows if until > time.time() + 60]
    return Check("no lease is held by the dead", not held, ", ".join(held[:5]))


def tidy(ground: Ground) -> Check:
    """No half-written file, and no scratch folder, is left where it was worked."""
    parts = [
        str(path.relative_to(ground.home))
        for path in ground.home.rglob("*")
        if path.suffix in (".part", ".tmp", ".new") or path.name.startswith((".tmp", "tmp"))
    ]
    parts += [f"tmp/{path.name}" for path in ground.scratch.iterdir()]
    return Check("no half-written file is left", not parts, ", ".join(parts[:5]))


def days_later(ground: Ground, notes: Notes) -> list[Check]:
    """With the clock days on, take back the space that nothing needs; what was acknowledged is still there."""
    if not ground.can_jump or ground.servers:
        return []  # an S3 server refuses whoever says that it is tomorrow
    before = _size(ground)
    ground.ups[0].start()
    ground.ups[0].await_ready()
    with closing(ground.at("ola", timeout_s=120)) as ola:
        deleted = 0
        for day in (1, 2, 3):
            ground.ups[0].clock.jump(day * 86_400)
            ground.ups[0].await_ready()
            deleted += ola.store.collect().deleted
    erased = sum(entry.value is None and entry.kind == "blob" for entry in read(notes.journal.path))
    said = f"{deleted} objects of {erased} deleted things, {before} -> {_size(ground)} KiB"
    return [Check("space is taken back", deleted >= erased // 2, said), kept(ground, notes, " days later")]


def _size(ground: Ground) -> int:
    folder = ground.home / "blobs"
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) >> 10 if folder.is_dir() else 0
