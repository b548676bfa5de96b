"""The console: how soon its first page is there, what every page costs, a table of 10,000 runs, and beside MLflow's.

    make bench NAME=console               everything; the platform is made first, which takes some minutes, once
    python bench/console.py pages         one part: first, pages, table, tabs, list, filter, compare, curve

Real Chromium, headless, over the real server in a process of its own. Ours and `mlflow server` hold the same 10,000
runs of 200 metrics and the same curve of a million points; both are loaded by their addresses, with their files in the
browser's cache, taking turns; times are from the navigation until what the page is about can be seen, medians of
rounds. A table for people, then one last line of JSON with every bar. RUNS, EVENTS, ROUNDS make it smaller.
"""

import contextlib
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

import console_pages as where  # noqa: E402
import httpx  # noqa: E402
from bars import bar, told  # noqa: E402
from console_mlflow import addresses, mlflow_server  # noqa: E402
from console_seed import seeded  # noqa: E402
from playwright.sync_api import BrowserContext, Page  # noqa: E402

from falaj.console.pages import SECTIONS  # noqa: E402
from tests.console.walk import WHO, examples  # noqa: E402
from tests.replica import Replica  # noqa: E402
from tests.servers.browser import Chromium  # noqa: E402
from tests.servers.process import free_ports  # noqa: E402

ROUNDS = int(os.environ.get("ROUNDS", "5"))
TABS, MOST_TAB_MB, MOST_PAGE_MS, MOST_FIRST_S = 20, 10.0, 300.0, 1.5
PATIENCE_MS = 180_000.0
# Users' Pythons keep compiled modules; ours must too, or every start measures the compiler.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)


class Up:
    """`falaj up` on the large platform, and who may sign in."""

    def __init__(self) -> None:
        home = seeded()
        self.tokens: dict[str, str] = json.loads((home / "tokens.json").read_text())
        self.port = next(free_ports())
        env = {"FALAJ_ZONE": "ae-dubai", "FALAJ_GATEWAY": "127.0.0.1:0", "FALAJ_GATEWAY_GRPC": "127.0.0.1:0"}
        env |= {"FALAJ_LIMITS_REQUESTS_PER_S": "1e6", "FALAJ_LIMITS_BURST": "1000000"}
        self.server = Replica(home / "house", env, first=False, listen=f"127.0.0.1:{self.port}")
        self.ready_at = time.perf_counter()
        self.url = f"http://127.0.0.1:{self.port}"

    def cookies(self, person: str) -> dict[str, str]:
        """Of somebody who is signed in."""
        return {f"falaj-{self.port}": self.tokens[person], "falaj-look": quote("en|light||fraud", safe="")}

    @property
    def rss_mb(self) -> float:
        """What the server holds."""
        status = Path(f"/proc/{self.server.process.pid}/status").read_text()
        return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS")) / 1024

    def __enter__(self) -> "Up":
        return self

    def __exit__(self, *exc: object) -> None:
        self.server.__exit__(*exc)


@contextlib.contextmanager
def browser() -> Iterator[Chromium]:
    """A browser that has been used before: its first page of all would measure how Chromium starts."""
    with Chromium() as made:
        page = made.browser.new_page()
        page.goto("data:text/html,<p>warm</p>")
        page.close()
        yield made


def first() -> None:
    """From `falaj up` saying that it is ready to a home page that can be read."""
    took = []
    with browser() as chromium:
        for _ in range(min(3, ROUNDS)):
            with Up() as up:
                page = chromium.context(up.url, up.cookies("amal")).new_page()
                began = time.perf_counter()
                page.goto(f"{up.url}/console", wait_until="commit", timeout=PATIENCE_MS)
                page.wait_for_selector(where.HOME_SHOWS, timeout=PATIENCE_MS)
                seen = time.perf_counter()
                paint = page.evaluate("performance.getEntriesByName('first-contentful-paint')[0]?.startTime ?? 0")
                took.append(max(seen - up.ready_at, began - up.ready_at + paint / 1000))
                print(f"  painted {paint:.0f} ms after the navigation, main content {took[-1]:.2f} s after ready")
                page.context.close()
    bar("first_page_s", statistics.median(took), "<=", MOST_FIRST_S)


