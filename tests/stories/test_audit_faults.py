"""The audit log under faults: sealers and writers killed outright, several at once, transactions that commit late.

After every fault the log verifies offline, and holds every event and every checkpoint that was acknowledged.
"""

import contextlib
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from falaj.audit.log_sealing import LogSealer
from falaj.core.errors import StaleRevision, Unavailable
from falaj.core.ref import Ref
from tests.audit.house import House
from tests.audit.packs import check_files
from tests.stories.audit_writer import open_house


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:{tmp_path}/ledger.db"
    fresh: Callable[[], str] = request.getfixturevalue("new_postgres")
    return fresh()


def start(url: str, who: str) -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", "tests.stories.audit_writer", url, who]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, start_new_session=True
    )


def killed_after(process: "subprocess.Popen[str]", lines: int) -> list[str]:
    """What a process had said when it was killed in the middle of everything."""
    assert process.stdout is not None
    said = []
    for line in process.stdout:
        said.append(line.strip())
        if len(said) >= lines:
            break
    os.killpg(process.pid, signal.SIGKILL)
    # Whole lines that were on their way are acknowledged too; a torn last one is not.
    rest = process.stdout.read()
    process.wait()
    process.stdout.close()
    return said + rest.split("\n")[:-1]


def check(house: House, folder: Path, said: list[str]) -> None:
    house.time = 4_000_000_000.0
    events = [line.split(" ")[1] for line in said if line.startswith("event ")]
    assert events
    # The log is sealed up to the oldest open transaction: the engine ends one whose owner was killed when it notices.
    until = time.monotonic() + 30
    files = _sealed(house)
    while (missing := _missing(files, events)) and time.monotonic() < until:
        files = _sealed(house)
    assert missing == []
    report = check_files(folder, files)
    assert report["ok"], report["problems"][:3]
    notes = files["checkpoints.jsonl"].decode()
    for line in said:
        if line.startswith("seal "):
            _, number, size, root = line.split(" ")
            assert f"\\n{size}\\n{root}\\n" in notes, "a checkpoint that was handed out is still the log's"
            assert f"number {number}\\n" in notes


def _sealed(house: House) -> dict[str, bytes]:
    house.sealer.seal_all(house.ctx(), "bank", "home")
    return dict(house.pack())


def _missing(files: dict[str, bytes], events: list[str]) -> list[str]:
    lines = b"".join(data for name, data in files.items() if name.endswith(".jsonl") and name.startswith("events/"))
    return [id_ for id_ in events if f'"id":"{id_}"'.encode() not in lines]


def test_killed_again_and_again_while_sealing(url: str, tmp_path: Path) -> None:
    said: list[str] = []
    dice = random.Random(url.partition(":")[0])
    for round_ in range(4):
        said += killed_after(start(url, f"w{round_}"), dice.randrange(5, 120))
    house = open_house(url)
    try:
        check(house, tmp_path, said)
    finally:
        house.ledger.close()


def test_two_replicas_seal_and_one_is_killed(new_postgres: Callable[[], str], tmp_path: Path) -> None:
    url = new_postgres()
    first, second = start(url, "one"), start(url, "two")
    said = killed_after(first, 60)
    said += killed_after(second, 150)
    house = open_house(url)
    try:
        check(house, tmp_path, said)
    finally:
        house.ledger.close()


class LateCommits:
    """Writers on two connections, some of whose transactions begin early and commit late, and sealers beside them."""

    def __init__(self, url: str) -> None:
        self.house, self.house_two = open_house(url), open_house(url)
        self.event_ids: list[str] = []
        self.errors: list[BaseException] = []
        self.done = threading.Event()

    def commit(self, act: Callable[[], list[str]]) -> None:
        """Repeat a transaction that PostgreSQL refuses beside others; only what it acknowledged counts."""
        while True:
            with contextlib.suppress(StaleRevision):
                self.event_ids.extend(act())
                return

    def act_late(self) -> list[str]:
        """One transaction; others, numbered after it, become visible before it."""
        ctx = self.house.ctx()
        with self.house.ledger.write(ctx) as tx:
            record = tx.put(Ref("thing", "demo", f"t{ctx.request}"), {"n": 1})
            event = tx.emit("demo.make", record.ref, late=1)
            self.commit(self.house_two.act)
            self.commit(self.house_two.act)
        return [event.id]

    def write(self, act: Callable[[], list[str]]) -> None:
        for _ in range(12):
            self.commit(act)

    def seal(self) -> None:
        sealer = LogSealer(self.house.ledger, self.house.signers, "test")
        while not self.done.is_set():
            with contextlib.suppress(StaleRevision):
                sealer.seal(self.house.ctx(), "bank", "home")

    def start(self, work: Callable[[], None]) -> threading.Thread:
        """Run in a thread; an error of it is kept."""

        def run() -> None:
            try:
                work()
            except BaseException as error:  # noqa: BLE001 - the test asserts that there was none
                self.errors.append(error)

        thread = threading.Thread(target=run)
        thread.start()
        return thread


