"""Where the pages of the console's bench are, what must be seen on them, and how the table of runs is scrolled."""

import json
import statistics
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any
from urllib.parse import quote

from console_seed import BULK, CURVE, RUNS
from playwright.sync_api import Error, Page, Response

COMPARED = [f"{n + 4096:032x}" for n in range(5)]
FILTER = "metrics.loss < 0.01"
NEWEST = f"bulk-{RUNS - 1:05}"
MATCHES = next(f"bulk-{n:05}" for n in range(RUNS - 1, -1, -1) if n * 7919 % 10_007 / 10_007 < 0.01)
HOME_SHOWS = "main h2"
LIST, CURVES = f"track/{BULK}", f"track/run:fraud/{CURVE}?tab=curves&metric=curve"
COMPARISON = f"track/compare?runs={'~'.join(['fraud', *COMPARED])}"
LARGE: dict[str, tuple[str, ...]] = {
    "track": (
        LIST, f"{LIST}?where={quote(FILTER)}", f"{LIST}?order={quote('metrics.m100 DESC')}", f"{LIST}?tab=shape",
        f"track/grid?experiment={BULK}&first=5000&rows=40&left=100&width=20", COMPARISON, CURVES,
        f"track/run:fraud/{CURVE}",
    ),
    "catalog": ("catalog/dataset:fraud/d0500@v1",),
    "serve": ("serve/endpoint:fraud/e050",),
}  # fmt: skip
"""Pages of what there is much of, by room, beside those that are walked to in tests."""
OURS = {
    "list": (LIST, f"main >> text={NEWEST}"),
    "filter": (f"{LIST}?where={quote(FILTER)}", f"main >> text={MATCHES}"),
    "compare": (COMPARISON, "main >> text=bulk-00000", "main svg"),
    "curve": (CURVES, "main svg path"),
}
THEIRS = {
    "list": (f"text={NEWEST}",),
    "filter": (f"text={MATCHES}",),
    "compare": ("text=bulk-00000", ".parcoords"),
    "curve": (".js-plotly-plot .scatterlayer path.js-line, .js-plotly-plot .gl-canvas",),
}
SCROLLS = 40
# A screenful: the cells that the window of the browser has room for.
_ROOM = """(() => {
  const box = document.querySelector("#grid [role=gridcell]").getBoundingClientRect();
  return Math.ceil(innerHeight / box.height) * Math.ceil(innerWidth / box.width);
})()"""
_FILLED = """() => {
  const box = document.querySelector("#grid [role=grid]").getBoundingClientRect();
  const rows = [...document.querySelectorAll("#grid [role=row][data-row]")].filter((one) => {
    const at = one.getBoundingClientRect();
    return Number(one.dataset.row) >= 0 && at.bottom > box.top && at.top < box.bottom;
  });
  return rows.length > 5 && rows.every((one) => !one.classList.contains("waits"));
}"""
# How long the thread that answers a person was held up at worst, between two frames.
_FRAMES = """(() => {
  globalThis.falajFrames = [];
  let last = performance.now();
  const tick = (now) => { globalThis.falajFrames.push(now - last); last = now; requestAnimationFrame(tick); };
  requestAnimationFrame(tick);
})()"""


def scrolled(page: Page, url: str, bar: Callable[..., None]) -> None:
    """Down and across the table, as fast as a wheel turns."""
    fetched: list[int] = []
    page.on("response", lambda answer: _count(answer, fetched))
    page.goto(f"{url}/console/{LIST}", timeout=180_000)
    page.wait_for_selector("#grid [role=gridcell]", timeout=60_000)
    room = page.evaluate(_ROOM)
    page.evaluate(_FRAMES)
    page.hover("#grid [role=gridcell]")
    waits = []
    for number in range(SCROLLS):
        began = time.perf_counter()
        page.mouse.wheel(900 if number % 4 == 3 else 0, 3000)
        page.wait_for_function(_FILLED)
        waits.append(time.perf_counter() - began)
    frames: list[float] = page.evaluate("globalThis.falajFrames")
    print(f"  room for {room} cells; {len(fetched)} requests of {statistics.median(fetched or [0]):.0f} cells each")
    print(f"  after a turn of the wheel, rows are there in {statistics.median(waits) * 1000:.0f} ms (median)")
    bar("table_screenfuls_a_request", max(fetched, default=0) / max(1, room), "<=", 1.0)
    bar("table_filled_p95_ms", statistics.quantiles(waits, n=20)[18] * 1000, "<=", 300)
    bar("table_slow_frames_share", sum(one > 100 for one in frames) / max(1, len(frames)), "<=", 0.02)


def _count(answer: Response, fetched: list[int]) -> None:
    if "/console/track/grid" in answer.url and answer.status == 200:
        with suppress(Error):  # whoever scrolls on wants no answer any more
            found: dict[str, Any] = json.loads(answer.body())
            fetched.append(len(found["cells"]) * len(found["heads"]))
