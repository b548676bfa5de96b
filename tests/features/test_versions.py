"""Versions and spaces: a version reads as it did whatever comes after it, and a full refresh is seen by nobody."""

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import falaj
from falaj.asof.service_reader import ServiceReader

HEAD = """
from falaj.features import Entity, Feature, Rule, Service, Source, Window, col, view
thing = Entity("v/thing", keys={"id": "int64"})
"""
FIRST = """
one = view("v/one", thing, Source("push", event="at"), features=[Feature("x", "float64"), Feature("word", "string")])
all = Service("v/all", [one])
"""
CHANGES = [
    # A column goes and another comes.
    FIRST.replace('Feature("word", "string")', 'Feature("other", "int64")'),
    # A type.
    FIRST.replace('Feature("x", "float64")', 'Feature("x", "int64")'),
    # Another way to the same name, and another order.
    FIRST.replace('[Feature("x", "float64"), ', '[Feature("y", "float64"), Feature("x", "float64", col("y") * 2), '),
    # When values end.
    FIRST.replace('event="at"),', 'event="at"), ttl="1s",'),
    # Rules.
    FIRST.replace('event="at"),', 'event="at"), rules=[Rule.range("x", high=0)],'),
    # Numbers over time in place of values.
    FIRST.replace('"string")]', '"string")], windows=[Window("count", over="1h")]'),
]
IDS = {"id": [1, 2, 3]}


@pytest.fixture
def here(tmp_path: Path) -> Iterator[Any]:
    with falaj.connect(str(tmp_path / "house")) as found:
        yield found


def apply(here: Any, folder: Path, text: str) -> None:
    (folder / "features.py").write_text(HEAD + text)
    here.features.apply(str(folder / "features.py"), force=True)


def rows(x: float, age_s: float = 60) -> list[dict[str, Any]]:
    at = round((time.time() - age_s) * 1e6)
    return [{"id": n, "at": at, "x": x, "y": x, "word": f"w{x}", "other": 7} for n in (1, 2)]


def seen(here: Any, service: str) -> dict[str, Any]:
    """Online and offline, values and statuses."""
    answer = here.features.read(service, IDS)
    labels = pa.table({**IDS, "moment": pa.array([round(time.time() * 1e6)] * 3, pa.int64())})
    offline = here.features.table(labels, service, moment="moment").drop_columns(["moment"]).to_pydict()
    return {"columns": answer.columns, "statuses": answer.statuses, "offline": offline}


@pytest.mark.parametrize("change", range(len(CHANGES)))
def test_a_version_reads_the_same_after_any_change(here: Any, tmp_path: Path, change: int) -> None:
    apply(here, tmp_path, FIRST)
    here.features.push("view:v/one", rows(1.0))
    before = seen(here, "service:v/all@v1")
    assert before["columns"]["x"] == [1.0, 1.0, None]
    apply(here, tmp_path, CHANGES[change])
    assert seen(here, "service:v/all@v1") == before
    assert str(here.features.show("service:v/all").ref) == "service:v/all@v2"
    here.features.materialize("service:v/all")
    # What comes in now comes to whoever shares the rows; in any case the old version keeps its columns and its rule.
    here.features.push("view:v/one", rows(-2.0, age_s=30))
    after = seen(here, "service:v/all@v1")
    assert list(after["columns"]) == list(before["columns"])
    shared = change >= 3
    assert after["columns"]["x"] == ([-2.0, -2.0, None] if shared else before["columns"]["x"])
    assert after["offline"]["x"] == after["columns"]["x"]


def test_nobody_sees_a_full_refresh(here: Any, tmp_path: Path) -> None:
    """While a new space is filled and readers are switched to it, every read is whole."""
    apply(here, tmp_path, FIRST)
    here.features.push("view:v/one", [{**rows(1.0)[0], "id": n} for n in range(500)])
    plan = here.features.open("service:v/all").plan.views[0].space
    wrong: list[Any] = []
    reads, done = [0], threading.Event()

    def read() -> None:
        while not done.is_set():
            # As each request does: the plan, then the rows.
            answer = ServiceReader(here.features.open("service:v/all").plan, here.online()).read(
                {"id": list(range(500))}
            )
            reads[0] += 1
            if answer.columns["x"] != [1.0] * 500:
                wrong.append(answer.columns["x"])

    thread = threading.Thread(target=read)
    thread.start()
    try:
        for _ in range(5):
            before = reads[0]
            here.features.materialize("view:v/one", full=True)
            while reads[0] < before + 2 and thread.is_alive():
                time.sleep(0.001)
    finally:
        done.set()
        thread.join()
    assert here.features.open("service:v/all").plan.views[0].space != plan, "it was filled where it stood"
    assert reads[0] >= 10
    assert wrong == []