def test_late_commits_are_sealed_once_and_in_their_place(new_postgres: Callable[[], str], tmp_path: Path) -> None:
    """Transactions that began early and commit late, while others commit and a sealer never rests."""
    late = LateCommits(new_postgres())
    house = late.house
    sealers = [late.start(late.seal) for _ in range(2)]
    writers = [late.start(partial(late.write, act)) for act in (late.act_late, late.act_late, house.act)]
    for thread in writers:
        thread.join()
    late.done.set()
    for thread in sealers:
        thread.join()
    assert late.errors == []
    check(house, tmp_path, [f"event {event_id}" for event_id in late.event_ids])
    total = len(house.ledger.tail(tenant="bank", zone="home", limit=10_000))
    assert house.log(house.ctx()).head.size == total == len(late.event_ids) >= 3 * 12 + 2 * 12 * 2
    late.house_two.ledger.close()
    house.ledger.close()


def test_a_sealer_killed_at_every_step_leaves_the_log_whole(tmp_path: Path) -> None:
    """Forked on purpose at the moment before each write of one sealing: nothing half done is ever seen."""
    house = open_house(f"sqlite:{tmp_path}/ledger.db")
    house.act(300)
    house.ledger.close()
    for step in range(1, 7):
        child = os.fork()
        if child == 0:
            die_at_write(f"sqlite:{tmp_path}/ledger.db", step)
        _, status = os.waitpid(child, 0)
        assert os.WIFSIGNALED(status)
        house = open_house(f"sqlite:{tmp_path}/ledger.db")
        assert house.log(house.ctx()).head.size == 0
        house.ledger.close()
    house = open_house(f"sqlite:{tmp_path}/ledger.db")
    house.sealer.seal_all(house.ctx(), "bank", "home")
    assert check_files(tmp_path, dict(house.pack()))["ok"]
    house.ledger.close()


class Full:
    """A store whose log cannot be written: the disk is full."""

    def __init__(self, store: Any) -> None:
        self._store = store

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def begin(self, write: bool) -> Any:
        return FullTxn(self._store.begin(write))


class FullTxn:
    def __init__(self, txn: Any) -> None:
        self._txn = txn

    def __getattr__(self, name: str) -> Any:
        return getattr(self._txn, name)

    def append(self, events: object) -> None:
        self._txn.rollback()
        raise Unavailable("the log cannot be written")


def test_no_log_no_act(tmp_path: Path) -> None:
    """A3: when the event cannot be written, what it tells of did not happen."""
    house = open_house(f"sqlite:{tmp_path}/ledger.db")
    house.act(1)
    store = house.ledger.store
    house.ledger.store = Full(store)
    with pytest.raises(Unavailable):
        house.act(1)
    house.ledger.store = store
    with house.ledger.read(house.ctx()) as tx:
        assert len(tx.find("thing").records) == 1
    house.act(1)
    house.sealer.seal_all(house.ctx(), "bank", "home")
    assert check_files(tmp_path, dict(house.pack()))["events"] == 2
    house.ledger.close()


class Deadly:
    """The store of a process that dies at one of the writes of its transaction; a commit is the last of them."""

    def __init__(self, store: Any, step: int) -> None:
        self._store, self._left = store, step

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def begin(self, write: bool) -> Any:
        return DeadlyTxn(self._store.begin(write), self) if write else self._store.begin(write)

    def count(self) -> None:
        self._left -= 1
        if not self._left:
            os.kill(os.getpid(), signal.SIGKILL)


class DeadlyTxn:
    def __init__(self, txn: Any, store: Deadly) -> None:
        self._txn, self._store = txn, store

    def __getattr__(self, name: str) -> Any:
        if name in ("put", "commit"):
            self._store.count()
        return getattr(self._txn, name)


def die_at_write(url: str, step: int) -> None:
    """In a child: seal, and be killed on the way."""
    house = open_house(url)
    house.ledger.store = Deadly(house.ledger.store, step)
    try:
        house.sealer.seal(house.ctx(), "bank", "home")
    finally:
        os._exit(0)
