"""Many chapters become one: the same numbers offline and online, before, during and after; pushes and batches apart."""

import random
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import falaj
from falaj.asof.service_reader import ServiceReader
from falaj.core.errors import StaleRevision
from falaj.core.ref import Ref
from falaj.features.row_stream import RowSegment, RowStream, group_adjacent_segments, with_merged_segments
from tests.town import refusal

DEFINITIONS = """
from falaj.features import Entity, Feature, Service, Source, Window, view
one = Entity("f/one", keys={"id": "int64"})
plain = view("f/plain", one, Source("dataset:f/rows", event="at"), features=[Feature("x", "float64")])
sums = view("f/sums", one, Source("push", event="at"), features=[Feature("x", "float64")],
            windows=[Window("sum", "x", "30d"), Window("count", over="30d"), Window("last", "x", "30d", n=3)])
both = Service("f/both", [plain, sums])
"""
IDS = list(range(6))


def answers(here: Any) -> dict[str, list[Any]]:
    at = round(time.time() * 1e6)
    plan = here.features.open("service:f/both").plan
    online = ServiceReader(plan, here.online()).read({"id": IDS}, now_us=at).columns
    labels = pa.table({"id": IDS, "moment": pa.array([at] * len(IDS), pa.int64())})
    table = here.features.table(labels, "service:f/both", moment="moment")
    assert online == {name: table.column(name).to_pylist() for name in online}
    return online


def push(here: Any, rng: random.Random) -> None:
    at = round(time.time() * 1e6)
    here.features.push("view:f/sums", [{"id": rng.choice(IDS), "at": at - rng.randrange(10**12), "x": rng.random()}])


@pytest.mark.parametrize("lost", [False, True], ids=["filled", "store lost"])
def test_the_same_numbers(tmp_path: Path, lost: bool) -> None:
    rng = random.Random(4)
    with falaj.connect(str(tmp_path / "house")) as here:
        (tmp_path / "features.py").write_text(DEFINITIONS)
        (tmp_path / "rows").mkdir()
        for number in range(4):
            at = pa.array([round(time.time() * 1e6) - rng.randrange(10**12) for _ in IDS], pa.timestamp("us", "UTC"))
            pq.write_table(
                pa.table({"id": IDS, "at": at, "x": [rng.random() for _ in IDS]}),
                tmp_path / "rows" / f"{number}.parquet",
            )
            here.catalog.publish("dataset:f/rows", str(tmp_path / "rows"))
            here.features.apply(str(tmp_path / "features.py"))
            here.features.ingest("view:f/plain")
            push(here, rng)
            here.features.rows("view:f/sums")
        here.features.materialize("service:f/both")
        push(here, rng)
        before = answers(here)
        assert len(here.features.about("view:f/plain").stream.chapters) == 4
        assert here.features.compact("view:f/plain") == 1
        assert here.features.compact("view:f/sums") <= 2
        if lost:
            for one in here.features.open("service:f/both").plan.views:
                here.online().drop(one.space)
            here.features.materialize("service:f/both")
        assert answers(here) == before
        push(here, rng)
        answers(here)
        old = here.features.about("view:f/plain").stream.chapters[0]
        again = lambda: here.features.merge("view:f/plain", (1, 2), old, dict(old.faces))  # noqa: E731
        assert isinstance(refusal(again), StaleRevision)


def test_merged_while_it_is_filled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """How far a chapter came says nothing of the one it becomes."""
    monkeypatch.setattr("falaj.asof.row_files._PARTITION_BYTES", 64)
    monkeypatch.setattr("falaj.features.online_fill.CALL_BUDGET_S", -1.0)
    rng = random.Random(5)
    with falaj.connect(str(tmp_path / "house")) as here:
        (tmp_path / "features.py").write_text(DEFINITIONS)
        (tmp_path / "rows").mkdir()
        for number in range(2):
            at = pa.array([round(time.time() * 1e6) - rng.randrange(10**12) for _ in IDS], pa.timestamp("us", "UTC"))
            table = pa.table({"id": IDS, "at": at, "x": [rng.random() for _ in IDS]})
            pq.write_table(table, tmp_path / "rows" / f"{number}.parquet")
            here.catalog.publish("dataset:f/rows", str(tmp_path / "rows"))
            here.features.apply(str(tmp_path / "features.py"))
            here.features.ingest("view:f/plain")
        done = here.features.fill("view:f/plain")
        assert not done.complete
        assert 0 < done.rows < done.total
        here.features.compact("view:f/plain")
        here.features.materialize("service:f/both")
        answers(here)


def test_only_what_arrived_in_a_row_is_merged() -> None:
    def chapter(generation: int, how: str) -> RowSegment:
        return RowSegment(
            generation,
            1,
            {"": Ref.parse(f"dataset:f/a@v{generation}")},
            0,
            0,
            0.0,
            how,
            ((generation, generation << 36),),
        )

    stream = RowStream(
        Ref.parse("view:f/a"), 1, chapters=tuple(chapter(at, "push" if at != 3 else "ingest") for at in range(1, 6))
    )
    assert [[one.generation for one in group] for group in group_adjacent_segments(stream)] == [[1, 2], [3], [4, 5]]
    made = with_merged_segments(stream, (4, 5), chapter(9, "push"))
    assert made is not None
    assert [one.generation for one in made.chapters] == [1, 2, 3, 5]
    assert made.chapters[-1].spans == ((4, 4 << 36), (5, 5 << 36))
    for wrong in ((2, 4), (1, 2, 3), (7,), ()):
        assert with_merged_segments(stream, wrong, chapter(9, "push")) is None
