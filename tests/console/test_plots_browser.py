"""Plots in a real browser: reading off, zooming, brushing, walking, by pointer and by keys."""

import re
from collections.abc import Iterator

import pytest
from playwright.sync_api import expect

from tests.console.plots_gallery import gallery
from tests.servers.browser import Chromium, Tab


@pytest.fixture(scope="module")
def tab(chromium: Chromium) -> Iterator[Tab]:
    with gallery() as origin:
        context = chromium.context(origin)
        yield Tab(context, origin)
        context.close()


@pytest.fixture(autouse=True)
def _calm(tab: Tab) -> Iterator[None]:
    tab.forget()
    yield
    assert tab.wrong() == []


def _drag(tab: Tab, selector: str, start: tuple[float, float], end: tuple[float, float]) -> None:
    """From one share of a box to another."""
    box = tab.page.locator(selector).bounding_box()
    assert box is not None
    mouse = tab.page.mouse
    mouse.move(box["x"] + start[0] * box["width"], box["y"] + start[1] * box["height"])
    mouse.down()
    mouse.move(box["x"] + end[0] * box["width"], box["y"] + end[1] * box["height"], steps=4)
    mouse.up()


def _ticks(tab: Tab) -> list[str]:
    return tab.page.locator(".ticks text").all_text_contents()


def test_curves_are_read_off_by_pointer_and_keys(tab: Tab) -> None:
    tab.open("/?only=curves")
    tab.page.mouse.move(*_middle(tab, ".area"))
    out = tab.page.locator(".plot-out")
    assert out.locator(".of").count() == 4
    assert out.get_attribute("aria-live") == "off"
    tab.page.locator(".area").focus()
    tab.page.keyboard.press("Home")
    assert out.locator(".where").inner_text() == "0"
    tab.page.keyboard.press("ArrowRight")
    assert out.locator(".where").inner_text() == "20"
    assert out.get_attribute("aria-live") == "polite"
    tab.page.locator(".plot-legend button").nth(1).click()
    tab.page.locator(".area").press("End")
    assert out.locator(".of").count() == 3
    assert tab.page.locator(".plane .s1").is_hidden()


def test_curves_zoom_and_come_back(tab: Tab) -> None:
    tab.open("/?only=curves")
    before = _ticks(tab)
    _drag(tab, ".area", (0.25, 0.5), (0.5, 0.6))
    near = _ticks(tab)
    assert near != before
    assert near == ["3,000", "3,500", "4,000", "4,500", "5,000", "5,500"]
    # A page that renews itself keeps what its reader chose.
    tab.page.locator(".plot-legend button").nth(0).click()
    tab.tell("import('/live.js').then((live) => live.refresh())")
    assert _ticks(tab) == near
    assert tab.page.locator(".plane .s0").is_hidden()
    tab.page.locator(".area").press("Escape")
    assert _ticks(tab) == before
    tab.page.locator(".area").press("+")
    assert _ticks(tab) != before
    tab.page.locator(".area").dblclick()
    assert _ticks(tab) == before


def test_a_zoom_can_ask_the_server_for_more(tab: Tab) -> None:
    tab.open("/?only=curves&refetch=yes")
    _drag(tab, ".area", (0.25, 0.5), (0.5, 0.6))
    tab.page.wait_for_url("**from=*")
    expect(tab.page.locator("#from")).to_have_text(re.compile(r"(29|30)\d\d"))
    tab.page.go_back()
    expect(tab.page.locator("#from")).to_have_text("")


def test_axes_take_brushes(tab: Tab) -> None:
    tab.open("/?only=parallel")
    tab.tell("document.addEventListener('falaj:brushed', (event) => { globalThis.told = event.detail.ids; })")
    pole = ".upright[data-axis='4'] line"
    box = tab.page.locator(pole).bounding_box()
    assert box is not None
    _drag(tab, pole, (0.5, 0.02), (0.5, 0.4))
    some = tab.page.locator(".run:not(.faded)").count()
    assert 0 < some < 120
    ids = tab.page.locator("input[name=brushed]").input_value().split()
    assert len(ids) == some
    assert tab.tell("globalThis.told") == ids
    assert tab.page.locator(".plot-out").inner_text() == f"{some} of 120 chosen"
    tab.tell("import('/live.js').then((live) => live.refresh())")
    assert tab.page.locator(".run:not(.faded)").count() == some
    tab.page.locator(".upright").nth(4).press("Escape")
    assert tab.page.locator(".run.faded").count() == 0
    tab.page.locator(".upright").nth(3).press("ArrowUp")
    assert 0 < tab.page.locator(".run.faded").count() < 120


def test_graphs_light_up_ways_and_grow(tab: Tab) -> None:
    tab.open("/?only=graph")
    tab.page.locator(".node", has_text="labels").hover()
    lit = tab.page.locator(".node.lit .name").all_text_contents()
    assert {"raw", "clean", "labels", "train", "scorer"} <= set(lit)
    assert "features" not in lit
    drawing = tab.page.locator(".drawing")
    before = float(drawing.get_attribute("width") or 0)
    tab.page.locator("[data-zoom=in]").click()
    assert float(drawing.get_attribute("width") or 0) > before
    tab.page.locator("[data-zoom=all]").click()
    room = tab.page.locator(".plot-scroll").bounding_box()
    assert room is not None
    assert float(drawing.get_attribute("width") or 0) <= room["width"]


def test_maps_are_walked(tab: Tab) -> None:
    tab.open("/?only=world")
    view = lambda: [float(n) for n in (tab.page.locator(".earth").get_attribute("viewBox") or "").split()]  # noqa: E731
    home = view()
    tab.page.locator("[data-zoom=in]").click()
    near = view()
    assert near[2] < home[2]
    _drag(tab, ".drawing", (0.2, 0.9), (0.1, 0.8))
    assert view()[0] > near[0]
    tab.page.locator("[data-zoom=all]").click()
    assert view()[2] == 350
    tab.page.locator("[data-zoom=all]").click()
    assert view() == pytest.approx(home)
    before = tab.page.locator(".earth").get_attribute("viewBox") or ""
    tab.page.keyboard.down("Control")
    tab.page.mouse.move(*_middle(tab, ".drawing"))
    tab.page.mouse.wheel(0, -100)
    tab.page.keyboard.up("Control")
    expect(tab.page.locator(".earth")).not_to_have_attribute("viewBox", before)
    assert view()[2] < home[2]


def test_everything_is_accessible_in_both_languages(tab: Tab) -> None:
    for look in ("lang=en&theme=light", "lang=ar&theme=dark&digits=indic"):
        tab.open(f"/?{look}")
        assert tab.axe() == []


def _middle(tab: Tab, selector: str) -> tuple[float, float]:
    box = tab.page.locator(selector).bounding_box()
    assert box is not None
    return box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
