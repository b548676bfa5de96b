"""Pages of watches and incidents: what moved, where and since when; and what people do about it."""

import pytest

from falaj.console.pages.monitor.drift_page import compute_edges, make_cells, sort_by_effect
from falaj.console.pages.monitor.watch_page import collect_metric_series
from falaj.drift.records import DriftFinding
from falaj.monitor.records import MonitorWindow
from tests.console.ground import Ground, Visitor
from tests.servers.browser import Chromium

WATCH, INCIDENT = "/console/monitor/watch:fraud/scorer", "/console/monitor/incident:fraud/scorer-1"


def test_watches_and_what_is_open(amal: Visitor) -> None:
    seen = amal.get("/console/monitor")
    assert "scorer-1" in seen.main.one("#open").text
    rows = [row.text for row in seen.main.all("tbody tr")]
    assert rows[0].startswith("scorer"), "what is not well comes first"
    assert "confirmed" in rows[0]
    assert "falaj monitor add" in amal.get("/console/monitor?project=nothing").text


def test_others_see_nothing(platform: Ground) -> None:
    sara = platform.visitor("sara")
    assert "scorer" not in sara.get("/console/monitor").text
    assert sara.get(WATCH).status == sara.get(INCIDENT).status == 404


def test_a_watch_shows_its_windows(amal: Visitor) -> None:
    seen = amal.get(WATCH)
    marks = [one["href"] for one in seen.main.all("#windows svg a")]
    assert len(marks) == 24
    assert len(seen.main.all("#last tbody tr")) == 3
    assert "amount" in amal.get(marks[-1]).main.one("#effects tbody").text


def test_drift_by_column_window_and_segment(amal: Visitor) -> None:
    seen = amal.get(f"{WATCH}?tab=drift")
    heads = [row.all("th")[0].text for row in seen.main.all("#map tbody tr")]
    assert heads[0] == "amount", "what moved most is on top"
    assert sorted(heads) == ["amount", "city", "distance_km", "hour", "score"]
    assert [row.all("td")[1].text for row in seen.main.all("#effects tbody tr")][:2] == ["amount", "score"]
    assert '<option value="amount" selected>' in seen.html
    apart = amal.get(f"{WATCH}?tab=drift&segment=Sharjah")
    assert [row.all("td")[1].text for row in apart.main.all("#effects tbody tr")] == ["hour"]
    words = amal.get(f"{WATCH}?tab=drift&column=city&hours=168").main.one("#column")
    assert "Abu Dhabi" in words.one("tbody").text
    assert amal.get(f"{WATCH}?tab=drift&column=none&hours=99999&window=x").status == 200


def test_values_are_shown_to_whoever_may_read_them_alone(platform: Ground) -> None:
    seen = platform.visitor("omar").get(f"{WATCH}?tab=drift")
    assert seen.main.all(".notice.denied")
    assert not seen.main.all("#column")


def test_verdicts_with_their_evidence(amal: Visitor) -> None:
    seen = amal.get(f"{WATCH}?tab=verdicts")
    assert len(seen.main.all("section.card")) == 1
    assert len(seen.main.all("tbody tr")) == 2
    assert "errors" in amal.get(f"{WATCH}?tab=service").main.one("tbody").text.lower()


def test_a_watch_is_paused_resumed_and_changed(platform: Ground, amal: Visitor) -> None:
    amal.press(WATCH, "monitor", "pause", reason="the feed changes today")
    assert "the feed changes today" in amal.get(WATCH).text
    amal.press(WATCH, "monitor", "resume")
    assert not platform.as_("amal").monitor.show("endpoint:fraud/scorer").paused
    amal.press(f"{WATCH}?tab=plan", "monitor", "change", more="every_s=1800\nlatency_ms=50")
    made = platform.as_("amal").monitor.show("endpoint:fraud/scorer").plan
    assert (made.every_s, made.latency_ms) == (1800, 50)


