"""The ledger under fire: killed processes, restarted servers, full disks. Nothing acknowledged is ever lost."""

import os
import random
import resource
import signal
import subprocess
import sys
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest

from falaj.backends.postgres import PostgresLedgerStore
from falaj.core.context import Actor, CallContext
from falaj.core.errors import FalajError, StaleRevision, Unavailable
from falaj.core.ref import Ref
from falaj.store.backup import backup, restore
from falaj.store.ledger import Ledger
from tests.servers.postgres import PostgresServer
from tests.servers.process import wait_until
from tests.stories.ledger_writer import open_ledger, write

ROOT = Path(__file__).parents[2]
CTX = CallContext(Actor("ann", "acme"), "uae")


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:{tmp_path}/ledger.db"
    make: Callable[[], str] = request.getfixturevalue("new_postgres")
    return make()


def start(url: str, who: str, mode: str, *more: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tests.stories.ledger_writer", url, who, mode, *more]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)


def wait_for_the_dead(url: str) -> None:
    """The server may still carry out a dead client's last commit, between our reading of events and of records."""
    if url.startswith("sqlite"):
        return
    others = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
    with psycopg.connect(url, autocommit=True) as connection:
        wait_until(lambda: connection.execute(others).fetchone() == (0,), 30)


def verify(ledger: Ledger, acknowledged: set[tuple[str, int]]) -> None:
    """Every acknowledged write is there, nothing is there by half, and every writer's numbers have no hole."""
    cursor, said = "", defaultdict[str, list[int]](list)
    while facts := ledger.tail(cursor, limit=500):
        cursor = facts[-1].pos
        for fact in facts:
            said[fact.event.actor].append(int(fact.event.body["n"]))
    for who, numbers in said.items():
        assert numbers == list(range(len(numbers))), f"the log of {who} is dense and in order"
        held, after = set(), ""
        with ledger.read(CTX) as tx:
            while True:
                page = tx.find("thing", project=who, terms={"who": who}, after=after, limit=1000)
                held |= {record.body["n"] for record in page.records}
                after = page.next
                if not after:
                    break
        assert held == set(numbers), "a record for every event and an event for every record"
    there = {(who, n) for who, numbers in said.items() for n in numbers}
    assert acknowledged <= there


@pytest.mark.parametrize("mode", ["single", "group", "threads"])
def test_kill_at_any_moment_loses_nothing_acknowledged(url: str, mode: str) -> None:
    acknowledged: set[tuple[str, int]] = set()
    for life in range(3):
        process = start(url, f"life{life}", mode)
        assert process.stdout is not None
        stop_after = random.randint(5, 120)
        for _ in range(stop_after):
            line = process.stdout.readline()
            assert len(line.split()) == 2, f"the writer ended by itself: {line!r}, status {process.poll()}"
            acknowledged.add((line.split()[0], int(line.split()[1])))
        process.kill()
        for line in process.stdout.read().splitlines(keepends=True):
            if line.endswith("\n"):
                acknowledged.add((line.split()[0], int(line.split()[1])))
        process.wait()
        process.stdout.close()
        wait_for_the_dead(url)
        ledger = open_ledger(url)
        verify(ledger, acknowledged)
        write(ledger, "after", life)
        ledger.close()
    assert len(acknowledged) > 10


def test_processes_share_one_ledger(url: str) -> None:
    processes = [start(url, f"p{n}", mode, "42") for n, mode in enumerate(("single", "group", "threads"))]
    acknowledged = set()
    for process in processes:
        output, _ = process.communicate(timeout=100)
        assert process.returncode == 0, output
        acknowledged |= {(line.split()[0], int(line.split()[1])) for line in output.splitlines()}
    assert len(acknowledged) == 42 * 6
    ledger = open_ledger(url)
    verify(ledger, acknowledged)
    ledger.close()


def test_a_killed_backup_or_restore_leaves_an_empty_or_whole_store(url: str, tmp_path: Path) -> None:
    source = open_ledger(f"sqlite:{tmp_path}/source.db")
    with source.group():
        for n in range(3000):
            write(source, "w", n)
    path = str(tmp_path / "b.zip")
    report = backup(source, path)
    source.close()
    code = (
        "import sys, os\n"
        "from tests.stories.ledger_writer import open_ledger\n"
        "from falaj.store.backup import restore\n"
        "restore(open_ledger(sys.argv[1]), sys.argv[2], lambda rows: rows >= 4000 and os.kill(os.getpid(), 9))\n"
    )
    done = subprocess.run([sys.executable, "-c", code, url, path], cwd=ROOT, check=False)
    assert done.returncode == -signal.SIGKILL
    ledger = open_ledger(url)
    assert ledger.tail() == []
    assert restore(ledger, path) == report
    verify(ledger, {("w", n) for n in range(3000)})
    ledger.close()


@pytest.fixture
def own_server() -> Iterator[PostgresServer]:
    with PostgresServer() as server:
        yield server


def test_postgres_restarted_under_load(own_server: PostgresServer) -> None:
    ledger = Ledger(PostgresLedgerStore(own_server.create_database(), {"connections": 8, "wait_s": 20}))
    acknowledged: set[tuple[str, int]] = set()
    failures: list[FalajError] = []
    enough, stop = threading.Event(), threading.Event()

    def load(who: str) -> None:
        n = 0
        while not stop.is_set():
            ctx = CallContext(Actor(who, "acme"), "uae", request=f"{who}-{n}", keyed=True)
            try:
                if ledger.outcome(ctx, "f") is None:
                    with ledger.write(ctx) as tx:
                        tx.emit("add", tx.put(Ref("thing", who, f"n{n}"), {"n": n}, terms={"who": who}).ref, n=n)
                        tx.remember("1", "f")
            except (StaleRevision, Unavailable) as error:
                failures.append(error)
                continue
            acknowledged.add((who, n))
            n += 1
            if len(acknowledged) % 50 == 0:
                enough.set()

    threads = [threading.Thread(target=load, args=(f"w{n}",)) for n in range(4)]
    for thread in threads:
        thread.start()
    try:
        for how in ("stop", "crash", "stop"):
            assert enough.wait(60)
            enough.clear()
            if how == "crash":
                os.kill(own_server.pid, signal.SIGQUIT)
            own_server.restart()
        assert enough.wait(60), "writers go on after the last restart"
    finally:
        stop.set()
        for thread in threads:
            thread.join(60)
    assert any(isinstance(failure, Unavailable) for failure in failures), "the restarts were noticed"
    verify(ledger, acknowledged)
    ledger.close()


FILL = """
import resource, sys
from falaj.core.errors import Unavailable
from tests.stories.ledger_writer import open_ledger, write
ledger = open_ledger(sys.argv[1])
mode = sys.argv[2]
limit = int(sys.argv[3])
write(ledger, "w", 0)
if limit:
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
n, heard = 1, []
try:
    while n < 100000:
        if mode == "single":
            write(ledger, "w", n)
            n += 1
        else:
            with ledger.group():
                for m in range(n, n + 20):
                    write(ledger, "w", m)
            n += 20
except Unavailable as error:
    print("unavailable:", error)
print("acknowledged", n)
from falaj.core.context import Actor, CallContext
from falaj.core.ref import Ref
with ledger.read(CallContext(Actor("x", "acme"), "uae")) as tx:
    assert tx.get(Ref.parse("thing:w/n0")), "still readable"
if limit:
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    write(ledger, "w", n)
    print("again", n)
ledger.close()
"""


@pytest.mark.parametrize("mode", ["single", "group"])
def test_a_file_that_may_not_grow_gives_a_clear_error_and_a_clean_state(mode: str, tmp_path: Path) -> None:
    url = f"sqlite:{tmp_path}/ledger.db"
    done = subprocess.run(
        [sys.executable, "-c", FILL, url, mode, "500000"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    error, acknowledged, again = done.stdout.splitlines()
    assert "nothing of this call was written" in error
    count = int(acknowledged.split()[1])
    assert again == f"again {count}", "the very next write, with room, succeeds"
    ledger = open_ledger(url)
    verify(ledger, {("w", n) for n in range(count + 1)})
    assert len(ledger.tail(limit=10_000)) == count + 1, "nothing of the failed call is there"
    ledger.close()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "disk"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)]
    if os.geteuid() != 0 or subprocess.run(command, check=False, capture_output=True).returncode != 0:
        pytest.skip("mounting a small disk needs root")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


@pytest.mark.parametrize("mode", ["single", "group"])
def test_a_full_disk_gives_a_clear_error_and_a_clean_state(mode: str, small_disk: Path) -> None:
    url = f"sqlite:{small_disk}/ledger.db"
    done = subprocess.run(
        [sys.executable, "-c", FILL, url, mode, "0"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    error, acknowledged = done.stdout.splitlines()
    assert "the disk of the ledger is full" in error
    count = int(acknowledged.split()[1])
    subprocess.run(["mount", "-o", "remount,size=8m", str(small_disk)], check=True)
    ledger = open_ledger(url)
    write(ledger, "w", count)
    verify(ledger, {("w", n) for n in range(count + 1)})
    assert len(ledger.tail(limit=10_000)) == count + 1
    ledger.close()


def test_a_shared_commit_that_fails_is_told_to_every_member(tmp_path: Path) -> None:
    """Threads that ride on one fsync: when it fails each of them hears it, and none of their writes is there."""
    ledger = open_ledger(f"sqlite:{tmp_path}/ledger.db")
    write(ledger, "before", 0)
    results: list[str] = []
    gate = threading.Barrier(6)

    def load(who: str) -> None:
        gate.wait()
        ctx = CallContext(Actor(who, "acme"), "uae")
        for n in range(200):
            try:
                with ledger.write(ctx) as tx:
                    body = {"n": n, "pad": "x" * 2000}
                    tx.emit("add", tx.put(Ref("thing", who, f"n{n}"), body, terms={"who": who}).ref, n=n)
            except Unavailable:
                results.append(f"{who} failed {n}")
                return
            results.append(f"{who} wrote {n}")

    threads = [threading.Thread(target=load, args=(f"w{n}",)) for n in range(6)]
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, before[1]))
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert len([r for r in results if " failed " in r]) == 6
    wrote = {(r.split()[0], int(r.split()[2])) for r in results if " wrote " in r}
    assert len(wrote) > 20
    verify(ledger, wrote)
    there = {(f.event.actor, f.event.body["n"]) for f in ledger.tail(limit=10_000)}
    assert there == wrote | {("before", 0)}
    write(ledger, "after", 0)
    ledger.close()
