"""Requests on their way: replicas that die, drain, fail, dawdle or are not there yet."""

import random
import socket
import struct
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import grpc
import httpx
import pytest

from falaj.serve import endpoint_repository
from tests.gateway.raw_grpc import asked, infer
from tests.gateway.stand_in import REF, Ground, Process, Replica
from tests.gateway.test_doors import INFER, until

Make = Callable[..., Ground]
Asking = Callable[..., httpx.Client]


class Load:
    """Callers that ask without pause and look at every answer."""

    def __init__(self, ground: Ground, callers: int = 4) -> None:
        self.statuses: Counter[int] = Counter()
        self.revisions: Counter[int] = Counter()
        self.wrong = 0
        self._end = threading.Event()
        self._ground = ground
        self._threads = [threading.Thread(target=self._run, args=(number,)) for number in range(callers)]

    def _run(self, number: int) -> None:
        with httpx.Client(
            base_url=self._ground.doors.http, headers=self._ground.headers(), trust_env=False, timeout=30
        ) as client:
            count = 0
            while not self._end.is_set():
                count += 1
                body = f"{number} {count}"
                got = client.post(INFER, content=body)
                self.statuses[got.status_code] += 1
                if got.status_code == 200:
                    said = got.json()
                    self.revisions[said["revision"]] += 1
                    self.wrong += said["echo"] != body or str(said["revision"]) != got.headers["falaj-revision"]

    @property
    def answered(self) -> int:
        return self.statuses.total()

    def __enter__(self) -> "Load":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._end.set()
        for thread in self._threads:
            thread.join()


@contextmanager
def processes(*revisions: int) -> Iterator[list[Process]]:
    """Replicas that can be killed."""
    made = [Process(revision, f"p{number}") for number, revision in enumerate(revisions)]
    try:
        for one in made:
            one.wait()
        yield made
    finally:
        for one in made:
            one.kill()


def test_replicas_are_killed_under_load_and_no_request_fails(ground: Make) -> None:
    one = ground(replicas=1)
    with processes(1, 1) as killed, Load(one) as load:
        names = [one.add(replica) for replica in killed]
        for replica, name in zip(killed, names, strict=True):
            before = load.answered
            until(lambda before=before: load.answered > before + 50)
            replica.kill()
            before = load.answered
            until(lambda before=before: load.answered > before + 50)
            one.remove(name)
    assert load.wrong == 0
    assert set(load.statuses) == {200}, load.statuses


def test_the_only_replica_is_cut_off_and_requests_wait_for_the_next(ground: Make) -> None:
    one = ground()
    with Load(one) as load:
        until(lambda: load.answered > 50)
        one.replicas[0].cut()
        one.remove(one.names[0])
        one.add(Replica(one.loop, 1, "next"))
        before = load.answered
        until(lambda: load.answered > before + 50)
    assert load.wrong == 0
    assert set(load.statuses) == {200}, load.statuses


def test_traffic_is_switched_back_and_forth_and_replicas_drain_and_no_request_fails(ground: Make) -> None:
    """A hundred times is the slow test's; this one has the same turns."""
    switched(ground, 5)


@pytest.mark.slow
def test_a_hundred_switches_fail_no_request(ground: Make) -> None:
    switched(ground, 100)


def switched(ground: Make, times: int) -> None:
    one = ground(replicas=1)
    current, name, revision = one.replicas[0], one.names[0], 1
    with Load(one) as load:
        for _ in range(times):
            revision = 3 - revision
            coming = Replica(one.loop, revision, f"turn-{_}")
            fresh = one.add(coming)
            one.change(current=revision)
            seen = load.revisions[revision]
            until(lambda seen=seen, revision=revision: load.revisions[revision] > seen + 5)
            one.remove(name)
            current.drain()
            current, name = coming, fresh
    assert load.wrong == 0
    assert set(load.statuses) == {200}, load.statuses


def test_the_first_request_wakes_an_endpoint_and_waits(ground: Make, asking: Asking) -> None:
    one = ground(replicas=0)
    got: list[Any] = []
    thread = threading.Thread(target=lambda: got.append(asking(one).post(INFER, content=b"first")))
    thread.start()

    def woken() -> Any:
        with one.town.house.ledger.read(one.ctx) as tx:
            return tx.need(REF).body["woken"]

    until(woken)
    desk = one.town.house.desks["serve"]
    assert until(lambda: desk.counts.load("bank", REF, time.time()).get(1)).held in (0, 1)
    one.add(Replica(one.loop, 1, "woken"))
    thread.join(20)
    assert got[0].json()["echo"] == "first"
    assert asking(one).get("/v2/models/fraud.score/ready").status_code == 200