def test_an_incident_is_acknowledged_by_clicking_while_another_looks(platform: Ground, chromium: Chromium) -> None:
    mona, amal = platform.tab(chromium, "mona"), platform.tab(chromium, "amal")
    amal.open(INCIDENT)
    mona.open(INCIDENT)
    mona.page.locator("summary", has_text="I look after it").click()
    mona.page.locator("[name='f.note']").fill("the feed of yesterday was late")
    mona.page.locator("details[open] button.primary").click()
    mona.page.wait_for_selector("#state [data-state=acknowledged]")
    assert "the feed of yesterday was late" in mona.page.locator("#notes").inner_text()
    amal.page.wait_for_selector("#state [data-state=acknowledged]", timeout=20_000)
    assert "Acknowledged by mona" in amal.page.locator("#story").inner_text().replace("\n", " ")
    assert mona.wrong() == amal.wrong() == []


def test_an_incident_is_resolved_with_its_cause(platform: Ground, amal: Visitor) -> None:
    amal.press(INCIDENT, "monitor", "note", text="asked the <b>data</b> team")
    assert "asked the <b>data</b> team" in amal.get(INCIDENT).main.one("#notes").text
    amal.press(INCIDENT, "monitor", "resolve", cause="the bank changed its codes")
    seen = amal.get(INCIDENT)
    assert "Resolved by amal" in seen.main.one("#story").text
    assert not [form for form in seen.main.all("form") if form["action"].endswith("/resolve")]
    assert "scorer-1" in amal.get("/console/monitor/incidents?state=resolved").text
    assert "scorer-1" not in amal.get("/console/monitor/incidents?state=open").text


def _window(until: float, *findings: DriftFinding) -> MonitorWindow:
    return MonitorWindow(until - 1, until, 1, 10, findings)


def test_cells_are_columns_by_windows_in_time() -> None:
    first = _window(1.0, DriftFinding("input", "a", value=0.1), DriftFinding("input", "b", "Dubai", value=0.9))
    second = _window(
        2.0,
        DriftFinding("input", "b", value=0.5),
        DriftFinding("errors", value=1.0),
        DriftFinding("together", value=0.2),
    )
    names, order, values = make_cells([second, first])
    assert (names, [one.until for one in order]) == (["b", "together", "a"], [1.0, 2.0])
    assert values == [None, 0.5, None, 0.2, 0.1, None]
    assert make_cells([]) == ([], [], [])


def test_alarms_come_first_then_what_differs_most() -> None:
    given = [
        DriftFinding("input", "a", value=0.9),
        DriftFinding("input", "b", value=0.1, alarm=True),
        DriftFinding("input", "c", value=1.0),
    ]
    assert [one.column for one in sort_by_effect(given)] == ["b", "c", "a"]


def test_metrics_have_their_intervals() -> None:
    told = DriftFinding("estimate", measure="accuracy", value=0.9, measures={"error": 0.1})
    apart = DriftFinding("performance", "", "Dubai", "accuracy", 0.5)
    (series,) = collect_metric_series([_window(1.0, told, apart)])["accuracy"]
    assert (series.name, series.ys) == ("estimate", [0.9])
    assert series.low[0] == pytest.approx(0.9 - 0.196)
    assert series.high[0] == pytest.approx(0.9 + 0.196)


@pytest.mark.parametrize(
    ("bins", "edges"), [((), []), (("1",), []), (("1", "2"), [1, 2, 3]), (("Dubai", "others"), [])]
)
def test_bars_end_where_the_next_would_begin(bins: tuple[str, ...], edges: list[float]) -> None:
    assert compute_edges(bins) == edges


def test_the_story_of_an_incident_leads_to_its_verdict_and_model(platform: Ground) -> None:
    seen = platform.visitor("mona").get(INCIDENT)
    links = [one["href"] for one in seen.main.all("#story a")]
    verdict = next(link for link in links if "#verdict-" in link)
    page, _, place = verdict.partition("#")
    assert platform.visitor("mona").get(page).main.one(f"#{place}").all("tbody tr")
    assert "/console/catalog/model:fraud/scorer@v1" in links
    assert "/console/audit?about=incident%3Afraud%2Fscorer-1" in links
