"""Sketches: a delta is kept once, however often it is told, and hours hold what their deltas held."""

from collections.abc import Iterator

import numpy as np
import pytest

from falaj.drift.profiles import build_profile, hash_profile
from falaj.drift.tally import DataTally
from falaj.serve.drift_counts import HOUR_S, SERIES_PREFIX, DriftCountRow, DriftCounts
from tests.serve.ground import NOON, REF, WHOSE
from tests.town import Town

PROFILE = build_profile({"x": np.arange(500.0), "kind": np.array(["a", "b"] * 250, object)})


@pytest.fixture
def sketches(town: Town) -> Iterator[DriftCounts]:
    made = DriftCounts(town.house._open_series, town.house.ledger)
    yield made
    made.delete("bank", REF)


def sketched(
    number: int, until: float, *, replica: str = "score-1-1.ab", revision: int = 1, rows: int = 3
) -> DriftCountRow:
    tally = DataTally(PROFILE, max_sample_rows=8)
    tally.add({"x": np.full(rows, float(number)), "kind": np.array(["a", f"new {number}", None][:rows], object)})
    return DriftCountRow(until - 10, until, revision, replica, number, hash_profile(PROFILE), tally.to_bytes())


def total(rows: list[DriftCountRow]) -> int:
    return sum(DataTally.from_bytes(row.data, PROFILE).rows for row in rows)


def test_the_same_delta_is_kept_once(sketches: DriftCounts) -> None:
    rows = [sketched(number, NOON + 10 * number) for number in range(1, 4)]
    sketches.append(WHOSE, rows)
    sketches.append(WHOSE, [rows[1], sketched(2, NOON + 20, replica="score-1-2.cd")])
    found = sketches.read("bank", REF)
    assert [(row.replica, row.number) for row in found] == [
        ("score-1-1.ab", 1), ("score-1-1.ab", 2), ("score-1-2.cd", 2), ("score-1-1.ab", 3),
    ]  # fmt: skip
    assert found[0] == rows[0]
    assert sketches.read("clinic", REF) == []
    assert [row.number for row in sketches.read("bank", REF, NOON + 15, NOON + 30)] == [2, 2]


def test_rows_of_a_request_go_and_what_was_counted_stays(sketches: DriftCounts) -> None:
    rows = [sketched(number, NOON + 10 * number) for number in range(1, 4)]
    named = DataTally(PROFILE)
    named.add({"x": np.arange(4.0)}, ids=["a", "b", "", "b"])
    rows[1] = rows[1]._replace(data=named.to_bytes())
    sketches.append(WHOSE, [*rows, sketched(9, NOON + 90)._replace(data=b"damaged")])
    assert sketches.forget(WHOSE, ["b", "z", ""]) == 2
    found = sketches.read("bank", REF)
    assert [row.number for row in found] == [1, 2, 3, 9]
    left = DataTally.from_bytes(found[1].data, PROFILE)
    assert (sorted(left.sample.ids), left.rows, left.of(0).tolist()) == (["", "a"], 4, named.of(0).tolist())
    assert sketches.forget(WHOSE, ["b"]) == sketches.forget(WHOSE, [""]) == 0
    sketches.append(WHOSE, [rows[1]])  # Told once more by a replica that was not acknowledged: still gone.
    assert "b" not in DataTally.from_bytes(sketches.read("bank", REF)[1].data, PROFILE).sample.ids


def test_hours_hold_what_their_deltas_held(town: Town, sketches: DriftCounts) -> None:
    start = NOON // HOUR_S * HOUR_S
    made = [sketched(at, start + 1 + 60 * at, revision=1 + at % 2) for at in range(90)]
    sketches.append(WHOSE, made)
    whole, before = sketches.read("bank", REF), start + HOUR_S
    assert sketches.tidy(WHOSE, start + 2 * HOUR_S, before) == 0  # Too few of them, yet.
    sketches.append(WHOSE, [sketched(200 + at, start + 5 + at) for at in range(10)])
    assert sketches.tidy(WHOSE, start + 2 * HOUR_S, before) == 0  # It looks once an hour.
    again = DriftCounts(town.house._open_series, town.house.ledger)
    assert again.tidy(WHOSE, start + 2 * HOUR_S, before) == 70 - 2
    assert again._compacted_until == {again._blocks.name("bank", REF): (before, before)}
    found = sketches.read("bank", REF)
    joined = [row for row in found if not row.replica]
    assert sorted(row.revision for row in joined) == [1, 2]
    assert len(found) == 30 + 2
    assert total(found) == total(whole) + 30
    one = next(DataTally.from_bytes(row.data, PROFILE) for row in joined if row.revision == 2)
    assert one.of(1)[:2].tolist() == [30, 0]
    assert one.unknown_values(1) == pytest.approx(30, rel=0.2)


def test_a_damaged_delta_hides_no_other(sketches: DriftCounts) -> None:
    start = NOON // HOUR_S * HOUR_S
    sketches.append(WHOSE, [sketched(at, start + at) for at in range(70)])
    sketches.append(WHOSE, [sketched(99, start + 5)._replace(data=b"FJT1 damaged")])
    assert sketches.tidy(WHOSE, start + 2 * HOUR_S, start + HOUR_S) == 0
    assert len(sketches.read("bank", REF)) == 71


def test_old_ones_go_and_all_go_with_the_endpoint(town: Town, sketches: DriftCounts) -> None:
    sketches.append(WHOSE, [sketched(1, NOON), sketched(2, NOON + 89 * 86400)])
    assert sketches.tidy(WHOSE, NOON + 91 * 86400, NOON) == 1
    assert [row.number for row in sketches.read("bank", REF)] == [2]
    sketches.delete("bank", REF)
    assert sketches.read("bank", REF) == []
    assert not [one for one in town.house._open_series().read("bank", [], "") if one.series.startswith(SERIES_PREFIX)]