def test_nobody_waits_for_ever_and_not_everybody_may_wait(ground: Make, asking: Asking, monkeypatch: Any) -> None:
    one = ground(replicas=0, hold_s=0.2)
    client = asking(one)
    assert client.get("/v2/models/fraud.score/ready").status_code == 200
    told = client.post(INFER)
    assert told.status_code == 503
    assert "retry-after" in told.headers
    monkeypatch.setattr("falaj.gateway.cold_start_queue.MAX_HELD_BYTES", 100)
    assert "too many" in client.post(INFER, content=b"x" * 200).json()["error"]
    with pytest.raises(grpc.RpcError) as failed:
        infer(one.doors.grpc, one.headers(), "fraud.score")
    assert failed.value.code() == grpc.StatusCode.UNAVAILABLE


def test_a_replica_that_cannot_is_left_alone_and_its_requests_go_elsewhere(ground: Make, asking: Asking) -> None:
    one = ground(replicas=2)
    client = asking(one)
    until(lambda: len({client.post(INFER).json()["replica"] for _ in range(6)}) == 2)
    sick = one.replicas[0].echo
    sick.rest = lambda call, reply: _unable(sick, reply)  # type: ignore[method-assign]
    sick.asked = 0
    told = [client.post(INFER) for _ in range(60)]
    assert {reply.status_code for reply in told} == {200}
    assert sick.asked < 15
    # Busy ones are passed over too, and what every replica says is said.
    assert client.post(INFER, content=b"status 429").status_code == 429
    assert client.post(INFER, content=b"status 500").status_code == 500
    assert client.post(INFER, content=b"status 422").status_code == 422


def _unable(echo: Any, reply: Any) -> None:
    from falaj.oip.handler_calls import HttpReply

    echo.asked += 1
    reply(HttpReply(503, (b'{"error": "sick"}',)))


def test_retries_are_a_share_of_requests(ground: Make, asking: Asking) -> None:
    one = ground(replicas=2, retries=0.0)
    one.loop.do(_spend(one, 250))
    client = asking(one)
    told = [client.post(INFER, content=b"status 503") for _ in range(30)]
    assert {reply.status_code for reply in told} == {503}
    assert sum(replica.echo.asked for replica in one.replicas) <= 30 + 6


async def _spend(one: Ground, count: int) -> None:
    budget = one.gateway.table.routes["bank", "fraud.score"].budget
    assert all(budget.take() for _ in range(count))


def test_a_deadline_ends_the_wait_and_the_work(ground: Make, asking: Asking) -> None:
    one = ground(timeout_s=0.2)
    assert asking(one).post(INFER, content=b"hang").status_code == 504
    until(lambda: one.replicas[0].echo.cancelled == 1)
    with pytest.raises(grpc.RpcError) as failed:
        infer(one.doors.grpc, one.headers(), "fraud.score", id="hang")
    assert failed.value.code() == grpc.StatusCode.DEADLINE_EXCEEDED


def test_a_caller_who_goes_away_ends_the_work(ground: Make, asking: Asking) -> None:
    one = ground()
    asking(one).get("/v2/models/fraud.score")
    host, _, port = one.doors.http.rpartition("/")[2].partition(":")
    with socket.create_connection((host, int(port))) as caller:
        token = one.headers()["authorization"]
        head = f"POST {INFER} HTTP/1.1\r\nhost: localhost\r\nauthorization: {token}\r\ncontent-length: 4\r\n\r\n"
        caller.sendall(head.encode() + b"hang")
        until(lambda: one.replicas[0].echo.asked == 2)
        caller.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    until(lambda: one.replicas[0].echo.cancelled == 1)
    tally = one.gateway.tallies.of(one.gateway.table.routes["bank", "fraud.score"].route, "base", 1)
    until(lambda: tally.inflight == 0)


