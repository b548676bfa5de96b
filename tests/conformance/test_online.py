"""What every Online must do, asked of a real LMDB file, a real Redis-compatible server and a cluster of three."""

import contextlib
import itertools
import multiprocessing
import os
import random
import signal
import socket
import socketserver
import ssl
import stat
import threading
import uuid
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from falaj.backends.lmdb_online import LmdbOnlineStore
from falaj.backends.redis_online import RedisOnlineStore
from falaj.core.errors import CorruptData, Invalid, Unavailable
from falaj.core.online_rows import find_current_row, merge_row, pack_rank, unpack_entry
from falaj.core.ports import OnlineStore
from tests.servers.process import wait_until
from tests.servers.redis import ClusterNode, RedisCluster, RedisServer
from tests.servers.transit import _tls

ENGINES = ("lmdb", "redis", "cluster")
NOW = 1_700_000_000_000_000
Open = Callable[[], OnlineStore]
forked = multiprocessing.get_context("fork")
fresh = multiprocessing.get_context("spawn")


def make(url: str) -> OnlineStore:
    return LmdbOnlineStore(url) if url.startswith("lmdb:") else RedisOnlineStore(url, {"wait_s": 5})


@pytest.fixture(params=ENGINES)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "lmdb":
        return f"lmdb:{tmp_path}/online"
    server: RedisServer | RedisCluster
    if request.param == "cluster":
        server = request.getfixturevalue("redis_cluster")
        return f"{server.url}&prefix=t{uuid.uuid4().hex}"
    server = request.getfixturevalue("redis_server")
    return f"{server.url}?prefix=t{uuid.uuid4().hex}"


@pytest.fixture
def opened(url: str) -> Iterator[Open]:
    """Each call opens the same store once more, as another part of the program would."""
    made: list[OnlineStore] = []

    def open_it() -> OnlineStore:
        made.append(make(url))
        return made[-1]

    yield open_it
    for online in made:
        online.close()


@pytest.fixture
def online(opened: Open) -> OnlineStore:
    return opened()


def row(event: int, created: int = 0, seq: int = 0, value: bytes = b"") -> bytes:
    return pack_rank(event, created, seq) + (value or f"{event}/{created}/{seq}".encode())


def cell(online: OnlineStore, key: bytes = b"k", space: str = "s") -> bytes | None:
    return online.get([(space, [key])])[0][0]


def test_rows_come_back_as_they_were(online: OnlineStore) -> None:
    one = row(5, value=bytes(range(256)))
    assert online.put("s", [(b"k", one)], NOW) == 1
    assert online.get([("s", [b"k", b"nobody"]), ("other", [b"k"]), ("s", []), ("s", [b"k"])]) == [
        [one, None],
        [None],
        [],
        [one],
    ]
    assert online.put("s", [], NOW) == 0
    assert online.get([]) == []


@pytest.mark.parametrize("order", list(itertools.permutations(range(4))))
def test_the_newest_wins_in_any_order(online: OnlineStore, order: tuple[int, ...]) -> None:
    rows = [row(1, 9, 9), row(2, 1, 1), row(2, 1, 2), row(2, 2, 0)]
    for number in (*order, *order):
        online.put("s", [(b"k", rows[number])], NOW)
    assert cell(online) == rows[3]


def test_a_batch_may_name_a_key_many_times(online: OnlineStore) -> None:
    assert online.put("s", [(b"k", row(n)) for n in (3, 9, 4, 9, 1)], NOW) == 2
    assert cell(online) == row(9)


def test_what_stands_already_changes_nothing(online: OnlineStore) -> None:
    assert online.put("s", [(b"k", row(2)), (b"j", row(NOW + 5))], NOW) == 2
    assert online.put("s", [(b"k", row(2)), (b"k", row(1)), (b"j", row(NOW + 5))], NOW) == 0


def test_a_restatement_replaces(online: OnlineStore) -> None:
    online.put("s", [(b"k", row(2, 1, 5, b"wrong"))], NOW)
    assert online.put("s", [(b"k", row(2, 7, 1, b"right"))], NOW) == 1
    assert cell(online) == row(2, 7, 1, b"right")


