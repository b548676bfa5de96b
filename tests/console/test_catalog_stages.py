"""Stages in the browser: evidence beside the button, a promotion another person agrees to, and the way back."""

from collections.abc import Iterator

import pytest
from playwright.sync_api import Page, expect

from tests.console.ground import Ground, Visitor
from tests.servers.browser import Chromium

MODEL = "model:fraud/scorer"
STAGES = f"/console/catalog/{MODEL}@v3/stages"


@pytest.fixture
def page(platform: Ground, chromium: Chromium) -> Iterator[Page]:
    tab = platform.tab(chromium, "amal")
    yield tab.page
    assert tab.wrong() == []
    tab.close()


def test_the_evidence_is_beside_the_button(amal: Visitor) -> None:
    gate = amal.get(STAGES).main.one("#gate-production")
    rows = {row.all("code")[0].text: row.all(".badge")[0].text for row in gate.all("tbody tr") if row.all("code")}
    assert rows == {"accuracy >= current": "met", "signature": "met", "1 approval": "waiting", "safe format": "met"}
    assert "accuracy 0.96 0.92 +0.04" in gate.text
    assert "drift confirmed" in gate.text, "it does not say how the one in production does"
    assert [one["href"] for one in gate.all("a") if "incident" in one["href"]]
    assert any("/console/approvals/approval:" in one["href"] for one in gate.all(".notice a"))


def test_promoted_by_clicking_once_another_person_agreed(platform: Ground, page: Page) -> None:
    told = platform.as_("amal").catalog.judge(f"{MODEL}@v3")
    page.goto(f"{platform.url}{STAGES}")
    gate = page.locator("#gate-production")
    expect(gate).to_contain_text("0 of 1 given")
    platform.as_("badr").approvals.give(str(told.approval), told.digest, "looked at the report")
    expect(gate).to_contain_text("1 of 1 given", timeout=10_000)  # by itself: the page is live
    gate.locator("summary.button").click()
    gate.get_by_label("Reason").fill("passed every test")
    gate.locator("form button").click()
    expect(page.locator("main .badge").first).to_have_text("production")
    assert platform.as_("amal").catalog.about(MODEL).aliases["production"] == "v3"
    history = page.locator("#history tbody tr").first
    expect(history).to_contain_text("scorer@v3")
    expect(history).to_contain_text("badr")


def test_rolled_back_by_clicking(platform: Ground, page: Page) -> None:
    page.goto(f"{platform.url}/console/catalog/{MODEL}/stages")
    held = page.locator("#holds-production")
    before = platform.as_("amal").catalog.about(MODEL).aliases["production"]
    held.locator("summary.button").click()
    held.get_by_label("Back to").select_option("v2" if before != "v2" else "v1")
    held.get_by_label("Reason").fill("false alarms since noon")
    held.locator("form button").click()
    expect(page.locator("#history tbody tr").first).to_contain_text("false alarms since noon")
    expect(page.locator("#holds-production")).to_contain_text("scorer@v2" if before != "v2" else "scorer@v1")
    assert platform.as_("amal").catalog.about(MODEL).aliases["production"] != before


def test_a_refused_promotion_says_so(platform: Ground, amal: Visitor) -> None:
    platform.as_("salem").catalog.require("gate:fraud/staging", ("attestation security-scan",))
    page = f"/console/catalog/{MODEL}@v1/stages"
    done = amal.press(page, "catalog", "promote", given='"staging"', reason="try")
    shown = amal.follow(done)
    assert "nobody attested security-scan" in shown.tree.one(".notice.bad[role=status]").text
    gate = shown.main.one("#gate-staging")
    assert gate.one("tbody .badge").text == "not met"
    assert gate.one(".notice.bad")


def test_whoever_may_not_promote_reads_what_it_takes(platform: Ground) -> None:
    gate = platform.visitor("omar").get(STAGES).main.one("#gate-production")
    assert "disabled" in gate.one(".actions button").attributes
    assert "You cannot do this" in gate.one(".actions small").text
