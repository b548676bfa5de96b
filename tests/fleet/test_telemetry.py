"""Telemetry: few bytes, sealed, summed up by minutes and hours, and gone when its time is over."""

from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from falaj.core.errors import CorruptData
from falaj.fleet.figure_frames import FigureFrame
from falaj.fleet.telemetry import TelemetryStore
from falaj.fleet.telemetry_samples import SampleRecorder, SampleSource
from falaj.fleet.telemetry_targets import DAY_S, HOUR_S, make_node_target, make_run_target
from tests.town import Town, refusal

NODE = make_node_target("hall/n1", "ae-dubai")
START = 1_800_000_000 // DAY_S * DAY_S
FIGURES = st.dictionaries(st.sampled_from(["0.busy", "0.xid", "load", "r1.pace"]), st.integers(0, 10**9), max_size=4)


@pytest.fixture
def town(tmp_path: Path) -> Iterator[Town]:
    made = Town(tmp_path / "house")
    yield made
    made.close()


@pytest.fixture
def telemetry(town: Town) -> TelemetryStore:
    found: TelemetryStore = town.house.desks["clusters"].telemetry
    return found


def gpu_samples(random: Random, start: int, stop: int, gpus: int = 8) -> Iterator[tuple[int, dict[str, float]]]:
    """What a busy node of eight GPUs tells every five seconds."""
    for at in range(start, stop, 5):
        row: dict[str, float] = {"load": random.uniform(10, 20), "available": 500_000 + random.uniform(0, 2000)}
        row |= {
            "received": random.uniform(0, 9000),
            "sent": random.uniform(0, 9000),
            "disk": 700_000,
            "disk_total": 10**6,
        }
        for gpu in range(gpus):
            told = {
                "busy": random.gauss(85, 8), "memory": 60_000, "memory_total": 81_559,
                "temperature": random.gauss(66, 1), "power": random.gauss(550, 25), "clock": random.gauss(1900, 20),
                "clock_most": 1980, "throttled": 0, "ecc": 0, "xid": 0,
            }  # fmt: skip
            row |= {f"{gpu}.{name}": max(0.0, value) for name, value in told.items()}
        yield at, row


@given(st.lists(st.tuples(st.integers(0, 10**9), FIGURES), max_size=40))
@settings(deadline=None)
def test_frames_come_back_as_they_went(rows: list[tuple[int, dict[str, int]]]) -> None:
    frame = FigureFrame.of((float(at), {**figures}) for at, figures in rows)
    again = FigureFrame.unpack(frame.pack())
    assert again.times.tolist() == frame.times.tolist()
    for name, values in frame.columns.items():
        assert np.allclose(again.columns[name], values, equal_nan=True)
    parts = [FigureFrame.of([(float(at), {**figures})]) for at, figures in rows]
    joined = FigureFrame.joined(parts)
    assert joined.times.tolist() == frame.times.tolist()
    assert all(np.allclose(joined.columns[name], values, equal_nan=True) for name, values in frame.columns.items())


def test_minutes_have_means_and_peaks_and_counts_add_up() -> None:
    frame = FigureFrame.of((at, {"0.busy": at % 60, "0.xid": 1.0}) for at in range(0, 7200, 5))
    hours = frame.rolled(60).rolled(3600)
    assert hours.times.tolist() == [0, 3600]
    assert hours.columns["0.busy"].tolist() == [27.5, 27.5]
    assert hours.columns["0.busy^"].tolist() == [55, 55]
    assert hours.columns["0.xid"].tolist() == [720, 720]
    assert "0.xid^" not in hours.columns
    with pytest.raises(CorruptData):
        FigureFrame.unpack(frame.pack()[:-20])


def test_a_node_of_eight_gpus_costs_little_a_day() -> None:
    """Two hours stand for a day: packed by the hour as it is kept."""
    random = Random(1)
    raw = [FigureFrame.of(gpu_samples(random, hour * HOUR_S, (hour + 1) * HOUR_S)) for hour in range(2)]
    size = sum(len(frame.pack()) + len(frame.rolled(60).pack()) for frame in raw) * 12
    assert size < 3_000_000


def test_what_is_told_is_sealed_tidied_and_forgotten(town: Town, telemetry: TelemetryStore) -> None:
    random, end = Random(2), START + 3 * HOUR_S
    told = list(gpu_samples(random, START, end, gpus=1))
    for number, (at, figures) in enumerate(told):
        telemetry.put(NODE, at, figures, at)
        if number % 30 == 29:
            telemetry.flush()
    telemetry.flush()
    series = town.house._open_series()
    assert all(b"busy" not in block.data for block in series.read("house", [NODE.series("raw")], ""))
    before = telemetry.read([NODE], START)[NODE]
    for _ in range(2):  # again, it finds nothing to do
        telemetry.tidy(NODE, end + 200)
    after = telemetry.read([NODE], START)[NODE]
    assert np.array_equal(before.column("0.busy"), after.column("0.busy"))
    blocks = {level: series.read("house", [NODE.series(level)], "whole") for level in ("raw", "minute", "hour")}
    assert {level: len(found) for level, found in blocks.items()} == {"raw": 3, "minute": 3, "hour": 1}
    minutes, hours = telemetry.read([NODE], START, "minute")[NODE], telemetry.read([NODE], START, "hour")[NODE]
    assert (len(minutes), len(hours)) == (180, 3)
    assert hours.column("0.busy")[0] == pytest.approx(before.column("0.busy")[:720].mean(), abs=0.6)
    telemetry.expire("house", end + DAY_S + HOUR_S)
    assert len(telemetry.read([NODE], START)[NODE]) == 0
    assert len(telemetry.read([NODE], START, "minute")[NODE]) == 180
    telemetry.expire("house", end + 31 * DAY_S)
    assert len(telemetry.read([NODE], START, "minute")[NODE]) == 0
    assert len(telemetry.read([NODE], START, "hour")[NODE]) == 3