def test_ranks_sort_as_numbers_do_beyond_the_edges(online: OnlineStore) -> None:
    least, most = -(1 << 63), (1 << 63) - 1
    ranks = [(least, most, most), (-1, least, most), (-1, 0, -1), (-1, 0, 0), (0, -1, most), (1 << 40, 0, 0)]
    for rank in (*ranks, *reversed(ranks)):
        online.put("s", [(b"k", row(*rank))], NOW)
        online.put(f"s{rank}", [(b"k", row(*rank))], NOW)
        assert cell(online, space=f"s{rank}") == row(*rank)
    assert cell(online) == row(*ranks[-1])


def test_later_moments_wait_and_become_due(online: OnlineStore) -> None:
    later = [row(NOW + 30), row(NOW + 10, 0, 1), row(NOW + 10, 0, 2), row(NOW + 20)]
    online.put("s", [(b"k", one) for one in later] + [(b"k", row(NOW - 5)), (b"k", row(NOW))], NOW)
    held = cell(online)
    assert held is not None
    assert unpack_entry(held) == [row(NOW), row(NOW + 10, 0, 2), row(NOW + 20), row(NOW + 30)]
    assert [find_current_row(held, NOW + n) for n in (-1, 0, 9, 10, 29, 99)] == [
        *(None, row(NOW), row(NOW)),
        *(row(NOW + 10, 0, 2), row(NOW + 20), row(NOW + 30)),
    ]
    # Ten are due when something comes in again: the older of them go.
    online.put("s", [(b"k", row(NOW + 1))], NOW + 20)
    assert unpack_entry(cell(online) or b"") == [row(NOW + 20), row(NOW + 30)]
    online.put("s", [(b"k", row(NOW + 1))], NOW + 99)
    assert cell(online) == row(NOW + 30)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(
        st.tuples(st.integers(-3, 3), st.integers(0, 2), st.integers(0, 2), st.integers(-3, 3)), min_size=1, max_size=9
    )
)
def test_the_store_does_what_merge_says(online: OnlineStore, puts: list[tuple[int, int, int, int]]) -> None:
    space, expected = uuid.uuid4().hex, None
    for event, created, seq, now in puts:
        changed = online.put(space, [(b"k", row(event, created, seq))], now)
        before, expected = expected, merge_row(expected, row(event, created, seq), now)
        assert changed == (expected is not before)
        assert cell(online, space=space) == expected


def test_spaces_keep_apart(online: OnlineStore) -> None:
    spaces = ["a", "a ", "A", "a/b", "á", "", "x" * 5000, *(f"view:fraud/v{n}" for n in range(50))]
    for number, space in enumerate(spaces):
        online.put(space, [(b"k", row(number))], NOW)
        online.note(space, b"%d" % number)
    online.drop("a")
    found = online.get([(space, [b"k"]) for space in spaces])
    assert [one[0] for one in found] == [None, *(row(number) for number in range(1, len(spaces)))]
    assert [online.note(space) for space in spaces] == [None, *(b"%d" % n for n in range(1, len(spaces)))]


def test_keys_are_any_bytes(online: OnlineStore) -> None:
    keys = [
        b"",
        b"\x00",
        b"\xff" * 40,
        "مفتاح".encode(),
        b"{x}",
        b"a" * 440,
        b"a" * 441,
        b"a" * 442,
        b"\r\n $3",
        b"b" * 9000,
    ]
    keys += [b"a" * 500 + bytes([n]) for n in range(5)]
    online.put("s", [(key, row(number)) for number, key in enumerate(keys)], NOW)
    assert online.get([("s", keys)])[0] == [row(number) for number in range(len(keys))]
    assert dict(online.scan("s")) == {key: row(number) for number, key in enumerate(keys)}
    paged = page_through(online, 1)
    assert sorted(key for key, _ in paged) == sorted(keys)
    assert online.delete("s", keys[5:]) == len(keys) - 5
    assert sorted(key for key, _ in online.scan("s")) == sorted(keys[:5])


def test_the_empty_key_alone_is_paged_once(online: OnlineStore) -> None:
    online.put("s", [(b"", row(1))], NOW)
    assert page_through(online, 1) == [(b"", row(1))]
    assert online.delete("s", [b""]) == 1
    assert page_through(online, 1) == []