def pages() -> None:
    """What the server takes for every page; each eleven times, the first one not counted."""
    found: dict[str, float] = {}
    firsts: dict[str, float] = {}
    with Up() as up:
        for room in SECTIONS:
            person = WHO.get(room, "amal")
            with httpx.Client(base_url=up.url, cookies=up.cookies(person), timeout=180, trust_env=False) as line:
                for path in [path for _, path in examples(room)] + list(where.LARGE.get(room, ())):
                    firsts[path], found[path or "home"] = _late(line, f"/console/{path}".rstrip("/"))
    slow = sorted(found.items(), key=lambda one: -one[1])
    for path, late in slow[:12]:
        print(f"  {late:8.1f} ms  {path}")
    first, took = max(firsts.items(), key=lambda one: one[1])
    print(f"  the slowest first look after the start: {took:.0f} ms  {first}")
    print(f"  {len(found)} pages; half of them within {statistics.median(found.values()):.0f} ms")
    bar("slowest_page_p95_ms", slow[0][1], "<=", MOST_PAGE_MS, slow[0][0][:60])
    bar("pages_over_300_ms", sum(late > MOST_PAGE_MS for late in found.values()), "<=", 0)


def _late(line: httpx.Client, path: str) -> tuple[float, float]:
    """The first look, and the 95th percentile of ten more, in milliseconds."""
    took = []
    for _ in range(11):
        began = time.perf_counter()
        answer = line.get(path)
        if answer.status_code != 200:
            raise SystemExit(f"{path} answers {answer.status_code}")
        took.append((time.perf_counter() - began) * 1000)
    return took[0], statistics.quantiles(took[1:], n=20, method="inclusive")[18]


def tabs() -> None:
    """What an open page with live changes costs the server."""
    with Up() as up, browser() as chromium:
        context = chromium.context(up.url, up.cookies("amal"))
        _open(context, up)  # what the first page loads is loaded once
        before = up.rss_mb
        # A browser holds six connections to one place: more people are more browsers.
        for _ in range(TABS):
            _open(chromium.context(up.url, up.cookies("amal")), up)
        after = up.rss_mb
    print(f"  {before:.0f} MB with one page, {after:.0f} MB with {TABS} more")
    bar("server_mb_per_tab", (after - before) / TABS, "<=", MOST_TAB_MB)


def _open(context: BrowserContext, up: Up) -> Page:
    page = context.new_page()
    page.goto(f"{up.url}/console", timeout=PATIENCE_MS)
    page.wait_for_selector(where.HOME_SHOWS, timeout=PATIENCE_MS)
    return page


def table() -> None:
    """A table of 10,000 runs and 200 metrics, scrolled to its end: what is fetched, and how soon it is there."""
    with Up() as up, browser() as chromium:
        page = chromium.context(up.url, up.cookies("amal")).new_page()
        where.scrolled(page, up.url, bar)


def side_by_side(name: str) -> Callable[[], None]:
    """One page, ours and theirs in turn."""

    def part() -> None:
        ours, theirs = [], []
        with Up() as up, mlflow_server() as (url, experiment), browser() as chromium:
            own = chromium.context(up.url, up.cookies("amal")).new_page()
            other = chromium.context(url).new_page()
            at = addresses(url, experiment, where.COMPARED, where.FILTER)[name]
            for _ in range(ROUNDS + 1):  # the first fills caches, on both sides
                ours.append(_seen(own, f"{up.url}/console/{where.OURS[name][0]}", where.OURS[name][1:]))
                theirs.append(_seen(other, at, where.THEIRS[name]))
        us, them = (statistics.median(side[1:]) for side in (ours, theirs))
        print(
            f"  ours {us * 1000:.0f} ms, mlflow {them * 1000:.0f} ms (first time {ours[0]:.2f} s and {theirs[0]:.2f} s)"
        )
        bar(f"{name}_vs_mlflow", us / them, "<=", 1.0)

    part.__name__ = name
    return part


def _seen(page: Page, address: str, shows: Any) -> float:
    """Seconds until all that the page is about can be seen."""
    page.goto("about:blank")
    began = time.perf_counter()
    page.goto(address, wait_until="commit", timeout=PATIENCE_MS)
    for selector in shows:
        page.wait_for_selector(selector, timeout=PATIENCE_MS)
    return time.perf_counter() - began


if __name__ == "__main__":
    told(
        "console", (first, pages, table, tabs, *(side_by_side(name) for name in ("list", "filter", "compare", "curve")))
    )