def test_what_comes_late_is_added_to_its_hour(telemetry: TelemetryStore) -> None:
    now = START + HOUR_S + 300
    telemetry.put(NODE, START + 10, {"load": 1}, now)
    telemetry.flush()
    telemetry.tidy(NODE, now)
    telemetry.put(NODE, START + 1810, {"load": 3}, now)
    telemetry.put(NODE, now, {"load": 9}, now)
    telemetry.flush()
    assert telemetry.read([NODE], START, "hour")[NODE].column("load").tolist() == [3, 9]
    telemetry.tidy(NODE, now)
    assert telemetry.read([NODE], START, "hour")[NODE].column("load").tolist() == [2, 9]
    assert telemetry.read([NODE], START)[NODE].column("load").tolist() == [1, 3, 9]


def test_a_clock_that_is_wrong_and_a_sample_of_last_week_are_not_kept(telemetry: TelemetryStore) -> None:
    for at in (START - 2 * DAY_S, START + HOUR_S):
        telemetry.put(NODE, at, {"load": 1}, START)
    telemetry.flush()
    assert len(telemetry.read([NODE], 0)[NODE]) == 0


def fact(at: float, slot: int = 0, **more: Any) -> dict[str, Any]:
    return {"kind": "telemetry", "at": at, "slot": slot, "cpu_s": (at - START) * 2, "rss": 1 << 30, "load": 1.0, **more}


def test_counters_become_rates_and_slots_speak_for_their_own_devices(telemetry: TelemetryStore) -> None:
    samples = SampleRecorder(telemetry)
    source = SampleSource("bank", "j1", "train-1", "ae-dubai", (("hall/n1", (2, 3)),), START)
    devices = [{"index": 2, "busy": 50, "throttled": 0x40, "ecc": 7, "xid": 1}, {"index": 5, "busy": 99}]
    for at, xid in ((START, 0), (START + 10, 1), (START + 20, 3)):
        devices[0]["xid"] = xid
        samples.take(source, [fact(at, devices=[dict(one) for one in devices])], START + 30)
    samples.take(
        source, [{"kind": "progress", "rank": 1, "step": s, "at": START + s / 5} for s in range(40)], START + 30
    )
    telemetry.flush()
    node = telemetry.read([NODE], START)[NODE]
    run = telemetry.read([make_run_target("bank", "j1", "ae-dubai")], START)
    (figures,) = run.values()
    assert {name.partition(".")[0] for name in node.columns if "." in name} == {"2"}
    assert (node.column("2.xid").tolist(), node.column("2.ecc").tolist()) == ([0, 1, 2], [0, 0, 0])
    assert node.column("2.throttled").tolist() == [100, 100, 100]
    assert np.nanmax(figures.column("0.cpu")) == 2.0
    assert np.nanmax(figures.column("r1.pace")) == pytest.approx(5)
    assert figures.newest()["0.rss"] == 1024


@pytest.mark.parametrize(
    "odd",
    [
        {"at": "now"}, {"slot": 7}, {"slot": -1}, {"slot": "x"}, {"load": float("nan")}, {"rss": -5},
        {"devices": {"0": 1}},
        {"devices": [{"index": "0"}, 3, None, {"index": 1e300, "busy": 5}]}, {"cpu_s": 1e300}, {"load": True},
        {"rss": 10**400}, {"at": 10**400}, {"kind": "progress", "rank": 10**9, "step": 1},
    ],
)  # fmt: skip
def test_a_process_may_write_what_it_likes(telemetry: TelemetryStore, odd: dict[str, Any]) -> None:
    source = SampleSource("bank", "j1", "train-1", "ae-dubai", (("hall/n1", (0,)),), START)
    SampleRecorder(telemetry).take(
        source, [{**fact(START), **odd}, {"kind": "progress", "step": [], "rank": {}}], START
    )
    telemetry.flush()


def test_who_may_look(town: Town) -> None:
    assert town.as_("amal").clusters.figures() == town.as_("amal").clusters.figures("15m") == ()
    assert town.as_("amal").clusters.pools() == ()
    assert "no node" in str(refusal(lambda: town.as_("amal").clusters.history("hall/n1")))
    assert "kept" in str(refusal(lambda: town.as_("amal").clusters.pools("9000d")))