def test_a_row_without_rank_is_refused(online: OnlineStore) -> None:
    for bad in (b"", b"short", b"\xff" * 40):
        with pytest.raises(CorruptData):
            online.put("s", [(b"j", row(1)), (b"k", bad)], NOW)
    assert online.get([("s", [b"j", b""])]) == [[None, None]]


def page_through(online: OnlineStore, limit: int) -> list[tuple[bytes, bytes]]:
    found: list[tuple[bytes, bytes]] = []
    while page := online.scan("s", found[-1][0] if found else None, limit):
        assert len(page) <= limit
        found += page
    return found


def test_a_scan_pages_through_all_once(online: OnlineStore) -> None:
    rows = {b"%d" % number: row(number) for number in range(2500)}
    online.put("s", list(rows.items()), NOW)
    online.put("t", list(rows.items()), NOW)
    whole = online.scan("s")
    assert dict(whole) == rows
    assert page_through(online, 999) == whole
    assert online.scan("nothing") == []
    assert online.scan("s", whole[-1][0]) == []


def test_delete_takes_what_is_there(online: OnlineStore) -> None:
    online.put("s", [(b"a", row(1)), (b"b", row(1)), (b"c", row(1))], NOW)
    assert online.delete("s", [b"a", b"c", b"nobody"]) == 2
    assert online.delete("s", []) == 0
    assert online.scan("s") == [(b"b", row(1))]
    # An older row may come back: what was deleted left no trace.
    online.put("s", [(b"a", row(0))], NOW)
    assert dict(online.scan("s")) == {b"a": row(0), b"b": row(1)}


def test_a_drop_takes_all_of_many(online: OnlineStore) -> None:
    online.put("s", [(b"%d" % number, row(number)) for number in range(25_000)], NOW)
    online.put("t", [(b"1", row(1))], NOW)
    online.note("s", b"full")
    online.drop("s")
    assert online.scan("s") == []
    assert online.note("s") is None
    assert cell(online, b"7") is None
    assert online.scan("t") == [(b"1", row(1))]
    online.drop("s")


def test_a_note_is_read_and_written(online: OnlineStore) -> None:
    assert online.note("s") is None
    assert online.note("s", b"\x00one") == b"\x00one"
    online.put("s", [(b"k", row(1))], NOW)
    assert online.note("s") == b"\x00one"
    online.note("s", b"")
    assert online.note("s") == b""
    assert len(online.scan("s")) == 1


def test_ten_thousand_rows_in_one_put(online: OnlineStore) -> None:
    rows = [(b"%d" % number, row(number, value=os.urandom(64))) for number in range(10_000)]
    assert online.put("s", rows, NOW) == 10_000
    assert online.put("s", rows, NOW) == 0
    assert online.get([("s", [key for key, _ in rows])])[0] == [one for _, one in rows]


def _write(url: str, seed: int) -> None:
    online = make(url)
    rows = shuffled(seed)
    for start in range(0, len(rows), 50):
        online.put("s", rows[start : start + 50], NOW)
    online.close()


def shuffled(seed: int) -> list[tuple[bytes, bytes]]:
    rows = [
        (b"%d" % key, row(event, created, event * created))
        for key in range(20)
        for event in range(9)
        for created in (1, 2)
    ]
    random.Random(seed).shuffle(rows)
    return rows


NEWEST = {b"%d" % key: row(8, 2, 16) for key in range(20)}


