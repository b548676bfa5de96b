"""What every Series must do, asked of real SQLite and real PostgreSQL."""

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from falaj.backends.series_postgres import PostgresSeriesStore
from falaj.backends.series_sqlite import SqliteSeriesStore
from falaj.core.errors import CorruptData, Invalid, Unavailable
from falaj.core.ports import SeriesBlock, SeriesStore
from falaj.store.series_backup import SeriesDump, restore_series

ENGINES = ("sqlite", "postgresql")
Open = Callable[[], SeriesStore]


def make(url: str) -> SeriesStore:
    return SqliteSeriesStore(url) if url.startswith("sqlite:") else PostgresSeriesStore(url, {"wait_s": 5})


@pytest.fixture(params=ENGINES)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:{tmp_path}/series.db"
    made: str = request.getfixturevalue("new_postgres")()
    return made


@pytest.fixture
def opened(url: str) -> Iterator[Open]:
    """Each call opens the same database once more, as another process would."""
    made: list[SeriesStore] = []

    def open_it() -> SeriesStore:
        made.append(make(url))
        return made[-1]

    yield open_it
    for series in made:
        series.close()


@pytest.fixture
def series(opened: Open) -> SeriesStore:
    return opened()


def block(
    id_: str, low: str = "", *, series: str = "s", shelf: str = "", tenant: str = "t", **other: object
) -> SeriesBlock:
    bare = SeriesBlock(tenant, series, shelf, id_, "z", low, low, 1, 1.0, b"\x00data\xff" + id_.encode())
    return bare._replace(**other)


def ids(blocks: list[SeriesBlock]) -> list[str]:
    return [one.id for one in blocks]


def test_blocks_come_back_as_they_were(series: SeriesStore) -> None:
    whole = block("a", "5", high="9", length=7, at=1735689600.123456, told=False, shelf="m1", data=bytes(range(256)))
    series.append([whole])
    assert series.read("t", ["s"], "m1") == [whole]
    assert series.read("t", ["s"], "") == series.read("other", ["s"], "m1") == series.read("t", ["r"], "m1") == []


def test_they_come_in_order_and_from_a_place_on(series: SeriesStore) -> None:
    series.append([block("c", "3"), block("a", "1"), block("b", "2", high="8"), block("d", "2")])
    assert ids(series.read("t", ["s"], "")) == ["a", "d", "b", "c"]
    assert ids(series.read("t", ["s"], "", "3")) == ["b", "c"]
    assert ids(series.read("t", ["s"], "", "", 2)) == ["a", "d"]


def test_many_series_are_read_at_once(series: SeriesStore) -> None:
    series.append([block("a", series=name) for name in ("r3", "r1", "r2")])
    assert [one.series for one in series.read("t", ["r1", "r3", "nobody"], "")] == ["r1", "r3"]
    assert series.read("t", [], "") == []


def test_the_same_block_twice_is_one(series: SeriesStore) -> None:
    series.append([block("a"), block("b")])
    series.append([block("a", data=b"another"), block("c")])
    assert ids(series.read("t", ["s"], "")) == ["a", "b", "c"]
    assert series.read("t", ["s"], "")[0].data == block("a").data


def test_appending_nothing_is_nothing(series: SeriesStore) -> None:
    series.append([])
    assert series.read("t", ["s"], "") == []


def test_changes_since_a_cursor(series: SeriesStore) -> None:
    series.append([block("old")])
    found, start = series.changes("t")
    assert found == []
    series.append([block("a"), block("quiet", shelf="m1", told=False), block("other", tenant="u")])
    found, then = series.changes("t", start)
    assert ids(found) == ["a"]
    series.append([block("b")])
    found, _ = series.changes("t", then)
    assert ids(found)[-1:] == ["b"]
    assert set(ids(series.changes("t", start)[0])) >= {"a", "b"}


def test_a_bad_cursor_is_refused(series: SeriesStore) -> None:
    with pytest.raises(Invalid):
        series.changes("t", "here")


def test_a_swap_is_all_or_nothing(series: SeriesStore) -> None:
    series.append([block("a"), block("b"), block("c")])
    _, start = series.changes("t")
    assert series.swap("t", "s", ["a", "b"], [block("ab", "1", shelf="m1")])
    assert ids(series.read("t", ["s"], "")) == ["c"]
    assert ids(series.read("t", ["s"], "m1")) == ["ab"]
    assert ids(series.changes("t", start)[0]) == ["ab"]
    assert not series.swap("t", "s", ["a", "c"], [block("ac")])
    assert not series.swap("t", "other", ["c"], [block("ac")])
    assert ids(series.read("t", ["s"], "")) == ["c"]


