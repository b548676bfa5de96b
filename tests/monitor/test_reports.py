"""What a report draws and says: the same figures as blocks, as SVG and as one page that trusts nobody."""

import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import numpy as np
import pytest

from falaj.core.errors import Invalid
from falaj.drift.profiles import build_profile
from falaj.drift.records import DriftFinding
from falaj.drift.tally import DataTally
from falaj.monitor import client_commands, plots, report_page
from falaj.monitor.column_drawing import draw_columns, find_alarm_start
from falaj.monitor.records import AxisView, MonitorWindow, ReportFigures

EVIL = '<script>alert("x")</script>\x1b[2J'


def window(number: int, *findings: DriftFinding, rows: int = 1000) -> MonitorWindow:
    more = {"number": number, "requests": 500, "errors": 5, "cost": 60.0, "p95_ms": 12.0}
    return MonitorWindow(number * 60.0, number * 60.0 + 60, 1, rows, findings, **more)  # type: ignore[arg-type]


def figures(**more: Any) -> ReportFigures:
    rng = np.random.default_rng(7)
    city = rng.choice(["dubai", "abu dhabi", EVIL], 4000, p=[0.6, 0.3, 0.1])
    profile = build_profile({"amount": rng.normal(size=4000), "city": city}, predictions={"score": rng.random(4000)})
    tally = DataTally(profile)
    tally.add({"amount": rng.normal(1, 1, 900), "city": city[:900], "score": rng.random(900)})
    moved = DriftFinding("input", "amount", EVIL, "ks", 0.4, 0.0, 0.04, 0.0, 900, True, f"amount is higher {EVIL}")
    means = DriftFinding("estimate", measure="accuracy", value=0.8, then=0.9, said="accuracy is estimated at 0.8")
    windows = (window(1), window(2), window(3, moved), window(4, moved))
    axes = draw_columns(profile, tally, [moved])
    return ReportFigures(None, 1, "dataset:fraud/tx@v1", 60.0, 300.0, 900, 1000, (moved, means), axes, windows, **more)


def test_a_column_is_drawn_with_bars_of_one_width_and_all_its_mass() -> None:
    shown = figures().axes
    assert [one.name for one in shown] == ["amount", "score", "city"]  # the alarm first, then answers
    for one in shown:
        assert sum(one.then) == pytest.approx(1, abs=1e-4)
        assert sum(one.now) == pytest.approx(1, abs=1e-4)
    amount = shown[0]
    middle = [np.dot(np.arange(len(side)), side) for side in (amount.then, amount.now)]
    assert middle[1] > middle[0] + 2  # a standard deviation to the right
    assert (shown[2].bins[0], round(shown[2].then[0], 1)) == ("dubai", 0.6)


def test_constant_and_missing_columns_are_drawn_too() -> None:
    profile = build_profile({"one": np.ones(500), "none": np.full(500, np.nan)})
    tally = DataTally(profile)
    tally.add({"one": np.ones(10), "none": np.full(10, np.nan)})
    one, none = draw_columns(profile, tally, [])
    assert (one.then[0], one.now[0]) == (1, 1)
    assert (none.bins[-1], none.then[-1], none.now[-1]) == ("missing", 1, 1)
    assert all(plots.draw_histogram(axis) and plots.render_svg_histogram(axis) for axis in (one, none))


def test_since_when_is_the_first_window_of_the_run() -> None:
    alarm = DriftFinding("input", "a", alarm=True)
    other = DriftFinding("input", "b", alarm=True)
    tale = [
        window(1, alarm),
        window(2),
        window(3),
        window(4, alarm),
        window(5, other),
        window(6, alarm),
        window(7, alarm),
    ]
    assert find_alarm_start(tale, alarm, 1) == 240.0
    assert find_alarm_start(tale, DriftFinding("input", "c", alarm=True), 1) == 0.0
    assert find_alarm_start([], alarm, 1) == 0.0


def test_blocks_show_something_for_little() -> None:
    assert plots.draw_spark([0, 1, 500, 1000]) == " ▁▄█"
    assert plots.draw_spark([]) == ""
    assert plots.draw_timeline([window(1), window(2, DriftFinding("errors", alarm=True))])[-1] == "  alarms ·!"
    lines = plots.draw_histogram(AxisView("city", "input", "category", ("dubai", "none"), (0.5, 0.0), (0.25, 0.0)))
    assert len(lines) == 2


def test_the_report_says_which_how_much_since_when_where_and_what_it_means() -> None:
    lines = client_commands.format_report(figures(), "endpoint:fraud/score")
    text = "\n".join(lines)
    assert "1 alarm in amount, on 900 rows" in text
    assert "against dataset:fraud/tx@v1" in text
    assert "1,000 rows came" in text
    assert "since 1970-01-01 00:03Z" in text
    assert "accuracy is estimated at 0.8" in text
    assert "  alarms ··!!" in text
    assert "2,000 requests, 1.00% failed, 95 % within 12 ms at worst, 240 slot seconds (120 for a thousand)" in text
    assert "\x1b" not in text  # nobody's data moves a cursor


class _Seen(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.asked: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.asked += [f"{name}={value}" for name, value in attrs if name in ("src", "href", "onload", "xlink:href")]


def test_the_page_is_one_file_that_asks_nobody_and_runs_nothing() -> None:
    text = report_page.render_page(figures(), f"report of {EVIL}")
    seen = _Seen()
    seen.feed(text)
    assert "script" not in seen.tags
    assert seen.asked == []
    assert {"svg", "rect", "table", "title"} <= seen.tags
    for drawing in re.findall(r"<svg.*?</svg>", text):
        ET.fromstring(drawing)  # noqa: S314 - ours
    assert "url(" not in text
    assert "http:" not in text
    assert "default-src 'none'" in text
    assert "prefers-color-scheme:dark" in text


@pytest.mark.parametrize(("text", "seconds"), [("90m", 5400.0), ("24h", 86400.0), ("7d", 604800.0), ("1.5w", 907200.0)])
def test_times_are_read_as_people_write_them(text: str, seconds: float) -> None:
    assert client_commands.parse_span(text) == seconds


@pytest.mark.parametrize("text", ["", "7", "d", "-1d", "7 days", "1e9d"])
def test_what_is_no_time_is_said(text: str) -> None:
    with pytest.raises(Invalid, match="no time"):
        client_commands.parse_span(text)


def test_two_files_are_compared_without_an_endpoint(tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    rng = np.random.default_rng(1)
    for name, mean in (("january", 0.0), ("february", 0.6)):
        columns = {"amount": rng.normal(mean, 1, 3000), "age": rng.normal(40, 9, 3000)}
        pq.write_table(pa.table(columns), tmp_path / f"{name}.parquet")
    first, second = str(tmp_path / "january.parquet"), str(tmp_path / "february.parquet")
    made = client_commands.report(None, first, against=second, html=str(tmp_path / "page.html"))  # type: ignore[arg-type]
    assert [one.column for one in made.figures.findings if one.alarm and one.what == "input"] == ["amount"]
    assert [one.alarm for one in made.figures.findings if one.measure == "auc"] == [True]
    assert (tmp_path / "page.html").read_text().startswith("<!doctype html>")
    for what, against, said in (
        (first, "", "alone"),
        (first, "nowhere.csv", "no file"),
        ("endpoint:a/b", first, "own"),
    ):
        with pytest.raises(Invalid, match=said):
            client_commands.report(None, what, against=against)  # type: ignore[arg-type]