def test_writers_in_threads_converge(url: str, online: OnlineStore) -> None:
    threads = [threading.Thread(target=_write, args=(url, seed)) for seed in range(6)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        online.get([("s", list(NEWEST))])
    assert dict(online.scan("s")) == NEWEST


@pytest.mark.parametrize("start", [forked, fresh], ids=["fork", "spawn"])
def test_writers_in_processes_converge(
    url: str, online: OnlineStore, start: multiprocessing.context.BaseContext
) -> None:
    online.put("s", [(b"0", row(1))], NOW)
    processes = [start.Process(target=_write, args=(url, seed)) for seed in range(2)]  # type: ignore[attr-defined]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
    assert [process.exitcode for process in processes] == [0, 0]
    assert dict(online.scan("s")) == NEWEST


def _read_as_child(online: OnlineStore) -> None:
    assert cell(online) == row(1)
    online.put("s", [(b"k", row(2))], NOW)


def test_a_child_goes_on_with_what_its_parent_opened(online: OnlineStore) -> None:
    online.put("s", [(b"k", row(1))], NOW)
    assert cell(online) == row(1)
    process = forked.Process(target=_read_as_child, args=(online,))
    process.start()
    process.join(60)
    assert process.exitcode == 0
    assert cell(online) == row(2)


def test_a_closed_store_says_so(opened: Open) -> None:
    online, other = opened(), opened()
    other.put("s", [(b"k", row(1))], NOW)
    online.close()
    online.close()
    for act in (lambda: cell(online), lambda: online.put("s", [(b"k", row(2))], NOW), lambda: online.note("s")):
        with pytest.raises(Unavailable, match="closed"):
            act()
    assert cell(other) == row(1)


# LMDB alone


def _put_for_ever(url: str, started: str) -> None:
    online = LmdbOnlineStore(url)
    for turn in itertools.count(1):
        online.put("s", [(b"%d" % key, row(turn, value=b"x" * 500)) for key in range(2000)], NOW)
        Path(started).touch()


@pytest.mark.parametrize("turns", range(3))
def test_lmdb_a_killed_put_is_whole_or_nothing(tmp_path: Path, turns: int) -> None:
    url, started = f"lmdb:{tmp_path}/online", tmp_path / "started"
    process = fresh.Process(target=_put_for_ever, args=(url, str(started)))
    process.start()
    while not started.exists():
        assert process.is_alive()
    online = LmdbOnlineStore(url)
    for _ in range(turns * 7):
        assert len({one for _, one in online.scan("s")}) == 1
    os.kill(process.pid or 0, signal.SIGKILL)
    process.join()
    left = online.scan("s")
    assert len(left) == 2000
    assert len({one for _, one in left}) == 1
    # The dead held the writers' lock; the next gets it.
    assert online.put("s", [(b"0", row(1 << 40))], NOW) == 1
    online.close()


def test_lmdb_grows_under_readers_of_this_and_another_process(tmp_path: Path) -> None:
    url = f"lmdb:{tmp_path}/online"
    online = LmdbOnlineStore(url, {"map_bytes": 1 << 16})
    online.put("s", [(b"k", row(1))], NOW)
    done, seen = threading.Event(), set[bytes | None]()

    def read() -> None:
        while not done.is_set():
            seen.add(cell(online))

    threads = [threading.Thread(target=read, daemon=True) for _ in range(3)]
    for thread in threads:
        thread.start()
    for turn in range(40):
        online.put("big", [(b"%d-%d" % (turn, n), row(1, value=b"x" * 1000)) for n in range(100)], NOW)
    process = fresh.Process(target=_grow, args=(url,))
    process.start()
    process.join()
    done.set()
    for thread in threads:
        thread.join()
    assert seen == {row(1)}
    assert process.exitcode == 0
    assert len(online.scan("big")) == 4000
    assert len(online.scan("bigger")) == 8000
    assert online.put("s", [(b"k", row(2))], NOW) == 1
    online.close()


def _grow(url: str) -> None:
    online = LmdbOnlineStore(url, {"map_bytes": 1 << 16})
    online.put("bigger", [(b"%d" % n, row(1, value=b"x" * 1000)) for n in range(8000)], NOW)


def test_lmdb_is_for_its_owner_only(tmp_path: Path) -> None:
    LmdbOnlineStore(f"lmdb:{tmp_path}/online").close()
    assert stat.S_IMODE((tmp_path / "online").stat().st_mode) == 0o700
    assert {stat.S_IMODE(file.stat().st_mode) for file in (tmp_path / "online").iterdir()} == {0o600}


def test_lmdb_refuses_what_is_no_folder_and_what_is_no_store(tmp_path: Path) -> None:
    with pytest.raises(Invalid):
        LmdbOnlineStore("lmdb:")
    (tmp_path / "file").touch()
    with pytest.raises(Invalid):
        LmdbOnlineStore(f"lmdb:{tmp_path}/file/online")
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "data.mdb").write_bytes(b"no store" * 2000)
    with pytest.raises(CorruptData):
        LmdbOnlineStore(f"lmdb:{tmp_path}/bad")


