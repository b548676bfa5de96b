"""Keys under faults: processes killed outright at every commit of a rotation and in the middle of work, and replicas
that race for the same keys on a real PostgreSQL. Nothing acknowledged may become unreadable."""

import os
import random
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from falaj.backends.postgres import PostgresLedgerStore
from falaj.backends.sqlite import SqliteLedgerStore
from falaj.core.context import SYSTEM_TENANT
from falaj.core.errors import FalajError, NotFound
from falaj.govern.encryption import read_wrapping_version
from tests.govern.keyhouse import DAY_S, Crashing, House

START = 1_000_000.0


def in_a_process(work: Callable[[], None]) -> int:
    """Run `work` in a process of its own; gives the signal that killed it, or 0."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            work()
            status = 0
        finally:
            os._exit(status)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 0, "the process failed by itself"
    return os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0


def kill_me() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


OpenStore = Callable[[], Any]


def furnish(home: Path, open_store: OpenStore | None = None) -> dict[str, bytes]:
    house = House(home, start=START, store=open_store() if open_store else None)
    house.write("d", {"n": 1})
    house.ring.prepare("acme", "uae")
    house.ring.permit_key()
    deks = {f"o{n}": house.add_object(f"o{n}") for n in range(5)}
    house.close()
    return deks


def check(home: Path, deks: dict[str, bytes], *, resume: bool, open_store: OpenStore | None = None) -> None:
    """Everything opens; with `resume`, also after the rotation was taken up again and ended."""
    house = House(home, start=START + 10_000 * DAY_S, store=open_store() if open_store else None)
    if resume:
        house.finish_rotations()
    assert house.read("d") == {"n": 1}
    for name, dek in deks.items():
        assert house.ring.object_key("acme", "uae", house.object_dek(name)) == dek
    newest = house.key_body("tenant.uae")["current"]
    if resume:
        assert {read_wrapping_version(house.object_dek(name)) for name in deks} == {newest}
        assert (
            len(house.key_body("tenant.uae")["versions"])
            == len(house.key_body("zone.uae", SYSTEM_TENANT)["versions"])
            == 1
        )
    house.close()


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("scope", ["root", "zone", "tenant"])
def test_killed_at_every_commit_of_a_rotation(tmp_path: Path, scope: str, after: bool) -> None:
    deaths = 0
    for at in range(1, 200):
        home = tmp_path / str(at)
        home.mkdir()
        deks = furnish(home)

        def rotate(home: Path = home, at: int = at) -> None:
            store = Crashing(SqliteLedgerStore(f"sqlite:{home}/ledger.db"), at, after=after, die=kill_me)
            house = House(home, start=START, store=store)
            tenant = "acme" if scope == "tenant" else SYSTEM_TENANT
            house.rotations.begin(house.ctx(tenant), scope, tenant, "" if scope == "root" else "uae")
            house.finish_rotations()

        killed = in_a_process(rotate)
        check(home, deks, resume=False)
        check(home, deks, resume=True)
        if not killed:
            break
        deaths += 1
    assert deaths >= 4
    assert deaths < 199


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_killed_at_every_commit_of_a_rotation_on_postgresql(
    tmp_path: Path, new_postgres: Callable[[], str], after: bool
) -> None:
    deaths = 0
    for at in range(1, 200):
        home, url = tmp_path / str(at), new_postgres()
        home.mkdir()

        def open_store(url: str = url) -> PostgresLedgerStore:
            return PostgresLedgerStore(url, {})

        deks = furnish(home, open_store)

        def rotate(home: Path = home, at: int = at, open_store: OpenStore = open_store) -> None:
            house = House(home, start=START, store=Crashing(open_store(), at, after=after, die=kill_me))
            house.rotations.begin(house.ctx("acme"), "tenant", "acme", "uae")
            house.finish_rotations()

        killed = in_a_process(rotate)
        check(home, deks, resume=False, open_store=open_store)
        check(home, deks, resume=True, open_store=open_store)
        if not killed:
            break
        deaths += 1
    assert 4 <= deaths < 199


def test_killed_in_the_middle_of_work_again_and_again(tmp_path: Path) -> None:
    """One process writes and rotates without pause; it is killed after a random number of acknowledged writes."""
    deks = furnish(tmp_path)
    chance = random.Random(7)
    for life in range(6):
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(read)
            _work_until_killed(tmp_path, life, write)
        os.close(write)
        left = chance.randrange(3, 25)
        with os.fdopen(read) as lines:
            for line in lines:
                name, dek = line.split()
                deks[name] = bytes.fromhex(dek)
                left -= 1
                if left == 0:
                    os.kill(child, signal.SIGKILL)
                    break
        _, status = os.waitpid(child, 0)
        assert os.WIFSIGNALED(status)
        check(tmp_path, deks, resume=False)
    check(tmp_path, deks, resume=True)


def _work_until_killed(home: Path, life: int, pipe: int) -> None:
    house = House(home, start=START + life * DAY_S * 40)
    n = 0
    while True:
        name = f"life{life}-{n}"
        dek = house.add_object(name)
        os.write(pipe, f"{name} {dek.hex()}\n".encode())
        if n % 4 == 0:
            tenant, scope = ("acme", "tenant") if n % 8 else (SYSTEM_TENANT, "zone")
            try:
                house.rotations.begin(house.ctx(tenant), scope, tenant, "uae")
            except FalajError:
                house.time += DAY_S
        house.rotations.step(house.house_ctx())
        n += 1


def test_killed_while_the_first_keys_are_made(tmp_path: Path) -> None:
    for at in range(1, 4):
        for after in (False, True):
            home = tmp_path / f"{at}{after}"
            home.mkdir()

            def first(home: Path = home, at: int = at, after: bool = after) -> None:
                store = Crashing(SqliteLedgerStore(f"sqlite:{home}/ledger.db"), at, after=after, die=kill_me)
                house = House(home, store=store)
                house.ring.permit_key()
                house.write("a", {"n": 1})
                house.write("b", {"n": 2})

            assert in_a_process(first) == signal.SIGKILL
            house = House(home)
            house.write("c", {"n": 3})
            assert house.read("c") == {"n": 3}
            for fact in house.ledger.tail():
                assert fact.event.verb in ("keys.create", "publish")
            house.close()


def test_killed_while_a_subject_is_forgotten(tmp_path: Path) -> None:
    """Either the person is there whole, or gone for good with the event that says so."""
    outcomes = set()
    for after in (False, True):
        home = tmp_path / str(after)
        home.mkdir()
        house = House(home)
        sealed = house.ring.subject_seal("acme", "uae", "person", b"payload")
        house.close()

        def forget(home: Path = home, after: bool = after) -> None:
            store = Crashing(SqliteLedgerStore(f"sqlite:{home}/ledger.db"), 1, after=after, die=kill_me)
            one = House(home, store=store)
            one.ring.subject_forget(one.ctx(), "uae", "person")

        assert in_a_process(forget) == signal.SIGKILL
        house = House(home)
        try:
            there = house.ring.subject_open("acme", "uae", sealed) == b"payload"
        except NotFound:
            there = False
        assert there is ("subjects.forget" not in house.verbs("acme"))
        outcomes.add(there)
        house.close()
    assert outcomes == {True, False}


def test_replicas_race_for_keys_on_postgresql(tmp_path: Path, postgres_url: str) -> None:
    postgres = pytest.importorskip("falaj.backends.postgres")
    houses = [House(tmp_path, store=postgres.PostgresLedgerStore(postgres_url, {})) for _ in range(3)]
    start = threading.Barrier(len(houses))
    sealed: list[tuple[str, bytes]] = []
    failures: list[FalajError] = []

    def work(house: House, number: int) -> None:
        start.wait()
        for n in range(4):
            tenant = f"t{n}"
            try:
                sealed.append((tenant, house.ring.seal(tenant, "uae", b"x", b"")))
                house.write(f"r{number}", {"by": number}, tenant)
                house.add_object(f"o{number}", tenant)
            except FalajError as error:
                failures.append(error)

    threads = [threading.Thread(target=work, args=(house, n)) for n, house in enumerate(houses)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    fresh = House(tmp_path, store=postgres.PostgresLedgerStore(postgres_url, {}))
    assert [fresh.ring.unseal(tenant, "uae", one, b"") for tenant, one in sealed] == [b"x"] * 12
    for n in range(4):
        assert [fresh.read(f"r{number}", f"t{n}") for number in range(3)] == [{"by": number} for number in range(3)]
        assert fresh.verbs(f"t{n}").count("keys.create") == 2
    houses[0].rotations.begin(houses[0].ctx("t0"), "tenant", "t0", "uae")
    fresh.finish_rotations()
    assert read_wrapping_version(fresh.object_dek("o1", "t0")) == 2
    assert fresh.key_body("tenant.uae", "t0")["versions"].keys() == {"2"}
    for house in (*houses, fresh):
        house.close()
