"""Two teams and columns of many labels: whatever a team asks, and by whatever door, no denied value comes out."""

import itertools
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from falaj.core.errors import Denied, FalajError, NotFound
from tests.town import Town

TEAMS = ("fraud", "marketing")
FOR = {"": TEAMS, "fraud": ("fraud",), "marketing": ("marketing",), "research": ()}
"""What a column may be used for, and the teams that do so."""
numbers = itertools.count(1)


@pytest.fixture(scope="module")
def town(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Town]:
    made = Town(tmp_path_factory.mktemp("teams") / "house")
    yield made
    made.close()


def value_of(column: int) -> float:
    """A number that can be found in any text it came into."""
    return 770_000.5 + column


def defined(town: Town, folder: Path, labels: list[str], picked: list[int]) -> tuple[str, str]:
    """A view with a column for each label, filled; services of some, of all, and of a number made of one."""
    name = f"teams/t{next(numbers)}"
    said = [f", label='AE-PDPL,confidential,purpose={what}'" if what else "" for what in labels]
    features = ", ".join(f'Feature("c{n}", "float64"{label})' for n, label in enumerate(said))
    (folder / "features.py").write_text(f"""
from falaj.features import Entity, Feature, Service, Source, col, on_demand, view
thing = Entity("teams/thing", keys={{"id": "int64"}})
one = view("{name}", thing, Source("push", event="at"), features=[{features}])
some = Service("{name}", [one[{", ".join(f'"c{n}"' for n in picked)}]])
whole = Service("{name}.whole", [one])
made = on_demand("made", inputs=[one["c0"]], features=[Feature("made", "float64", col("c0") * 1)])
computed = Service("{name}.made", [made])
""")
    owner = town.as_("salem", "")
    owner.features.apply(str(folder / "features.py"))
    row = {"id": 1, "at": round(time.time() * 1e6) - 1_000_000} | {f"c{n}": value_of(n) for n in range(len(labels))}
    owner.features.push(f"view:{name}", [row])
    return f"view:{name}", f"service:{name}"


def _reader(here: Any, service: str) -> Any:
    with here.features.reader(service) as reader:
        return reader.read({"id": [1]}).to_dict()


def _table(here: Any, service: str) -> Any:
    labels = pa.table({"id": [1], "moment": pa.array([round(time.time() * 1e6)], pa.int64())})
    return here.features.table(labels, service, moment="moment").to_pydict()


DOORS: dict[str, Callable[[Any, str], Any]] = {
    "read": lambda here, service: here.features.read(service, {"id": [1]}).columns,
    "reader": _reader,
    "table": _table,
}


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_two_teams_never_see_a_denied_column(town: Town, tmp_path: Path, data: st.DataObject) -> None:
    labels = data.draw(st.lists(st.sampled_from(list(FOR)), min_size=1, max_size=4))
    picked = data.draw(st.lists(st.sampled_from(range(len(labels))), min_size=1, unique=True))
    view, service = defined(town, tmp_path, labels, picked)
    for team, (door, ask) in itertools.product(TEAMS, DOORS.items()):
        here = town.as_("amal", team)
        allowed = [team in FOR[what] for what in labels]
        # A view by itself shows what has no label of its own; a service all that it takes, or nothing.
        ordinary = [n for n, what in enumerate(labels) if not what]
        every = list(range(len(labels)))
        for what, columns in ((service, picked), (view, ordinary), (f"{service}.whole", every)):
            told = _told(lambda ask=ask, here=here, what=what: ask(here, what))
            if columns and all(allowed[n] for n in columns):
                assert not [name for name in told if name[0] == "c" and int(name[1:].split("_")[0]) not in columns]
                assert [told[f"c{n}"] for n in columns] == [[value_of(n)] for n in columns], (team, door)
            else:
                assert isinstance(told, (Denied, NotFound)), (team, door, told)
            _holds_no_denied(told, allowed)
        told = _told(lambda ask=ask, here=here: ask(here, f"{service}.made"))
        assert told["made"] == [value_of(0)] if allowed[0] else isinstance(told, (Denied, NotFound)), (team, door)
        _holds_no_denied(_told(lambda here=here: here.features.quality(view)), allowed)
        _holds_no_denied(_told(lambda here=here: here.features.show(view)), allowed)


def _told(act: Callable[[], Any]) -> Any:
    try:
        return act()
    except FalajError as error:
        return error


def _holds_no_denied(told: Any, allowed: list[bool]) -> None:
    assert [n for n, may in enumerate(allowed) if not may and str(value_of(n)) in repr(told)] == []


def test_a_window_over_a_denied_column_is_denied(town: Town, tmp_path: Path) -> None:
    """A sum of one row is its value."""
    (tmp_path / "features.py").write_text("""
from falaj.features import Entity, Feature, Service, Source, Window, view
thing = Entity("teams/thing", keys={"id": "int64"})
one = view("teams/windows", thing, Source("push", event="at"),
           features=[Feature("pay", "float64", label="AE-PDPL,confidential,purpose=fraud"), Feature("x", "float64")],
           windows=[Window("sum", "pay", "1h"), Window("sum", "x", "1h"), Window("count", over="1h")])
some = Service("teams/windows", [one["sum_pay_1h"]])
""")
    owner = town.as_("salem", "")
    owner.features.apply(str(tmp_path / "features.py"))
    at = round(time.time() * 1e6) - 1_000_000
    owner.features.push("view:teams/windows", [{"id": 1, "at": at, "pay": value_of(0), "x": 2.0}])
    for door, ask in DOORS.items():
        for team in TEAMS:
            told = ask(town.as_("amal", team), "view:teams/windows")
            assert (told["sum_x_1h"], told["count_1h"]) == ([2.0], [1]), door
            assert "sum_pay_1h" not in told
        assert ask(town.as_("amal", "fraud"), "service:teams/windows")["sum_pay_1h"] == [value_of(0)]
        told = _told(lambda ask=ask: ask(town.as_("amal", "marketing"), "service:teams/windows"))
        assert isinstance(told, Denied), door
