"""The board: always what the ledger and the series say, whoever wrote it, and never more than the caller may see."""

import threading
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from falaj.core.errors import CorruptData, Invalid
from falaj.core.ref import Ref
from falaj.server import LocalClient, Server, load_settings
from falaj.track import run_index as module
from falaj.track.records import Metric, RunPage
from tests.town import Town, refusal

EXPERIMENT = "experiment:fraud/scoring"


def ids(page: RunPage) -> list[str]:
    return [run.id for run in page.runs]


def test_a_search_sees_what_was_written_before_it(amal: Any, run: Ref) -> None:
    assert ids(amal.track.list()) == [run.name]
    amal.track.log(run, metrics=(Metric("acc", 0.5, 1.0, 1),))
    assert amal.track.list(where="metrics.acc = 0.5").runs
    amal.track.log(run, metrics=(Metric("acc", 0.7, 1.0, 2),), params={"a": "b"})
    assert amal.track.list(where="metrics.acc = 0.7 and params.a = 'b'").runs[0] == amal.track.show(run)
    amal.track.log(run, tags={"x": "y"})
    assert amal.track.list(where="tags.x = 'y'").runs
    amal.track.log(run, drop=("x",))
    assert amal.track.list(where="tags.x = 'y'").runs == ()
    amal.track.end(run, status="failed")
    assert amal.track.list(where="status = 'FAILED'").runs[0].status == "failed"
    other = amal.track.start(EXPERIMENT).ref
    assert set(ids(amal.track.list())) == {run.name, other.name}


def test_the_same_run_is_the_same_object_until_it_changes(town: Town, amal: Any, run: Ref) -> None:
    (first,) = amal.track.list().runs
    (second,) = amal.track.list().runs
    assert first is second
    made: list[int] = []

    def encode(one: Any) -> bytes:
        made.append(1)
        return one.id.encode()

    assert town.house.track.encoded(first, encode) == town.house.track.encoded(second, encode) == run.name.encode()
    amal.track.log(run, metrics=(Metric("a", 1.0),))
    (third,) = amal.track.list().runs
    assert third is not first
    town.house.track.encoded(third, encode)
    assert len(made) == 2


def test_pages_follow_one_another(amal: Any) -> None:
    runs = [amal.track.start(EXPERIMENT, started=1000.0 + n).ref.name for n in range(25)]
    found: list[str] = []
    after = ""
    while True:
        page = amal.track.list(limit=7, after=after)
        found += ids(page)
        after = page.next
        if not after:
            break
        amal.track.start(EXPERIMENT, started=5000.0)  # newer ones come in meanwhile, at the front
    assert found == runs[::-1]
    for wrong in ("x", "-1.a", "5"):
        assert isinstance(refusal(lambda wrong=wrong: amal.track.list(after=wrong)), Invalid)
    for wrong_limit in (0, -1, 50_001):
        assert isinstance(refusal(lambda wrong_limit=wrong_limit: amal.track.list(limit=wrong_limit)), Invalid)
    assert isinstance(refusal(lambda: amal.track.list(state="odd")), Invalid)


def test_experiments_and_projects_narrow_it(amal: Any, run: Ref) -> None:
    amal.track.create("experiment:other/one")
    other = amal.track.start("experiment:other/one").ref
    assert ids(amal.track.list(experiments=(EXPERIMENT,))) == [run.name]
    assert ids(amal.track.list(project="other")) == [other.name]
    assert ids(amal.track.list(experiments=(EXPERIMENT,), project="other")) == []
    assert set(ids(amal.track.list(experiments=(EXPERIMENT, "experiment:other/one")))) == {run.name, other.name}


def test_what_was_undone_is_not_shown(town: Town, amal: Any, run: Ref) -> None:
    """A run that was started in a group whose commit failed was never there."""
    assert ids(amal.track.list()) == [run.name]
    ledger = town.house.ledger

    def undone() -> None:
        with ledger.write(town.house.system()):
            amal.track.log(run, tags={"a": "b"})
            amal.track.start(EXPERIMENT)
            assert len(amal.track.list().runs) <= 2
            raise RuntimeError

    with pytest.raises(RuntimeError):
        undone()
    assert [one.tags for one in amal.track.list().runs] == [{}]