# Redis alone


def answers(online: OnlineStore) -> bool:
    try:
        cell(online)
    except Unavailable:
        return False
    return True


def test_redis_killed_and_started_empty_is_filled_anew(redis_server: RedisServer) -> None:
    with RedisServer() as server:
        online = RedisOnlineStore(server.url, {"wait_s": 1})
        online.put("s", [(b"k", row(1))], NOW)
        online.note("s", b"full")
        server.kill()
        with pytest.raises(Unavailable) as caught:
            cell(online)
        assert str(server.port) not in str(caught.value)
        with pytest.raises(Unavailable):
            online.put("s", [(b"k", row(2))], NOW)
        server.start()
        wait_until(lambda: answers(online), 20)  # the breaker lets calls pass once a probe was answered
        assert cell(online) is None
        assert online.note("s") is None
        # It knows the script no more.
        assert online.put("s", [(b"k", row(2))], NOW) == 1
        assert cell(online) == row(2)
        online.close()
    assert redis_server.pid


def test_redis_killed_in_the_middle_of_a_put(redis_server: RedisServer) -> None:
    rows = [(b"%d" % number, row(number, value=bytes(300))) for number in range(20_000)]
    with RedisServer() as server:
        online = RedisOnlineStore(server.url, {"wait_s": 1})
        trouble: list[Unavailable] = []

        def fill() -> None:
            try:
                while True:
                    online.put("s", rows, NOW)
            except Unavailable as error:
                trouble.append(error)

        thread = threading.Thread(target=fill, daemon=True)
        thread.start()
        wait_until(lambda: online.scan("s", limit=1) != [], 30)
        server.kill()
        thread.join(30)
        assert len(trouble) == 1
        server.start()
        assert online.note("s") is None
        assert online.put("s", rows, NOW) == len(rows)
        assert online.get([("s", [key for key, _ in rows])])[0] == [one for _, one in rows]
        online.close()
    assert redis_server.pid


