"""The grid of runs in a real browser: far in both directions, sorted, chosen, compared, by keys, and back again."""

from collections.abc import Iterator
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from playwright.sync_api import Page, Request, expect

from falaj.track.records import Metric
from tests.console.ground import Ground
from tests.servers.browser import Chromium, Tab

RUNS, METRICS = 90, 200
BIG = "/console/track/experiment:fraud/big"
_SHOWN = "[...document.querySelectorAll('.grid-row .grid-cell')].length"
_AT = """(() => { const node = document.activeElement;
  return [Number(node.parentNode.dataset.row), Number(node.dataset.column)]; })()"""


@pytest.fixture(scope="module", autouse=True)
def big(platform: Ground) -> None:
    """Many runs with many metrics; the value of metric k in run n is n + k / 1000."""
    track = platform.as_("amal").track
    track.create("experiment:fraud/big", "Big")
    for n in range(RUNS):
        run = track.start("experiment:fraud/big", f"big {n}", {}, {"n": str(n)}, 1000.0 + n, f"{n + 4096:032x}").ref
        track.log(run, tuple(Metric(f"m{k:03}", n + k / 1000, 1.0, 1) for k in range(METRICS)))


class Asked:
    """What the script asked the server for."""

    def __init__(self, page: Page) -> None:
        self.cells: list[int] = []
        page.on("request", self._asked)

    def _asked(self, request: Request) -> None:
        parts = urlsplit(request.url)
        if parts.path == "/console/track/grid":
            said = {name: int(values[0]) for name, values in parse_qs(parts.query).items() if values[0].isdigit()}
            self.cells.append(said["rows"] * said["width"])


@pytest.fixture(scope="module")
def tab(platform: Ground, chromium: Chromium) -> Iterator[Tab]:
    """One window."""
    made = platform.tab(chromium, "amal")
    yield made
    assert made.wrong() == []


@pytest.fixture
def page(tab: Tab) -> Page:
    """The grid as it is first seen."""
    tab.page.goto("about:blank")  # the same address again would be a reload, which keeps its place
    tab.open(BIG)
    expect(tab.page.locator(".grid-row").first).to_contain_text("big 89")
    return tab.page


def row(page: Page, name: str) -> Any:
    """The row of a run."""
    return page.locator(".grid-row", has=page.get_by_text(name, exact=True))


def test_scrolled_far_it_asks_for_what_is_seen_and_no_more(tab: Tab, page: Page) -> None:
    asked = Asked(page)
    tab.tell("(() => { const box = document.querySelector('.grid'); box.scrollTop = 1e6; box.scrollLeft = 1e6; })()")
    expect(row(page, "big 0").locator(".grid-cell").last).to_have_text("0.199")
    expect(page.locator(".grid-head .grid-cell bdi").last).to_have_text(f"m{METRICS - 1:03}")
    assert len(asked.cells) <= 2
    assert max(asked.cells) <= 40 * 14
    assert tab.tell(_SHOWN) <= 40 * 14
    assert page.locator(".grid").get_attribute("aria-rowcount") == str(RUNS + 1)
    assert page.locator(".grid").get_attribute("aria-colcount") == str(METRICS + 5)
    assert row(page, "big 0").get_attribute("aria-rowindex") == str(RUNS + 1)


def test_sorted_by_its_heads_and_back_again(tab: Tab, page: Page) -> None:
    head = page.get_by_role("columnheader", name="m000")
    head.click()
    expect(head).to_have_attribute("aria-sort", "descending")
    head.click()
    expect(page.locator(".grid-row[data-row='0']")).to_contain_text("big 0")
    assert "order=metrics.m000+ASC" in page.url
    page.go_back()
    expect(page.locator(".grid-row[data-row='0']")).to_contain_text("big 89")
    page.go_back()
    expect(head).to_have_attribute("aria-sort", "none")
    assert page.url.endswith(BIG)