def test_memory_is_bounded(town: Town, amal: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_INDEX_ROWS", 10)
    for number in range(4):
        amal.track.create(f"experiment:fraud/e{number}")
        for _ in range(4):
            amal.track.start(f"experiment:fraud/e{number}")
    for number in (0, 1, 2, 3, 0):
        assert len(amal.track.list(experiments=(f"experiment:fraud/e{number}",)).runs) == 4
    assert len(town.house.track.board._tenant_indexes["bank"].rows) <= 10
    assert isinstance(refusal(amal.track.list), Invalid)
    assert len(amal.track.list(experiments=("experiment:fraud/e1",)).runs) == 4


def test_a_tenant_nobody_asks_about_takes_no_memory(town: Town, amal: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MAX_PENDING_RECORDS", 5)
    amal.track.list()
    for _ in range(8):
        amal.track.start(EXPERIMENT)
    assert "bank" not in town.house.track.board._tenant_indexes
    assert len(amal.track.list().runs) == 8


def test_searches_and_writes_at_once(town: Town, amal: Any) -> None:
    runs = [amal.track.start(EXPERIMENT).ref for _ in range(8)]
    stop = threading.Event()
    wrong: list[str] = []

    def write(run: Ref) -> None:
        for step in range(25):
            town.as_("amal").track.log(run, metrics=(Metric("step", float(step), 1.0, step),), tags={"step": str(step)})
            mine = next(one for one in town.as_("amal").track.list().runs if one.ref == run)
            if mine.metrics["step"].value < step or int(mine.tags["step"]) < step:
                wrong.append(f"{run}: {mine.metrics['step']} {mine.tags} after {step}")

    def read() -> None:
        last: dict[str, float] = {}
        while not stop.is_set():
            for one in town.as_("mona").track.list(where="metrics.step >= 0").runs:
                if one.metrics["step"].value < last.get(one.id, 0):
                    wrong.append("it went back")
                last[one.id] = one.metrics["step"].value

    threads = [threading.Thread(target=write, args=(run,)) for run in runs[:4]]
    reader = threading.Thread(target=read)
    for thread in (reader, *threads):
        thread.start()
    for thread in threads:
        thread.join()
    stop.set()
    reader.join()
    assert wrong == []


ACTS = st.lists(
    st.tuples(
        st.sampled_from(["start", "log", "param", "tag", "end", "delete", "restore", "settle", "look"]),
        st.integers(0, 5),
    ),
    max_size=25,
)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(ACTS)
def test_it_always_says_what_show_says(town: Town, acts: list[tuple[str, int]]) -> None:
    """Whatever happens in whatever order, the board and a fresh look at the record agree."""
    here = town.as_("amal")
    number = len(here.track.experiments(state="all", limit=10_000).experiments)
    experiment = here.track.create(f"experiment:fraud/x{number}").ref
    runs: list[Ref] = []
    for step, (act, which) in enumerate(acts):
        if act == "start" or not runs:
            runs.append(here.track.start(experiment).ref)
            continue
        run = runs[which % len(runs)]
        if act == "delete" or act == "restore":
            getattr(here.track, act)(run)
        elif act == "settle":
            town.house.track.measures.settle("bank", run.name)
        elif act == "look":
            here.track.list(experiments=(experiment,))
        elif here.track.show(run).state == "active":
            _act(here, act, run, step)
    found = here.track.list(experiments=(experiment,), state="all").runs
    assert sorted(found, key=lambda one: one.id) == sorted(
        (here.track.show(run) for run in runs), key=lambda one: one.id
    )


def _act(here: Any, act: str, run: Ref, step: int) -> None:
    if act == "log":
        here.track.log(run, metrics=(Metric("a", float(step), 1.0, step % 5),))
    elif act == "param":
        here.track.log(run, params={f"p{step}": "x"})
    elif act == "tag":
        here.track.log(run, tags={"t": str(step)})
    elif act == "end":
        here.track.end(run, ended=float(step + 1))


def test_a_group_that_began_before_another_replica_wrote_still_finds_it(tmp_path: Path, postgres_url: str) -> None:
    """The log may be ahead of a group's snapshot; what the board took from there would be old for ever."""
    town = Town(tmp_path, store=postgres_url)
    second = Server(load_settings(str(tmp_path), {"zone": "ae-dubai", "store": postgres_url}))
    here, there = town.as_("amal"), LocalClient(second, second.authenticate(town.tokens["amal"]), "fraud")
    here.track.create(EXPERIMENT)
    run = here.track.start(EXPERIMENT).ref
    assert ids(here.track.list()) == [run.name]
    with town.house.ledger.group():
        here.track.show(run)
        there.track.log(run, tags={"x": "y"})
        here.track.list(where="tags.x = 'y'")
    assert ids(here.track.list(where="tags.x = 'y'")) == [run.name]
    second.close()
    town.close()


def test_searches_of_one_group_look_once_and_the_next_group_looks_again(
    town: Town, amal: Any, run: Ref, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = list[str]()
    told = town.house.track.measures.told
    monkeypatch.setattr(town.house.track.measures, "told", lambda *given: (looks.append("points"), told(*given))[1])
    monkeypatch.setattr(town.house.ledger.store, "end", _counted(town.house.ledger.store.end, looks))
    amal.track.list()
    looks.clear()
    for value in (1.0, 2.0):
        amal.track.log(run, metrics=(Metric("a", value, 1.0, int(value)),))
        with town.house.ledger.group():
            for where in (f"metrics.a = {value}", "", f"metrics.a >= {value}"):
                assert ids(amal.track.list(where=where)) == [run.name]
    assert looks == ["log", "points"] * 2
    amal.track.list()
    amal.track.list()
    assert looks == ["log", "points"] * 4  # alone, everybody looks


def _counted(end: Any, looks: list[str]) -> Any:
    def counted() -> Any:
        looks.append("log")
        return end()

    return counted


def test_two_replicas_on_one_database(tmp_path: Path, postgres_url: str) -> None:
    """What one wrote the other finds; both write to the same run, and nothing is lost."""
    town = Town(tmp_path, store=postgres_url)
    second = Server(load_settings(str(tmp_path), {"zone": "ae-dubai", "store": postgres_url}))
    here = town.as_("amal")
    there = LocalClient(second, second.authenticate(town.tokens["amal"]), "fraud")
    here.track.create(EXPERIMENT)
    run = here.track.start(EXPERIMENT).ref
    assert ids(there.track.list()) == ids(here.track.list()) == [run.name]
    for step in range(10):
        (here, there)[step % 2].track.log(run, metrics=(Metric("a", float(step), 1.0, step),), tags={"by": str(step)})
        for each in (here, there):
            (seen,) = _until(each, lambda page, step=step: page.runs[0].tags["by"] == str(step)).runs
            assert seen.metrics["a"].value == step
    other = there.track.start(EXPERIMENT, params={"x": "y"}).ref
    there.track.log(other, metrics=(Metric("b", 1.0),))
    assert ids(
        _until(here, lambda page: len(page.runs) == 2 and page.runs[0].metrics, where="params.x = 'y'", n=1)
    ) == [other.name]

    def hammer(platform: Any, name: str) -> None:
        for step in range(30):
            platform.track.log(run, metrics=(Metric(name, float(step), 1.0, step),), params={f"{name}{step}": "x"})

    threads = [threading.Thread(target=hammer, args=(each, name)) for each, name in ((here, "h"), (there, "t"))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    shown = here.track.show(run)
    assert len(shown.params) == 60
    assert shown.metrics["h"].value == shown.metrics["t"].value == 29
    for each in (here, there):
        _until(each, lambda page: next(one for one in page.runs if one.id == run.name) == shown)
    second.close()
    town.close()


def _until(platform: Any, holds: Any, where: str = "", n: int = 0) -> RunPage:
    """What another replica wrote is seen as soon as no older transaction is open anywhere."""
    until = time.monotonic() + 10
    while True:
        page: RunPage = platform.track.list()
        if holds(page):
            return platform.track.list(where=where) if n else page
        assert time.monotonic() < until, page


@pytest.mark.slow
def test_ten_thousand_runs_are_searched_in_milliseconds(town: Town, amal: Any) -> None:
    house, actor = town.house, town.actor("amal")
    track = house.track

    def call(verb: str, **arguments: Any) -> Any:
        from falaj.core.operation import list_operations

        params = list_operations(type(track))[verb].params
        given_ = {param.name: arguments.get(param.name, param.default) for param in params}
        return house.call("track", verb, house.context(actor, purpose="fraud"), given_)

    experiment = Ref.parse(EXPERIMENT)
    for start in range(0, 10_000, 1000):
        with house.ledger.group():
            for n in range(start, start + 1000):
                run = call("start", experiment=experiment, params={"model": "tree" if n % 2 else "net"})
                call("log", run=run.ref, metrics=(Metric("acc", n / 10_000, 1.0, 1),))
    where = "metrics.acc > 0.5 and params.model = 'tree'"
    first = call("list", experiments=(experiment,), where=where, order=("metrics.acc DESC",))
    assert [run.metrics["acc"].value for run in first.runs[:3]] == [0.9999, 0.9997, 0.9995]
    begun = time.process_time()
    for n in range(20):
        call("list", experiments=(experiment,), where=f"metrics.acc > 0.5{n} and params.model = 'tree'")
    assert (time.process_time() - begun) / 20 < 0.1


def test_one_damaged_run_does_not_hide_the_others(town: Town, amal: Any, run: Ref) -> None:
    other = amal.track.start(EXPERIMENT).ref
    for each in (run, other):
        amal.track.log(each, metrics=(Metric("a", 1.0),))
    series = town.house.track.measures._series
    (block,) = series.read("bank", [run.name], "")
    damaged = block.data[:-1] + bytes([block.data[-1] ^ 1])
    assert series.swap("bank", run.name, [block.id], [block._replace(data=damaged)])
    assert set(ids(amal.track.list())) == {run.name, other.name}
    assert ids(amal.track.list(where="metrics.a = 1")) == [other.name]
    assert isinstance(refusal(lambda: amal.track.show(run)), CorruptData)
    assert isinstance(refusal(lambda: amal.track.history(run, "a")), CorruptData)