def test_of_two_swaps_one_wins(opened: Open) -> None:
    first, second = opened(), opened()
    first.append([block(f"{n:02}") for n in range(8)])
    everything = ids(first.read("t", ["s"], ""))
    won: list[bool] = []
    threads = [
        threading.Thread(target=lambda one=one, name=name: won.append(one.swap("t", "s", everything, [block(name)])))
        for one, name in ((first, "x"), (second, "y"))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(won) == [False, True]
    assert len(first.read("t", ["s"], "")) == 1


def test_a_series_is_deleted_whole_and_alone(series: SeriesStore) -> None:
    series.append([block("a"), block("b", shelf="m1"), block("c", series="r"), block("d", tenant="u")])
    series.delete("t", "s")
    assert series.read("t", ["s"], "") == series.read("t", ["s"], "m1") == []
    assert ids(series.read("t", ["r"], "")) == ["c"]
    assert ids(series.read("u", ["s"], "")) == ["d"]


def test_what_is_old_expires(series: SeriesStore) -> None:
    series.append(
        [block("a", series="log.1", at=1.0), block("b", series="log.1", at=9.0), block("c", series="run", at=1.0)]
    )
    assert series.expire("t", "log.", 5.0) == 1
    assert ids(series.read("t", ["log.1", "run"], "")) == ["b", "c"]


def test_everything_is_given_out_and_taken_back(series: SeriesStore) -> None:
    every = [
        block(f"b{n:04d}", f"{n:04d}", series=f"s{n % 7}", shelf="x" * (n % 2), told=n % 3 > 0) for n in range(1200)
    ]
    series.append([*every, block("other", tenant="u", zone="y")])
    given = [*series.dump()]
    assert len(given) == 1201
    assert {one.id: one for one in given} == {
        **{one.id: one for one in every},
        "other": block("other", tenant="u", zone="y"),
    }
    series.delete("t", "s1")
    chunks = [*SeriesDump(series, "z")]
    assert len(chunks) == 1
    assert restore_series([chunks[0][n : n + 1000] for n in range(0, len(chunks[0]), 1000)], series) == 1200 - len(
        every[1::7]
    )
    assert ids(series.read("t", ["s1"], "")) == []
    series.append([one for one in given if one.series == "s1"])
    assert sorted(series.dump()) == sorted(given)
    with pytest.raises(CorruptData):
        restore_series([chunks[0][:-1]], series)


def test_two_open_the_same(opened: Open) -> None:
    first, second = opened(), opened()
    _, start = second.changes("t")
    first.append([block("a")])
    assert ids(second.changes("t", start)[0]) == ids(second.read("t", ["s"], "")) == ["a"]


def test_many_write_at_once_and_nothing_is_missed(opened: Open) -> None:
    """While many append, a reader that follows the cursor meets every block."""
    writers = [opened(), opened()]
    reader = opened()
    _, at = reader.changes("t")
    seen: set[str] = set()
    done = threading.Event()

    def write(writer: SeriesStore, name: str) -> None:
        for n in range(40):
            writer.append([block(f"{name}{n:03}", series=name)])

    def follow() -> None:
        nonlocal at
        while not done.is_set():
            found, at = reader.changes("t", at)
            seen.update(ids(found))

    threads = [threading.Thread(target=write, args=(writers[n % 2], f"w{n}")) for n in range(4)]
    follower = threading.Thread(target=follow)
    for thread in (follower, *threads):
        thread.start()
    for thread in threads:
        thread.join()
    done.set()
    follower.join()
    seen.update(ids(reader.changes("t", at)[0]))
    assert len(seen) == 160


def _append_for_ever(url: str, pipe: "multiprocessing.connection.Connection") -> None:
    series = make(url)
    n = 0
    while True:
        series.append([block(f"{n:06}")])
        pipe.send(n)
        n += 1


def test_what_was_acknowledged_survives_kill_9(url: str, opened: Open) -> None:
    series = opened()
    spawn = multiprocessing.get_context("spawn")
    ours, theirs = spawn.Pipe(duplex=False)
    process = spawn.Process(target=_append_for_ever, args=(url, theirs))
    process.start()
    theirs.close()
    last = -1
    while last < 50:
        last = ours.recv()
    assert process.pid is not None
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    try:
        while True:
            last = ours.recv()
    except EOFError:
        pass
    kept = ids(series.read("t", ["s"], ""))
    assert kept[: last + 1] == [f"{n:06}" for n in range(last + 1)]
    assert len(kept) <= last + 2


def test_closed_is_said_clearly(opened: Open) -> None:
    series = opened()
    series.close()
    with pytest.raises(Unavailable):
        series.append([block("a")])


def test_on_postgres_what_commits_late_is_told(new_postgres: Callable[[], str]) -> None:
    """A block whose transaction began first and ended last is in nobody's past."""
    import psycopg

    url = new_postgres()
    series = PostgresSeriesStore(url)
    _, start = series.changes("t")
    with psycopg.connect(url) as late:
        late.execute(
            "INSERT INTO blocks (tenant, series, shelf, id, zone, low, high, length, at, data, told)"
            " VALUES ('t', 's', '', 'late', 'z', '', '', 1, 1.0, '', true)"
        )
        series.append([block("early")])
        found, then = series.changes("t", start)
        assert ids(found) == ["early"]
        late.commit()
    assert "late" in ids(series.changes("t", then)[0])
    series.close()


def test_a_damaged_file_is_said_to_be_one(tmp_path: Path) -> None:
    (tmp_path / "series.db").write_bytes(b"no database at all" * 100)
    with pytest.raises(CorruptData):
        SqliteSeriesStore(f"sqlite:{tmp_path}/series.db")
    with pytest.raises(Invalid):
        SqliteSeriesStore(f"sqlite:{tmp_path}/no/such/folder/series.db")