def test_filtered_and_columns_chosen(tab: Tab, page: Page) -> None:
    page.get_by_label("Which runs").fill("metrics.m000 < 3")
    page.get_by_label("Columns", exact=True).click()
    page.get_by_label("Find a column").fill("M19")
    page.get_by_role("checkbox", name="m197").check()
    page.get_by_role("button", name="Show", exact=True).click()
    expect(page.locator(".grid-head bdi").last).to_have_text("m197")
    expect(page.locator(".grid-row")).to_have_count(3)
    expect(page.locator(".grid-head .grid-cell")).to_have_count(1)
    page.get_by_label("Which runs").fill("metrics.m000 <")
    page.get_by_label("Which runs").press("Enter")
    expect(page.locator("#wrong-where")).to_contain_text("a number")


def test_chosen_runs_are_compared_and_still_chosen_afterwards(tab: Tab, page: Page) -> None:
    compare = page.get_by_role("button", name="Compare")
    expect(compare).to_be_disabled()
    for name in ("big 88", "big 86"):
        row(page, name).get_by_role("checkbox").check()
    expect(compare).to_have_text("Compare (2)")
    compare.click()
    expect(page.get_by_role("heading", level=1)).to_have_text("2 runs compared")
    page.go_back()
    expect(row(page, "big 86")).to_have_attribute("aria-selected", "true")
    expect(compare).to_have_text("Compare (2)")


def test_keys_go_everywhere(tab: Tab, page: Page) -> None:
    page.locator("[data-column='-1'][tabindex='0']").focus()
    for key in ("ArrowDown", "ArrowRight", "ArrowRight"):
        page.keyboard.press(key)
    assert tab.tell(_AT) == [0, 1]
    page.keyboard.press("Control+End")
    page.wait_for_function(f"() => document.activeElement.textContent === '{(METRICS - 1) / 1000}'")
    assert tab.tell(_AT) == [RUNS - 1, METRICS + 3]
    page.keyboard.press("Home")
    page.keyboard.press(" ")
    expect(row(page, "big 0")).to_have_attribute("aria-selected", "true")
    page.keyboard.press("Control+Home")
    assert tab.tell(_AT) == [-1, -1]
    page.keyboard.press("Enter")
    expect(page.locator(".grid-head .grid-name")).to_have_attribute("aria-sort", "ascending")


@pytest.mark.slow
def test_it_follows_what_is_logged(platform: Ground, tab: Tab, page: Page) -> None:
    box = page.locator(".grid")
    expect(box).to_have_attribute("aria-rowcount", str(RUNS + 1))
    track = platform.as_("amal").track
    made = track.start("experiment:fraud/big", "just now", {}, {}, 5000.0).ref
    expect(page.locator(".grid-row[data-row='0']")).to_contain_text("just now", timeout=15_000)
    track.delete(made)
    expect(page.locator(".grid-row[data-row='0']")).to_contain_text("big 89", timeout=15_000)


@pytest.mark.slow
def test_right_to_left_and_without_scripts(platform: Ground, chromium: Chromium) -> None:
    tab = platform.tab(chromium, "amal", "ar", "dark")
    tab.open(BIG)
    expect(tab.page.locator(".grid-row").first).to_contain_text("big 89")
    tab.tell("(() => { document.querySelector('.grid').scrollLeft = -1e6; })()")
    expect(tab.page.locator(".grid-head .grid-cell bdi").last).to_have_text(f"m{METRICS - 1:03}")
    tab.page.locator("[data-column='-1'][tabindex='0']").focus()
    tab.page.keyboard.press("ArrowLeft")
    assert tab.tell(_AT) == [-1, 0]
    assert tab.wrong() == []
    plain = platform.tab(chromium, "amal", scripts=False)
    plain.open(BIG)
    for name in ("big 89", "big 87"):
        plain.page.get_by_role("checkbox", name=f"Select {name}").check()
    plain.page.get_by_role("button", name="Compare").click()
    expect(plain.page.get_by_role("heading", level=1)).to_have_text("2 runs compared")