def test_a_second_replica_is_asked_when_the_first_takes_long(ground: Make, asking: Asking) -> None:
    one = ground(replicas=2, hedge_ms=30.0, timeout_s=20.0)
    client = asking(one)
    until(lambda: len({client.post(INFER).json()["replica"] for _ in range(6)}) == 2)
    told = [client.post(INFER, content=b"hang on replica-0") for _ in range(6)]
    assert {reply.json()["replica"] for reply in told} == {"replica-1"}
    until(lambda: one.replicas[0].echo.cancelled >= 2)
    routed = one.gateway.table.routes["bank", "fraud.score"]
    until(lambda: all(link.client.outstanding == 0 for link in routed.pools[1]))


def test_the_second_one_is_waited_for_when_the_first_cannot(ground: Make, asking: Asking) -> None:
    one = ground(replicas=2, hedge_ms=20.0, retries=0.0)
    client = asking(one)
    until(lambda: len({client.post(INFER).json()["replica"] for _ in range(6)}) == 2)
    sick = one.replicas[0].echo
    sick.rest = _unable_later  # type: ignore[method-assign]
    told = [client.post(INFER, content=b"slow 0.15") for _ in range(4)]
    assert {reply.json().get("replica") for reply in told} == {"replica-1"}


def _unable_later(call: Any, reply: Any) -> None:
    import asyncio

    from falaj.oip.handler_calls import HttpReply

    asyncio.get_running_loop().call_later(0.06, reply, HttpReply(503, (b"{}",)))


def test_grpc_is_retried_and_answers_name_themselves(ground: Make) -> None:
    one = ground(replicas=2)
    answer, metadata = asked(one.doors.grpc, one.headers(), "fraud.score")
    assert answer == b"1"
    assert metadata["falaj-revision"] == "1"
    assert metadata["falaj-request"]
    with pytest.raises(grpc.RpcError) as failed:
        infer(one.doors.grpc, one.headers(), "fraud.score", id="unable")
    assert failed.value.code() == grpc.StatusCode.UNAVAILABLE
    assert sum(replica.echo.asked for replica in one.replicas) > 2


def test_what_hangs_while_the_gateway_drains_is_answered(ground: Make, asking: Asking) -> None:
    one = ground()
    client = asking(one)
    client.get("/v2")
    got: list[int] = []
    thread = threading.Thread(target=lambda: got.append(client.post(INFER, content=b"slow 0.5").status_code))
    thread.start()
    until(lambda: one.replicas[0].echo.asked)
    one.loop.do(one.gateway.drain(10))
    thread.join(10)
    assert got == [200]
    desk = one.town.house.desks["serve"]
    assert desk.counts.since("bank", REF, 0.0)["base"].requests == 1
    del one.gateway


def test_a_gateway_that_goes_says_so_and_answers_on(ground: Make, asking: Asking) -> None:
    one = ground()
    client = asking(one)
    assert client.get("/v2/health/ready").status_code == 200
    one.loop.do(one.gateway.leave(0.0))
    assert client.get("/v2/health/ready").status_code == 503
    for _ in range(2):
        answer = client.post(INFER, content=b"x")
        assert (answer.status_code, answer.headers["connection"]) == (200, "close")
    one.loop.do(one.gateway.drain(10))
    with pytest.raises(httpx.ConnectError):
        client.get("/v2/health/live")
    del one.gateway


def test_random_deaths_leave_nothing_behind(ground: Make) -> None:
    """Replicas come, are cut off in the middle, drain and go; counts are right in the end."""
    one = ground(replicas=2)
    chance = random.Random(7)
    there = list(zip(one.replicas, one.names, strict=True))
    with Load(one) as load:
        for turn in range(8):
            before = load.answered
            replica, name = there.pop(chance.randrange(len(there)))
            fresh = Replica(one.loop, 1, f"fresh-{turn}")
            there.append((fresh, one.add(fresh)))
            (replica.cut if turn % 2 else replica.drain)()
            one.remove(name)
            until(lambda before=before: load.answered > before + 10)
    assert load.wrong == 0
    assert set(load.statuses) == {200}, load.statuses
    routed = one.gateway.table.routes["bank", "fraud.score"]
    until(lambda: all(link.client.outstanding == 0 for link in routed.pools[1]))
    tally = one.gateway.tallies.of(routed.route, "base", 1)
    assert (tally.inflight, tally.held, len(one.gateway.holding)) == (0, 0, 0)


def test_where_a_gateway_is_reached_is_told(ground: Make) -> None:
    one = ground()
    with one.town.house.ledger.read(one.ctx) as tx:
        assert endpoint_repository.read_gateway_addresses(tx) == one.doors
