"""Whatever comes in whatever order, dies half-way, comes twice or is lost: online, history and a list agree then."""

import contextlib
import itertools
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import falaj
from tests.features.house import same_as_history
from tests.town import Town

DAY = 86_400_000_000
IDS = [1, 2, 3]
DEFINITIONS = """
from falaj.features import Entity, Feature, Service, Source, Window, view
thing = Entity("{at}/thing", keys={{"id": "int64"}})
brought = view("{at}/brought", thing, Source("dataset:{at}/rows", event="at", created="known"),
               features=[Feature("x", "int64")])
pushed = view("{at}/pushed", thing, Source("push", event="at"), features=[Feature("y", "int64")],
              windows=[Window("count", over="1d"), Window("sum", "y", "7d")])
both = Service("{at}/both", [brought, pushed])
"""
numbers = itertools.count(1)
rows = st.lists(st.tuples(st.sampled_from(IDS), st.integers(0, 9), st.integers(-99, 99)), min_size=1, max_size=5)
"""Whose, how many days and an hour ago, how much."""
acts = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(["bring", "push"]), rows),
        st.tuples(st.sampled_from(["fill", "refresh", "lose", "again"]), st.none()),
        st.tuples(st.just("die"), st.integers(0, 3)),
    ),
    min_size=2,
    max_size=9,
)


class Died(BaseException):
    """Where the process would have been killed: nobody catches it and tidies up."""


class World:
    """A project of its own, everything that ever came in, and what it must come to."""

    def __init__(self, town: Town, folder: Path) -> None:
        self.town, self.here, self.name = town, town.as_("amal"), f"mixed{next(numbers)}"
        self.now = round(time.time() * 1e6)
        self._folder = folder / self.name
        self._folder.mkdir()
        (folder / "features.py").write_text(DEFINITIONS.format(at=self.name))
        self._brought: list[tuple[int, int, int, int]] = []
        self._pushed: list[tuple[int, int, int]] = []
        self._last: tuple[str, dict[str, list[int]]] | None = None
        self.bring([(1, 9, 0)])
        self.here.features.apply(str(folder / "features.py"))

    def bring(self, given: list[tuple[int, int, int]]) -> None:
        """A file more; what came later corrects what is of the same moment."""
        known = self.now - 1_000_000 + len(self._brought)
        made = [(one, self._when(days), known + nth, value) for nth, (one, days, value) in enumerate(given)]
        ids, at, created, x = map(list, zip(*made, strict=True))
        moment = pa.timestamp("us", "UTC")
        table = {"id": ids, "at": pa.array(at, moment), "known": pa.array(created, moment), "x": x}
        pq.write_table(pa.table(table), self._folder / f"{len(self._brought):04}.parquet")
        self.here.catalog.publish(f"dataset:{self.name}/rows", str(self._folder))
        self._brought += made

    def push(self, given: list[tuple[int, int, int]]) -> None:
        """Rows at once, under a name."""
        columns = {"id": [one for one, _, _ in given], "at": [self._when(days) for _, days, _ in given]}
        self._last = f"{self.name}-{len(self._pushed)}", columns | {"y": [value for *_, value in given]}
        self.again()
        self._pushed += [(one, self._when(days), value) for one, days, value in given]

    def again(self) -> None:
        """The last push once more, as a caller does who heard no answer."""
        if self._last is None:
            return
        request, columns = self._last
        view, house = falaj.Ref.parse(f"view:{self.name}/pushed"), self.town.house
        ctx = house.context(self.town.actor("amal"), request_id=request, purpose="fraud")
        assert house.call("features", "append", ctx, {"view": view, "columns": columns}).taken == len(columns["id"])

    def fill(self) -> None:
        """Bring the online store up to date."""
        self.here.features.materialize(f"service:{self.name}/both")

    def refresh(self) -> None:
        """A new space for everything."""
        for view in ("brought", "pushed"):
            self.here.features.materialize(f"view:{self.name}/{view}", full=True)

    def lose(self) -> None:
        """The online store comes back empty."""
        for view in self.here.features.open(f"service:{self.name}/both").plan.views:
            self.town.house.online("bank").drop(view.space)

    def die(self, after: int) -> None:
        """Filling that ends after so many writes to the online store."""
        kind = type(self.town.house.online("bank"))
        put, left = kind.put, itertools.count(after, -1)

        def dying(*given: Any) -> int:
            if next(left) <= 0:
                raise Died
            done: int = put(*given)
            return done

        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(kind, "put", dying)
            with contextlib.suppress(Died):
                self.fill()

    def _when(self, days: int) -> int:
        return self.now - days * DAY - DAY // 24

    def expected(self) -> dict[str, list[Any]]:
        """By hand: of each the newest, by moment, then by when it was known or came."""
        brought = {one: max((row[1:] for row in self._brought if row[0] == one), default=None) for one in IDS}
        pushed = {one: [row[1:] for row in self._pushed if row[0] == one] for one in IDS}
        y = {one: max(reversed(some), key=lambda row: row[0])[1] if some else None for one, some in pushed.items()}
        count = [sum(at > self.now - DAY for at, _ in pushed[one]) for one in IDS]
        week = [[value for at, value in pushed[one] if at > self.now - 7 * DAY] for one in IDS]
        return {
            "x": [row[2] if (row := brought[one]) else None for one in IDS], "y": [y[one] for one in IDS],
            "count_1d": count, "sum_y_7d": [sum(some) for some in week],
        }  # fmt: skip

    def check(self) -> None:
        """The online store, history, and the list."""
        service = f"service:{self.name}/both"
        online = same_as_history(self.here, self.town.house.online("bank"), service, {"id": IDS})
        wanted = self.expected()
        for name, values in online.columns.items():
            assert [one or None for one in values] == [one or None for one in wanted[name]], name


@pytest.fixture(scope="module")
def town(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Town]:
    made = Town(tmp_path_factory.mktemp("mixed") / "house")
    yield made
    made.close()


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(acts)
def test_online_is_history_is_a_list_after_any_acts(town: Town, tmp_path: Path, acts: list[tuple[str, Any]]) -> None:
    world = World(town, tmp_path)
    for name, given_ in acts:
        act = getattr(world, name)
        act() if given_ is None else act(given_)
        if name in ("fill", "refresh"):
            world.check()
    world.fill()
    world.check()
    world.fill()
    world.check()