def test_redis_takes_its_password_from_where_the_address_points(
    redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PASSWORD_OF_REDIS", "sluice-gate-7")
    monkeypatch.setenv("WRONG", "weir")
    with RedisServer(requirepass="sluice-gate-7") as server:
        online = RedisOnlineStore(f"{server.url}?password=env:PASSWORD_OF_REDIS")
        assert online.put("s", [(b"k", row(1))], NOW) == 1
        online.close()
        for bad in (server.url, f"{server.url}?password=env:WRONG"):
            with pytest.raises(Unavailable, match="refuses"):
                cell(RedisOnlineStore(bad))
    assert redis_server.pid


class TlsDoor(socketserver.ThreadingTCPServer):
    """TLS before a real server that was built without it."""

    daemon_threads = True

    def __init__(self, context: ssl.SSLContext, inner: int) -> None:
        super().__init__(("127.0.0.1", 0), self.carry)
        self.context, self.inner = context, inner
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def carry(self, plain: socket.socket, *_: object) -> None:
        with (
            contextlib.suppress(OSError),
            self.context.wrap_socket(plain, server_side=True) as outer,
            socket.create_connection(("127.0.0.1", self.inner)) as inner,
        ):
            threading.Thread(target=self.copy, args=(inner, outer), daemon=True).start()
            self.copy(outer, inner)

    @staticmethod
    def copy(source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                target.sendall(data)


def test_redis_over_tls_trusts_only_a_certificate_that_verifies(redis_server: RedisServer, tmp_path: Path) -> None:
    with TlsDoor(_tls(tmp_path), redis_server.port) as door:
        address = f"rediss://127.0.0.1:{door.server_address[1]}/0?prefix=t{uuid.uuid4().hex}&wait_s=5"
        online = RedisOnlineStore(f"{address}&ca={tmp_path}/ca.pem")
        assert online.put("s", [(b"k", row(1))], NOW) == 1
        assert cell(online) == row(1)
        online.close()
        for wrong in (address, f"{address}&ca={tmp_path}/ca.pem".replace("127.0.0.1", "localhost")):
            with pytest.raises(Unavailable):
                cell(RedisOnlineStore(wrong))
        door.shutdown()


@pytest.mark.parametrize(
    "address",
    [
        "redis://falaj:secret@127.0.0.1:6379/0",  # pragma: allowlist secret
        "redis://127.0.0.1:6379/0?password=secret",
        "redis://127.0.0.1:6379/zero",
        "redis://127.0.0.1:port/0",
        "redis://127.0.0.1/0?prefix={a}",
        "redis://127.0.0.1/0?ssl_cert_reqs=none",
        "redis://127.0.0.1:1,127.0.0.1:2/0",
        "redis://127.0.0.1:1,/?cluster=yes",
        "redis://127.0.0.1/1?cluster=yes",
        "rediss://127.0.0.1/0?socket=/run/redis.sock",
        "redis:",
        "http://127.0.0.1/",
    ],
)
def test_redis_refuses_an_address(address: str) -> None:
    with pytest.raises(Invalid) as caught:
        RedisOnlineStore(address)
    assert "secret" not in str(caught.value)


def test_redis_that_throws_keys_away_is_refused(redis_server: RedisServer) -> None:
    with RedisServer(**{"maxmemory-policy": "allkeys-lru"}) as server:
        online = RedisOnlineStore(server.url)
        with pytest.raises(Invalid, match="throws away"):
            online.put("s", [(b"k", row(1))], NOW)
        online.close()
    assert redis_server.pid


def test_redis_full_says_so(redis_server: RedisServer) -> None:
    with RedisServer(maxmemory="3mb") as server:
        online = RedisOnlineStore(server.url)
        rows = [(b"%d" % n, row(1, value=b"x" * 1000)) for n in range(5000)]
        with pytest.raises(Unavailable, match="memory"):
            online.put("s", rows, NOW)
        online.close()
    assert redis_server.pid


def test_redis_one_row_a_call_is_the_same(redis_server: RedisServer) -> None:
    online = RedisOnlineStore(f"{redis_server.url}?prefix=t{uuid.uuid4().hex}&chunk=1")
    assert online.put("s", shuffled(1), NOW) >= 20
    assert dict(online.scan("s")) == NEWEST
    online.close()


def test_redis_readers_and_writers_share_few_connections(redis_server: RedisServer) -> None:
    online = RedisOnlineStore(f"{redis_server.url}?prefix=t{uuid.uuid4().hex}&connections=3&wait_s=10")
    online.put("s", [(b"k", row(1))], NOW)
    with ThreadPoolExecutor(12) as pool:
        reads = [pool.submit(lambda: [cell(online) for _ in range(200)]) for _ in range(11)]
        writes = pool.submit(lambda: [online.put("s", [(b"w", row(n))], NOW) for n in range(1, 51)])
        assert writes.result(60) == [1] * 50
        assert all(set(read.result(60)) == {row(1)} for read in reads)
    online.close()


def test_redis_a_reader_whose_connection_was_ended_reads_on(redis_server: RedisServer) -> None:
    online = RedisOnlineStore(f"{redis_server.url}?prefix=t{uuid.uuid4().hex}")
    online.put("s", [(b"k", row(1))], NOW)
    for _ in range(3):
        assert cell(online) == row(1)
        assert redis_server.ask("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes") >= 1
    assert cell(online) == row(1)
    online.close()


def test_redis_leaves_nothing_behind(redis_server: RedisServer) -> None:
    prefix = f"t{uuid.uuid4().hex}"
    online = RedisOnlineStore(f"{redis_server.url}?prefix={prefix}")
    online.put("s", shuffled(1), NOW)
    online.put("t", shuffled(1), NOW)
    online.note("s", b"full")
    assert redis_server.ask("KEYS", f"{prefix}*")
    online.delete("s", list(NEWEST))
    online.drop("s")
    online.drop("t")
    assert redis_server.ask("KEYS", f"{prefix}*") == []
    online.close()


# A cluster alone


def _slot_of(cluster: RedisCluster, prefix: str, key: bytes) -> tuple[int, ClusterNode, ClusterNode]:
    """The slot of a key's bucket, who has it, and another server."""
    slot = int(cluster.nodes[0].ask("CLUSTER", "KEYSLOT", f"{prefix}{{{zlib.crc32(key) & 0xFFF:03x}}}"))
    owner = cluster.nodes[next(n for n in range(3) if slot < 16384 * (n + 1) // 3)]
    return slot, owner, next(node for node in cluster.nodes if node is not owner)


def test_cluster_spreads_rows_over_all_servers(redis_cluster: RedisCluster) -> None:
    prefix = f"t{uuid.uuid4().hex}"
    online = RedisOnlineStore(f"{redis_cluster.url}&prefix={prefix}")
    online.put("s", [(b"%d" % n, row(n)) for n in range(300)], NOW)
    held = [len(node.ask("KEYS", f"{prefix}*")) for node in redis_cluster.nodes]
    assert min(held) > 50
    assert online.note("s") is None
    online.note("s", b"full")
    online.drop("s")
    assert [node.ask("KEYS", f"{prefix}*") for node in redis_cluster.nodes] == [[], [], []]
    online.close()


def test_cluster_slots_that_move_are_followed(redis_cluster: RedisCluster) -> None:
    prefix, keys = f"t{uuid.uuid4().hex}", [b"%d" % n for n in range(30)]
    online = RedisOnlineStore(f"{redis_cluster.url}&prefix={prefix}")
    online.put("s", [(key, row(1)) for key in keys], NOW)
    slot, source, target = _slot_of(redis_cluster, prefix, keys[0])

    def all_is_there(event: int) -> None:
        assert online.get([("s", keys)]) == [[row(event)] * len(keys)]
        assert dict(online.scan("s")) == dict.fromkeys(keys, row(event))

    redis_cluster.begin_move(slot, source, target)
    assert online.get([("s", [*keys, b"nobody"])]) == [[row(1)] * len(keys) + [None]]
    redis_cluster.end_move(slot, source, target)
    all_is_there(1)
    assert online.put("s", [(key, row(2)) for key in keys], NOW) == len(keys)
    all_is_there(2)
    redis_cluster.begin_move(slot, target, source)
    redis_cluster.end_move(slot, target, source)
    assert online.delete("s", keys) == len(keys), "a row was counted twice, or not at all"
    assert online.scan("s") == []
    online.close()


@pytest.mark.parametrize("lost", [0, *(pytest.param(other, marks=pytest.mark.slow) for other in (1, 2))])
def test_cluster_a_server_that_came_back_empty_leaves_no_space_filled(lost: int) -> None:
    rows = [(b"%d" % n, row(n)) for n in range(200)]
    with RedisCluster() as cluster:
        online = RedisOnlineStore(f"{cluster.url}&wait_s=1")
        assert online.note("s") is None
        online.put("s", rows, NOW)
        online.note("s", b"full")
        assert online.note("s") == b"full"
        cluster.nodes[lost].kill()
        with pytest.raises(Unavailable):
            online.get([("s", [key for key, _ in rows])])
        cluster.nodes[lost].start()
        wait_until(cluster.whole, 60)
        found = online.get([("s", [key for key, _ in rows])])[0]
        assert 0 < found.count(None) < len(rows)
        assert online.note("s") is None, "it passes for filled, and a third of its rows is gone"
        online.put("s", rows, NOW)
        online.note("s", b"full")
        assert online.note("s") == b"full"
        assert dict(online.scan("s")) == dict(rows)
        online.close()


def test_cluster_what_is_lost_before_the_first_mark_is_seen() -> None:
    with RedisCluster() as cluster:
        online = RedisOnlineStore(f"{cluster.url}&wait_s=1")
        assert online.note("s") is None
        online.put("s", [(b"%d" % n, row(n)) for n in range(200)], NOW)
        cluster.nodes[1].kill()
        cluster.nodes[1].start()
        wait_until(cluster.whole, 60)
        online.note("s", b"full")
        assert online.note("s") is None
        online.close()


def test_cluster_must_be_called_one(redis_cluster: RedisCluster) -> None:
    online = RedisOnlineStore(redis_cluster.nodes[0].url)
    for act in (lambda: online.put("s", shuffled(1), NOW), lambda: online.get([("s", list(NEWEST))])):
        with pytest.raises(Unavailable, match="cluster=yes"):
            act()
    online.close()


def test_redis_through_a_socket_of_this_machine(redis_server: RedisServer, tmp_path: Path) -> None:
    with RedisServer(unixsocket=f"{tmp_path}/redis.sock") as server:
        online = RedisOnlineStore(f"redis://localhost/0?socket={tmp_path}/redis.sock&wait_s=1")
        online.put("s", [(b"k", row(1))], NOW)
        assert cell(online) == row(1)
        server.kill()
        with pytest.raises(Unavailable):
            cell(online)
        online.close()
    assert redis_server.pid


def test_redis_that_does_not_answer_is_given_up(redis_server: RedisServer) -> None:
    online = RedisOnlineStore(f"{redis_server.url}?wait_s=0.2")
    online.put("s", [(b"k", row(1))], NOW)
    assert cell(online) == row(1)
    os.kill(redis_server.pid, signal.SIGSTOP)
    try:
        with pytest.raises(Unavailable):
            cell(online)
    finally:
        os.kill(redis_server.pid, signal.SIGCONT)
    assert cell(online) == row(1)
    online.close()


def test_readonly_reader_without_lock_file_sees_each_commit_and_cannot_write(tmp_path: Path) -> None:
    url, (ours, theirs) = f"lmdb:{tmp_path}/online", fresh.Pipe()
    writer = LmdbOnlineStore(url, {"map_bytes": 1 << 20})
    writer.put("s", [(b"k", row(0))], NOW)
    lock = tmp_path / "online" / "lock.mdb"
    lock.rename(tmp_path / "lock.mdb")
    child = fresh.Process(target=_read_without_lock, args=(url, theirs))
    child.start()
    for number in range(1, 600):  # beyond the first map: writer and reader map the file anew
        writer.put("s", [(b"k", row(number)), (b"%d" % number, row(1, value=b"x" * 4000))], NOW)
        ours.send(number)
        assert ours.recv() == number
    ours.send(0)
    child.join(30)
    assert child.exitcode == 0
    assert not lock.exists()
    writer.close()


def _read_without_lock(url: str, channel: Any) -> None:
    reader = LmdbOnlineStore(url, {"readonly": True, "map_bytes": 1 << 20})
    while number := channel.recv():
        found = reader.get([("s", [b"k", b"%d" % number])])[0]
        channel.send(number if found == [row(number), row(1, value=b"x" * 4000)] else -1)
    for write in (lambda: reader.put("s", [(b"k", row(9))], NOW), lambda: reader.delete("s", [b"k"])):
        with pytest.raises(Invalid):
            write()
    reader.close()


def test_writer_does_not_reuse_recent_pages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader without a lock file stays on its snapshot while the writer replaces every page of it many times."""
    monkeypatch.setattr("falaj.backends.lmdb_online.SNAPSHOT_GRACE_S", 60.0)

    writer = LmdbOnlineStore(f"lmdb:{tmp_path}/online")
    rows = [(b"%04d" % number, row(1)) for number in range(500)]
    writer.put("s", rows, NOW)
    child = fresh.Process(target=_hold_snapshot, args=(str(tmp_path / "online"), str(tmp_path)))
    child.start()
    wait_until((tmp_path / "open").exists, 30)
    for number in range(2, 12):
        writer.put("s", [(key, row(number)) for key, _ in rows], NOW)
    (tmp_path / "go").touch()
    child.join(30)
    assert child.exitcode == 0
    writer.close()


def _hold_snapshot(folder: str, signals: str) -> None:
    import lmdb

    with lmdb.open(folder, readonly=True, lock=False) as env, env.begin() as txn:
        before = dict(txn.cursor())
        Path(signals, "open").touch()
        wait_until(Path(signals, "go").exists, 30)
        assert dict(txn.cursor()) == before
